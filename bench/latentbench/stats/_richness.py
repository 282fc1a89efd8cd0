"""How many latents an endless corpus would show, estimated from those seen so far.

A count of latents that only grows with the documents watched behaves as a count of species does with the plots
searched: a latent is a species, a document is a sampling unit, and the latents seen in exactly one and in exactly
two documents tell how many were not seen yet.

* Lower bounds of the number of species: Chao1 from abundances (Chao 1984, Scand. J. Statist. 11:265), Chao2 from
  incidences (Chao 1987, Biometrics 43:783), with the variances and the log-normal interval of the latter.
* Sample coverage, the share of further events that belong to species already seen: Good and Turing's estimate as
  improved by Chao and Jost 2012, Ecology 93:2533.
* Rarefaction and extrapolation: Colwell et al. 2012, J. Plant Ecology 5:3.

Three things to know when reading them:

* They are *lower bounds*. Species of unequal rates leave more unseen than the bound says, so its interval covers the
  bound, not the truth; it is the truth's interval only where all species are about equally likely. With a coverage
  near 1 little can be missing, otherwise read them as an order of magnitude.
* A rule with an upper limit (RouteSAE's "at most 32 token classes") loses latents again as more is watched. Its count
  has no such bound: estimate the count without the limit.
* Tokens of one document are not independent, so the document is the sampling unit: prefer Chao2 to Chao1.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.special import gammaln

from latentbench.stats._counts import kept_units, random_subsets, subset_interval
from latentbench.stats._distributions import normal_quantile
from latentbench.stats._estimate import Estimate, check_level, unscored

__all__ = [
    "Richness",
    "abundance_coverage",
    "chao1",
    "chao2",
    "doubling_gain",
    "expected_richness",
    "incidence_coverage",
    "richness",
]

Floats = NDArray[np.float64]
_CHUNK_CELLS = 8_000_000


class Richness(NamedTuple):
    """What the documents watched say about all latents that the corpus's distribution would show."""

    observed: Estimate
    """Latents seen, with the interval of another sample of as many documents."""
    chao2: Estimate
    """Lower bound of the latents there are."""
    coverage: Estimate
    """Share of further incidences (a latent in a document) that belong to latents already seen."""
    doubling_gain: Estimate
    """Relative growth of `observed` that as many documents again are expected to bring."""


class _Tally(NamedTuple):
    """Frequency counts; each a number, or one for every draw."""

    seen: Any
    """Species with a count above 0."""
    once: Any
    """Species with a count of 1."""
    twice: Any
    """Species with a count of 2."""
    total: Any
    """Sum of the counts."""


def chao1(abundances: ArrayLike, level: float = 0.95, maximum: float | None = None) -> Estimate:
    """The Chao1 lower bound of the number of species, from how often each was met.

    Args:
        abundances: `Int[species]`, individuals of each; zeros count for nothing.
        level: nominal coverage of the log-normal interval.
        maximum: the largest possible number (the number of latents); value and interval are cut there.

    Returns:
        `n` is the number of individuals. Without an interval where the bound is the observed number, because no
        species was met exactly once (or only one was, and none twice).
    """
    tally = _tally(_counts(abundances, None))
    return _bound("chao1", tally, int(tally.total), level, maximum)


def chao2(incidences: ArrayLike, n_units: int, level: float = 0.95, maximum: float | None = None) -> Estimate:
    """The Chao2 lower bound of the number of species, from the sampling units each was met in.

    Args:
        incidences: `Int[species]`, units that each was met in; zeros count for nothing.
        n_units: sampling units, those in which nothing was met included.
        level: nominal coverage of the log-normal interval.
        maximum: the largest possible number (the number of latents); value and interval are cut there.

    Returns:
        `n` is the number of units; without an interval as in `chao1`.
    """
    return _bound("chao2", _tally(_counts(incidences, n_units)), n_units, level, maximum)


def abundance_coverage(abundances: ArrayLike) -> float | None:
    """Share of further individuals that belong to species already met; None with no individual at all."""
    tally = _tally(_counts(abundances, None))
    return float(_coverage(tally, tally.total)) if tally.total else None


def incidence_coverage(incidences: ArrayLike, n_units: int) -> float | None:
    """Share of further incidences that belong to species already met; None with no incidence at all."""
    tally = _tally(_counts(incidences, n_units))
    return float(_coverage(tally, n_units)) if tally.total else None


def expected_richness(counts: ArrayLike, size: int, at: ArrayLike) -> Floats:
    """Species expected in a sample of another size.

    Below `size` it is exact (the mean over all subsets: Hurlbert 1971, Ecology 52:577); above, Colwell's
    extrapolation towards the Chao bound, which is as much of a lower bound as that is.

    Args:
        counts: `Int[species]`: abundances, with `size` their sum, or incidences, with `size` the number of units.
        size: individuals or units of the sample.
        at: `Int[point]`, the sizes asked for, at most twice `size`: beyond that the unseen species' rates, which
            nobody has seen, decide.

    Raises:
        ValueError: a size asked for is negative or above twice `size`.
    """
    found, points = _counts(counts, size), np.asarray(at, dtype=np.int64)
    if points.size and (points.min() < 0 or points.max() > 2 * size):
        raise ValueError(
            f"sizes reach from {points.min()} to {points.max()}; they must lie in [0, {2 * size}]"
        )
    tally = _tally(found)
    below = np.minimum(points, size)
    values, species = np.unique(found[found > 0], return_counts=True)
    missed = np.array([species @ _absent(values, size, int(point)) for point in below.ravel()])
    rarefied = tally.seen - missed.reshape(points.shape)
    grown = _extrapolated(tally, size, np.maximum(points - size, 0))
    return np.asarray(np.where(points <= size, rarefied, grown), dtype=np.float64)


def doubling_gain(counts: ArrayLike, size: int) -> float | None:
    """Relative growth of the number of species seen that a sample twice as large is expected to bring.

    None where nothing was seen. See `expected_richness`.
    """
    tally = _tally(_counts(counts, size))
    return float(_extrapolated(tally, size, size) / tally.seen - 1) if tally.seen else None


def richness(
    units: ArrayLike,
    latents: ArrayLike,
    n_units: int,
    n_latents: int,
    rng: np.random.Generator,
    draws: int = 200,
    level: float = 0.95,
) -> Richness:
    """Observed number, Chao2 bound, coverage and gain on doubling, with intervals over documents.

    Observed number, coverage and gain have intervals from subsets of the documents without replacement (see
    `subsample_count`), the bound has its log-normal one.

    Args:
        units: `Int[event]`, position of the document of each event; repeats of a (document, latent) count once.
        latents: `Int[event]`, latent of each event.
        n_units: documents, those without an event included.
        n_latents: width of the dictionary; no estimate exceeds it.
        rng: see `generator`.
        draws: subsets of the documents.
        level: nominal coverage.
    """
    check_level(level)
    rows, columns = np.asarray(latents, dtype=np.int64), np.asarray(units, dtype=np.int64)
    table = sparse.csr_array(
        sparse.coo_array((np.ones(len(rows)), (rows, columns)), shape=(n_latents, n_units))
    )
    table.data[:] = 1.0  # events of one latent in one document were summed
    incidences = np.diff(table.indptr)
    tally = _tally(incidences)
    bound = chao2(incidences, n_units, level, n_latents)
    if n_units == 0:
        nothing = unscored("no units", 0, level)
        return Richness(nothing, nothing, nothing, nothing)
    kept = kept_units(n_units)
    subsets = _subset_tallies(table, random_subsets(n_units, kept, draws, rng)) if n_units > 1 else None

    def with_interval(value: float, values: Floats | None, maximum: float | None) -> Estimate:
        if values is None:
            return Estimate(value, None, None, level, "none (n < 2)", n_units)
        return subset_interval(value, values, n_units, kept, level, maximum=maximum)

    seen = with_interval(float(tally.seen), None if subsets is None else subsets.seen, n_latents)
    if not tally.total or (subsets is not None and not subsets.total.all()):
        why = "no latent was seen" + (" on some subset of the documents" if tally.total else "")
        empty = unscored(why, n_units, level)
        return Richness(seen, bound, empty, empty)
    found = None if subsets is None else _coverage(subsets, kept)
    gains = None if subsets is None else _gain(subsets, kept, n_latents)
    return Richness(
        seen,
        bound,
        with_interval(float(_coverage(tally, n_units)), found, 1.0),
        with_interval(float(_gain(tally, n_units, n_latents)), gains, None),
    )


def _counts(values: ArrayLike, most: int | None) -> NDArray[np.int64]:
    """Counts of species, checked."""
    found = np.asarray(values)
    counts = found.astype(np.int64)
    if found.ndim != 1 or np.any(counts != found) or np.any(counts < 0):
        raise ValueError("counts must be one whole number for each species, none below 0")
    if most is not None and counts.size and int(counts.max()) > most:
        raise ValueError(f"a species has a count of {counts.max()}, but the sample has the size {most}")
    return counts


def _tally(counts: NDArray[Any]) -> _Tally:
    """Frequency counts of `Int[species]` or, one for every draw, of `Int[species, draw]`."""
    return _Tally(
        np.count_nonzero(counts, axis=0),
        np.count_nonzero(counts == 1, axis=0),
        np.count_nonzero(counts == 2, axis=0),
        counts.sum(axis=0),
    )


def _subset_tallies(table: sparse.csr_array, members: NDArray[np.bool_]) -> _Tally:
    """Tallies of the species' incidences in each subset `Bool[draw, unit]`."""
    chunk = max(1, _CHUNK_CELLS // max(1, *table.shape))
    parts = [
        _tally(table @ members[start : start + chunk].T.astype(np.float64))
        for start in range(0, len(members), chunk)
    ]
    return _Tally(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _unseen(tally: _Tally, size: Any) -> Any:
    """Chao's lower bound of the species not seen; bias-corrected where none was seen twice."""
    shrink = (size - 1) / np.maximum(size, 1)
    once, twice = np.asarray(tally.once, dtype=np.float64), np.asarray(tally.twice, dtype=np.float64)
    return shrink * np.where(twice > 0, once**2 / (2 * np.maximum(twice, 1)), once * (once - 1) / 2)


def _bound(name: str, tally: _Tally, size: int, level: float, maximum: float | None) -> Estimate:
    check_level(level)
    if size == 0:
        return unscored("no units", 0, level)
    unseen, seen = float(_unseen(tally, size)), float(tally.seen)
    value = seen + unseen
    if unseen == 0.0:
        return Estimate(value, None, None, level, f"none ({name} bound is the observed number)", size)
    # Log-normal interval of the unseen part: it never ends below what was seen (Chao 1987).
    spread = math.sqrt(math.log1p(_variance(tally, size, value) / unseen**2))
    factor = math.exp(normal_quantile(0.5 + level / 2) * spread)
    most = math.inf if maximum is None else maximum
    high = seen + unseen * factor
    method = f"{name}, log-normal" + (" (cut at the largest possible number)" if high > most else "")
    return Estimate(min(value, most), min(seen + unseen / factor, most), min(high, most), level, method, size)


def _variance(tally: _Tally, size: int, value: float) -> float:
    """Variance of the Chao bound (Chao 1987; for no species met twice, Colwell's EstimateS guide, appendix B)."""
    shrink, once, twice = (size - 1) / size, float(tally.once), float(tally.twice)
    if twice > 0:
        ratio = once / twice
        return twice * (shrink / 2 * ratio**2 + shrink**2 * ratio**3 + shrink**2 / 4 * ratio**4)
    return (
        shrink * once * (once - 1) / 2
        + shrink**2 * once * (2 * once - 1) ** 2 / 4
        - shrink**2 * once**4 / (4 * value)
    )


def _coverage(tally: _Tally, size: Any) -> Any:
    """Chao and Jost 2012, in its form for abundances and for incidences: both by the unseen species' bound."""
    missing = size * _unseen(tally, size)
    share = missing / np.maximum(missing + tally.once, 1)
    return 1 - tally.once / np.maximum(tally.total, 1) * share


def _extrapolated(tally: _Tally, size: int, more: Any) -> Any:
    """Colwell et al. 2012, eq. 9 and 18: species expected after `more` further individuals or units."""
    unseen = _unseen(tally, size)
    rate = tally.once / np.maximum(size * unseen + tally.once, 1)
    return tally.seen + unseen * (1 - (1 - rate) ** more)


def _gain(tally: _Tally, size: int, maximum: int) -> Any:
    return np.minimum(_extrapolated(tally, size, size), maximum) / tally.seen - 1


def _absent(values: NDArray[np.int64], size: int, point: int) -> Floats:
    """Chance that a species with each count is in none of `point` draws without replacement."""
    possible = values <= size - point
    left = np.where(possible, size - values, size)
    logs = gammaln(left + 1) - gammaln(left - point + 1) - gammaln(size + 1) + gammaln(size - point + 1)
    return np.where(possible, np.exp(logs), 0.0)
