"""Output score: does raising a latent make the model say what the latent's direction promises?

Source: Arad, Mueller and Belinkov, arXiv 2505.20063 (EMNLP 2025). With l the 20 tokens that the direction promotes most
and l* the likeliest of them, P = (1 - rank(l*) / vocabulary) p(l*); the score is P raised less P as it is. No data.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from latentbench.adapters import Dictionary
from latentbench.lm import LM
from latentbench.selectors._selector import LatentScores
from latentbench.selectors._steered import PREFIX, prompt_ids, raised_logits
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
    prompt: str | tuple[int, ...] = PREFIX
    """The neutral prompt, as a text or in token ids."""
    name: str = "output_score"
    """Name in results."""

    def scores(self, lm: LM, dictionary: Dictionary, latents: Tensor) -> LatentScores:
        """Scores of some latents, a pass of one token for each.

        Args:
            lm: the model.
            dictionary: the dictionary.
            latents: `Int64[Tensor, "latent"]`, ascending.

        Raises:
            UserError: no latent is active at the prompt's end, or the model has no tokenizer for the prompt.
        """
        found = [torch.zeros(0, dtype=torch.float64)]
        ids = prompt_ids(lm, self.prompt)
        for run in raised_logits(lm, dictionary, ids, latents, factor=self.factor, others="kept"):
            own = promoted_tokens(lm, dictionary, run.latents, self.tokens).to(run.base.device)
            scores = _success(run.raised, own)
            if self.subtract_base:
                scores = scores - _success(run.base.expand_as(run.raised), own)
            found.append(scores.cpu())
        return LatentScores(latents, torch.cat(found))


def _success(logits: Tensor, own: Tensor) -> Tensor:
    """`Float64[Tensor, "latent"]`: (1 - rank / vocabulary) p of the likeliest of each latent's own tokens."""
    shares = logits.double().softmax(dim=-1)
    best = shares.gather(1, own).max(dim=1).values
    rank = (shares > best[:, None]).sum(dim=1)
    return (1 - rank.double() / shares.shape[1]) * best
