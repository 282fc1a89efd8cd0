"""Two families over training runs: Welch's interval, its coverage, and what a design can detect."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from latentbench.stats import seeds_difference, seeds_ratio

FIRST, SECOND = [120, 132, 126, 119], [100, 108, 110]


def test_the_ratio_is_welchs_interval_of_logarithms() -> None:
    found, _ = seeds_ratio(FIRST, SECOND)
    welch = stats.ttest_ind(np.log(FIRST), np.log(SECOND), equal_var=False).confidence_interval(0.95)
    assert found.value == pytest.approx(np.exp(np.log(FIRST).mean() - np.log(SECOND).mean()))
    assert (found.low, found.high) == pytest.approx((math.exp(welch.low), math.exp(welch.high)), rel=1e-9)
    assert found.n == 3
    assert found.method == "Welch t of the log ratio over seeds"


def test_the_difference_is_welchs_interval() -> None:
    found, _ = seeds_difference(FIRST, SECOND)
    welch = stats.ttest_ind(FIRST, SECOND, equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((welch.low, welch.high), rel=1e-9)


def test_documents_widen_the_interval() -> None:
    bare, detectable = seeds_ratio(FIRST, SECOND)
    wider, more = seeds_ratio(FIRST, SECOND, log_error=0.02)
    assert bare.high is not None
    assert wider.high is not None
    assert detectable is not None
    assert more is not None
    assert wider.high > bare.high
    assert more > detectable
    assert wider.method.endswith("and documents")


def test_swapping_the_families_inverts_the_ratio() -> None:
    one, other = seeds_ratio(FIRST, SECOND).estimate, seeds_ratio(SECOND, FIRST).estimate
    assert (other.low, other.high) == pytest.approx((1 / (one.high or 0), 1 / (one.low or 0)))


@pytest.mark.parametrize(
    ("first", "second", "method"),
    [
        ([4], [2], "n < 2"),
        ([4, 4], [2, 2], "no spread"),
        ([4, 0], [2, 2], "a count is 0"),
        ([], [2], "no seeds"),
    ],
)
def test_what_has_no_interval_says_why(first: Sequence[float], second: Sequence[float], method: str) -> None:
    found, detectable = seeds_ratio(first, second)
    assert found.low is None
    assert detectable is None
    assert method in found.method


def test_wrong_input_is_refused() -> None:
    with pytest.raises(ValueError, match="one number for each seed"):
        seeds_ratio([[1, 2]], [1])
    with pytest.raises(ValueError, match="below 0"):
        seeds_ratio([-1, 2], [1, 2])
    with pytest.raises(ValueError, match="finite standard error"):
        seeds_difference([1, 2], [1, 2], error=math.nan)
    with pytest.raises(ValueError, match="first"):
        seeds_difference([1, math.nan], [1, 2])


def test_the_interval_covers_at_its_level_with_unequal_spreads() -> None:
    rng = np.random.default_rng(8)
    covered = 0
    for _ in range(1000):
        first, second = math.log(1.225) + 0.1 * rng.standard_normal(8), 0.02 * rng.standard_normal(3)
        found = seeds_ratio(1000 * np.exp(first), 1000 * np.exp(second)).estimate
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 1.225 <= found.high
    assert 0.93 < covered / 1000 < 0.97


def test_a_design_detects_what_it_says_it_can() -> None:
    """`detectable` is a guess from a sample, so its median over pilots is put to the test."""
    rng, spread = np.random.default_rng(9), 0.06
    pilots = [
        seeds_ratio(
            np.exp(spread * rng.standard_normal(6)), np.exp(spread * rng.standard_normal(6))
        ).detectable
        for _ in range(200)
    ]
    smallest = float(np.median([pilot for pilot in pilots if pilot is not None]))
    hits = 0
    for _ in range(600):
        first = smallest * np.exp(spread * rng.standard_normal(6))
        found = seeds_ratio(first, np.exp(spread * rng.standard_normal(6))).estimate
        assert found.low is not None
        hits += found.low > 1
    assert 0.7 < hits / 600 < 0.88
