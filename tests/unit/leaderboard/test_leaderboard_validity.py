"""What is said of a metric's worth, against numbers worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from leaderboard_records import CORPUS, RUBRIC, Made, cell_of, finish, labels_of, metric, record_of

from latentbench.identity import sha256_json
from latentbench.store import ResultsFolder
from latentbench_leaderboard._columns import columns_of
from latentbench_leaderboard._subjects import load_subjects
from latentbench_leaderboard._validity import validity_of

SITE = ["resid_post.21"]


def said(folder: Path) -> list[str]:
    """What is said of the only metric of a results folder."""
    subjects, _ = load_subjects(folder)
    (column,) = columns_of(subjects)
    return validity_of(column, subjects)


def write(folder: Path, rows: Sequence[tuple[str, int | None, float, bool]], half: float = 0.0) -> Path:
    """A results folder of rows: recipe, training seed, value, and whether it is a control."""
    results = ResultsFolder.create(folder)
    for recipe, seed, value, control in rows:
        made = Made(f"{recipe} seed {seed}", recipe, SITE, 64.0, 0.5, control)
        record = record_of(made, cell_of(made, "core", {}), [metric("explained_variance", value, half)])
        card = {
            **labels_of(made)["card"],
            "training": {"seed": seed, "recipe": {"name": recipe, "seed": seed}},
        }
        finish(results, record.model_copy(update={"labels": {**record.labels, "card": card}}), [])
    return folder


def test_dictionaries_stand_against_controls_and_recipes_against_seeds(tmp_path: Path) -> None:
    rows = [
        ("topk", 0, 0.70, False),
        ("topk", 1, 0.72, False),
        ("gated", 0, 0.60, False),
        ("gated", 1, 0.64, False),
        ("mean", None, 0.0, True),
    ]
    # Within: sqrt((0.0002 + 0.0008) / 2) = 0.02236; between: sd(0.71, 0.62) = 0.06364, 2.8 times as much.
    assert said(write(tmp_path / "r", rows, half=0.01)) == [
        "4 dictionaries score 0.6 to 0.72; 1 control 0.",
        "Training seeds of one recipe differ by a standard deviation of 0.0224 (2 recipes); the means of recipes "
        "by 0.0636, 2.8 times as much.",
        "Half an interval is 0.01 in the middle row.",
    ]


def test_one_recipe_has_nothing_to_be_held_against(tmp_path: Path) -> None:
    rows = [("topk", 0, 0.70, False), ("topk", 1, 0.72, False)]
    assert said(write(tmp_path / "r", rows))[1:] == [
        "Training seeds of one recipe differ by a standard deviation of 0.0141 (1 recipe)."
    ]


def test_what_was_not_trained_more_than_once_says_nothing_of_seeds(tmp_path: Path) -> None:
    assert said(write(tmp_path / "r", [("topk", 0, 0.70, False)])) == ["1 dictionary scores 0.7."]


def test_controls_alone_say_nothing(tmp_path: Path) -> None:
    assert said(write(tmp_path / "r", [("mean", None, 0.0, True)])) == []


@pytest.mark.parametrize("calibrated", [True, False])
def test_a_judge_stands_beside_known_answers(tmp_path: Path, calibrated: bool) -> None:
    made, asked = Made("topk", "topk", SITE, 64.0, 0.5), {**RUBRIC, "rubrics": {"routesae": "ab" * 32}}
    cell = cell_of(made, "monosemanticity", {}, asked)
    assert cell.corpus == CORPUS
    finish(ResultsFolder.create(tmp_path / "r"), record_of(made, cell, [metric("score", 3.0)]), [])
    if calibrated:
        one = {"rubric": "routesae", "rubric_sha256": "ab" * 32, "kappa": 0.8, "good": True}
        (tmp_path / "r" / "calibration").mkdir()
        path = tmp_path / "r" / "calibration" / f"{sha256_json(RUBRIC)}.json"
        path.write_text(json.dumps({"judge": RUBRIC, "rubrics": [one]}))
    found = said(tmp_path / "r")[-1]
    known = "calibrated: routesae kappa 0.80" if calibrated else "not calibrated"
    assert found == f"Judge, where the right verdict is known: {known}."
