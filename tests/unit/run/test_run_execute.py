"""Running cells: records, failures as data, resuming after a kill, texts kept apart."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import toy_plan
from toy_plan import FailingTask

from latentbench.run import Event, Task, execute
from latentbench.store import ResultsFolder, RunRecord
from latentbench_tasks.core.task import CoreConfig, CoreTask


def numbers(records: list[RunRecord]) -> str:
    """Everything a record says but times and where it was made."""
    dumped = [
        record.model_dump(mode="json", exclude={"started", "finished", "provenance"}) for record in records
    ]
    return json.dumps(dumped, sort_keys=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[RunRecord]]:
    out = tmp_path_factory.mktemp("whole")
    return out, execute(toy_plan.toy_plan(), out)


def test_every_cell_gets_a_sound_record(whole: tuple[Path, list[RunRecord]]) -> None:
    out, records = whole
    assert [record.status for record in records] == ["ok"] * 4
    assert ResultsFolder(out).verify() == []
    assert all("family" in json.dumps(record.labels["card"]) for record in records)
    assert len({record.key for record in records}) == 4


def test_running_again_does_nothing(whole: tuple[Path, list[RunRecord]]) -> None:
    out, records = whole
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.json*")}
    events: list[Event] = []
    again = execute(toy_plan.toy_plan(), out, events.append)
    assert numbers(again) == numbers(records)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.json*")} == before
    assert not [event for event in events if event.kind == "progress"]


@pytest.mark.parametrize("kill_after", [1, 4, 9])
def test_a_killed_run_goes_on_to_the_same_numbers(
    kill_after: int, tmp_path: Path, whole: tuple[Path, list[RunRecord]]
) -> None:
    command = [sys.executable, toy_plan.__file__, str(tmp_path), str(kill_after)]
    killed = subprocess.run(command, check=False, capture_output=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    partial = [len(list(cell.items())) for cell in ResultsFolder(tmp_path).cells()]
    assert any(partial), "the run was killed before it stored anything"
    records = execute(toy_plan.toy_plan(), tmp_path)
    assert numbers(records) == numbers(whole[1])
    for cell in ResultsFolder(tmp_path).cells():
        names = [(item["kind"], item["id"]) for item in cell.items()]
        assert len(names) == len(set(names))


def test_items_hold_no_text_of_documents_that_are_not_free(whole: tuple[Path, list[RunRecord]]) -> None:
    free = {document.sha256 for document in toy_plan.toy_corpus("test").documents if document.excerpts}
    excerpts = 0
    for cell in ResultsFolder(whole[0]).cells():
        for item in cell.items():
            assert item["kind"] != "text"
            for context in item.get("contexts", []):
                assert (context["excerpt"] is not None) == (context["document"] in free)
                excerpts += context["excerpt"] is not None
        assert (cell.path / "texts.jsonl").exists() == any(True for _ in cell.items(kind="latent"))
    assert excerpts


@pytest.mark.parametrize("step", ["watcher", "watch", "measure", "summarise"])
def test_a_failing_cell_is_recorded_and_the_others_go_on(step: str, tmp_path: Path) -> None:
    good: list[Task] = [CoreTask(CoreConfig(budget_tokens=100, calibration_tokens=50))]
    records = execute(toy_plan.toy_plan([*good, FailingTask(step)]), tmp_path)
    assert [record.status for record in records] == ["ok", "failed", "ok", "failed"]
    failed = records[1]
    assert failed.error is not None
    assert failed.error.message == f"broken in {step}"
    assert "broken" in failed.error.traceback
    assert failed.metrics == []


def test_a_failed_cell_is_run_again(tmp_path: Path) -> None:
    execute(toy_plan.toy_plan([FailingTask("summarise")]), tmp_path)
    records = execute(toy_plan.toy_plan([FailingTask("none")]), tmp_path)
    assert [record.status for record in records] == ["ok", "ok"]
    assert records[0].counts == {"items": 1}
