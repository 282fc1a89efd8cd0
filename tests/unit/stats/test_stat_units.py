"""Cells on the same units are drawn together, whatever order their items came in."""

from __future__ import annotations

import numpy as np
import pytest

from latentbench.stats import Units, generator, paired, ratio

NAMES = tuple(f"document {i}" for i in range(40))
RNG = generator("units")
BASE = RNG.normal(size=40)


def units(values: np.ndarray, names: tuple[str, ...] = NAMES) -> Units:
    return Units(names, np.column_stack([values, np.ones(len(values))]), {"mean": ratio(0, 1)})


def test_value_is_the_statistic_of_all_units() -> None:
    assert units(BASE).values()["mean"] == pytest.approx(BASE.mean())


def test_order_of_units_changes_no_draw() -> None:
    turned = units(BASE[::-1], NAMES[::-1])
    assert turned.key == units(BASE).key
    assert turned.draws(50)["mean"] == pytest.approx(units(BASE).draws(50)["mean"])


def test_other_units_have_other_keys_and_draws() -> None:
    other = units(BASE, tuple(f"text {i}" for i in range(40)))
    assert other.key != units(BASE).key
    assert not np.allclose(other.draws(50)["mean"], units(BASE).draws(50)["mean"])


def test_differences_of_draws_have_the_paired_standard_error() -> None:
    second = BASE + 0.1 + 0.05 * RNG.normal(size=40)
    apart = units(second).draws(4000)["mean"] - units(BASE).draws(4000)["mean"]
    known = (second - BASE).std() / np.sqrt(40)
    assert apart.std() == pytest.approx(known, rel=0.06)
    assert apart.std() < 0.2 * units(BASE).draws(4000)["mean"].std()
    one, two = (np.column_stack([x, np.ones(40)]) for x in (second, BASE))
    found = paired(one, two, ratio(0, 1), generator("p")).difference
    assert found.low is not None
    assert found.high is not None
    assert apart.std() == pytest.approx((found.high - found.low) / 3.92, rel=0.15)


def test_names_must_be_unique_and_one_for_each_row() -> None:
    with pytest.raises(ValueError, match="39 different"):
        units(BASE, ("document 1", *NAMES[1:]))
    with pytest.raises(ValueError, match="every unit has one name"):
        units(BASE, NAMES[:-1])
