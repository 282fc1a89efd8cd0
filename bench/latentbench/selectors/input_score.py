"""Input score: do the tokens that a latent is active on look like those its direction promotes?

Source: Arad, Mueller and Belinkov, arXiv 2505.20063. A latent with a high input score describes what it reads; it
steers only if its output score is high too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from latentbench.adapters import Dictionary
from latentbench.lm import LM
from latentbench.selectors._selector import LatentScores
from latentbench.selectors.vocabulary import promoted_tokens

__all__ = ["InputScore"]


@dataclass(frozen=True)
class InputScore:
    """Share of a latent's activating tokens that are among the tokens its direction promotes most."""

    tokens: int = 20
    """Tokens of the logit-lens set."""
    name: str = "input_score"
    """Name in results."""

    def scores(self, lm: LM, dictionary: Dictionary, activating: Mapping[int, Sequence[int]]) -> LatentScores:
        """Scores of the latents that have activating tokens.

        Args:
            lm: the model.
            dictionary: the dictionary.
            activating: by latent the token ids at the maxima of its top contexts (the paper takes up to 100).
        """
        latents = torch.tensor(
            sorted(latent for latent, ids in activating.items() if len(ids)), dtype=torch.int64
        )
        own = promoted_tokens(lm, dictionary, latents, self.tokens).tolist() if len(latents) else []
        shares = [
            _share(activating[latent], set(tokens))
            for latent, tokens in zip(latents.tolist(), own, strict=True)
        ]
        return LatentScores(latents, torch.tensor(shares, dtype=torch.float64))


def _share(ids: Sequence[int], own: set[int]) -> float:
    return sum(token in own for token in ids) / len(ids)
