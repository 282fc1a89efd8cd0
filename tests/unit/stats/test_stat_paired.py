"""Paired comparison, Holm and the minimum detectable difference, against numbers from elsewhere."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from latentbench.stats import generator, holm, minimum_detectable_difference, paired, ratio

MEAN = ratio(0, 1)


def rows(values: ArrayLike) -> NDArray[np.float64]:
    column = np.asarray(values, dtype=np.float64)
    return np.stack([column, np.ones_like(column)], axis=1)


def test_exact_sign_flip_equals_enumeration() -> None:
    first, second = [3.0, 1.0, 4.0, 2.0, 6.0], [2.0, 1.5, 1.0, 1.0, 2.0]
    gaps = np.subtract(first, second)
    means = [abs(np.mean(np.array(signs) * gaps)) for signs in product([1, -1], repeat=5)]
    expected = np.mean(np.array(means) >= abs(gaps.mean()) - 1e-9)
    result = paired(rows(first), rows(second), MEAN, generator("p"))
    assert result.p_value == pytest.approx(expected)
    assert result.test == "sign-flip permutation, exact (32 swaps)"
    assert result.difference.value == pytest.approx(gaps.mean())


def test_binary_pairs_give_the_exact_mcnemar_p_value() -> None:
    # 2 against 9 discordant pairs: two-sided binomial p = 0.0654296875
    first, second = [1] * 9 + [0] * 2, [0] * 9 + [1] * 2
    assert paired(rows(first), rows(second), MEAN, generator("m")).p_value == pytest.approx(0.0654296875)


def test_random_swaps_approach_the_exact_p_value() -> None:
    rng = generator("swap data")
    first = rng.normal(0.5, 1, size=12)
    second = rng.normal(size=12)
    exact = paired(rows(first), rows(second), MEAN, generator("e"), flips=4095)
    random = paired(rows(first), rows(second), MEAN, generator("r"), flips=4000)
    assert "exact" in exact.test
    assert "4000 random" in random.test
    assert random.p_value == pytest.approx(exact.p_value, abs=0.03)


def test_pairing_finds_what_separate_intervals_miss() -> None:
    rng = generator("shared noise")
    difficulty = rng.normal(0, 5, size=50)
    first, second = difficulty + 0.3 + rng.normal(0, 0.2, size=50), difficulty
    result = paired(rows(first), rows(second), MEAN, generator("pair"))
    assert result.difference.low is not None
    assert result.difference.low > 0.2
    assert result.p_value == pytest.approx(1e-4)


def test_a_row_does_not_differ_from_itself() -> None:
    values = rows(generator("self").normal(size=40) * 1e3)
    result = paired(values, values, MEAN, generator("same"))
    assert result.difference.value == 0.0
    assert not result.difference.has_interval
    assert result.p_value == 1.0


def test_p_values_are_uniform_under_the_null() -> None:
    rng = generator("null")
    p_values = [
        paired(rows(rng.normal(size=15)), rows(rng.normal(size=15)), MEAN, generator(f"{i}"), 50, 199).p_value
        for i in range(300)
    ]
    assert 0.02 <= np.mean(np.array(p_values) <= 0.05) <= 0.09


def test_too_few_or_undefined_units_are_not_tested() -> None:
    assert paired(rows([1.0]), rows([2.0]), MEAN, generator("1")).p_value is None
    empty = paired(np.empty((0, 2)), np.empty((0, 2)), MEAN, generator("0"))
    assert (empty.difference.value, empty.p_value) == (None, None)
    undefined = paired([[1.0, 0.0]] * 3, [[1.0, 1.0]] * 3, MEAN, generator("u"))
    assert (undefined.difference.value, undefined.p_value) == (None, None)
    with pytest.raises(ValueError, match="needs the same units in both"):
        paired(rows([1.0, 2.0]), rows([1.0]), MEAN, generator("x"))


def test_holm_gives_known_numbers() -> None:
    # statsmodels 0.15 multipletests(method="holm")
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.001, 0.2, 0.013, 0.6, 0.02]) == pytest.approx([0.005, 0.4, 0.052, 0.6, 0.06])
    assert holm([]) == []
    assert holm([0.02, None, 0.03]) == [0.04, None, 0.04]
    with pytest.raises(ValueError, match="not a probability"):
        holm([float("nan")])


@pytest.mark.parametrize(
    ("n", "exact"),
    [(10, 1.9920038), (30, 1.0584714), (200, 0.3981294)],  # statsmodels TTestPower, sd = 2
)
def test_minimum_detectable_difference_is_the_power_analysis(n: int, exact: float) -> None:
    assert minimum_detectable_difference(n, 2.0) == pytest.approx(exact, rel=0.002)


def test_minimum_detectable_difference_refuses_nonsense() -> None:
    assert minimum_detectable_difference(1, 2.0) is None
    with pytest.raises(ValueError, match="power is 80"):
        minimum_detectable_difference(10, 1.0, power=80)
    with pytest.raises(ValueError, match="sd is nan"):
        minimum_detectable_difference(10, float("nan"))
