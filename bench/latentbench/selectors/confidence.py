"""Delta token confidence: how much raising a latent changes the model's certainty about the next token.

Source: Wang, Hu, Wang and Zou, arXiv 2510.03659. C_k = -(1/k) sum of the logs of the k largest probabilities; the score
is C_k raised less C_k as it is. No data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from latentbench.adapters import Dictionary
from latentbench.lm import LM
from latentbench.selectors._selector import LatentScores
from latentbench.selectors._steered import PREFIX, raised_logits

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
    prompt: str = PREFIX
    """The neutral prompt."""
    name: str = "delta_confidence"
    """Name in results."""

    def scores(
        self, lm: LM, dictionary: Dictionary, latents: Tensor, prompt: Sequence[int] | None = None
    ) -> LatentScores:
        """Scores of some latents, a pass of one token for each; arguments and errors as in `OutputScore.scores`."""
        ids = prompt if prompt is not None else lm.tokenize([self.prompt], max_tokens=64)[0]
        found: list[Tensor] = []
        for piece in latents.split(256):
            run = raised_logits(lm, dictionary, ids, piece, factor=self.factor, others=self.others)
            change = self._confidence(run.raised) - self._confidence(run.base[None])
            found.append((change.abs() if self.absolute else change).cpu())
        return LatentScores(latents, torch.cat(found) if found else torch.zeros(0, dtype=torch.float64))

    def _confidence(self, logits: Tensor) -> Tensor:
        """`Float64[Tensor, "row"]`."""
        return -logits.double().log_softmax(dim=-1).topk(self.k, dim=-1).values.mean(dim=-1)
