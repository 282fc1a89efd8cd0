"""AUROC on labels: latents that tell texts with a concept from others (SAE-A of AxBench, arXiv 2501.17148)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor

from latentbench.selectors._pooled import checked_labels
from latentbench.selectors._selector import LatentScores

__all__ = ["Auroc"]


@dataclass(frozen=True)
class Auroc:
    """Probability that a text with the label has a higher activation than one without; ties count half."""

    name: str = "auroc"
    """Name in results."""

    def scores(self, pooled: Tensor, labels: Tensor) -> LatentScores:
        """See `LabelledSelector.scores`."""
        chosen = checked_labels(pooled, labels).cpu().numpy()
        ranks = rankdata(pooled.double().cpu().numpy(), axis=0)
        n, m = int(chosen.sum()), int((~chosen).sum())
        found = (ranks[chosen].sum(axis=0) - n * (n + 1) / 2) / (n * m)
        return LatentScores(
            torch.arange(pooled.shape[1], device=pooled.device),
            torch.from_numpy(np.asarray(found, dtype=np.float64)).to(pooled.device),
        )
