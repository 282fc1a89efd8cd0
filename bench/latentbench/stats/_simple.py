"""Closed-form intervals: proportions and means, with or without clusters."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from latentbench.stats._distributions import normal_quantile, t_quantile
from latentbench.stats._estimate import ROUNDING, Estimate, check_level, finite_array, unscored

__all__ = ["mean", "wilson"]


def wilson(successes: int, n: int, level: float = 0.95) -> Estimate:
    """A proportion with the Wilson score interval (Wilson 1927, JASA 22:209).

    Unlike the normal interval it stays inside [0, 1] and has a width at 0 and at 100 %. The n trials must be
    independent: trials that share a document or a concept need `mean(..., clusters=...)`.

    Raises:
        ValueError: `successes` is not between 0 and `n`.
    """
    check_level(level)
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes among {n} trials is not a proportion")
    if n == 0:
        return unscored("no units", 0, level)
    share = successes / n
    if n < 2:
        return Estimate(share, None, None, level, "none (n < 2)", n)
    low, high = _wilson_bounds(share, n, level)
    return Estimate(share, low, high, level, "wilson", n)


def mean(
    values: ArrayLike,
    level: float = 0.95,
    clusters: ArrayLike | None = None,
    bounds: tuple[float, float] | None = None,
) -> Estimate:
    """The mean of `values` with a Student t interval.

    Args:
        values: Float[unit], one finite number per unit.
        level: nominal coverage.
        clusters: any label per unit; units with the same label are not independent. The standard error is
            then the cluster-robust one, sqrt(G/(G-1) * sum_g (sum_{i in g} (y_i - mean))^2) / N, with G - 1
            degrees of freedom (Cameron and Miller 2015, J. Human Resources 50:317; for evaluations: arXiv
            2411.00640).
        bounds: the smallest and largest value a unit can have. When all units (or cluster means) are equal
            the sample shows no spread and t would claim an interval of width 0. With bounds the Wilson
            interval of the rescaled mean stands in: a variable in [0, 1] with mean m has a variance of at
            most m(1 - m), so that interval is not too short. Without bounds there is then no interval.

    Returns:
        `n` is the number of clusters when `clusters` is given.

    Raises:
        ValueError: a value is NaN, infinite or outside of `bounds`, or the lengths differ.
    """
    check_level(level)
    array = finite_array(values, "values")
    if array.ndim != 1:
        raise ValueError(f"values has shape {array.shape}; it holds one number per unit")
    if bounds is not None and array.size and (array.min() < bounds[0] or array.max() > bounds[1]):
        raise ValueError(f"values reach from {array.min()} to {array.max()}, outside of the bounds {bounds}")
    if array.size == 0:
        return unscored("no units", 0, level)
    centre = float(array.mean())
    residuals = _cluster_residuals(array, centre, clusters)
    groups = len(residuals)
    if groups < 2:
        return Estimate(centre, None, None, level, "none (n < 2)", groups)
    if np.max(np.abs(residuals)) <= ROUNDING * np.max(np.abs(array)):
        return _without_spread(centre, groups, level, bounds)
    error = math.sqrt(groups / (groups - 1) * float(residuals @ residuals)) / array.size
    reach = t_quantile(0.5 + level / 2, groups - 1) * error
    method = "t" if clusters is None else "t (cluster-robust)"
    return Estimate(centre, centre - reach, centre + reach, level, method, groups)


def _cluster_residuals(
    values: NDArray[np.float64], centre: float, clusters: ArrayLike | None
) -> NDArray[np.float64]:
    """Float[cluster]: the sum of each cluster's deviations from the mean."""
    if clusters is None:
        return values - centre
    labels = np.asarray(clusters)
    if labels.shape != values.shape:
        raise ValueError(
            f"{labels.shape} cluster labels for {values.shape} values; one label per value is needed"
        )
    _, index = np.unique(labels, return_inverse=True)
    return np.bincount(index, weights=values - centre).astype(np.float64)


def _without_spread(centre: float, n: int, level: float, bounds: tuple[float, float] | None) -> Estimate:
    if bounds is None:
        return Estimate(centre, None, None, level, "none (no spread between units)", n)
    bottom, top = bounds
    low, high = _wilson_bounds((centre - bottom) / (top - bottom), n, level)
    width = top - bottom
    return Estimate(
        centre, bottom + width * low, bottom + width * high, level, "wilson (no spread between units)", n
    )


def _wilson_bounds(share: float, n: int, level: float) -> tuple[float, float]:
    z2 = normal_quantile(0.5 + level / 2) ** 2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    reach = math.sqrt(z2) / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    # At 0 and at 1 the two terms cancel exactly on paper; rounding must not push the end past the value.
    low = 0.0 if share == 0.0 else max(0.0, centre - reach)
    high = 1.0 if share == 1.0 else min(1.0, centre + reach)
    return low, high
