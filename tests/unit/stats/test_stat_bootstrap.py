"""The vectorised bootstrap against a plain loop, against SciPy, and on degenerate input."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats as scipy_stats

from latentbench.stats import _bootstrap as module
from latentbench.stats import (
    bootstrap,
    bootstrap_draws,
    bootstrap_indices,
    generator,
    interval_from_draws,
    joint_draws,
    ratio,
)

Array = NDArray[np.float64]


def explained_variance(totals: Array) -> Array:
    """From totals of (squared error, n, sum, sum of squares)."""
    error, n, total, squares = totals.T
    return np.asarray(1 - error / (squares - total**2 / n))


def documents(n: int, key: str = "documents") -> Array:
    """Float[document, stat]: sums over each document's tokens."""
    rng = generator(key)
    rows = []
    for _ in range(n):
        x = rng.normal(size=rng.integers(3, 30))
        error = rng.normal(scale=0.3, size=len(x))
        rows.append([np.sum(error**2), len(x), x.sum(), np.sum(x**2)])
    return np.array(rows)


@pytest.mark.parametrize("n", [7, 45])
def test_vectorised_bootstrap_equals_a_plain_loop(n: int) -> None:
    units = documents(n)

    def one_draw(positions: NDArray[np.int64]) -> float:
        total = np.zeros(4)
        for position in positions:
            total += units[position]
        return float(explained_variance(total[None])[0])

    fast = bootstrap(units, explained_variance, generator("draws"), draws=300)
    slow = bootstrap_indices(n, one_draw, generator("draws"), draws=300)
    assert fast.method == slow.method
    assert fast.method.endswith("bca" if n >= 30 else "percentile (n < 30)")
    assert [fast.value, fast.low, fast.high] == pytest.approx([slow.value, slow.low, slow.high], rel=1e-9)


def test_chunks_of_draws_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    units = documents(41)
    whole = bootstrap_draws(units, explained_variance, generator("chunks"), draws=100)
    monkeypatch.setattr(module, "_CHUNK_WEIGHTS", 41 * 7)
    np.testing.assert_allclose(
        bootstrap_draws(units, explained_variance, generator("chunks"), 100), whole, rtol=1e-12
    )


@pytest.mark.parametrize(("ours", "theirs"), [("bca", "BCa"), ("percentile", "percentile")])
def test_intervals_agree_with_scipy(ours: str, theirs: str) -> None:
    values = generator("skewed").lognormal(sigma=1.0, size=40)
    result = scipy_stats.bootstrap(
        (values,), np.mean, n_resamples=5000, method=theirs, rng=generator("draws")
    )
    left_out = (values.sum() - values) / 39
    mine = interval_from_draws(
        float(values.mean()),
        result.bootstrap_distribution,
        40,
        jackknife=left_out if ours == "bca" else None,
    )
    assert mine.method == f"cluster bootstrap, {ours}"
    assert mine.low == pytest.approx(result.confidence_interval.low, rel=1e-9)
    assert mine.high == pytest.approx(result.confidence_interval.high, rel=1e-9)


def test_interval_covers_a_nonlinear_statistic() -> None:
    rng, truth, covered = generator("coverage"), float(np.exp(0.125)), 0
    for trial in range(300):
        weight = rng.gamma(3.0, size=60)
        units = np.stack([weight * rng.lognormal(0, 0.5, size=60), weight], axis=1)
        estimate = bootstrap(units, ratio(0, 1), generator(f"coverage {trial}"), draws=400)
        assert estimate.low is not None
        assert estimate.high is not None
        covered += estimate.low <= truth <= estimate.high
    assert 0.90 <= covered / 300 <= 0.985


def test_same_key_same_numbers() -> None:
    units = documents(35)
    first, second = (bootstrap(units, explained_variance, generator("k"), draws=200) for _ in range(2))
    assert first == second


def test_joint_draws_pair_the_rows() -> None:
    units = documents(33)
    worse = units * np.array([1.5, 1, 1, 1])
    drawn = joint_draws(np.stack([units, worse, units]), explained_variance, generator("joint"), draws=150)
    assert drawn.shape == (150, 3)
    np.testing.assert_allclose(drawn[:, 0], drawn[:, 2], rtol=1e-12)
    np.testing.assert_allclose(1 - drawn[:, 1], 1.5 * (1 - drawn[:, 0]), rtol=1e-9)
    np.testing.assert_allclose(
        drawn[:, 0], bootstrap_draws(units, explained_variance, generator("joint"), 150), rtol=1e-12
    )


def test_degenerate_units_never_give_a_made_up_number() -> None:
    nothing = bootstrap(np.empty((0, 2)), ratio(0, 1), generator("0"))
    assert (nothing.value, nothing.low, nothing.n) == (None, None, 0)
    one = bootstrap([[3.0, 4.0]], ratio(0, 1), generator("1"))
    assert (one.value, one.has_interval, one.n) == (0.75, False, 1)
    undefined = bootstrap([[1.0, 0.0], [2.0, 0.0]], ratio(0, 1), generator("2"))
    assert (undefined.value, undefined.method) == (None, "undefined on these units")
    same = bootstrap([[2.0, 1.0]] * 40, ratio(0, 1), generator("3"))
    assert (same.value, same.has_interval) == (2.0, False)
    assert "no spread" in same.method


def test_often_undefined_draws_give_no_interval() -> None:
    units = np.array([[1.0, 1.0]] + [[0.5, 0.0]] * 4)  # 0.8^5 = 33 % of the draws have an empty denominator
    estimate = bootstrap(units, ratio(0, 1), generator("empty"))
    assert estimate.value == 3.0
    assert not estimate.has_interval
    assert "undefined in 3" in estimate.method


def test_bca_falls_back_where_it_is_undefined() -> None:
    flat = np.zeros(50)
    sample = np.linspace(1.0, 2.0, 100)
    estimate = interval_from_draws(1.5, sample, 50, jackknife=flat)
    assert estimate.method.endswith("percentile (bca undefined)")
    below_all = interval_from_draws(0.0, sample, 50, jackknife=np.arange(50.0))
    assert below_all.method.endswith("(bca undefined)")


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="NaN or infinite"):
        bootstrap([[1.0, np.nan]], ratio(0, 1), generator("x"))
    with pytest.raises(ValueError, match="method is 'basic'"):
        bootstrap([[1.0, 1.0]], ratio(0, 1), generator("x"), method="basic")
    with pytest.raises(ValueError, match="must be \\[unit, stat\\]"):
        bootstrap(np.zeros((2, 2, 2)), ratio(0, 1), generator("x"))
    with pytest.raises(ValueError, match="no units to draw from"):
        bootstrap_draws(np.empty((0, 2)), ratio(0, 1), generator("x"))
    with pytest.raises(ValueError, match="must be \\[row, unit, stat\\]"):
        joint_draws(np.zeros((2, 2)), ratio(0, 1), generator("x"))
