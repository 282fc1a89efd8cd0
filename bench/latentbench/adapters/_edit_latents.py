"""Codes changed in the running model: latents set to zero or to a value, row by row, in prompt and answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from latentbench.adapters._codes import Codes
from latentbench.adapters._dictionary import Dictionary
from latentbench.adapters._routesae import RouteSae
from latentbench.errors import AdapterError
from latentbench.lm import BOTH_PHASES, Edit, EditView, Phase, Site

__all__ = [
    "ChangedTokens",
    "EditLatents",
    "LatentChange",
    "changed_codes",
    "clean_route",
    "latent_edits",
    "observed_sites",
    "passing_codes",
]


ChangedTokens = Literal["all", "last", "prompt_last"]
"""All tokens; the prompt's last token and every generated one; the prompt's last token alone."""


class LatentChange(NamedTuple):
    """What happens to the codes of one row."""

    zero: Tensor
    """`Int64[Tensor, "n"]`: latents that are set to zero."""
    put: Tensor
    """`Int64[Tensor, "m"]`: latents that are set to a value, whether active or not; wins over `zero`."""
    values: Tensor
    """`Float[Tensor, "m"]`: those values, in the dictionary's units."""

    @classmethod
    def none(cls) -> LatentChange:
        """No change: the plain splice."""
        return cls.zeroed(torch.zeros(0, dtype=torch.int64))

    @classmethod
    def zeroed(cls, latents: Tensor) -> LatentChange:
        """Only zeros."""
        return cls(latents, torch.zeros(0, dtype=torch.int64), torch.zeros(0))


def changed_codes(codes: Codes, rows: Tensor, changes: Sequence[LatentChange], where: Tensor) -> Codes:
    """The codes after the changes of their rows.

    Args:
        codes: codes of some tokens.
        rows: `Int64[Tensor, "token"]`: the row of each, an index into `changes`.
        changes: one for each row.
        where: `Bool[Tensor, "token"]`: which tokens are changed.
    """
    device = codes.latents.device
    rows, where = rows.to(device), where.to(device)
    gone = [torch.cat([change.zero, change.put]) for change in changes]
    keys = torch.cat([latents.to(device) + row * codes.n_latents for row, latents in enumerate(gone)])
    token = codes.rows()
    hit = torch.isin(rows[token] * codes.n_latents + codes.latents, keys) & where[token]
    kept = codes.keep(~hit)
    counts = torch.tensor([len(change.put) for change in changes], device=device)
    if not bool(counts.any()):
        return kept
    new_token = torch.repeat_interleave(
        torch.arange(codes.n_tokens, device=device), torch.where(where, counts[rows], 0)
    )
    put = [
        (change.put.to(device), change.values.to(device=device, dtype=codes.values.dtype))
        for change in changes
    ]
    which = rows[where].tolist()
    latents = torch.cat([kept.latents, *(put[row][0] for row in which)])
    values = torch.cat([kept.values, *(put[row][1] for row in which)])
    owner = torch.cat([kept.rows(), new_token])
    order = torch.argsort(owner, stable=True)
    order = order[values[order] != 0]
    sizes = torch.bincount(owner[order], minlength=codes.n_tokens)
    offsets = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
    return replace(codes, latents=latents[order], values=values[order], offsets=offsets)


def clean_route(view: EditView, dictionary: RouteSae) -> tuple[Tensor, Tensor]:
    """Route and its probability for every token of the pass, from its shadow; computed once for all edits.

    Returns:
        `Int64[Tensor, "row pos"]` and `Float[Tensor, "row pos"]`.
    """
    name = f"route:{id(dictionary)}"
    if name not in view.memo:
        acts = {site: view.observed[site].flatten(0, 1) for site in dictionary.pools}
        route, probability = dictionary.route(dictionary.placed(acts))
        view.memo[name] = route.view(view.real.shape).to(view.real.device)
        view.memo[f"{name}:probability"] = probability.view(view.real.shape).to(view.real.device)
    return view.memo[name], view.memo[f"{name}:probability"]


def observed_sites(dictionary: Dictionary) -> tuple[Site, ...]:
    """What edits must see of the unedited model: nothing if the dictionary writes where it reads, else its reads."""
    if isinstance(dictionary, RouteSae):
        return dictionary.pools
    return () if dictionary.reads == dictionary.writes and len(dictionary.reads) == 1 else dictionary.reads


def passing_codes(
    dictionary: Dictionary, site: Site, current: Tensor, view: EditView, index: Tensor
) -> Codes:
    """Codes of some tokens of a running pass.

    A dictionary that writes where it reads encodes what arrives; RouteSAE encodes that under the unedited model's
    route; crosscoders and transcoders take their codes from the unedited model.

    Args:
        dictionary: any; the pass observes its `observed_sites`.
        site: one that it writes; for RouteSAE the one that the tokens are routed to.
        current: `Float[Tensor, "n d"]`, their activations there.
        view: of the pass.
        index: `Int64[Tensor, "n"]`, their flat index (row * pos_count + pos).
    """
    if isinstance(dictionary, RouteSae):
        route, probability = (value.flatten()[index] for value in clean_route(view, dictionary))
        context = {
            "route": route.to(dictionary.device),
            "route_probability": probability.to(dictionary.device),
        }
        return dictionary.encode_at(site, current, context)
    observed = observed_sites(dictionary)
    if not observed:
        return dictionary.encode({site: current})
    return dictionary.encode({seen: view.observed[seen].flatten(0, 1)[index] for seen in observed})


@dataclass(frozen=True, eq=False)
class EditLatents(Edit):
    """Splice a dictionary in at one site with its codes changed; `passing_codes` says which codes those are."""

    site: Site
    dictionary: Dictionary
    """Whose codes are changed."""
    changes: tuple[LatentChange, ...]
    """One for each row."""
    tokens: ChangedTokens = "all"
    """Where codes are changed."""
    keep_error: bool = False
    """Add what the unchanged reconstruction leaves over, so that tokens without a change stay as they are."""
    phases: frozenset[Phase] = field(default=BOTH_PHASES)
    """Whether prompt tokens, generated tokens or both are spliced."""
    skip_first: int = 1
    """Leave out this many tokens at the start of every row."""

    @property
    def observes(self) -> tuple[Site, ...]:  # type: ignore[override]
        """See `observed_sites`."""
        return observed_sites(self.dictionary)

    def apply(self, hidden: Tensor, view: EditView) -> Tensor:
        """See `Edit.apply`."""
        if view.rows is None and len(self.changes) != len(hidden):
            raise AdapterError(f"{len(self.changes)} changes for {len(hidden)} rows: one for each row")
        spliced = view.selected(self.phases, self.skip_first, None)
        if isinstance(self.dictionary, RouteSae):
            spliced = spliced & (
                clean_route(view, self.dictionary)[0] == self.dictionary.reads.index(self.site)
            )
        changed = spliced & _chosen(view, self.tokens)
        index = (changed if self.keep_error else spliced).flatten().nonzero()[:, 0]
        if not len(index):
            return hidden
        flat = hidden.flatten(0, 1)
        codes = passing_codes(self.dictionary, self.site, flat[index], view, index)
        rows = index // hidden.shape[1]
        if view.rows is not None:
            rows = view.rows[rows]
        after = changed_codes(codes, rows, self.changes, changed.flatten()[index].to(codes.latents.device))
        written = self.dictionary.decode(after)[self.site].values.to(flat)
        if self.keep_error:
            written = flat[index] + written - self.dictionary.decode(codes)[self.site].values.to(flat)
        return flat.index_copy(0, index, written).view_as(hidden)


def _chosen(view: EditView, tokens: ChangedTokens) -> Tensor:
    """`Bool[Tensor, "row pos"]`: the columns that a setting means."""
    if tokens == "all":
        return torch.ones_like(view.generated)
    last = view.prompt_last()
    return last if tokens == "prompt_last" else last | view.generated


def latent_edits(
    dictionary: Dictionary,
    changes: Sequence[LatentChange],
    *,
    tokens: ChangedTokens = "all",
    keep_error: bool = False,
    phases: frozenset[Phase] = BOTH_PHASES,
    skip_first: int = 1,
) -> list[EditLatents]:
    """An edit for every site that a dictionary writes; see `EditLatents`.

    Raises:
        AdapterError: routing is soft, so that there is no site to write at.
    """
    if isinstance(dictionary, RouteSae):
        dictionary.needs_a_site()
    return [
        EditLatents(site, dictionary, tuple(changes), tokens, keep_error, phases, skip_first)
        for site in dictionary.writes
    ]
