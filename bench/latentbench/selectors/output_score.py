"""Output score: does raising a latent make the model say what the latent's direction promises?

Source: Arad, Mueller and Belinkov, arXiv 2505.20063 (EMNLP 2025). With l the 20 tokens that the direction promotes most
and l* the likeliest of them, P = (1 - rank(l*) / vocabulary) p(l*); the score is P raised less P as it is. No data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from latentbench.adapters import Dictionary
from latentbench.lm import LM
from latentbench.selectors._selector import LatentScores
from latentbench.selectors._steered import PREFIX, raised_logits
from latentbench.selectors.vocabulary import promoted_tokens

__all__ = ["OutputScore"]


@dataclass(frozen=True)
class OutputScore:
    """Rank and probability of a latent's own tokens when it is raised at the end of a neutral prompt."""

    factor: float = 10.0
    """In units of the largest activation at the prompt's last token."""
    tokens: int = 20
    """Tokens of the logit-lens set."""
    subtract_base: bool = True
    """Whether the score without a change is taken off; the paper's filter uses the raised score alone."""
    prompt: str = PREFIX
    """The neutral prompt."""
    name: str = "output_score"
    """Name in results."""

    def scores(
        self, lm: LM, dictionary: Dictionary, latents: Tensor, prompt: Sequence[int] | None = None
    ) -> LatentScores:
        """Scores of some latents, a pass of one token for each.

        Args:
            lm: the model.
            dictionary: the dictionary.
            latents: `Int64[Tensor, "latent"]`, ascending.
            prompt: token ids in place of `prompt`'s.

        Raises:
            UserError: no latent is active at the prompt's end, or the model has no tokenizer for the prompt.
        """
        ids = prompt if prompt is not None else lm.tokenize([self.prompt], max_tokens=64)[0]
        found: list[Tensor] = []
        for piece in latents.split(256):  # [latent, vocab] of all at once would be large
            run = raised_logits(lm, dictionary, ids, piece, factor=self.factor, others="kept")
            own = promoted_tokens(lm, dictionary, piece, self.tokens).to(run.base.device)
            scores = _success(run.raised, own)
            if self.subtract_base:
                scores = scores - _success(run.base.expand_as(run.raised), own)
            found.append(scores.cpu())
        return LatentScores(latents, torch.cat(found) if found else torch.zeros(0, dtype=torch.float64))


def _success(logits: Tensor, own: Tensor) -> Tensor:
    """`Float64[Tensor, "latent"]`: (1 - rank / vocabulary) p of the likeliest of each latent's own tokens."""
    shares = logits.double().softmax(dim=-1)
    best = shares.gather(1, own).max(dim=1).values
    rank = (shares > best[:, None]).sum(dim=1)
    return (1 - rank.double() / shares.shape[1]) * best
