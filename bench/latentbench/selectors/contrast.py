"""Contrastive mean difference: latents that are more active on texts with a concept than on others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from latentbench.selectors._pooled import checked_labels
from latentbench.selectors._selector import LatentScores

__all__ = ["MeanDifference"]


@dataclass(frozen=True)
class MeanDifference:
    """Mean activation on texts with the label less that on texts without."""

    name: str = "mean_difference"
    """Name in results."""

    def scores(self, pooled: Tensor, labels: Tensor) -> LatentScores:
        """See `LabelledSelector.scores`."""
        chosen, values = checked_labels(pooled, labels), pooled.double()
        return LatentScores(
            torch.arange(pooled.shape[1], device=pooled.device),
            values[chosen].mean(dim=0) - values[~chosen].mean(dim=0),
        )
