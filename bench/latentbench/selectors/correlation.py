"""CorrSteer: latents whose activation on generated tokens goes with the outcome (arXiv 2508.12535)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from latentbench.errors import UserError
from latentbench.selectors._selector import LatentScores

__all__ = ["OutcomeCorrelation"]


@dataclass(frozen=True)
class OutcomeCorrelation:
    """Pearson correlation of pooled activation (the paper: the largest over generated tokens) and outcome."""

    name: str = "correlation"
    """Name in results."""

    def scores(self, pooled: Tensor, labels: Tensor) -> LatentScores:
        """See `LabelledSelector.scores`; labels may be any outcome. A latent that never changes scores 0.

        Raises:
            UserError: there is not an outcome for each text, or all are the same.
        """
        if labels.shape != pooled.shape[:1]:
            raise UserError(f"{len(labels)} outcomes for {len(pooled)} texts: each text needs one")
        outcome = labels.to(device=pooled.device, dtype=torch.float64)
        outcome = outcome - outcome.mean()
        if not bool(outcome.any()):
            raise UserError(f"all {len(outcome)} texts have the same outcome: nothing can go with it")
        values = pooled.double() - pooled.double().mean(dim=0)
        scale = values.norm(dim=0) * outcome.norm()
        found = torch.where(
            scale > 0, (outcome @ values) / scale.clamp(min=torch.finfo(scale.dtype).tiny), 0.0
        )
        return LatentScores(torch.arange(pooled.shape[1], device=pooled.device), found)

    @staticmethod
    def coefficients(pooled: Tensor, labels: Tensor) -> Tensor:
        """`Float64[Tensor, "latent"]`: mean activation over texts with a good outcome, by which latents are steered."""
        return pooled.double()[labels.to(device=pooled.device, dtype=torch.bool)].mean(dim=0)
