"""Vocabulary projection: how much a latent's direction promotes the target, by the logit lens.

Source: Gur-Arieh et al., arXiv 2501.08319 (VocabProj): W_U LN(d_c), read at the target tokens. No pass of the model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from latentbench.adapters import Dictionary
from latentbench.lm import LM
from latentbench.selectors._selector import LatentScores
from latentbench.selectors._spliced import Spliced
from latentbench.selectors._steered import direction_logits

__all__ = ["VocabularyProjection", "promoted_tokens"]


def promoted_tokens(lm: LM, dictionary: Dictionary, latents: Tensor, count: int = 20) -> Tensor:
    """`Int64[Tensor, "latent count"]`: the tokens that each latent's direction promotes most, the first one first."""
    return direction_logits(lm, dictionary, latents).topk(min(count, lm.vocab_size), dim=1).indices


@dataclass(frozen=True)
class VocabularyProjection:
    """Standardised logit of the target tokens under each active latent's direction, mean over the target tokens."""

    keep_error: bool = False
    """Makes no difference here."""
    name: str = "vocabulary"
    """Name in results."""

    def scores(self, spliced: Spliced) -> list[LatentScores]:
        """See `Selector.scores`; each latent's logits are centred and divided by their spread over the vocabulary."""
        codes, rows = spliced.codes, spliced.rows
        latents = torch.unique(codes.latents)
        logits = direction_logits(spliced.lm, spliced.dictionary, latents.cpu())
        scaled = (logits - logits.mean(dim=1, keepdim=True)) / logits.std(dim=1, keepdim=True)
        found = []
        for row, wanted in enumerate(spliced.wanted):
            mine = torch.unique(codes.latents[rows[codes.rows()] == row])
            place = torch.searchsorted(latents, mine).cpu()
            found.append(
                LatentScores(mine, scaled[place][:, list(wanted)].mean(dim=1).double().to(mine.device))
            )
        return found
