"""Ratios of counts of two dictionaries on the same documents, and how small a one could be seen."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from latentbench.stats._counts import SetCount, kept_units, random_subsets
from latentbench.stats._distributions import normal_quantile
from latentbench.stats._estimate import Estimate, check_level, finite_array, has_spread, unscored
from latentbench.stats._paired import minimum_detectable_difference

__all__ = [
    "PairedRatio",
    "minimum_detectable_ratio",
    "paired_ratio",
    "units_to_detect",
]


@dataclass(frozen=True, slots=True)
class PairedRatio:
    """The ratio of two counts on the same documents."""

    ratio: Estimate
    """First count over second count, with an interval for another sample of as many documents."""
    log_error: float | None
    """Standard error of its logarithm over documents; None where the ratio has no interval."""


def paired_ratio(
    n_units: int,
    first: SetCount,
    second: SetCount,
    rng: np.random.Generator,
    draws: int = 400,
    level: float = 0.95,
    method: str = "bootstrap",
) -> PairedRatio:
    """How many times the second count the first is, both on the same documents.

    Both are counted on the same random sets of documents, so what the documents do to both alike drops out.

    * "bootstrap" draws documents with replacement and takes the percentile interval of the log ratio. A draw holds
      only 63 % of the distinct documents, so its counts are low, but their ratio hardly is. In simulated corpora its
      error is within 20 % of the truth for rules that ask for several contexts, and up to 18 % too small for counts
      of latents seen at all, most of them once (coverage 87 to 90 % for a nominal 95 %).
    * "subsampling" rescales the deviations on subsets without replacement (see `subsample_count`). It is up to 30 %
      too wide for latents seen at all and up to 80 % for rules that ask for several contexts: a cautious bound.

    Training noise is in neither: see `seeds_ratio`.

    Args:
        n_units: documents.
        first: see `SetCount`.
        second: the same for the other dictionary.
        rng: see `generator`.
        draws: number of random sets.
        level: nominal coverage.
        method: see above.

    Returns:
        Unscored where the second count is 0. Without an interval for fewer than 2 documents, where a count is 0 on
        some draw, or where there is no spread between draws.
    """
    check_level(level)
    if method not in ("bootstrap", "subsampling"):
        raise ValueError(f"method is {method!r}; known: 'bootstrap', 'subsampling'")
    if n_units == 0:
        return PairedRatio(unscored("no units", 0, level), None)
    everything = np.ones((1, n_units), dtype=np.bool_)
    top, bottom = float(first(everything)[0]), float(second(everything)[0])
    if bottom == 0:
        return PairedRatio(unscored("the second count is 0", n_units, level), None)

    def bare(why: str) -> PairedRatio:
        return PairedRatio(Estimate(top / bottom, None, None, level, f"none ({why})", n_units), None)

    if n_units < 2:
        return bare("n < 2")
    kept = kept_units(n_units)
    resampled = method == "bootstrap"
    members = _drawn(n_units, draws, rng) if resampled else random_subsets(n_units, kept, draws, rng)
    tops, bottoms = finite_array(first(members), "counts"), finite_array(second(members), "counts")
    if not (np.all(tops > 0) and np.all(bottoms > 0)):
        return bare("a count is 0 on some draw")
    ratios = tops / bottoms
    if not has_spread(ratios):
        return bare("no spread between draws")
    tails = [(1 - level) / 2, (1 + level) / 2]
    if resampled:
        low, high = np.quantile(ratios, tails)
        error, name = float(np.log(ratios).std()), "paired bootstrap of documents, percentile"
    else:
        deviations = (np.log(ratios) - np.log(ratios).mean()) * math.sqrt(kept / (n_units - kept))
        low, high = top / bottom * np.exp(-np.quantile(deviations, tails)[::-1])
        error, name = float(deviations.std()), f"paired subsampling of documents, {kept} of {n_units}"
    ends = min(float(low), top / bottom), max(float(high), top / bottom)
    return PairedRatio(Estimate(top / bottom, *ends, level, name, n_units), error)


def _drawn(n: int, draws: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """`Bool[draw, unit]`: the distinct units of bootstrap draws."""
    members = np.zeros((draws, n), dtype=np.bool_)
    members[np.arange(draws)[:, None], rng.integers(n, size=(draws, n))] = True
    return members


def minimum_detectable_ratio(
    log_error: float, n: int, power: float = 0.8, level: float = 0.95
) -> float | None:
    """Smallest ratio above 1 that a design would tell from 1 with the given power.

    Args:
        log_error: standard error of the log ratio in the design: `PairedRatio.log_error` over documents; over seeds
            the standard error of the difference of the mean logarithms.
        n: units that it comes from (documents, seeds); its n - 1 degrees of freedom enter.
        power: wanted probability of detection, at least 0.5.
        level: coverage of the matching confidence interval.

    Returns:
        The ratio; its inverse is the largest one below 1. None with fewer than 2 units.
    """
    reach = minimum_detectable_difference(n, log_error * math.sqrt(n), power, level)
    return None if reach is None else math.exp(reach)


def units_to_detect(ratio: float, log_error: float, n: int, power: float = 0.8, level: float = 0.95) -> int:
    """Documents it takes to tell a ratio from 1, if the standard error falls with the square root of their number.

    That law is a guess from a pilot run: check it there on half of the documents before buying many times as many.

    Args:
        ratio: the ratio to be detected, above or below 1.
        log_error: standard error of the log ratio in the pilot run, see `PairedRatio`.
        n: documents of the pilot run.
        power: wanted probability of detection.
        level: coverage of the matching confidence interval.

    Raises:
        ValueError: the ratio is 1 or not positive.
    """
    check_level(level)
    if not (math.isfinite(ratio) and ratio > 0) or ratio == 1:
        raise ValueError(f"ratio is {ratio!r}; it is a positive number other than 1")
    if not 0.5 <= power < 1.0:
        raise ValueError(f"power is {power!r}; it is a probability from 0.5 to below 1")
    reach = (normal_quantile(0.5 + level / 2) + normal_quantile(power)) * log_error
    return max(2, math.ceil(n * (reach / math.log(ratio)) ** 2))
