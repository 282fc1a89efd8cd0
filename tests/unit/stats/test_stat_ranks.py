"""Ranks, rank intervals and tie groups."""

from __future__ import annotations

import numpy as np
import pytest

from latentbench.stats import Estimate, generator, rank_independent, rank_intervals


def test_clear_rows_get_sharp_ranks_and_equal_rows_share_a_group() -> None:
    rng = generator("draws")
    values = [0.9, 0.5, 0.505, 0.1]
    draws = np.array(values) + rng.normal(scale=0.01, size=(2000, 4))
    placed = rank_intervals(values, draws, "higher")
    assert [row.rank for row in placed] == [1, 3, 2, 4]
    assert [(row.low, row.high) for row in placed] == [(1, 1), (2, 3), (2, 3), (4, 4)]
    assert [row.group for row in placed] == [1, 2, 2, 3]


def test_lower_is_better_turns_the_table_around() -> None:
    values = [3.0, 1.0, 2.0]
    draws = np.array(values) + generator("low").normal(scale=0.001, size=(500, 3))
    assert [row.rank for row in rank_intervals(values, draws, "lower")] == [3, 1, 2]


def test_shared_noise_does_not_blur_paired_rows() -> None:
    noise = generator("shared").normal(scale=1.0, size=(1000, 1))
    values = [0.2, 0.1]
    draws = np.array(values) + noise + generator("own").normal(scale=0.005, size=(1000, 2))
    assert [row.group for row in rank_intervals(values, draws, "higher")] == [1, 2]
    alone = [Estimate(value, value - 2, value + 2, 0.95, "t", 30) for value in values]
    assert [row.group for row in rank_independent(alone, "higher", generator("i"))] == [1, 1]


def test_exact_ties_share_rank_and_group() -> None:
    draws = np.tile([1.0, 1.0, 0.0], (100, 1))
    placed = rank_intervals([1.0, 1.0, 0.0], draws, "higher")
    assert [(row.rank, row.group) for row in placed] == [(1, 1), (1, 1), (3, 2)]


def test_unscored_rows_are_unranked_and_move_nobody() -> None:
    values = [0.9, None, 0.1]
    draws = np.array([0.9, np.nan, 0.1]) + generator("u").normal(scale=0.01, size=(300, 3))
    with_gap = rank_intervals(values, draws, "higher")
    without = rank_intervals([0.9, 0.1], draws[:, [0, 2]], "higher")
    assert (with_gap[1].rank, with_gap[1].low, with_gap[1].group) == (None, None, None)
    assert [with_gap[0], with_gap[2]] == without


def test_holm_widens_groups_as_rows_are_added() -> None:
    estimates = [Estimate(1.0, 0.9, 1.1, 0.95, "t", 50), Estimate(0.84, 0.74, 0.94, 0.95, "t", 50)]
    pair = rank_independent(estimates, "higher", generator("p"))
    crowd = rank_independent([*estimates, *[estimates[1]] * 20], "higher", generator("c"))
    assert pair[1].group == 2
    assert crowd[1].group == 1


def test_independent_rows_are_normal_approximations() -> None:
    estimates = [
        Estimate(0.8, 0.7, 0.9, 0.95, "wilson", 50),
        Estimate(0.78, 0.68, 0.88, 0.95, "wilson", 50),
        Estimate(0.2, 0.1, 0.3, 0.95, "wilson", 50),
        Estimate(0.5, None, None, 0.95, "none (n < 2)", 1),
        Estimate(None, None, None, 0.95, "no units", 0),
    ]
    placed = rank_independent(estimates, "higher", generator("independent"))
    assert [row.rank for row in placed] == [1, 2, 4, 3, None]
    assert [row.group for row in placed] == [1, 1, 2, None, None]
    assert [(row.low, row.high) for row in placed] == [(1, 2), (1, 2), (4, 4), (None, None), (None, None)]
    assert "normal approximation" in placed[0].method


def test_empty_tables_and_bad_input() -> None:
    assert rank_intervals([], np.empty((5, 0)), "higher") == []
    assert rank_independent([], "higher", generator("e")) == []
    with pytest.raises(ValueError, match="must be \\[draw, row\\]"):
        rank_intervals([1.0], np.zeros((5, 2)), "higher")
    with pytest.raises(ValueError, match="NaN or infinite"):
        rank_intervals([1.0], np.full((5, 1), np.nan), "higher")
    with pytest.raises(ValueError, match="without a better end"):
        rank_intervals([1.0], np.zeros((5, 1)), "none")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="different levels"):
        rank_independent([Estimate(1, 0, 2, lvl, "t", 5) for lvl in (0.9, 0.95)], "higher", generator("x"))
