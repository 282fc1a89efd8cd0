"""Uncertainty of counts (kept features, dead latents), which are not averages.

A count of distinct things grows with the documents watched. A bootstrap draw repeats documents and so holds
only about 63 % of the distinct ones: its counts are biased low, and so is its interval. Subsets drawn
*without* replacement have no such repeats. Two facts make them usable:

* The spread of a statistic over subsets of b of the n units, times sqrt(b / (n - b)), estimates its standard
  error at n units. This is the subsampling rescaling sqrt(b / n) of a root-n statistic (Politis, Romano and
  Wolf 1999, "Subsampling") with the finite-population correction 1 / sqrt(1 - b / n) for subsets that are not
  a vanishing share of the units; squared, it is exactly the delete-d jackknife with d = n - b (Shao and Wu
  1989, Ann. Statist. 17:1176).
* The subsets' counts are centred on their own mean, never on the full count, because a subset's count is
  lower for the plain reason that it saw less.

What the intervals cover: the count that *another sample of the same number of documents* from the same source
would give. They say nothing about the number that an endless corpus would reach; that is what the rarefaction
curve is for, and two counts are comparable only at equal budgets. A count does not follow the root-n law
exactly. For species seen at Poisson rates, subsets of nine tenths give a variance that is about right for
latents expected fewer than once and too large for common ones (Efron and Stein 1981, Ann. Statist. 9:586: the
jackknife's variance errs upward), whereas halves are too narrow when rare latents dominate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from latentbench.stats._distributions import normal_quantile
from latentbench.stats._estimate import Estimate, check_level, finite_array, has_spread, unscored

__all__ = [
    "RarefactionPoint",
    "SetCount",
    "count_reaching",
    "kept_units",
    "per_set",
    "random_subsets",
    "rarefaction",
    "subsample_count",
    "subset_interval",
]

SetCount = Callable[[NDArray[np.bool_]], NDArray[np.float64]]
"""From memberships Bool[draw, unit] to the count Float[draw] that the members of each draw give together."""

_LEFT_OUT = 0.1
_CHUNK_CELLS = 8_000_000


class RarefactionPoint(NamedTuple):
    """Expected count at one budget."""

    budget: float
    """The size asked for, in the unit of `sizes` (tokens)."""
    reached: float
    """Mean size of the subsets used, which are whole documents."""
    estimate: Estimate
    """Mean count over the subsets, with an interval for another sample of this size; `n` is the subsets' mean
    number of documents, rounded."""


def per_set(count: Callable[[NDArray[np.int64]], float]) -> SetCount:
    """Lift a function of one set of unit positions, Int[member] -> count, to many memberships."""

    def lifted(members: NDArray[np.bool_]) -> NDArray[np.float64]:
        return np.array([count(np.flatnonzero(row)) for row in members], dtype=np.float64)

    return lifted


def count_reaching(
    units: ArrayLike,
    latents: ArrayLike,
    n_units: int,
    n_latents: int,
    at_least: float = 1,
    hits: ArrayLike | None = None,
) -> SetCount:
    """The number of latents that collect at least `at_least` hits over a set of units.

    Args:
        units: Int[event], position of the document of each event.
        latents: Int[event], latent of each event, below `n_latents`.
        n_units: number of documents, those without any event included.
        n_latents: number of latents.
        at_least: hits a latent needs to count (4 contexts for a kept one; dead latents are `n_latents` minus
            the latents that reach 1).
        hits: Float[event], how much each event adds; 1 each by default.

    Raises:
        ValueError: a hit is not positive, so that more documents could give a smaller count.
    """
    rows, columns = np.asarray(units, dtype=np.int64), np.asarray(latents, dtype=np.int64)
    amounts = np.ones(rows.shape) if hits is None else finite_array(hits, "hits")
    if np.any(amounts <= 0):
        raise ValueError("every event needs a positive number of hits; leave events without any out")
    table = sparse.csr_array(sparse.coo_array((amounts, (columns, rows)), shape=(n_latents, n_units)))
    documents, totals = np.diff(table.indptr), table.sum(axis=1)
    smallest = float(amounts.min()) if amounts.size else 0.0

    def counted(members: NDArray[np.bool_]) -> NDArray[np.float64]:
        # A latent in many more documents than any set leaves out passes in all of them: only the others are
        # summed.
        left_out = n_units - int(members.sum(axis=1).min())
        certain = (documents - left_out) * smallest >= at_least
        open_rows = table[np.flatnonzero(~certain & (totals >= at_least))]
        chunk = max(1, _CHUNK_CELLS // max(n_units, open_rows.shape[0], 1))
        counts = np.full(len(members), float(np.count_nonzero(certain)))
        for start in range(0, len(members), chunk):
            collected = open_rows @ members[start : start + chunk].T.astype(np.float64)
            counts[start : start + chunk] += np.count_nonzero(collected >= at_least, axis=0)
        return counts

    return counted


def subsample_count(
    n_units: int,
    count: SetCount,
    rng: np.random.Generator,
    draws: int = 400,
    level: float = 0.95,
    left_out: float = _LEFT_OUT,
    method: str = "subsampling",
    maximum: float | None = None,
) -> Estimate:
    """A count over all units, with an interval from subsets drawn without replacement.

    See the module's text for the formula and for what the interval covers.

    Args:
        n_units: number of documents.
        count: see `SetCount`, `count_reaching` and `per_set`.
        rng: see `generator`.
        draws: number of subsets.
        level: nominal coverage.
        left_out: share d / n of the units that a subset leaves out; d is at least sqrt(n), as the delete-d
            jackknife of a statistic that is not smooth requires.
        method: "subsampling" reads the ends off the rescaled deviations of the subsets' counts; "delete-d"
            takes value +- z * standard error.
        maximum: the largest possible count (the number of latents); the interval is cut there and at 0.
    """
    check_level(level)
    if method not in ("subsampling", "delete-d"):
        raise ValueError(f"method is {method!r}; known: 'subsampling', 'delete-d'")
    if n_units == 0:
        return unscored("no units", 0, level)
    value = float(count(np.ones((1, n_units), dtype=np.bool_))[0])
    if n_units < 2:
        return Estimate(value, None, None, level, "none (n < 2)", n_units)
    kept = kept_units(n_units, left_out)
    counts = finite_array(count(random_subsets(n_units, kept, draws, rng)), "the subsets' counts")
    return subset_interval(value, counts, n_units, kept, level, method, maximum)


def subset_interval(
    value: float,
    counts: NDArray[np.float64],
    n_units: int,
    kept: int,
    level: float = 0.95,
    method: str = "subsampling",
    maximum: float | None = None,
) -> Estimate:
    """The interval that a statistic's values on subsets give for its value on all units; see `subsample_count`.

    Args:
        value: the statistic on all units.
        counts: Float[draw], on subsets from `random_subsets`.
        n_units: number of units.
        kept: units in a subset.
        level: nominal coverage.
        method: "subsampling" or "delete-d".
        maximum: the interval is cut there and at 0.
    """
    if not has_spread(counts):
        return Estimate(value, None, None, level, "none (no spread between subsets)", n_units)
    deviations = (counts - counts.mean()) * math.sqrt(kept / (n_units - kept))
    tails = np.array([(1 - level) / 2, (1 + level) / 2])
    if method == "subsampling":
        low, high = value - np.quantile(deviations, tails)[::-1]
        name = f"subsampling without replacement, {kept} of {n_units}"
    else:
        reach = normal_quantile(float(tails[1])) * math.sqrt(float(np.mean(deviations**2)))
        low, high = value - reach, value + reach
        name = f"delete-{n_units - kept} jackknife of {n_units}"
    return Estimate(value, *_cut(float(low), float(high), maximum), level, name, n_units)


def rarefaction(
    sizes: ArrayLike,
    count: SetCount,
    budgets: ArrayLike,
    rng: np.random.Generator,
    permutations: int = 100,
    level: float = 0.95,
    maximum: float | None = None,
) -> list[RarefactionPoint]:
    """Expected count at a grid of budgets: the accumulation curve over random orders of the documents.

    At each budget an order contributes the run of first documents whose size comes nearest to it. The value
    is the mean over the orders. The interval is for *another sample* of that size, not for another subset of
    this
    one: the subsets' variance is divided by 1 - b / n, and for budgets that use more than nine tenths of the
    documents (where nearly the same documents are in every subset) the standard error at nine tenths is used,
    times sqrt(b' / b). Intervals at different budgets share documents, so they are not independent.

    Args:
        sizes: Float[unit], tokens of each document.
        count: see `SetCount`.
        budgets: Float[budget], in the unit of `sizes`; budgets above the total are refused.
        rng: see `generator`.
        permutations: number of random orders.
        level: nominal coverage of each point's interval.
        maximum: the largest possible count; intervals are cut there and at 0.

    Raises:
        ValueError: a size is not positive, or a budget is above the total: the curve never extrapolates.
    """
    check_level(level)
    weights, grid = finite_array(sizes, "sizes"), finite_array(budgets, "budgets")
    if grid.size == 0:
        return []
    total = float(weights.sum())
    if np.any(weights <= 0):
        raise ValueError("every unit needs a positive size; leave empty documents out")
    if np.any(grid > total * (1 + 1e-9)) or np.any(grid <= 0):
        raise ValueError(
            f"budgets must lie in (0, {total:g}], the total size; this curve does not extrapolate"
        )
    n = len(weights)
    kept = kept_units(n)
    asked = np.append(grid, total * kept / n)
    counts, documents, reached = _accumulate(weights, count, asked, rng, permutations)
    errors = _sample_errors(counts, documents.mean(axis=0), n, kept)
    z = normal_quantile(0.5 + level / 2)
    points = []
    for i, budget in enumerate(grid):
        b = round(float(documents[:, i].mean()))
        value = float(counts[:, i].mean())
        estimate = _curve_estimate(value, z * errors[i], b, level, maximum)
        points.append(RarefactionPoint(float(budget), float(reached[:, i].mean()), estimate))
    return points


def _accumulate(
    sizes: NDArray[np.float64],
    count: SetCount,
    budgets: NDArray[np.float64],
    rng: np.random.Generator,
    permutations: int,
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
    """Counts, numbers of documents and sizes, each [permutation, budget]."""
    shape = (permutations, len(budgets))
    counts, documents, reached = np.empty(shape), np.empty(shape, dtype=np.int64), np.empty(shape)
    for p in range(permutations):
        order = rng.permutation(len(sizes))
        totals = np.cumsum(sizes[order])
        after = np.minimum(np.searchsorted(totals, budgets), len(sizes) - 1)
        before = np.maximum(after - 1, 0)
        nearest = np.where(budgets - totals[before] < totals[after] - budgets, before, after)
        place = np.empty(len(sizes), dtype=np.int64)
        place[order] = np.arange(len(sizes))
        counts[p] = count(place[None, :] <= nearest[:, None])
        documents[p], reached[p] = nearest + 1, totals[nearest]
    return counts, documents, reached


def _sample_errors(
    counts: NDArray[np.float64], documents: NDArray[np.float64], n: int, kept: int
) -> NDArray[np.float64]:
    """Float[budget]: standard errors of the count in another sample; the last column is the one at `kept`."""
    spread = counts.std(axis=0)
    shares = np.minimum(documents / n, kept / n)
    reference = spread[-1] / math.sqrt(1 - kept / n) if kept < n else 0.0
    inside = spread / np.sqrt(np.maximum(1 - shares, 1 / n))
    return np.where(documents <= kept, inside, reference * np.sqrt(kept / documents))


def _curve_estimate(value: float, reach: float, n: int, level: float, maximum: float | None) -> Estimate:
    if n < 2:
        return Estimate(value, None, None, level, "none (n < 2)", n)
    if reach == 0.0:
        return Estimate(value, None, None, level, "none (no spread between subsets)", n)
    low, high = _cut(value - reach, value + reach, maximum)
    return Estimate(value, low, high, level, "subsets without replacement, normal", n)


def kept_units(n: int, left_out: float = _LEFT_OUT) -> int:
    """Units in a subset: all but the larger of left_out * n and sqrt(n), at least one."""
    if not 0.0 < left_out < 1.0:
        raise ValueError(f"left_out is {left_out!r}; it is a share strictly between 0 and 1")
    return max(1, n - max(math.ceil(left_out * n), math.ceil(math.sqrt(n))))


def random_subsets(n: int, kept: int, draws: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """`Bool[draw, unit]`: memberships of subsets of `kept` of the n units, each without replacement."""
    members = np.zeros((draws, n), dtype=np.bool_)
    for row in members:
        row[rng.permutation(n)[:kept]] = True
    return members


def _cut(low: float, high: float, maximum: float | None) -> tuple[float, float]:
    low, high = max(0.0, low), max(0.0, high)
    return (low, high) if maximum is None else (min(low, maximum), min(high, maximum))
