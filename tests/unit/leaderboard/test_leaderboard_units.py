"""Rows that share their units are ranked and compared as pairs; anything less is said and falls back."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from leaderboard_records import Made, cell_of, finish, metric, record_of

from latentbench.registry import TASKS, UNITS
from latentbench.stats import generator
from latentbench.store import ResultsFolder
from latentbench_leaderboard._board import Board, Target, boards_of
from latentbench_leaderboard._cards import task_card
from latentbench_leaderboard._compare import compare_shards
from latentbench_leaderboard._subjects import load_subjects
from latentbench_leaderboard._units import UnitBook
from latentbench_tasks.core.metrics import units as core_units
from latentbench_tasks.influence_fidelity.metrics import summarise

TASK = "influence_fidelity"


def examples(shift: float, contexts: int = 24) -> list[dict[str, Any]]:
    """Items whose rank correlations go up and down together in all rows, but for a small shift."""
    rng, items = generator("contexts"), []
    for context in range(contexts):
        exact = rng.normal(size=40)
        noise = rng.normal(size=40) * (0.2 + 2.5 * rng.random())
        scores = {"gradsae": (exact + (1 - shift) * noise).tolist()}
        about = {"kind": "example", "id": f"q{context}", "context": f"c{context}", "correct": True}
        items.append({**about, "exact": exact.tolist(), "scores": scores, "passes": {"gradsae": [1.0, 1.0]}})
    return items


def row(
    results: ResultsFolder, name: str, items: list[dict[str, Any]], version: str = "", stored: Any = None
) -> None:
    """One dictionary at the target with its cell of influence fidelity."""
    made = Made(name, "topk", [name], 64.0, 0.5)
    core = cell_of(made, "core", {})
    finish(results, record_of(made, core, [metric("l0", 64.0, 0.1, "latents/token", "none")]), [])
    cell = cell_of(made, TASK, {})
    task = {**cell.task, "version": version or task_card(TASK).version}
    cell = cell.model_copy(update={"task": task})
    metrics, _, _ = summarise(items, "gradsae", generator(name))
    finish(results, record_of(made, cell, metrics), items if stored is None else stored)


def board_of(path: Path) -> Board:
    (board,) = boards_of(load_subjects(path)[0], [Target(64.0, 0.05)], UnitBook())
    return board


def found(path: Path) -> tuple[dict[str, tuple[str, int | None]], str]:
    """Rank and group of each row in the column of rank correlations, and how they were made."""
    board = board_of(path)
    place = next(i for i, column in enumerate(board.columns) if column.metric == "spearman_gradsae")
    return {
        r.subject.name: (r.scores[place].rank, r.scores[place].group) for r in board.rows
    }, board.rankings[place]


@pytest.fixture
def results(tmp_path: Path) -> ResultsFolder:
    folder = ResultsFolder.create(tmp_path)
    row(folder, "one", examples(0.0))
    row(folder, "two", examples(0.15))
    return folder


def test_rows_on_the_same_contexts_are_ranked_as_pairs(results: ResultsFolder, tmp_path: Path) -> None:
    ranks, how = found(tmp_path)
    assert how == "paired: all rows share the same 24 contexts"
    assert ranks == {"two": ("1 (1)", 1), "one": ("2 (2)", 2)}
    for path in tmp_path.rglob("items.jsonl"):
        path.unlink()
    ranks, how = found(tmp_path)
    assert how == "unpaired: 2 of 2 rows have no items by shared unit here"
    assert {group for _, group in ranks.values()} == {1}  # their own intervals overlap widely


@pytest.mark.parametrize("spoilt", ["other values", "damaged", "version", "other contexts"])
def test_what_can_t_be_paired_is_said_and_ranked_unpaired(
    results: ResultsFolder, tmp_path: Path, spoilt: str
) -> None:
    items = examples(0.3)
    if spoilt == "other values":
        row(results, "three", items, stored=examples(0.5))
    elif spoilt == "damaged":
        row(results, "three", items, stored=[{"kind": "example", "id": "q1"}])
    elif spoilt == "version":
        row(results, "three", items, version="0")
    else:
        row(results, "three", examples(0.3, contexts=20))
    ranks, how = found(tmp_path)
    assert how.startswith("paired" if spoilt == "version" else "unpaired: ")
    assert ("different units" in how) == (spoilt == "other contexts")
    if spoilt == "version":
        assert ranks["three"] == ("", None)  # other settings: not even ranked
    else:
        assert all(rank for rank, _ in ranks.values())


def test_shards_hold_the_draws_that_ranks_are_made_of(results: ResultsFolder, tmp_path: Path) -> None:
    subjects, units = load_subjects(tmp_path)[0], UnitBook()
    shards = dict(compare_shards(subjects, units, ["a", "b", "c"]))
    index = shards["compare/index"]
    assert index["first"] == ["a", "b"]
    (column,) = [c["id"] for c in index["columns"] if c["title"] == "Rank correlation: GradSAE"]
    cells = [shards[f"compare/{subject.slug}"][column] for subject in subjects]
    assert cells[0]["u"] == cells[1]["u"]
    for subject, cell in zip(subjects, cells, strict=True):
        (entry,) = [entry for entry in subject.entries if entry.task == TASK]
        drawn = units.of(entry)
        assert drawn is not None
        assert cell["n"] == 24
        steps = np.frombuffer(base64.b64decode(cell["d"]), dtype="<i2")
        assert cell["v"] + cell["k"] * steps == pytest.approx(drawn.draws["spearman_gradsae"], abs=1e-4)
    json.dumps(shards, allow_nan=False)


def test_only_cells_of_one_task_version_have_units(results: ResultsFolder, tmp_path: Path) -> None:
    for subject in load_subjects(tmp_path)[0]:
        for entry in subject.entries:
            assert (UnitBook().of(entry) is not None) == (entry.task == TASK)


def test_units_are_found_by_the_name_of_their_task() -> None:
    assert UNITS.load("core") is core_units
    assert set(UNITS.names()) <= set(TASKS.names())
