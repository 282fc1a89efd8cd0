"""Mean activation: the baseline of GradSAE (section 3.1.2)."""

from __future__ import annotations

from dataclasses import dataclass

from latentbench.selectors._selector import LatentScores, TokenSet, by_latent, chosen_entries
from latentbench.selectors._spliced import Spliced

__all__ = ["MeanActivation"]


@dataclass(frozen=True)
class MeanActivation:
    """g_c = mean over tokens of z_{n,c}. No pass of its own."""

    tokens: TokenSet = "all"
    """Tokens of the mean."""
    keep_error: bool = False
    """Makes no difference here."""
    name: str = "activation"
    """Name in results."""

    def scores(self, spliced: Spliced) -> list[LatentScores]:
        """See `Selector.scores`."""
        entries = chosen_entries(spliced, self.tokens)
        return by_latent(spliced, entries, spliced.codes.values, mean=True, tokens=self.tokens)
