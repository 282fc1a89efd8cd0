"""What is trained: a reader and a coder, and the loss that RouteSAE's code minimises."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from latentbench.errors import UserError
from latentbench.train._coders import Coder, GatedCoder, JumpReluCoder, ReluCoder, TopKCoder
from latentbench.train._penalty import PenaltyController
from latentbench.train._readers import OneSite, RandomSite, Reader, Routed, SideBySide, TurnByTurn
from latentbench.train._recipe import Recipe, Unit
from latentbench.train._view import BlockView

__all__ = ["Outcome", "Trainee", "one_site", "spaced_sites"]


class Outcome(NamedTuple):
    """What a trainee makes of a batch."""

    error: Tensor
    """`Float[Tensor, "token"]`: mean_d (xhat - x)^2 / mean_d x^2 on the standardised, routed and p-scaled x, the
    mean over sites for a crosscoder. The loss of RouteSAE's code (its equation 12 has the plain squared error)."""
    active: Tensor
    """`Int64[Tensor, "token"]`, active latents."""
    penalty: Tensor | None
    """What the penalty's weight multiplies; None for TopK."""


class Trainee(nn.Module):
    """A dictionary under training."""

    def __init__(self, unit: Unit, recipe: Recipe, d_model: int, n_sites: int) -> None:
        """Fresh weights; trainees of one seed and width start from the same encoder.

        Args:
            unit: kind, sparsity and seed.
            recipe: sizes.
            d_model: width of the activations.
            n_sites: routed sites.
        """
        super().__init__()
        generator = torch.Generator().manual_seed(unit.seed)
        self.unit = unit
        self.coder = _coder(unit, recipe, d_model, n_sites, generator)
        self.reader = _reader(unit, d_model, n_sites, generator)
        self.penalty = PenaltyController(unit.k, unit.spec.penalty, unit.spec.penalty_gain)

    @property
    def name(self) -> str:
        """Name of the unit."""
        return self.unit.name

    def forward(self, view: BlockView, batch: Tensor, turn: int = 0) -> Outcome:
        """Errors and sparsity on a batch of a block; see `Reader.forward`."""
        inputs = self.reader(view, batch, turn)
        done = self.coder(inputs)
        shape = (len(inputs), self.coder.parts, -1)
        wrong = (done.predicted - inputs).view(shape).square().mean(dim=2)
        return Outcome(
            (wrong / inputs.view(shape).square().mean(dim=2)).mean(dim=1), done.active, done.penalty
        )

    def loss(self, outcome: Outcome) -> Tensor:
        """Mean error plus the weighted penalty."""
        error = outcome.error.mean()
        return error if outcome.penalty is None else error + self.penalty.weight() * outcome.penalty


def spaced_sites(n_sites: int, wanted: int) -> tuple[int, ...]:
    """Evenly spaced indices of which the last one is `n_sites - 1`.

    Raises:
        UserError: more are wanted than there are.
    """
    if wanted > n_sites:
        raise UserError(f"n_sites = {wanted}, but this model has {n_sites} routed sites: ask for fewer")
    return tuple(n_sites - 1 - round(index * n_sites / wanted) for index in reversed(range(wanted)))


def one_site(site: int, n_sites: int) -> int:
    """The index of a single-layer dictionary's site, from 0.

    Raises:
        UserError: there is no such site.
    """
    if not -n_sites <= site < n_sites:
        raise UserError(
            f"site = {site}, but this model has {n_sites} routed sites: give one from 0 to {n_sites - 1}"
        )
    return site % n_sites


def _coder(unit: Unit, recipe: Recipe, d: int, n_sites: int, generator: torch.Generator) -> Coder:
    spec = unit.spec
    if spec.kind == "relu":
        return ReluCoder(d, recipe.latents, generator)
    if spec.kind == "gated":
        return GatedCoder(d, recipe.latents, generator)
    if spec.kind == "jumprelu":
        return JumpReluCoder(d, recipe.latents, generator, threshold=spec.threshold, bandwidth=spec.bandwidth)
    if spec.kind == "crosscoder":
        parts = len(spaced_sites(n_sites, spec.n_sites))
        return ReluCoder(d, recipe.latents, generator, parts=parts, pre_bias=False)
    return TopKCoder(d, recipe.latents, generator, k=unit.k)


def _reader(unit: Unit, d: int, n_sites: int, generator: torch.Generator) -> Reader:
    spec = unit.spec
    if spec.kind == "routesae":
        return Routed(n_sites, d, generator, spec.pooling, spec.routing)
    if spec.kind == "random":
        return RandomSite(n_sites, d, generator)
    if spec.kind == "mlsae":
        return TurnByTurn()
    if spec.kind == "crosscoder":
        return SideBySide(spaced_sites(n_sites, spec.n_sites))
    return OneSite(one_site(spec.site, n_sites))
