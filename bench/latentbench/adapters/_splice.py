"""Edits that put a dictionary into the model: the spliced pass, ablations and steering."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from latentbench.adapters._codes import Codes
from latentbench.adapters._dictionary import Dictionary
from latentbench.adapters._edit_latents import clean_route
from latentbench.adapters._routesae import RouteSae
from latentbench.adapters._units import unit_scale, unit_sites
from latentbench.errors import AdapterError
from latentbench.lm import BOTH_PHASES, Edit, EditView, MapActivation, Phase, Site

__all__ = ["SteerLatent", "splice_edits", "steering_edits", "steering_rows", "written_masks"]


def written_masks(dictionary: Dictionary, codes: Codes, measured: Tensor) -> dict[Site, Tensor]:
    """Which positions of a batch a dictionary writes at each site.

    Args:
        dictionary: any dictionary.
        codes: clean codes of the measured tokens.
        measured: `Bool[Tensor, "row pos"]`, the positions that `codes` stands for, in row-major order.

    Returns:
        `Bool[Tensor, "row pos"]` by site; sites that no token is written at are left out.

    Raises:
        AdapterError: the dictionary has no site to write at (soft routing).
    """
    if isinstance(dictionary, RouteSae):
        dictionary.needs_a_site()
    route = dictionary.routed(codes)
    if route is None:
        return dict.fromkeys(dictionary.writes, measured)
    masks: dict[Site, Tensor] = {}
    for index, site in enumerate(dictionary.reads):
        chosen = (route == index).to(measured.device)
        if bool(chosen.any()):
            mask = torch.zeros_like(measured)
            mask[measured] = chosen
            masks[site] = mask
    return masks


def splice_edits(dictionary: Dictionary, codes: Codes, measured: Tensor) -> list[Edit]:
    """Edits that replace activations by their reconstruction, at the measured positions only.

    Without routing the clean codes are decoded at every written site. A routed dictionary re-encodes what
    arrives at each site after the earlier edits, under the clean pass's route (as RouteSAE's own code does).

    Args:
        dictionary: any dictionary.
        codes: clean codes of the measured tokens.
        measured: `Bool[Tensor, "row pos"]`, the positions that `codes` stands for, in row-major order.
    """
    if dictionary.routed(codes) is None:
        return [
            MapActivation(site, _constant(written.values), where=measured, skip_first=0)
            for site, written in dictionary.decode(codes).items()
        ]
    order = torch.zeros(measured.shape, dtype=torch.int64, device=measured.device)
    order[measured] = torch.arange(codes.n_tokens, device=measured.device)
    flat = order.flatten().to(dictionary.device)
    return [
        MapActivation(site, _re_encoded(dictionary, codes, site, flat), where=mask, skip_first=0)
        for site, mask in written_masks(dictionary, codes, measured).items()
    ]


def _constant(values: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    def replace(acts: Tensor, index: Tensor) -> Tensor:
        return values.to(acts.device)

    return replace


def _re_encoded(
    dictionary: Dictionary, codes: Codes, site: Site, order: Tensor
) -> Callable[[Tensor, Tensor], Tensor]:
    def replace(acts: Tensor, index: Tensor) -> Tensor:
        tokens = order[index.to(order.device)]
        context = {name: value[tokens] for name, value in codes.context.items()}
        current = dictionary.encode_at(site, acts, context)
        return dictionary.decode(current)[site].values.to(acts.device)

    return replace


@dataclass(frozen=True, eq=False)
class SteerLatent(Edit):
    """Add a direction of the dictionary's space, scaled to raw units token by token, at one site.

    What is added is what `decode` changes by, the route's probability of a `corrected` RouteSAE included.

    With a router, only tokens routed to this site are changed; the route comes from a shadow pass of the
    unedited model, which must run ahead because a token's route depends on layers behind the first routed
    one.
    """

    site: Site
    dictionary: Dictionary
    """Supplies the scale of one unit at each token, and the router if it has one."""
    vectors: Tensor
    """`Float[Tensor, "row d"]` in the dictionary's space."""
    phases: frozenset[Phase] = field(default=BOTH_PHASES)
    """Whether prompt tokens, generated tokens or both are changed."""
    skip_first: int = 1
    """Leave out this many tokens at the start of every row."""

    @property
    def observes(self) -> tuple[Site, ...]:  # type: ignore[override]
        """See `unit_sites`."""
        return unit_sites(self.dictionary, self.site)

    def apply(self, hidden: Tensor, view: EditView) -> Tensor:
        """See `Edit.apply`."""
        chosen = view.selected(self.phases, self.skip_first, None)
        if isinstance(self.dictionary, RouteSae):
            chosen = chosen & (
                clean_route(view, self.dictionary)[0] == self.dictionary.reads.index(self.site)
            )
        scale = unit_scale(self.dictionary, self.site, hidden, view).to(hidden.dtype)
        vectors = view.take(self.vectors.to(device=hidden.device, dtype=hidden.dtype))
        change = scale * vectors[:, None, :]
        return hidden + change * chosen[..., None].to(hidden.dtype)


def steering_edits(
    dictionary: Dictionary, directions: Tensor, phases: frozenset[Phase] = BOTH_PHASES, skip_first: int = 1
) -> list[Edit]:
    """Edits that add one direction per row at every site the dictionary writes.

    Args:
        dictionary: single-site dictionaries steer at their site, RouteSAE at each token's routed site, crosscoders
            at all their sites.
        directions: `Float[Tensor, "row d"]` in the dictionary's space: amounts times rows of `steering_rows`.
        phases: prompt tokens, generated tokens or both.
        skip_first: tokens left out at the start of every row.
    """
    writes = dictionary.writes
    if isinstance(dictionary, RouteSae):
        dictionary.needs_a_site()
    width = dictionary.write_vectors([0])[writes[0]].shape[-1]
    if directions.shape[1] not in (width, width * len(writes)):
        raise AdapterError(
            f"directions have width {directions.shape[1]}, but {dictionary.card.name!r} writes {len(writes)} sites "
            f"of width {width}: give rows of `steering_rows`"
        )
    shared = directions.shape[1] == width
    by_site = [directions] * len(writes) if shared else directions.split(width, dim=1)
    return [
        SteerLatent(site, dictionary, vectors, phases, skip_first)
        for site, vectors in zip(writes, by_site, strict=True)
    ]


def steering_rows(dictionary: Dictionary, latents: Sequence[int]) -> Tensor:
    """What one unit of each latent writes, as one row: `Float[Tensor, "latent d"]` in the dictionary's space.

    Where the sites have directions of their own (crosscoders) they stand side by side, site after site.
    """
    written = list(dictionary.write_vectors(latents).values())
    if all(vectors is written[0] for vectors in written):
        return written[0]
    return torch.cat(written, dim=1)
