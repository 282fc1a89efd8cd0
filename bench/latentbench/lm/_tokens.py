"""Token batches. Masks come from lengths, never from token ids: the pad id is often a real token too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from latentbench.errors import UserError

__all__ = ["TokenBatch", "make_batch"]


class TokenBatch(NamedTuple):
    """Padded rows of token ids with the mask that says which of them are real."""

    ids: Tensor
    """`Int64[Tensor, "row pos"]`; padding holds the pad id."""
    real: Tensor
    """`Bool[Tensor, "row pos"]`; False on padding. Real tokens of a row are contiguous."""

    @property
    def lengths(self) -> Tensor:
        """`Int64[Tensor, "row"]`: real tokens of each row."""
        return self.real.sum(dim=1)

    @property
    def positions(self) -> Tensor:
        """`Int64[Tensor, "row pos"]`: index of each token within its own row's real tokens, 0 on padding."""
        return (self.real.long().cumsum(dim=1) - 1).clamp(min=0)

    @property
    def padded(self) -> bool:
        """Whether any position is padding."""
        return not bool(self.real.all())

    def measured(self, skip_first: int = 1) -> Tensor:
        """`Bool[Tensor, "row pos"]`: real tokens that are not among the first `skip_first` of their row.

        The first position is left out by default because it is an attention sink in many models: on
        SmolLM2-135M its residual norm is tens of times that of any other token.
        """
        return self.real & (self.positions >= skip_first)

    def to(self, device: torch.device | str) -> TokenBatch:
        """The same batch on another device."""
        return TokenBatch(self.ids.to(device), self.real.to(device))


def make_batch(
    rows: Sequence[Sequence[int]],
    pad_id: int,
    side: Literal["left", "right"] = "right",
    device: torch.device | str = "cpu",
) -> TokenBatch:
    """Pad rows of token ids to one length.

    Args:
        rows: token ids of each row, none of them empty.
        pad_id: id written on padding; the mask does not depend on it.
        side: where the padding goes.
        device: device of the result.

    Raises:
        UserError: there are no rows, or a row is empty.
    """
    if not rows or any(len(row) == 0 for row in rows):
        raise UserError(
            f"a token batch needs at least one row and no empty rows; lengths are {[len(r) for r in rows]}"
        )
    width = max(len(row) for row in rows)
    ids = torch.full((len(rows), width), pad_id, dtype=torch.int64)
    real = torch.zeros((len(rows), width), dtype=torch.bool)
    for index, row in enumerate(rows):
        span = slice(width - len(row), width) if side == "left" else slice(0, len(row))
        ids[index, span] = torch.tensor(list(row), dtype=torch.int64)
        real[index, span] = True
    return TokenBatch(ids.to(device), real.to(device))
