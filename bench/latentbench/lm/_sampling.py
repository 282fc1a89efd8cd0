"""Choosing the next token of each row, so that what a row gets doesn't depend on the rows beside it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from latentbench.errors import UserError

__all__ = ["NOT_FINITE", "choose", "uniforms"]

NOT_FINITE = -1
"""Chosen in place of a token where the logits have no largest finite number."""


def uniforms(seeds: Sequence[int], steps: int) -> Tensor:
    """One number per row and step from a stream of the row's own: the same on every device and in every batch.

    They are the raw bits of Philox, which NumPy keeps the same from version to version. A row's first numbers don't
    depend on how many are drawn.

    Args:
        seeds: one for each row.
        steps: how many numbers of each row.

    Returns:
        `Float64[Tensor, "row step"]` in [0, 1).

    Raises:
        UserError: a seed is negative or has more than 128 bits.
    """
    for row, seed in enumerate(seeds):
        if not 0 <= seed < 2**128:
            raise UserError(f"seed {seed} of row {row}: a seed of sampling is a number from 0 to 2**128 - 1")
    drawn = np.empty((len(seeds), steps), dtype=np.float64)
    for row, seed in enumerate(seeds):
        # The upper 53 bits, as many as a double holds.
        drawn[row] = (np.random.Philox(key=seed).random_raw(steps) >> np.uint64(11)) * 2.0**-53
    return torch.from_numpy(drawn)


def choose(logits: Tensor, temperature: float, drawn: Tensor | None) -> Tensor:
    """Next token of each row.

    Args:
        logits: `Float[Tensor, "row vocab"]`. Minus infinity rules a token out.
        temperature: 0 takes the most likely token, otherwise softmax sampling at this temperature.
        drawn: `Float64[Tensor, "row"]` in [0, 1) from `uniforms`, for sampling.

    Returns:
        `Int64[Tensor, "row"]`: `NOT_FINITE` for rows with a NaN or plus infinity, or without any finite logit.
    """
    # The maximum of a row with a NaN is NaN, so one pass finds the token and whether there is one.
    best, token = logits.max(dim=-1)
    if temperature > 0:
        assert drawn is not None
        shares = torch.softmax(logits.float() / temperature, dim=-1)
        # Summed in float64, so that rounding moves the borders between tokens by next to nothing.
        borders = shares.cumsum(dim=-1, dtype=torch.float64)
        at = drawn.to(borders.device)[:, None] * borders[:, -1:]
        drawn_token = torch.searchsorted(borders, at, right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
        # Where logits over next to no temperature overflow, what is left of the softmax is its limit.
        token = torch.where(borders[:, -1].isfinite(), drawn_token, token)
    return torch.where(best.isfinite(), token, NOT_FINITE)
