"""Vocabulary projection: how much a latent's direction promotes the target, by the logit lens.

Source: Gur-Arieh et al., arXiv 2501.08319 (VocabProj): W_U LN(d_c), read at the target tokens. No pass of the model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from latentbench.adapters import Dictionary
from latentbench.errors import UserError
from latentbench.lm import LM
from latentbench.selectors._selector import LatentScores
from latentbench.selectors._spliced import Spliced
from latentbench.selectors._steered import direction_logits

__all__ = ["VocabularyProjection", "promoted_tokens"]


def promoted_tokens(lm: LM, dictionary: Dictionary, latents: Tensor, count: int = 20) -> Tensor:
    """`Int64[Tensor, "latent count"]`: the tokens that each latent's direction promotes most, the first one first."""
    count = min(count, lm.vocab_size)
    found = [logits.topk(count, dim=1).indices for logits in direction_logits(lm, dictionary, latents)]
    return torch.cat(found) if found else torch.zeros(0, count, dtype=torch.int64)


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
        scaled, targets = self._scaled(spliced, latents)
        found = []
        for row, wanted in enumerate(spliced.wanted):
            mine = torch.unique(codes.latents[rows[codes.rows()] == row])
            place = torch.searchsorted(latents, mine).to(scaled.device)
            scores = scaled[place][:, [targets.index(token) for token in wanted]].mean(dim=1).double()
            found.append(LatentScores(mine, scores.to(mine.device)))
        return found

    def among(self, spliced: Spliced, latents: Tensor) -> LatentScores:
        """Scores of some latents for a single example: a passage has hundreds, and each costs a row of logits.

        Args:
            spliced: one example.
            latents: `Int64[Tensor, "latent"]`.

        Raises:
            UserError: there is more than one example.
        """
        if len(spliced.wanted) != 1:
            raise UserError(
                f"this is of one example, and there are {len(spliced.wanted)}: see `Spliced.alone`"
            )
        scaled, targets = self._scaled(spliced, latents)
        columns = [targets.index(token) for token in spliced.wanted[0]]
        return LatentScores(latents, scaled[:, columns].mean(dim=1).double().to(latents.device))

    def _scaled(self, spliced: Spliced, latents: Tensor) -> tuple[Tensor, list[int]]:
        """`Float[Tensor, "latent target"]` of all target tokens of the examples, and these tokens."""
        targets = sorted({token for wanted in spliced.wanted for token in wanted})
        found = [torch.zeros(0, len(targets))]
        for logits in direction_logits(spliced.lm, spliced.dictionary, latents.cpu()):
            spread = logits.std(dim=1, keepdim=True)
            found.append((logits[:, targets] - logits.mean(dim=1, keepdim=True)) / spread)
        return torch.cat([one.to(found[-1].device) for one in found]), targets
