"""Comparing two rows that were measured on the same units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from latentbench.stats._bootstrap import SumStatistic, bootstrap
from latentbench.stats._distributions import normal_cdf, t_quantile
from latentbench.stats._estimate import ROUNDING, Estimate, check_level, finite_array

__all__ = ["Comparison", "holm", "minimum_detectable_difference", "paired"]

_CHUNK_CELLS = 4_000_000
_SAME = 1e-6


@dataclass(frozen=True, slots=True)
class Comparison:
    """The difference between two rows on shared units."""

    difference: Estimate
    """First row minus second row, with its paired interval."""
    p_value: float | None
    """Two-sided p value of "the two rows are exchangeable on every unit"; None when it can't be tested."""
    test: str
    """How the p value was made, or why there is none."""


def paired(
    first: ArrayLike,
    second: ArrayLike,
    statistic: SumStatistic,
    rng: np.random.Generator,
    draws: int = 2000,
    flips: int = 9999,
    level: float = 0.95,
) -> Comparison:
    """The difference of an exact statistic between two rows: paired bootstrap and sign-flip permutation test.

    The bootstrap draws the same units for both rows. The test swaps the two rows' labels on random units and
    recomputes the difference of the statistic; with 2^n <= `flips` + 1 all swaps are enumerated, else the p
    value is (1 + hits) / (1 + flips) (Phipson and Smyth 2010, arXiv 1603.05766), which is never 0.

    Args:
        first: Float[unit, stat], sufficient statistics of one row; Float[unit] is one column.
        second: the same for the other row; unit u is the same document in both.
        statistic: as in `bootstrap`.
        rng: see `generator`.
        draws: bootstrap draws.
        flips: random label swaps.
        level: nominal coverage.
    """
    one, two = _table(first, "first"), _table(second, "second")
    if one.shape != two.shape:
        raise ValueError(
            f"the rows have shapes {one.shape} and {two.shape}; a paired comparison needs the same units in "
            "both. Keep the units that both rows scored."
        )
    width = one.shape[1]

    def difference(totals: NDArray[np.float64]) -> NDArray[np.float64]:
        left, right = statistic(totals[:, :width]), statistic(totals[:, width:])
        # Equal totals must differ by exactly 0, in whatever order they were summed.
        rounding = ROUNDING * np.maximum(np.abs(left), np.abs(right))
        return np.where(np.abs(left - right) <= rounding, 0.0, left - right)

    estimate = bootstrap(np.concatenate([one, two], axis=1), difference, rng, draws, level)
    if estimate.value is None or len(one) < 2:
        return Comparison(estimate, None, f"none ({'undefined' if len(one) else 'no units'})")
    p_value, test = _sign_flip(one, two, difference, estimate.value, rng, flips)
    return Comparison(estimate, p_value, test)


def _sign_flip(
    first: NDArray[np.float64],
    second: NDArray[np.float64],
    difference: SumStatistic,
    observed: float,
    rng: np.random.Generator,
    flips: int,
) -> tuple[float | None, str]:
    n = len(first)
    exact = n < 63 and 2**n <= flips + 1
    rounds = 2**n if exact else flips
    chunk = max(1, _CHUNK_CELLS // n)
    hits = defined = 0
    for start in range(0, rounds, chunk):
        size = min(chunk, rounds - start)
        if exact:
            swaps = (np.arange(start, start + size)[:, None] >> np.arange(n)) & 1
        else:
            swaps = rng.integers(2, size=(size, n))
        moved = swaps.astype(np.float64) @ (second - first)
        totals = np.concatenate([first.sum(axis=0) + moved, second.sum(axis=0) - moved], axis=1)
        values = np.abs(difference(totals))
        values = values[np.isfinite(values)]
        defined += len(values)
        # A swap that gives the observed difference again must count as such, in whatever order it was summed.
        hits += int(np.count_nonzero(values >= abs(observed) * (1 - _SAME)))
    if defined < 0.99 * rounds:
        return None, f"none (undefined in {1 - defined / rounds:.0%} of the swaps)"
    if exact:
        return hits / defined, f"sign-flip permutation, exact ({rounds} swaps)"
    return (1 + hits) / (1 + defined), f"sign-flip permutation, {rounds} random swaps"


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm-adjusted p values (Holm 1979, Scand. J. Statist. 6:65), in the order given.

    A None (no test was possible) stays None and does not count as a test.

    Raises:
        ValueError: a p value is NaN or outside of [0, 1].
    """
    known = [(p, position) for position, p in enumerate(p_values) if p is not None]
    for p, position in known:
        if not 0.0 <= p <= 1.0:
            raise ValueError(
                f"p value number {position} is {p!r}, not a probability; use None for 'not tested'"
            )
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, position) in enumerate(sorted(known)):
        largest = max(largest, min(1.0, (len(known) - rank) * p))
        adjusted[position] = largest
    return adjusted


def minimum_detectable_difference(n: int, sd: float, power: float = 0.8, level: float = 0.95) -> float | None:
    """The smallest true mean difference that a paired design of `n` units finds with probability `power`.

    (t_{1-alpha/2} + t_power) * sd / sqrt(n) with n - 1 degrees of freedom (two-sided test at 1 - `level`);
    within 1 % of the exact noncentral-t answer from about 10 units on.

    Args:
        n: number of units that both rows are measured on.
        sd: standard deviation over units of the per-unit difference, in the metric's unit.
        power: wanted probability of detection, at least 0.5.
        level: coverage of the matching confidence interval.

    Returns:
        In the unit of `sd`; None with fewer than 2 units, which can't detect anything.
    """
    check_level(level)
    if not 0.5 <= power < 1.0:
        raise ValueError(f"power is {power!r}; it is a probability from 0.5 to below 1")
    if not (math.isfinite(sd) and sd >= 0):
        raise ValueError(f"sd is {sd!r}; it is a finite standard deviation of the per-unit differences")
    if n < 2:
        return None
    return (t_quantile(0.5 + level / 2, n - 1) + t_quantile(power, n - 1)) * sd / math.sqrt(n)


def two_sided_p(difference: float, error: float) -> float:
    """Normal two-sided p value of a difference with a standard error; 1 for no difference at all."""
    if difference == 0.0:
        return 1.0
    return 2 * normal_cdf(-abs(difference) / error) if error > 0 else 0.0


def _table(units: ArrayLike, what: str) -> NDArray[np.float64]:
    table = finite_array(units, what)
    return table[:, None] if table.ndim == 1 else table
