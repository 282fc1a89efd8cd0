"""Two families of dictionaries compared over training runs.

Welch's t interval: the families may spread differently over seeds and have different numbers of them, and nothing but
the number ties a seed of one to a seed of the other. Source: Welch 1947, Biometrika 34:28.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from latentbench.stats._distributions import t_quantile
from latentbench.stats._estimate import Estimate, check_level, finite_array, unscored

__all__ = ["OverSeeds", "seeds_difference", "seeds_ratio"]

Floats = NDArray[np.float64]


class OverSeeds(NamedTuple):
    """What the seeds of two families say about their difference."""

    estimate: Estimate
    """Ratio or difference, first family against second; its `n` is the smaller number of seeds."""
    detectable: float | None
    """Smallest ratio above 1, or smallest difference, that seeds as many and as different as these tell from none
    with a probability of 80 %; None where there is no interval."""


def seeds_ratio(
    first: ArrayLike, second: ArrayLike, level: float = 0.95, log_error: float = 0.0
) -> OverSeeds:
    """How many times the second family's count the first one's is: the ratio of the geometric means.

    Seeds counted on the same documents share those documents' luck, which no spread between seeds shows. Give
    `log_error` (the mean of the pairs' `PairedRatio.log_error`) to have it added: exact where all pairs err alike,
    too wide where their errors differ.

    Args:
        first: `Float[seed]`, counts.
        second: `Float[seed]`, counts of the other family.
        level: nominal coverage.
        log_error: standard error over documents of the log ratio.

    Returns:
        Unscored where a count is 0.

    Raises:
        ValueError: a count is negative.
    """
    tops, bottoms = _seeds(first, second)
    if np.any(tops < 0) or np.any(bottoms < 0):
        raise ValueError("a count is below 0")
    if np.any(tops == 0) or np.any(bottoms == 0):
        nothing = unscored("a count is 0: the log ratio is undefined", min(len(tops), len(bottoms)), level)
        return OverSeeds(nothing, None)
    found = _welch(np.log(tops), np.log(bottoms), level, log_error, "of the log ratio over seeds")
    low, value, high = (None if number is None else math.exp(number) for number in found.numbers)
    detectable = None if found.detectable is None else math.exp(found.detectable)
    return OverSeeds(Estimate(value, low, high, level, found.method, found.n), detectable)


def seeds_difference(
    first: ArrayLike, second: ArrayLike, level: float = 0.95, error: float = 0.0
) -> OverSeeds:
    """How much larger the first family's mean is.

    Args:
        first: `Float[seed]`, one value for each training run.
        second: `Float[seed]`, the other family.
        level: nominal coverage.
        error: standard error over documents of the difference, added as in `seeds_ratio`.
    """
    found = _welch(*_seeds(first, second), level, error, "of the difference over seeds")
    low, value, high = found.numbers
    return OverSeeds(Estimate(value, low, high, level, found.method, found.n), found.detectable)


class _Welch(NamedTuple):
    numbers: tuple[float | None, float | None, float | None]
    method: str
    n: int
    detectable: float | None


def _seeds(first: ArrayLike, second: ArrayLike) -> tuple[Floats, Floats]:
    samples = finite_array(first, "first"), finite_array(second, "second")
    if any(sample.ndim != 1 for sample in samples):
        shapes = " and ".join(str(sample.shape) for sample in samples)
        raise ValueError(f"the seeds have shapes {shapes}; one number for each seed is needed")
    return samples


def _welch(first: Floats, second: Floats, level: float, error: float, what: str) -> _Welch:
    check_level(level)
    if not (math.isfinite(error) and error >= 0):
        raise ValueError(f"the error over documents is {error!r}; it is a finite standard error")
    n = min(len(first), len(second))
    if n == 0:
        return _Welch((None, None, None), "no seeds", 0, None)
    centre = float(first.mean() - second.mean())
    if n < 2:
        return _Welch((None, centre, None), "none (n < 2)", n, None)
    parts = [float(sample.var(ddof=1)) / len(sample) for sample in (first, second)]
    scale = max(1e-300, float(np.abs(first).max()), float(np.abs(second).max()))
    if math.sqrt(sum(parts)) <= 1e-12 * scale:
        return _Welch((None, centre, None), "none (no spread between seeds)", n, None)
    spread = sum(part**2 / (len(sample) - 1) for part, sample in zip(parts, (first, second), strict=True))
    freedom = sum(parts) ** 2 / spread
    whole = math.hypot(math.sqrt(sum(parts)), error)
    quantile = t_quantile(0.5 + level / 2, freedom)
    method = f"Welch t {what}" + (" and documents" if error else "")
    detectable = (quantile + t_quantile(0.8, freedom)) * whole
    return _Welch((centre - quantile * whole, centre, centre + quantile * whole), method, n, detectable)
