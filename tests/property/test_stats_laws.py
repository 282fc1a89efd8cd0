"""Laws that every estimator keeps, whatever the data."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from latentbench.stats import (
    bootstrap,
    count_reaching,
    generator,
    holm,
    mean,
    paired,
    rank_intervals,
    ratio,
    subsample_count,
    wilson,
)

Array = NDArray[np.float64]
finite = st.floats(-1e6, 1e6, allow_nan=False)
shares = st.floats(0, 1, allow_nan=False)
tables = arrays(np.float64, st.tuples(st.integers(2, 50), st.just(2)), elements=st.floats(0.125, 8, width=32))


@given(st.integers(2, 10**6).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_the_share_inside_zero_and_one_and_never_has_width_zero(case: tuple[int, int]) -> None:
    estimate = wilson(*case)
    assert estimate.low is not None
    assert estimate.value is not None
    assert estimate.high is not None
    assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1
    assert estimate.low < estimate.high


@given(st.integers(0, 500), st.integers(2, 500))
def test_wilson_mirrors(successes: int, n: int) -> None:
    successes = min(successes, n)
    one, other = wilson(successes, n), wilson(n - successes, n)
    assert one.low is not None
    assert other.high is not None
    assert one.low == pytest.approx(1 - other.high, abs=1e-12)


@given(arrays(np.float64, st.integers(2, 40), elements=shares), st.integers(0, 2**31))
def test_mean_does_not_depend_on_order_or_cluster_names(values: Array, seed: int) -> None:
    rng = np.random.default_rng(seed)
    clusters = rng.integers(5, size=len(values))
    order = rng.permutation(len(values))
    one = mean(values, clusters=clusters, bounds=(0, 1))
    other = mean(values[order], clusters=[f"c{c}" for c in clusters[order]], bounds=(0, 1))
    assert one.n == other.n == len(set(clusters.tolist()))
    assert other.value == pytest.approx(one.value)
    assert one.has_interval == (one.n >= 2)
    if one.method == other.method and one.has_interval:
        assert other.high == pytest.approx(one.high, abs=1e-6)


@settings(max_examples=40)
@given(tables, st.floats(0.125, 8))
def test_bootstrap_follows_the_scale_of_the_statistic(units: Array, scale: float) -> None:
    one = bootstrap(units, ratio(0, 1), generator("scale"), draws=100)
    other = bootstrap(units * [scale, 1], ratio(0, 1), generator("scale"), draws=100)
    assert other.value == pytest.approx(scale * one.value, rel=1e-9)  # type: ignore[operator]
    assert one.has_interval == other.has_interval
    if one.low is not None and one.method == other.method:
        assert other.low == pytest.approx(scale * one.low, rel=1e-6)


@settings(max_examples=40)
@given(tables, st.integers(0, 2**31))
def test_pairing_is_antisymmetric(units: Array, seed: int) -> None:
    other = units * np.random.default_rng(seed).uniform(0.5, 2, size=units.shape)
    forth = paired(units, other, ratio(0, 1), generator("p"), draws=50, flips=99)
    back = paired(other, units, ratio(0, 1), generator("p"), draws=50, flips=99)
    assert forth.difference.value == pytest.approx(-back.difference.value, abs=1e-12)  # type: ignore[operator]
    assert forth.p_value == pytest.approx(back.p_value)


@given(st.lists(st.one_of(st.none(), shares), max_size=20))
def test_holm_lies_between_the_raw_and_the_bonferroni_values(p_values: list[float | None]) -> None:
    adjusted = holm(p_values)
    tests = sum(p is not None for p in p_values)
    for raw, corrected in zip(p_values, adjusted, strict=True):
        assert (raw is None) == (corrected is None)
        if raw is not None and corrected is not None:
            assert raw <= corrected <= min(1.0, tests * raw) + 1e-15
    ordered = sorted(
        (p, q) for p, q in zip(p_values, adjusted, strict=True) if p is not None and q is not None
    )
    assert all(one[1] <= two[1] for one, two in pairwise(ordered))


@settings(max_examples=60)
@given(st.lists(st.one_of(st.none(), finite), min_size=1, max_size=8), st.integers(0, 2**31))
def test_ranks_and_groups_are_consistent(values: list[float | None], seed: int) -> None:
    centres = np.array([0.0 if value is None else value for value in values])
    draws = centres + np.random.default_rng(seed).normal(size=(200, len(values)))
    placed = rank_intervals(values, draws, "higher")
    scored = [(value, row) for value, row in zip(values, placed, strict=True) if value is not None]
    for value, row in scored:
        assert row.rank == 1 + sum(other > value for other, _ in scored)
        assert row.low is not None
        assert row.high is not None
        assert 1 <= row.low <= row.high <= len(scored)
    assert {row.group for _, row in scored} == set(range(1, len({row.group for _, row in scored}) + 1))
    assert all(row.group == 1 for _, row in scored if row.rank == 1)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 5)), max_size=60), st.integers(1, 4))
def test_count_intervals_hold_the_count_of_all_documents(
    events: list[tuple[int, int]], at_least: int
) -> None:
    units, latents = [unit for unit, _ in events], [latent for _, latent in events]
    estimate = subsample_count(
        12, count_reaching(units, latents, 12, 6, at_least), generator("c"), 50, maximum=6
    )
    assert estimate.value == sum(latents.count(latent) >= at_least for latent in set(latents))
    if estimate.low is not None and estimate.high is not None:
        assert 0 <= estimate.low <= estimate.high <= 6
