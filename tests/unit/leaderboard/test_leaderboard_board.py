"""What the table shows: who is ranked against whom, and what is said of the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from leaderboard_records import (
    DICTIONARIES,
    EMBED,
    RUBRIC,
    Made,
    cell_of,
    finish,
    metric,
    record_of,
    write_results,
)

from latentbench.store import Interval, Metric, ResultsFolder
from latentbench_leaderboard._board import Board, Target, boards_of
from latentbench_leaderboard._columns import Column
from latentbench_leaderboard._scores import Score
from latentbench_leaderboard._subjects import load_subjects
from latentbench_leaderboard._units import UnitBook

TARGET = Target(64.0, 0.05)
TOPK, ROUTE = "TopK at resid_post.21", "RouteSAE"


def board_of(results: Path, target: Target = TARGET) -> Board:
    boards = boards_of(load_subjects(results)[0], [target], UnitBook())
    assert len(boards) == 1
    return boards[0]


def column_of(board: Board, title: str, judge: str = "") -> tuple[int, Column]:
    found = [
        (i, column)
        for i, column in enumerate(board.columns)
        if column.metric == title and judge in (column.judge or "")
    ]
    assert len(found) == 1, [column.metric for column in board.columns]
    return found[0]


def scores(board: Board, title: str, judge: str = "") -> dict[str, Score]:
    place, _ = column_of(board, title, judge)
    return {row.subject.name: row.scores[place] for row in (*board.rows, *board.controls)}


def core(results: ResultsFolder, made: Made, l0: float, value: float | None = 0.8, **changes: Any) -> None:
    """One core cell with an L0 and an explained variance."""
    reason = None if value is not None else "no tokens"
    ev = metric("explained_variance", value, 0.01 if value is not None else 0.0, reason=reason)
    seed = changes.pop("seed", 0)
    config = changes.pop("config", {"budget_tokens": 1000})
    cell = cell_of(made, "core", config, seed=seed)
    l0_metric = metric("l0", l0, 0.1, "latents/token", "none")
    finish(results, record_of(made, cell, [l0_metric, changes.pop("metric", ev)], **changes), [])


def named(name: str, **changes: Any) -> Made:
    fields: dict[str, Any] = {"family": "topk", "sites": ["resid_post.21"], "l0": 64.0, "quality": 0.5}
    return Made(name, **(fields | changes))


class TestRows:
    def test_only_rows_at_the_target_are_ranked(self, results: Path) -> None:
        board = board_of(results)
        names = {row.subject.name for row in board.rows}
        assert TOPK in names
        assert "TopK, k = 32" not in names
        assert [aside.subject.name for aside in board.asides] == ["TopK, k = 32"]
        assert "measured L0 32, 50 % below the target" in board.asides[0].reason

    def test_controls_stand_apart_and_have_no_rank_at_any_sparsity(self, results: Path) -> None:
        board = board_of(results)
        assert {row.subject.name for row in board.controls} == {
            "TopK, random decoder",
            "identity resid_post.21",
        }
        for row in board.controls:
            assert not any(score.rank or score.group for score in row.scores)

    @pytest.mark.parametrize(
        ("l0", "held"), [(67.2, True), (67.3, False), (60.8, True), (60.7, False), (64.0, True)]
    )
    def test_tolerance(self, l0: float, held: bool) -> None:
        assert TARGET.holds(l0) is held

    def test_another_target_takes_other_rows(self, results: Path) -> None:
        board = board_of(results, Target(32.0, 0.05))
        assert [row.subject.name for row in board.rows] == ["TopK, k = 32"]

    def test_rows_are_sorted_by_the_first_ranked_column(self, results: Path) -> None:
        board = board_of(results)
        assert board.sorted_by == 0
        values = [row.scores[0].sort for row in board.rows]
        assert values == sorted(values, key=lambda value: -(value or 0))

    def test_a_row_without_core_is_named_with_its_reason(self, tmp_path: Path) -> None:
        results = ResultsFolder.create(tmp_path / "r")
        core(results, named("one"), 64.0)
        cell = cell_of(named("two"), "steering", {})
        finish(results, record_of(named("two"), cell, [metric("success", 0.5, 0.1)]), [])
        board = board_of(tmp_path / "r")
        assert [aside.reason for aside in board.asides] == ["L0 not measured: the core task was not run"]

    def test_models_have_boards_of_their_own(self, tmp_path: Path) -> None:
        results = ResultsFolder.create(tmp_path / "r")
        for lm in ("a", "b"):
            made = named("same")
            cell = cell_of(made, "core", {}).model_copy(update={"lm": {"name": lm}})
            finish(
                results,
                record_of(made, cell, [metric("l0", 64.0, 0.1), metric("explained_variance", 0.5, 0.1)]),
                [],
            )
        boards = boards_of(load_subjects(tmp_path / "r")[0], [TARGET], UnitBook())
        assert [board.lm for board in boards] == ["a", "b"]
        assert [len(board.rows) for board in boards] == [1, 1]

    def test_rows_that_share_a_name_are_told_apart(self, tmp_path: Path) -> None:
        results = ResultsFolder.create(tmp_path / "r")
        core(results, named("same"), 64.0)
        core(results, named("same", sites=["resid_post.3"]), 64.0)
        names = [row.subject.name for row in board_of(tmp_path / "r").rows]
        assert len(set(names)) == 2
        assert all(name.startswith("same [") for name in names)


class TestScores:
    def test_value_interval_rank_and_group(self, results: Path) -> None:
        found = scores(board_of(results), "explained_variance")
        best = found[ROUTE]
        assert best.value == "0.860"
        assert best.interval == "0.848\N{EN DASH}0.872"
        assert best.rank.startswith("1 (1")
        assert best.letter == "a"
        assert "n = 120 documents" in best.tip
        assert "95% interval" in best.tip
        assert found["Random routing"].group != 1

    def test_indistinguishable_rows_share_the_first_group(self, results: Path) -> None:
        found = scores(board_of(results), "success")
        assert found[ROUTE].group == found[TOPK].group == 1
        assert found[ROUTE].rank == "1 (1\N{EN DASH}3)"

    def test_failed_cell_shows_its_error(self, results: Path) -> None:
        score = scores(board_of(results), "success")["Random routing"]
        assert score.state == "failed"
        assert "AdapterError: the router gave no layer" in score.reason
        assert not score.rank
        assert score.sort is None

    def test_unscored_metric_shows_its_reason(self, results: Path) -> None:
        found = scores(board_of(results), "score", "embed")
        (score,) = [score for name, score in found.items() if "JumpReLU" in name]
        assert score.state == "unscored"
        assert score.reason.startswith("no latent had 20 documents")
        assert score.value == ""

    def test_a_column_without_a_better_end_has_no_ranks(self, results: Path) -> None:
        found = scores(board_of(results), "l0")
        assert not any(score.rank for score in found.values())

    def test_judges_are_columns_of_their_own(self, results: Path) -> None:
        board = board_of(results)
        _, embed = column_of(board, "score", "embed")
        _, rubric = column_of(board, "score", "openai")
        assert embed.judge == "embed (all-MiniLM-L6-v2)"
        assert rubric.judge == "openai (gpt-4o-2024-11-20)"
        assert scores(board, "score", "openai")["Random routing"].state == "absent"

    def test_two_judges_of_one_name_stay_apart(self, tmp_path: Path) -> None:
        results = ResultsFolder.create(tmp_path / "r")
        core(results, named("one"), 64.0)
        for rubric in ("a", "b"):
            cell = cell_of(named("one"), "interpretability", {}, RUBRIC | {"rubric": rubric})
            finish(results, record_of(named("one"), cell, [metric("score", 0.5, 0.1)]), [])
        labels = [column.judge for column in board_of(tmp_path / "r").columns if column.metric == "score"]
        assert len(set(labels)) == 2

    def test_a_count_at_another_budget_is_marked_and_unranked(self, results: Path) -> None:
        board = board_of(results)
        _, column = column_of(board, "features_15")
        assert column.setting == "in 50,000 tokens"
        found = scores(board, "features_15")
        (score,) = [score for name, score in found.items() if "JumpReLU" in name]
        assert score.mark == "in 20,000 tokens, not 50,000"
        assert score.value
        assert not score.rank
        assert found[ROUTE].rank.startswith("1 ")

    def test_ranks_depend_on_ranked_rows_alone(self, tmp_path: Path, results: Path) -> None:
        write_results(tmp_path / "r")
        before = scores(board_of(results), "explained_variance")
        more = ResultsFolder(tmp_path / "r")
        core(more, named("off target", l0=128.0), 128.0, 0.99, config={"budget_tokens": 50_000})
        core(
            more,
            named("another control", l0=64.0, control=True),
            64.0,
            0.99,
            config={"budget_tokens": 50_000},
        )
        after = scores(board_of(tmp_path / "r"), "explained_variance")
        assert {name: (s.value, s.rank, s.group) for name, s in before.items()} == {
            name: (s.value, s.rank, s.group) for name, s in after.items() if name != "another control"
        }

    def test_intervals_of_another_level_are_marked_and_unranked(self, tmp_path: Path) -> None:
        results = ResultsFolder.create(tmp_path / "r")
        for name in ("one", "two"):
            core(results, named(name, sites=[name]), 64.0)
        odd = Metric(
            name="explained_variance",
            value=0.9,
            interval=Interval(low=0.8, high=0.95, level=0.9, method="t"),
            n=9,
            resampling_unit="document",
            unit="share",
            direction="higher",
            headline=True,
        )
        core(results, named("odd", sites=["odd"]), 64.0, metric=odd)
        found = scores(board_of(tmp_path / "r"), "explained_variance")
        assert found["odd"].mark == "90% interval, the others 95%"
        assert not found["odd"].rank
        assert found["one"].rank


class TestSettings:
    def test_a_row_under_other_settings_only_is_marked(self, tmp_path: Path) -> None:
        results = ResultsFolder.create(tmp_path / "r")
        for name in ("one", "two"):
            core(results, named(name, sites=[name]), 64.0, config={"context": 128})
        core(results, named("odd", sites=["odd"]), 64.0, config={"context": 64})
        score = scores(board_of(tmp_path / "r"), "explained_variance")["odd"]
        assert score.mark == "other settings: context 64 instead of 128"
        assert score.value
        assert not score.rank

    def test_settings_measured_besides_the_usual_ones_get_a_column(self, tmp_path: Path) -> None:
        results = ResultsFolder.create(tmp_path / "r")
        for name in ("one", "two"):
            core(results, named(name, sites=[name]), 64.0, config={"mode": "corrected"})
        core(results, named("one", sites=["one"]), 64.0, 0.7, config={"mode": "paper"})
        board = board_of(tmp_path / "r")
        columns = [column for column in board.columns if column.metric == "explained_variance"]
        assert [column.setting for column in columns] == ["", "mode paper instead of corrected"]
        assert len({column.id for column in columns}) == 2
        two = next(row for row in board.rows if row.subject.name == "two")
        assert two.scores[board.columns.index(columns[1])].state == "absent"

    def test_the_first_seed_is_shown_and_the_others_named(self, tmp_path: Path) -> None:
        results = ResultsFolder.create(tmp_path / "r")
        for seed, value in ((2, 0.3), (0, 0.1), (1, 0.2)):
            core(results, named("one"), 64.0, value, seed=seed)
        score = scores(board_of(tmp_path / "r"), "explained_variance")["one"]
        assert score.value == "0.100"
        assert "measured with 1 and 2 too" in score.tip

    def test_a_task_that_failed_everywhere_still_has_a_column(self, tmp_path: Path) -> None:
        from latentbench.store import ErrorRecord

        results = ResultsFolder.create(tmp_path / "r")
        core(results, named("one"), 64.0)
        cell = cell_of(named("one"), "steering", {})
        error = ErrorRecord(type="ValueError", message="no prompts")
        finish(results, record_of(named("one"), cell, [], error=error), [])
        board = board_of(tmp_path / "r")
        place = next(i for i, column in enumerate(board.columns) if column.task == "steering")
        assert board.rows[0].scores[place].reason == "ValueError: no prompts"


def test_fixture_holds_what_it_promises() -> None:
    assert sum(not made.control for made in DICTIONARIES) == 5
    assert EMBED != RUBRIC


def test_a_row_alone_has_no_rank(tmp_path: Path) -> None:
    results = ResultsFolder.create(tmp_path)
    core(results, named("one"), 64.0)
    assert scores(board_of(tmp_path), "explained_variance")["one"].rank == ""
    core(results, named("two"), 64.0, value=0.1)
    assert scores(board_of(tmp_path), "explained_variance")["one"].rank != ""
