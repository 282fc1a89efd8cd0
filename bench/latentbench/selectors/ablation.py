"""Exact zero ablation: the influence that the others estimate (GradSAE's equation 2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from latentbench.selectors._selector import LatentScores
from latentbench.selectors._spliced import Spliced

__all__ = ["ExactAblation"]


@dataclass(frozen=True)
class ExactAblation:
    """m(z) - m(z with latent c at 0 on all tokens), one pass from the first written site on for each active latent."""

    batch: int = 32
    """Latents in one pass."""
    keep_error: bool = True
    """Whether the dictionary's error is added back."""
    name: str = "ablation"
    """Name in results."""

    def scores(self, spliced: Spliced) -> list[LatentScores]:
        """See `Selector.scores`."""
        return [self._one(spliced.alone(row)) for row in range(len(spliced.wanted))]

    def _one(self, spliced: Spliced) -> LatentScores:
        codes = spliced.codes
        latents = torch.unique(codes.latents)
        return LatentScores(latents, self.effects(spliced, latents))

    def effects(self, spliced: Spliced, latents: torch.Tensor) -> torch.Tensor:
        """`Float64[Tensor, "latent"]`: the effect of some latents of a single example.

        Args:
            spliced: one example, see `Spliced.alone`.
            latents: `Int64[Tensor, "latent"]`; one that is not active has no effect.
        """
        codes = spliced.codes
        whole = spliced.values()
        parts = [
            whole - spliced.copies([codes.keep(codes.latents != latent) for latent in piece])
            for piece in latents.split(self.batch)
            if len(piece)
        ]
        return torch.cat([whole.new_zeros(0), *parts])
