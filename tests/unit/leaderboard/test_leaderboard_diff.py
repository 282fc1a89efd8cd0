"""`latentbench leaderboard diff`: what changed, and whether it matters."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from leaderboard_records import DICTIONARIES, cell_of, finish, metric, record_of

from latentbench.cli._main import _run
from latentbench.store import Curve, CurvePoint, ErrorRecord, ResultsFolder, RunRecord
from latentbench_leaderboard.diffs import Diff, diff_records, diff_results

MADE = DICTIONARIES[0]


def made(*metrics: Any, config: dict[str, Any] | None = None, **changes: Any) -> RunRecord:
    record = record_of(MADE, cell_of(MADE, "core", config or {}), list(metrics))
    return record.model_copy(update=changes)


def lines(found: Diff) -> list[tuple[str, bool, str]]:
    return [(change.kind, change.beyond, change.message) for change in found.changes]


def test_equal_results_have_no_differences(results: Path, bundle: Path, measured: Path) -> None:
    found = diff_results(results, results)
    assert (found.changes, found.moved) == ((), False)
    assert found.compared == len(ResultsFolder(results).records())
    assert diff_results(measured, bundle).changes == ()


@pytest.mark.parametrize(
    ("old", "new", "beyond", "text"),
    [
        (metric("kl", 0.5, 0.1), metric("kl", 0.55, 0.1), False, "kl moved from 0.5 (0.4 to 0.6) to 0.55"),
        (metric("kl", 0.5, 0.1), metric("kl", 0.7, 0.1), True, "beyond the interval"),
        (metric("kl", 0.5, 0.1), metric("kl", 0.7, 0.3), False, "within the interval"),
        (metric("kl", 0.5), metric("kl", 0.5001), True, "kl moved from 0.5 to 0.5001, beyond the interval"),
        (metric("kl", 0.5, 0.1), metric("kl", 0.5, 0.2), False, "kl has another interval"),
        (metric("kl", 0.5, 0.1), metric("kl", None, reason="none"), True, "to unscored, beyond"),
        (metric("kl", 0.5, 0.1), metric("ce", 0.5, 0.1), True, "metric 'kl' is gone"),
    ],
)
def test_a_number_moves_within_or_beyond_its_interval(old: Any, new: Any, beyond: bool, text: str) -> None:
    found = diff_records([made(old)], [made(new)])
    assert found.moved == beyond
    assert text in found.changes[0].message


def test_rounding_is_no_difference() -> None:
    old, new = made(metric("kl", 0.1 + 0.2, 0.1)), made(metric("kl", 0.3, 0.1))
    assert diff_records([old], [new]).changes == ()


def test_cells_come_and_go() -> None:
    one, other = made(metric("kl", 0.5)), record_of(MADE, cell_of(MADE, "steering", {}), [metric("s", 1.0)])
    assert lines(diff_records([one], [one, other])) == [("added", False, "is new")]
    assert lines(diff_records([one, other], [one])) == [("removed", True, "is not in the new results")]


def test_a_cell_with_other_options_is_still_compared() -> None:
    old = made(metric("kl", 0.5, 0.1), config={"budget_tokens": 1})
    new = made(metric("kl", 0.9, 0.1), config={"budget_tokens": 2})
    found = diff_records([old], [new])
    assert found.compared == 1
    assert lines(found)[1] == ("remade", False, "is another cell now, by task.config.budget_tokens")
    assert lines(found)[0][:2] == ("metric", True)
    twins = [made(metric("kl", 0.5), config={"budget_tokens": n}) for n in (2, 3)]
    assert [kind for kind, *_ in lines(diff_records([old], twins))] == ["removed", "added", "added"]


def test_failures_and_curves() -> None:
    bad = record_of(MADE, cell_of(MADE, "core", {}), [], error=ErrorRecord(type="X", message="y"))
    good = made(metric("kl", 0.5))
    assert lines(diff_records([good], [bad])) == [("status", True, "was ok, is failed")]
    assert lines(diff_records([bad], [good])) == [("status", False, "was failed, is ok")]

    def curve(value: float) -> Curve:
        points = [
            CurvePoint(x=1.0, value=1.0, low=0.5, high=1.5),
            CurvePoint(x=2.0, value=value, low=1, high=9),
        ]
        return Curve(name="c", x_name="x", x_unit="", unit="", points=points)

    def against(value: float) -> list[tuple[str, bool, str]]:
        return lines(diff_records([made(curves=[curve(2.0)])], [made(curves=[curve(value)])]))

    assert against(2.0) == []
    assert against(3.0) == [("curve", False, "curve 'c' moved within its band")]
    assert against(9.0) == [("curve", False, "curve 'c' moved within its band")]
    shifted = [made(curves=[curve(2.0)])], [made(curves=[curve(2.0).model_copy(update={"points": []})])]
    assert lines(diff_records(*shifted)) == [
        ("curve", True, "2 of 2 points of curve 'c' moved out of their bands")
    ]


def test_exit_codes(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(results, copy)
    command = ["leaderboard", "diff", str(results), str(copy)]
    assert _run(command) == 0
    assert ": 0 differences, 0 beyond an interval" in capsys.readouterr().out
    cell = next(cell for cell in ResultsFolder(copy).cells() if cell.finished)
    record = cell.record()
    assert record is not None
    shutil.rmtree(cell.path)
    assert _run(command) == 1
    assert "MOVED  removed" in capsys.readouterr().out
    assert _run(["leaderboard", "diff", str(copy), str(results)]) == 0  # more than before is no harm
    assert _run(["leaderboard", "diff", str(copy), str(results), "--exact"]) == 1
    capsys.readouterr()
    assert _run([*command, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["changes"][0]["key"] == record.key
    assert _run(["leaderboard", "diff", str(tmp_path), str(copy)]) == 2
    (tmp_path / "no.zip").write_text("x", encoding="utf-8")
    assert _run(["leaderboard", "diff", str(tmp_path / "no.zip"), str(copy)]) == 2


def test_a_written_folder_is_read(tmp_path: Path) -> None:
    for name, value in (("old", 0.5), ("new", 0.8)):
        finish(ResultsFolder.create(tmp_path / name), made(metric("kl", value, 0.1)), [])
    (change,) = diff_results(tmp_path / "old", tmp_path / "new").changes
    assert (change.old, change.new, change.name) == (0.5, 0.8, "kl")
    assert change.line().startswith("MOVED  metric   core of TopK at resid_post.21 (")
