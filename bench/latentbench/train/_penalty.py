"""Steering a sparsity penalty to a target L0 while training goes on."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

__all__ = ["PenaltyController"]

_MEMORY = 0.9
"""Share of the past in the running mean of L0: about ten steps."""


class PenaltyController(nn.Module):
    """A PI controller on the logarithm of the penalty's weight.

    The weight is a running value times L0 / target (between 1/e and e), and the running value itself moves by
    that distance, in logarithms, times the gain. A fixed penalty would have to be searched for with whole runs;
    this finds it within one, at the price of a penalty that changes on the way: the card holds its course.
    """

    log_weight: Tensor
    """Natural logarithm of the running value."""
    mean_active: Tensor
    """Running mean of active latents per token; NaN before the first step."""

    def __init__(self, target: float, first: float, gain: float) -> None:
        """Start at weight `first`; gain 0 keeps it there."""
        super().__init__()
        self.target = target
        self.gain = gain
        self.register_buffer("log_weight", torch.tensor(math.log(first)))
        self.register_buffer("mean_active", torch.tensor(math.nan))

    def weight(self) -> Tensor:
        """The penalty's weight in the next step."""
        return (self.log_weight + self._distance()).exp()

    @torch.no_grad()
    def observe(self, active: Tensor) -> None:
        """Take account of the active latents of a step's tokens, `Int64[Tensor, "token"]`."""
        now = active.float().mean()
        before = torch.where(self.mean_active.isnan(), now, self.mean_active)
        self.mean_active.copy_(_MEMORY * before + (1 - _MEMORY) * now)
        self.log_weight += self.gain * self._distance()

    def _distance(self) -> Tensor:
        far = (self.mean_active.clamp(min=1e-3) / self.target).log().clamp(-1, 1)
        return torch.where(self.mean_active.isnan(), 0.0, far) if self.gain else torch.zeros_like(far)
