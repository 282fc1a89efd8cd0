"""Counts of distinct things: less bias than the bootstrap, honest coverage, and the rarefaction curve."""

from __future__ import annotations

from collections.abc import Callable
from math import comb

import numpy as np
import pytest
from numpy.typing import NDArray

from latentbench.stats import (
    bootstrap_indices,
    count_reaching,
    generator,
    per_set,
    rarefaction,
    subsample_count,
)

LATENTS, DOCUMENTS = 500, 100
RATES = np.exp(generator("rates").normal(-4.0, 1.8, size=LATENTS))
Ints = NDArray[np.int64]


def sample(rng: np.random.Generator) -> tuple[Ints, Ints, NDArray[np.float64]]:
    """Document, latent and number of hits of each event of a fresh corpus with Poisson latents."""
    hits = rng.poisson(RATES, size=(DOCUMENTS, LATENTS))
    documents, latents = np.nonzero(hits)
    return documents, latents, hits[documents, latents].astype(np.float64)


def plain_count(events: tuple[Ints, Ints, NDArray[np.float64]], at_least: int) -> Callable[[Ints], float]:
    documents, latents, hits = events

    def count(positions: Ints) -> float:
        times = np.bincount(positions, minlength=DOCUMENTS)[documents]
        return float(np.sum(np.bincount(latents, weights=hits * times, minlength=LATENTS) >= at_least))

    return count


@pytest.mark.parametrize("at_least", [1, 4])
def test_vectorised_count_equals_the_plain_one(at_least: int) -> None:
    events = sample(generator("one corpus"))
    fast = count_reaching(*events[:2], DOCUMENTS, LATENTS, at_least, events[2])
    slow = per_set(plain_count(events, at_least))
    for kept in (5, 50, 90, 100):
        members = np.zeros((20, DOCUMENTS), dtype=np.bool_)
        for row, rng in zip(members, generator("sets").spawn(20), strict=True):
            row[rng.permutation(DOCUMENTS)[:kept]] = True
        np.testing.assert_array_equal(fast(members), slow(members))


def test_subsampling_is_less_biased_than_the_bootstrap_and_covers() -> None:
    rng = generator("species")
    truth = float(np.mean([plain_count(sample(rng), 1)(np.arange(DOCUMENTS)) for _ in range(200)]))
    middles: dict[str, list[float]] = {"subsampling": [], "delete-d": [], "bootstrap": []}
    covered = dict.fromkeys(middles, 0)
    for trial in range(60):
        events = sample(rng)
        count = count_reaching(*events[:2], DOCUMENTS, LATENTS)
        estimates = {
            "subsampling": subsample_count(DOCUMENTS, count, generator(f"s{trial}")),
            "delete-d": subsample_count(DOCUMENTS, count, generator(f"s{trial}"), method="delete-d"),
            "bootstrap": bootstrap_indices(
                DOCUMENTS, plain_count(events, 1), generator(f"b{trial}"), 100, method="percentile"
            ),
        }
        for name, estimate in estimates.items():
            assert estimate.low is not None
            assert estimate.high is not None
            middles[name].append((estimate.low + estimate.high) / 2)
            covered[name] += estimate.low <= truth <= estimate.high
    bias = {name: abs(np.mean(values) - truth) for name, values in middles.items()}
    assert bias["bootstrap"] > 20
    assert bias["subsampling"] < 3
    assert bias["delete-d"] < 3
    assert covered["bootstrap"] == 0
    assert covered["subsampling"] >= 54
    assert covered["delete-d"] >= 54


def test_delete_d_error_of_a_mean_is_the_exact_one() -> None:
    """For a plain mean of unit values the formula must give the usual standard error."""
    values = generator("mean").normal(10, 2, size=60)

    def average(members: NDArray[np.bool_]) -> NDArray[np.float64]:
        return np.asarray(members @ values / members.sum(axis=1))

    for left_out, d in ((0.1, 8), (0.5, 30)):
        estimate = subsample_count(60, average, generator("d"), 20000, left_out=left_out, method="delete-d")
        error = (estimate.high - estimate.low) / (2 * 1.959964)  # type: ignore[operator]
        assert estimate.method == f"delete-{d} jackknife of 60"
        assert error == pytest.approx(np.std(values, ddof=1) / np.sqrt(60), rel=0.03)


def test_counts_without_spread_or_units() -> None:
    everything = per_set(lambda members: 7.0)
    assert not subsample_count(30, everything, generator("x")).has_interval
    assert subsample_count(0, everything, generator("x")).value is None
    one = subsample_count(1, everything, generator("x"))
    assert (one.value, one.has_interval) == (7.0, False)


def test_interval_stays_between_zero_and_the_maximum() -> None:
    count = count_reaching([0, 1, 2, 3], [0, 1, 2, 2], n_units=4, n_latents=3)
    estimate = subsample_count(4, count, generator("cut"), maximum=3)
    assert estimate.value == 3.0
    assert estimate.low is not None
    assert estimate.high is not None
    assert 0 <= estimate.low <= estimate.high <= 3


def test_rarefaction_matches_the_hypergeometric_expectation() -> None:
    events = sample(generator("curve"))
    per_latent = np.bincount(events[1], minlength=LATENTS)
    count = count_reaching(*events[:2], DOCUMENTS, LATENTS)
    points = rarefaction(
        np.full(DOCUMENTS, 10.0), count, [100, 500, 1000], generator("r"), 400, maximum=LATENTS
    )
    for point, kept in zip(points, (10, 50, 100), strict=True):
        missed = [comb(DOCUMENTS - int(m), kept) / comb(DOCUMENTS, kept) for m in per_latent]
        assert point.reached == point.budget
        assert point.estimate.n == kept
        assert point.estimate.value == pytest.approx(LATENTS - sum(missed), abs=1.5)
        assert point.estimate.has_interval


def test_rarefaction_interval_is_for_another_sample() -> None:
    rng = generator("bands")
    fresh = np.array([sample_count(rng) for _ in range(200)])
    count = count_reaching(*sample(generator("bands data"))[:2], DOCUMENTS, LATENTS)
    half, full = rarefaction(np.ones(DOCUMENTS), count, [50, 100], generator("b"), 400)
    for point, spread in ((half, fresh[:, 0].std()), (full, fresh[:, 1].std())):
        error = (point.estimate.high - point.estimate.low) / 3.92  # type: ignore[operator]
        assert 0.85 * spread <= error <= 1.5 * spread


def sample_count(rng: np.random.Generator) -> tuple[float, float]:
    """The counts of a fresh corpus at half and at full size."""
    count = plain_count(sample(rng), 1)
    return count(np.arange(50)), count(np.arange(100))


def test_rarefaction_uses_whole_documents_nearest_to_the_budget() -> None:
    count = per_set(len)
    points = rarefaction([10, 10, 10], count, [4, 14, 16, 30], generator("whole"), 5)
    assert [point.estimate.value for point in points] == [1, 1, 2, 3]
    assert [point.reached for point in points] == [10, 10, 20, 30]


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="does not extrapolate"):
        rarefaction([10, 10], per_set(len), [21], generator("x"))
    with pytest.raises(ValueError, match="positive size"):
        rarefaction([10, 0], per_set(len), [5], generator("x"))
    with pytest.raises(ValueError, match="positive number of hits"):
        count_reaching([0], [0], 1, 1, hits=[0.0])
    with pytest.raises(ValueError, match="method is 'jackknife'"):
        subsample_count(3, per_set(len), generator("x"), method="jackknife")
    with pytest.raises(ValueError, match="left_out is 10"):
        subsample_count(3, per_set(len), generator("x"), left_out=10)
