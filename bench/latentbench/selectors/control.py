"""Controls: active latents in a random order, and in that of another selector's activations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from latentbench.selectors._selector import LatentScores
from latentbench.selectors._spliced import Spliced
from latentbench.selectors.activation import MeanActivation

__all__ = ["RandomActive", "matched_by_activation"]


@dataclass(frozen=True)
class RandomActive:
    """Every active latent, in an order that a seed draws for each example."""

    seed: int = 0
    """Seed of the order."""
    keep_error: bool = False
    """Makes no difference here."""
    name: str = "random"
    """Name in results."""

    def scores(self, spliced: Spliced) -> list[LatentScores]:
        """See `Selector.scores`; scores are uniform on (0, 1], so that every latent counts as positive."""
        found = []
        for row, one in enumerate(MeanActivation().scores(spliced)):
            ids = spliced.tokens.ids[row][spliced.tokens.real[row]]
            # The order must be that of the example, whatever batch it is in.
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + int(ids.sum()) * 31 + len(ids))
            drawn = 1 - torch.rand(len(one.latents), generator=generator, dtype=torch.float64)
            found.append(one._replace(scores=drawn.to(one.scores.device)))
        return found


def matched_by_activation(chosen: Tensor, activations: LatentScores, generator: torch.Generator) -> Tensor:
    """For each chosen latent another active one whose mean activation is as near as can be; none is taken twice.

    Args:
        chosen: `Int64[Tensor, "k"]`, active latents.
        activations: mean activation of every active latent.
        generator: decides in which order partners are taken.

    Returns:
        `Int64[Tensor, "n"]`: as many partners as there are latents left, at most k.
    """
    taken = torch.isin(activations.latents, chosen)
    level = dict(zip(activations.latents.tolist(), activations.scores.tolist(), strict=True))
    free = {latent: level[latent] for latent in activations.latents[~taken].tolist()}
    partners = []
    for place in torch.randperm(len(chosen), generator=generator).tolist():
        if not free:
            break
        wanted = level[int(chosen[place])]
        nearest = min(free, key=lambda latent: (abs(free[latent] - wanted), latent))
        partners.append(nearest)
        del free[nearest]
    return torch.tensor(partners, dtype=torch.int64)
