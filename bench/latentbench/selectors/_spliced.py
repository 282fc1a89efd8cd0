"""Examples run through a dictionary, so that its latents can be ranked: the pass, its gradient, its cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from latentbench.adapters import Codes, Dictionary, concat_codes
from latentbench.errors import UserError
from latentbench.lm import LM, MapActivation, Site, TokenBatch
from latentbench.selectors._example import Example, Target, margins, target_values, target_weights

__all__ = ["Cost", "Spliced", "splice"]


@dataclass
class Cost:
    """What a selector ran, in passes of one row through the whole model; a resumed pass counts by its blocks."""

    forwards: float = 0.0
    """Forward passes."""
    backwards: float = 0.0
    """Backward passes."""


@dataclass(eq=False)
class Spliced:
    """A batch of examples whose activations come out of a dictionary."""

    lm: LM
    """The model."""
    dictionary: Dictionary
    """The dictionary."""
    target: Target
    """What influence is measured on."""
    wanted: list[tuple[int, ...]]
    """Target tokens of each row."""
    tokens: TokenBatch
    """The rows."""
    measured: Tensor
    """`Bool[Tensor, "row pos"]`: the tokens that are encoded, in row-major order those of `codes`."""
    acts: dict[Site, Tensor]
    """`Float[Tensor, "row pos d"]`, the clean activations."""
    codes: Codes
    """Clean codes of the measured tokens; a router's choice is fixed by them."""
    errors: dict[Site, Tensor] | None
    """What the clean reconstruction leaves over, added to every reconstruction; None drops it."""
    cost: Cost = field(default_factory=Cost)
    """What was run so far, the clean pass included."""

    @property
    def rows(self) -> Tensor:
        """`Int64[Tensor, "token"]`: row of each measured token."""
        return self.measured.nonzero()[:, 0].to(self.codes.latents.device)

    def values(self, codes: Codes | None = None) -> Tensor:
        """`Float64[Tensor, "row"]`: the target under some codes (the clean ones) of the same tokens."""
        found = margins(self._logits(codes or self.codes, grad=False), self.wanted)
        return target_values(found, self.target.kind)

    def predicted(self) -> list[tuple[int, ...]]:
        """The most likely token of each row at each place of a target token, under the clean codes."""
        best = self._logits(self.codes, grad=False).argmax(dim=-1)
        return [
            tuple(row[best.shape[1] - len(wanted) :].tolist())
            for row, wanted in zip(best, self.wanted, strict=True)
        ]

    def gradient(self, codes: Codes | None = None) -> Tensor:
        """`Float64[Tensor, "nnz"]`: derivative of each row's target by the values of its codes.

        Nothing of the size of a token's latents is made: the gradient reaches stored values only.
        """
        codes = codes or self.codes
        leaf = codes.values.detach().clone().requires_grad_()
        found = margins(self._logits(codes.with_values(leaf), grad=True), self.wanted)
        weights = target_weights(found, self.target.kind)
        largest = torch.stack([weights[found.row == row].max() for row in range(found.n_rows)])
        largest = torch.where(largest > 0, largest, torch.ones_like(largest))
        each = found.logit if self.target.kind == "logit" else found.margin
        scaled = (weights / largest[found.row]).to(each.dtype)
        (gradient,) = torch.autograd.grad((scaled * each).sum(), leaf)
        self.cost.backwards += self._share() * len(self.wanted)
        row = self.rows[codes.rows()].to(largest.device)
        return gradient.double() * largest[row].to(gradient.device)

    def alone(self, row: int) -> Spliced:
        """One of the examples, without padding; its cost is counted here."""
        real = self.tokens.real[row]
        own = self.measured[row][real][None]
        tokens = (self.rows == row).nonzero()[:, 0]
        errors = None
        if self.errors is not None:
            whole = self.dictionary.decode(self.codes)
            errors = {
                site: error[self._of_row(whole[site].rows, row).to(error.device)]
                for site, error in self.errors.items()
            }
        return Spliced(
            lm=self.lm,
            dictionary=self.dictionary,
            target=self.target,
            wanted=[self.wanted[row]],
            tokens=TokenBatch(self.tokens.ids[row][real][None], torch.ones_like(own)),
            measured=own,
            acts={site: value[row][real][None] for site, value in self.acts.items()},
            codes=self.codes.select(tokens),
            errors=errors,
            cost=self.cost,
        )

    def copies(self, versions: Sequence[Codes]) -> Tensor:
        """`Float64[Tensor, "version"]`: the target of a single example under several versions of its codes.

        Raises:
            UserError: there is more than one example.
        """
        if len(self.wanted) != 1:
            raise UserError(
                f"copies are made of one example, and this is a batch of {len(self.wanted)}: see `alone`"
            )
        n = len(versions)
        errors = None if self.errors is None else {site: e.repeat(n, 1) for site, e in self.errors.items()}
        several = Spliced(
            lm=self.lm,
            dictionary=self.dictionary,
            target=self.target,
            wanted=self.wanted * n,
            tokens=TokenBatch(self.tokens.ids.repeat(n, 1), self.tokens.real.repeat(n, 1)),
            measured=self.measured.repeat(n, 1),
            acts={site: value.expand(n, -1, -1) for site, value in self.acts.items()},
            codes=concat_codes(list(versions)),
            errors=errors,
            cost=self.cost,
        )
        return several.values()

    def _of_row(self, places: Tensor | None, row: int) -> Tensor:
        """Which of the tokens written at a site (their places; None: all) belong to a row."""
        rows = self.rows
        return rows == row if places is None else rows[places.to(rows.device)] == row

    def _logits(self, codes: Codes, *, grad: bool) -> Tensor:
        edits = []
        with torch.set_grad_enabled(grad):
            written = self.dictionary.decode(codes)
        for site, part in written.items():
            if len(part.values) == 0:
                continue
            mask = self.measured
            if part.rows is not None:
                mask = torch.zeros_like(self.measured)
                flags = torch.zeros(codes.n_tokens, dtype=torch.bool, device=mask.device)
                flags[part.rows.to(mask.device)] = True
                mask[self.measured] = flags
            extra = None if self.errors is None else self.errors[site]
            edits.append(MapActivation(site, _put(part.values, extra), where=mask, skip_first=0))
        first = min(edit.site for edit in edits) if edits else None
        resume = (first, self.acts[first]) if first is not None and first.kind == "resid_post" else None
        self.cost.forwards += self._share() * len(self.wanted)
        longest = max(map(len, self.wanted))
        logits = self.lm.forward(
            self.tokens, edits=edits, resume=resume, last_logits=longest, grad=grad
        ).logits
        assert logits is not None
        return logits

    def _share(self) -> float:
        """Share of the model's blocks that a pass from the first written site runs."""
        first = min(self.dictionary.writes)
        return 1 - _depth(first) / self.lm.n_layers if first.kind == "resid_post" else 1.0


def _depth(site: Site) -> int:
    """Blocks that have run when a site is passed."""
    return 0 if site.layer is None else site.layer + 1


def _put(values: Tensor, error: Tensor | None) -> Callable[[Tensor, Tensor], Tensor]:
    def replace(acts: Tensor, _index: Tensor) -> Tensor:
        here = values.to(acts.device)
        return here if error is None else here + error.to(device=acts.device, dtype=here.dtype)

    return replace


def splice(
    lm: LM,
    dictionary: Dictionary,
    examples: Sequence[Example],
    target: Target,
    *,
    keep_error: bool,
    skip_first: int = 1,
) -> Spliced:
    """Run examples through the model once and encode them.

    Args:
        lm: the model.
        dictionary: any dictionary with sites to write at.
        examples: the examples, one row each.
        target: what influence is measured on.
        keep_error: add what the clean reconstruction leaves over, so that the unperturbed pass is the model's own.
        skip_first: tokens at the start of each row that are not encoded.

    Raises:
        UserError: there are no examples, or one is longer than the model's window.
    """
    if not examples:
        raise UserError("there are no examples to rank latents for")
    rows = [target.row(example) for example in examples]
    longest = max(map(len, rows))
    if lm.window is not None and longest > lm.window:
        raise UserError(
            f"an example has {longest} tokens, and {lm.name} takes {lm.window}: shorten its context"
        )
    tokens = lm.batch(rows, side="left")  # targets in the last columns: no other logits are needed
    measured = tokens.measured(skip_first)
    sites = sorted({*dictionary.reads, *dictionary.writes})
    acts = lm.forward(tokens, capture=sites, logits=False).acts
    codes = dictionary.encode({site: acts[site][measured] for site in dictionary.reads})
    errors = None
    if keep_error:
        errors = {}
        for site, part in dictionary.decode(codes).items():
            there = acts[site][measured]
            there = there if part.rows is None else there[part.rows.to(there.device)]
            errors[site] = there - part.values.to(there)
    made = Spliced(
        lm=lm,
        dictionary=dictionary,
        target=target,
        wanted=[target.wanted(example) for example in examples],
        tokens=tokens,
        measured=measured,
        acts=acts,
        codes=codes,
        errors=errors,
    )
    made.cost.forwards += len(rows) * _depth(sites[-1]) / lm.n_layers
    return made
