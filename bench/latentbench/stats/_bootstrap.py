"""Cluster bootstrap of the exact published statistic.

A unit is whatever was sampled independently (a document, a concept, a seed). Each unit carries a row of
*sufficient statistics*: numbers that may be added up over units, and from whose totals the published
statistic follows exactly (explained variance from per-document sums of squares, cross-entropy recovered from
per-document sums of three losses). A draw of units with replacement is then a row of integer weights, all
draws together are one matrix product, and the statistic is evaluated on all totals at once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from latentbench.stats._distributions import normal_cdf, normal_quantile
from latentbench.stats._estimate import Estimate, check_level, finite_array, has_spread, unscored

__all__ = [
    "IndexStatistic",
    "SumStatistic",
    "bootstrap",
    "bootstrap_draws",
    "bootstrap_indices",
    "interval_from_draws",
    "joint_draws",
    "ratio",
    "resampled_totals",
]

SumStatistic = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""From totals Float[draw, stat] to values Float[draw]; NaN where the totals leave it undefined."""

IndexStatistic = Callable[[NDArray[np.int64]], float]
"""From the positions Int[unit] of the drawn units, repeats included, to the statistic."""

_BCA_UNITS = 30
_UNDEFINED_SHARE = 0.01
_TIE = 1e-9
_CHUNK_WEIGHTS = 4_000_000


def ratio(numerator: int, denominator: int) -> SumStatistic:
    """The statistic total[numerator] / total[denominator]; undefined where the denominator is 0."""

    def statistic(totals: NDArray[np.float64]) -> NDArray[np.float64]:
        bottom = totals[:, denominator]
        empty = bottom == 0
        return np.where(empty, np.nan, totals[:, numerator] / np.where(empty, 1.0, bottom))

    return statistic


def bootstrap(
    units: ArrayLike,
    statistic: SumStatistic,
    rng: np.random.Generator,
    draws: int = 2000,
    level: float = 0.95,
    method: str = "auto",
) -> Estimate:
    """A statistic of summed sufficient statistics with its cluster-bootstrap interval.

    Args:
        units: Float[unit, stat], one row of sufficient statistics per unit; Float[unit] is one column.
        statistic: the exact published statistic, from totals Float[draw, stat] to values Float[draw].
        rng: see `generator`; the same generator state gives the same interval.
        draws: number of bootstrap draws.
        level: nominal coverage.
        method: "percentile", "bca" (Efron and Tibshirani 1993, ch. 14, acceleration from the delete-one
            jackknife of the sums) or "auto": BCa from 30 units on, the percentile interval below that, where
            the jackknife is too noisy to correct anything. `Estimate.method` says which one was used.

    Returns:
        Unscored when the statistic is undefined on all units together. Without an interval when there are
        fewer than 2 units, when no draw differs from another, or when more than 1 % of the draws are
        undefined.

    Raises:
        ValueError: `units` holds NaN or an infinity, or `method` is unknown.
    """
    table = _as_table(units)
    corrected = _wants_bca(method, len(table))
    value = _at(statistic, table.sum(axis=0)) if len(table) else float("nan")
    if len(table) < 2 or not np.isfinite(value):
        return _degenerate(value, len(table), level)
    sample = bootstrap_draws(table, statistic, rng, draws)
    jackknife = statistic(table.sum(axis=0) - table) if corrected else None
    return interval_from_draws(value, sample, len(table), level, jackknife)


def bootstrap_draws(
    units: ArrayLike, statistic: SumStatistic, rng: np.random.Generator, draws: int = 2000
) -> NDArray[np.float64]:
    """Float[draw]: the statistic on `draws` draws of the units with replacement."""
    table = _as_table(units)
    return np.asarray(statistic(resampled_totals(table, rng, draws)), dtype=np.float64)


def joint_draws(
    rows: ArrayLike, statistic: SumStatistic, rng: np.random.Generator, draws: int = 2000
) -> NDArray[np.float64]:
    """Float[draw, row]: the statistic of several rows on the *same* draws of the units they share.

    Args:
        rows: Float[row, unit, stat]; unit u is the same document (concept, seed) in every row.
        statistic: as in `bootstrap`.
        rng: see `generator`.
        draws: number of bootstrap draws.
    """
    cube = finite_array(rows, "rows")
    if cube.ndim != 3:
        raise ValueError(f"rows has shape {cube.shape}; it must be [row, unit, stat]")
    n_rows, n_units, n_stats = cube.shape
    table = cube.transpose(1, 0, 2).reshape(n_units, n_rows * n_stats)
    totals = resampled_totals(table, rng, draws).reshape(draws, n_rows, n_stats)
    values = [np.asarray(statistic(totals[:, row]), dtype=np.float64) for row in range(n_rows)]
    return np.stack(values, axis=1)


def bootstrap_indices(
    n_units: int,
    statistic: IndexStatistic,
    rng: np.random.Generator,
    draws: int = 2000,
    level: float = 0.95,
    method: str = "auto",
) -> Estimate:
    """The cluster bootstrap of any statistic, evaluated once per draw on the drawn units' positions.

    For statistics that don't follow from sums (a median, an AUROC, a fitted slope). With the same generator
    it draws the same units as `bootstrap`, only slower. Arguments and result are as there, except for
    `statistic`.
    """
    corrected = _wants_bca(method, n_units)
    everything = np.arange(n_units, dtype=np.int64)
    value = float(statistic(everything)) if n_units else float("nan")
    if n_units < 2 or not np.isfinite(value):
        return _degenerate(value, n_units, level)
    positions = rng.integers(n_units, size=(draws, n_units))
    sample = np.array([statistic(row) for row in positions], dtype=np.float64)
    jackknife = None
    if corrected:
        left_out = (statistic(np.delete(everything, unit)) for unit in everything)
        jackknife = np.fromiter(left_out, dtype=np.float64, count=n_units)
    return interval_from_draws(value, sample, n_units, level, jackknife)


def interval_from_draws(
    value: float,
    sample: NDArray[np.float64],
    n: int,
    level: float = 0.95,
    jackknife: NDArray[np.float64] | None = None,
) -> Estimate:
    """The interval that bootstrap values `sample` Float[draw] give for `value`.

    BCa when the delete-one values `jackknife` Float[unit] are given and usable, else percentile.
    """
    check_level(level)
    defined = sample[np.isfinite(sample)]
    if len(defined) < (1 - _UNDEFINED_SHARE) * len(sample):
        share = 1 - len(defined) / len(sample)
        return Estimate(value, None, None, level, f"none (undefined in {share:.0%} of the draws)", n)
    if not has_spread(defined):
        return Estimate(value, None, None, level, "none (no spread between draws)", n)
    tails = ((1 - level) / 2, (1 + level) / 2)
    method = "cluster bootstrap, percentile"
    if n < _BCA_UNITS:
        method += f" (n < {_BCA_UNITS})"
    if jackknife is not None:
        corrected = _bca_tails(value, defined, jackknife, tails)
        if corrected is not None:
            tails, method = corrected, "cluster bootstrap, bca"
        else:
            method += " (bca undefined)"
    low, high = np.quantile(defined, tails)
    return Estimate(value, float(low), float(high), level, method, n)


def _bca_tails(
    value: float,
    sample: NDArray[np.float64],
    jackknife: NDArray[np.float64],
    tails: tuple[float, float],
) -> tuple[float, float] | None:
    """The two probabilities at which BCa reads the draws; None where its corrections are undefined."""
    # Draws that differ from the value by rounding only are ties: their side is the machine's whim.
    tie = np.abs(sample - value) <= _TIE * np.ptp(sample)
    below = (np.count_nonzero((sample < value) & ~tie) + 0.5 * np.count_nonzero(tie)) / len(sample)
    if not 0.0 < below < 1.0 or not np.all(np.isfinite(jackknife)):
        return None
    bias = normal_quantile(float(below))
    deviations = jackknife.mean() - jackknife
    squares = float(np.sum(deviations**2))
    if squares == 0.0:
        return None
    acceleration = float(np.sum(deviations**3)) / (6 * squares**1.5)
    read = []
    for tail in tails:
        shifted = bias + normal_quantile(tail)
        stretch = 1 - acceleration * shifted
        if stretch <= 0:
            return None
        read.append(normal_cdf(bias + shifted / stretch))
    return read[0], read[1]


def _wants_bca(method: str, n: int) -> bool:
    if method not in ("auto", "bca", "percentile"):
        raise ValueError(f"method is {method!r}; known: 'auto', 'bca', 'percentile'")
    return method == "bca" or (method == "auto" and n >= _BCA_UNITS)


def _degenerate(value: float, n: int, level: float) -> Estimate:
    if n == 0:
        return unscored("no units", 0, level)
    if not np.isfinite(value):
        return unscored("undefined on these units", n, level)
    return Estimate(value, None, None, level, "none (n < 2)", n)


def resampled_totals(table: NDArray[np.float64], rng: np.random.Generator, draws: int) -> NDArray[np.float64]:
    """Float[draw, stat]: totals over each draw, in chunks of draws to bound the memory of the weights."""
    n = len(table)
    if n == 0:
        raise ValueError("there are no units to draw from; a statistic of nothing is unscored")
    chunk = max(1, _CHUNK_WEIGHTS // n)
    totals = np.empty((draws, table.shape[1]))
    for start in range(0, draws, chunk):
        rows = min(chunk, draws - start)
        positions = rng.integers(n, size=(rows, n)) + n * np.arange(rows)[:, None]
        weights = np.bincount(positions.ravel(), minlength=rows * n).reshape(rows, n)
        totals[start : start + rows] = weights.astype(np.float64) @ table
    return totals


def _as_table(units: ArrayLike) -> NDArray[np.float64]:
    table = finite_array(units, "units")
    if table.ndim == 1:
        table = table[:, None]
    if table.ndim != 2:
        raise ValueError(f"units has shape {table.shape}; it must be [unit, stat]")
    return table


def _at(statistic: SumStatistic, totals: NDArray[np.float64]) -> float:
    return float(np.asarray(statistic(totals[None]))[0])
