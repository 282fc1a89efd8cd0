"""Steering target atoms (STA): latents that are both stronger and more frequent on wanted texts.

Source: Wang et al., GitHub zjunlp/EasyEdit, vector generator "sta": a latent is kept if the differences of mean
activation and of frequency have one sign, and each is among the largest, of all latents and of those that agree; its
score is the difference of means.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from latentbench.selectors._pooled import checked_labels
from latentbench.selectors._selector import LatentScores

__all__ = ["TargetAtoms"]


@dataclass(frozen=True)
class TargetAtoms:
    """Difference of mean activation where strength and frequency agree, else 0."""

    trim: float = 0.65
    """Share of the latents, by size of each difference, that is left out; the default is EasyEdit's."""
    name: str = "target_atoms"
    """Name in results."""

    def scores(self, pooled: Tensor, labels: Tensor) -> LatentScores:
        """See `LabelledSelector.scores`."""
        chosen, values = checked_labels(pooled, labels), pooled.double()
        strength = values[chosen].mean(dim=0) - values[~chosen].mean(dim=0)
        active = (values != 0).double()
        frequency = active[chosen].mean(dim=0) - active[~chosen].mean(dim=0)
        agreed = torch.where(strength.sign() == frequency.sign(), frequency, 0.0)
        kept = self._large(strength) & self._large(agreed) & (agreed != 0)
        return LatentScores(
            torch.arange(pooled.shape[1], device=pooled.device), torch.where(kept, strength, 0.0)
        )

    def _large(self, values: Tensor) -> Tensor:
        """`Bool[Tensor, "latent"]`: those at least as large as the one at the share's end."""
        ordered = values.abs().sort(descending=True).values
        return values.abs() >= ordered[min(int((1 - self.trim) * len(values)), len(values) - 1)]
