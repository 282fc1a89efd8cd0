"""Ranks with intervals, and groups of rows that the data can't tell apart.

Ranks are read off the scores and never change one: adding or removing a row moves other rows' ranks, not
their values. Rows without a value are unranked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from latentbench.stats._distributions import normal_quantile
from latentbench.stats._estimate import Estimate, check_level, finite_array
from latentbench.stats._paired import holm, two_sided_p

__all__ = ["Direction", "RankInterval", "rank_independent", "rank_intervals"]

Direction = Literal["higher", "lower"]
"""Which end of the scale is better."""

_Error = Callable[[int, int], float | None]


@dataclass(frozen=True, slots=True)
class RankInterval:
    """A row's place in a table."""

    rank: int | None
    """1 plus the number of strictly better rows; equal values share a rank; None for an unscored row."""
    low: int | None
    """Best rank in the interval; None when the row has no uncertainty to draw from."""
    high: int | None
    """Worst rank in the interval."""
    group: int | None
    """Tie group, from 1: the rows not separable from the group's best row. None when it can't be tested."""
    method: str
    """How interval and group were made."""


def rank_intervals(
    values: Sequence[float | None], draws: ArrayLike, direction: Direction, level: float = 0.95
) -> list[RankInterval]:
    """Percentile rank intervals and tie groups from joint draws of rows that share their units.

    The rows are ranked within each draw; the interval holds the middle `level` of a row's ranks. (Bootstrap
    rank intervals are too short for rows that are truly equal: read them together with the groups.) Two rows
    are separable when the two-sided normal p value of their difference, with the standard deviation of its
    draws as standard error, is at most 1 - `level` after Holm over the rows compared with the same best row.
    The first group is the best row and all rows not separable from it; the next starts at the best row left.

    Args:
        values: published value of each row; None for unscored ones.
        draws: Float[draw, row], see `joint_draws`; columns of unscored rows are not read.
        direction: which values are better.
        level: nominal coverage.

    Raises:
        ValueError: a scored row has an undefined draw, or the numbers of rows differ.
    """
    check_level(level)
    table = np.asarray(draws, dtype=np.float64)
    if table.ndim != 2 or table.shape[1] != len(values):
        raise ValueError(f"draws has shape {table.shape}; it must be [draw, row] with {len(values)} rows")
    scored = [row for row, value in enumerate(values) if value is not None]
    sample = finite_array(table[:, scored], "the draws of scored rows")
    scores = finite_array([value for value in values if value is not None], "values")

    def error(one: int, two: int) -> float:
        return float(np.std(sample[:, one] - sample[:, two]))

    method = "joint bootstrap percentile ranks; groups by paired normal test with Holm"
    placed = _place(scores, sample, direction, level, error, [True] * len(scored), method)
    return _spread_out(placed, scored, len(values))


def rank_independent(
    estimates: Sequence[Estimate],
    direction: Direction,
    rng: np.random.Generator,
    draws: int = 4000,
) -> list[RankInterval]:
    """Ranks for rows that share no units, from their separate intervals alone.

    Each row is taken as normal around its value with half its interval's width over z as standard error, and
    independent of the others. For rows measured on the same units this is wasteful, and wrong in either
    direction when their errors correlate: use `rank_intervals` wherever the units are shared. A row with a
    value but without an interval gets a rank, no interval and no group, and counts as exact in the others'
    draws.

    Raises:
        ValueError: the estimates have different levels.
    """
    if len({estimate.level for estimate in estimates}) > 1:
        raise ValueError("the estimates have different levels; recompute them at one level before ranking")
    level = estimates[0].level if estimates else 0.95
    scored = [row for row, estimate in enumerate(estimates) if estimate.value is not None]
    scores = np.array([estimates[row].value for row in scored], dtype=np.float64)
    errors = [_standard_error(estimates[row]) for row in scored]
    scale = np.array([error or 0.0 for error in errors])
    sample = scores + scale * rng.standard_normal((draws, len(scored)))

    def error(one: int, two: int) -> float:
        return float(np.hypot(scale[one], scale[two]))

    method = "normal approximation, rows taken as independent; groups with Holm"
    placed = _place(scores, sample, direction, level, error, [e is not None for e in errors], method)
    return _spread_out(placed, scored, len(estimates))


def _place(
    scores: NDArray[np.float64],
    sample: NDArray[np.float64],
    direction: Direction,
    level: float,
    error: Callable[[int, int], float],
    testable: list[bool],
    method: str,
) -> list[RankInterval]:
    if direction not in ("higher", "lower"):
        raise ValueError(f"direction is {direction!r}; a metric without a better end has no ranks")
    sign = 1.0 if direction == "higher" else -1.0
    ranks = _ranks(sign * scores[None])[0]
    drawn = _ranks(sign * sample)
    groups = _groups(sign * scores, error, testable, level)
    tails = ((1 - level) / 2, (1 + level) / 2)
    placed = []
    for row, rank in enumerate(ranks):
        low = high = None
        if testable[row] and len(drawn):
            low, high = (int(q) for q in np.quantile(drawn[:, row], tails, method="inverted_cdf"))
        placed.append(RankInterval(int(rank), low, high, groups[row], method))
    return placed


def _ranks(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """Int[draw, row]: 1 + number of strictly higher entries of the same draw."""
    ordered = np.sort(scores, axis=1)
    width = scores.shape[1]
    not_higher = [np.searchsorted(line, row, side="right") for line, row in zip(ordered, scores, strict=True)]
    worse_or_equal = np.array(not_higher, dtype=np.int64).reshape(scores.shape)
    return np.asarray(1 + width - worse_or_equal, dtype=np.int64)


def _groups(
    scores: NDArray[np.float64], error: Callable[[int, int], float], testable: list[bool], level: float
) -> list[int | None]:
    groups: list[int | None] = [None] * len(scores)
    waiting = sorted(
        (row for row in range(len(scores)) if testable[row]), key=lambda row: (-scores[row], row)
    )
    group = 0
    while waiting:
        group += 1
        best, others = waiting[0], waiting[1:]
        p_values = holm([two_sided_p(float(scores[best] - scores[row]), error(best, row)) for row in others])
        groups[best] = group
        waiting = []
        for row, p in zip(others, p_values, strict=True):
            if p is not None and p <= 1 - level:
                waiting.append(row)
            else:
                groups[row] = group
    return groups


def _standard_error(estimate: Estimate) -> float | None:
    if estimate.low is None or estimate.high is None:
        return None
    return (estimate.high - estimate.low) / (2 * normal_quantile(0.5 + estimate.level / 2))


def _spread_out(placed: list[RankInterval], scored: list[int], n_rows: int) -> list[RankInterval]:
    result = [RankInterval(None, None, None, None, "unranked (no value)")] * n_rows
    for row, interval in zip(scored, placed, strict=True):
        result[row] = interval
    return result
