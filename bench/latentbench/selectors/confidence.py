"""Delta token confidence: how much raising a latent changes the model's certainty about the next token.

Source: Wang, Hu, Wang and Zou, arXiv 2510.03659. C_k = -(1/k) sum of the logs of the k largest probabilities; the score
is C_k raised less C_k as it is. No data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from latentbench.adapters import Dictionary
from latentbench.lm import LM
from latentbench.selectors._selector import LatentScores
from latentbench.selectors._steered import PREFIX, prompt_ids, raised_logits

__all__ = ["DeltaConfidence"]


@dataclass(frozen=True)
class DeltaConfidence:
    """Change of token confidence; the paper ranks by its size, so `absolute` is the default."""

    k: int = 1
    """Probabilities that confidence is made of."""
    factor: float = 10.0
    """In units of the largest activation at the prompt's last token."""
    others: Literal["kept", "zero"] = "zero"
    """Whether the other latents keep their activation there; the paper sets them to zero."""
    absolute: bool = True
    """Whether the sign is dropped."""
    prompt: str | tuple[int, ...] = PREFIX
    """The neutral prompt, as a text or in token ids."""
    name: str = "delta_confidence"
    """Name in results."""

    def scores(self, lm: LM, dictionary: Dictionary, latents: Tensor) -> LatentScores:
        """Scores of some latents, a pass of one token for each; arguments and errors as in `OutputScore.scores`."""
        found = [torch.zeros(0, dtype=torch.float64)]
        ids = prompt_ids(lm, self.prompt)
        for run in raised_logits(lm, dictionary, ids, latents, factor=self.factor, others=self.others):
            change = self._confidence(run.raised) - self._confidence(run.base[None])
            found.append((change.abs() if self.absolute else change).cpu())
        return LatentScores(latents, torch.cat(found))

    def _confidence(self, logits: Tensor) -> Tensor:
        """`Float64[Tensor, "row"]`."""
        return -logits.double().log_softmax(dim=-1).topk(self.k, dim=-1).values.mean(dim=-1)
