"""A block as trainees see it: batches of standardised activations, and what they share computed once."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

__all__ = ["BlockView"]


class BlockView:
    """Standardised activations of a block of tokens on the trainees' device.

    Everything comes out in float32, also if the block is a half-precision one from a cache.
    """

    def __init__(self, acts: Tensor) -> None:
        """Look at `Float[Tensor, "site token d"]`."""
        self.acts = acts
        self._pooled: dict[str, Tensor] = {}

    @property
    def n_sites(self) -> int:
        """Sites in the block."""
        return self.acts.shape[0]

    @property
    def n_tokens(self) -> int:
        """Tokens in the block."""
        return self.acts.shape[1]

    def at(self, site: int, batch: Tensor) -> Tensor:
        """`Float[Tensor, "token d"]` of a batch of tokens at one site."""
        return self.acts[site].index_select(0, batch).float()

    def routed(self, route: Tensor, batch: Tensor) -> Tensor:
        """`Float[Tensor, "token d"]` of a batch of tokens, each at its site of `Int64[Tensor, "token"]`."""
        flat = self.acts.reshape(-1, self.acts.shape[2])
        return flat.index_select(0, route * self.n_tokens + batch).float()

    def stacked(self, batch: Tensor) -> Tensor:
        """`Float[Tensor, "site token d"]` of a batch of tokens at all sites."""
        return self.acts.index_select(1, batch).float()

    def pooled(self, pooling: Literal["sum", "mean"], batch: Tensor) -> Tensor:
        """`Float[Tensor, "token d"]`, the sum or mean over sites; worked out once a block for all tokens."""
        if pooling not in self._pooled:
            total = torch.zeros(self.acts.shape[1:], dtype=torch.float32, device=self.acts.device)
            for site in self.acts:
                total += site.float()
            self._pooled[pooling] = total / self.n_sites if pooling == "mean" else total
        return self._pooled[pooling].index_select(0, batch)
