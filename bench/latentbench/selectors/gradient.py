"""Selectors from one backward pass or a few: GradSAE, attribution patching, integrated gradients.

With z the stored activations and m the target, all of them estimate m(z) - m(z with latent c at 0):

* GradSAE (arXiv 2505.08080, equation 3): the positive part of z dm/dz, mean over tokens. Its error term is dropped.
* Attribution patching (Marks et al., arXiv 2403.19647): sum over tokens of z dm/dz, signed, the error kept as a node of
  its own.
* Integrated gradients (same source): z times the mean of dm/dz on the way from z to 0, N left points.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from latentbench.selectors._selector import LatentScores, TokenSet, by_latent, chosen_entries
from latentbench.selectors._spliced import Spliced

__all__ = ["Attribution", "GradSae", "IntegratedGradients"]


@dataclass(frozen=True)
class GradSae:
    """Gradient times activation, positive part. Presets: see `preset`."""

    relu: Literal["before", "after", "none"] = "after"
    """Whether negative products are cut before the token mean (the official code), negative means after it (one reading
    of the paper), or nothing is."""
    tokens: TokenSet = "all"
    """Tokens of the mean."""
    keep_error: bool = False
    """Whether the dictionary's error is added back in the pass; neither paper nor code does."""
    name: str = "gradsae"
    """Name in results."""

    @classmethod
    def preset(cls, name: str) -> GradSae:
        """A reading of the method.

        Args:
            name: "paper" cuts means at 0 and drops the error; "code" cuts products before the mean; "corrected" is
                "paper" with the error added back, so that the gradient is taken at the model's own output.

        Raises:
            ValueError: there is no such preset.
        """
        presets = {
            "paper": cls(name="gradsae-paper"),
            "code": cls(relu="before", name="gradsae-code"),
            "corrected": cls(keep_error=True, name="gradsae-corrected"),
        }
        if name not in presets:
            raise ValueError(f"preset is {name!r}; known: {', '.join(presets)}")
        return presets[name]

    def scores(self, spliced: Spliced) -> list[LatentScores]:
        """See `Selector.scores`."""
        products = spliced.codes.values.double() * spliced.gradient()
        if self.relu == "before":
            products = products.clamp(min=0)
        entries = chosen_entries(spliced, self.tokens)
        found = by_latent(spliced, entries, products, mean=True, tokens=self.tokens)
        if self.relu != "after":
            return found
        return [one._replace(scores=one.scores.clamp(min=0)) for one in found]


@dataclass(frozen=True)
class Attribution:
    """Sum over tokens of gradient times activation, signed."""

    keep_error: bool = True
    """Whether the dictionary's error is added back."""
    name: str = "attribution"
    """Name in results."""

    def scores(self, spliced: Spliced) -> list[LatentScores]:
        """See `Selector.scores`."""
        products = spliced.codes.values.double() * spliced.gradient()
        return by_latent(spliced, chosen_entries(spliced, "all"), products, mean=False, tokens="all")


@dataclass(frozen=True)
class IntegratedGradients:
    """Activation times the mean gradient between the activations and zero."""

    steps: int = 10
    """Points on the way, the full activations first; a backward pass each."""
    keep_error: bool = True
    """Whether the dictionary's error is added back; it is not scaled on the way."""
    name: str = "integrated_gradients"
    """Name in results."""

    def scores(self, spliced: Spliced) -> list[LatentScores]:
        """See `Selector.scores`."""
        codes = spliced.codes
        total = torch.zeros(codes.nnz, dtype=torch.float64, device=codes.values.device)
        for step in range(self.steps):
            total += spliced.gradient(codes.with_values(codes.values * (1 - step / self.steps)))
        products = codes.values.double() * total / self.steps
        return by_latent(spliced, chosen_entries(spliced, "all"), products, mean=False, tokens="all")
