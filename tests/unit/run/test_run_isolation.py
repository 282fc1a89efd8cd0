"""One cell's trouble stays its own, whatever step it comes from; a kill in the middle of a batch costs nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import pytest
import torch
import toy_plan
from torch import Tensor

from latentbench.adapters import Codes, IdentityDictionary
from latentbench.data import TokenRow
from latentbench.lm import Site
from latentbench.run import CellSetup, Cost, Event, Item, Plan, Task, WatchedBatch, Watcher, execute
from latentbench.store import ResultsFolder
from latentbench_tasks.core.task import CoreConfig, CoreTask
from latentbench_tasks.feature_count.task import FeatureCountConfig, FeatureCountTask

KILLED_WHILE_STORING = """
import os, signal, sys
sys.path.insert(0, sys.argv[3])
import toy_plan
from latentbench.run import execute
from latentbench.store import CellWriter

real, left = CellWriter.append, int(sys.argv[2])

def append(self, items, file="items"):
    global left
    left -= 1
    if left < 0:
        with (self.path / "items.jsonl").open("ab") as torn:
            torn.write(b'{"kind": "row", "id": "tor')
        os.kill(os.getpid(), signal.SIGKILL)
    return real(self, items, file)

CellWriter.append = append
from pathlib import Path
execute(toy_plan.toy_plan(), Path(sys.argv[1]))
"""


def core(budget: int = 200) -> CoreTask:
    return CoreTask(CoreConfig(budget_tokens=budget, calibration_tokens=50))


class _Nan(IdentityDictionary):
    """The last value of every batch is NaN."""

    def encode(self, acts: Mapping[Site, Tensor] | Mapping[str, Tensor]) -> Codes:
        codes = super().encode(acts)
        values = codes.values.clone()
        values[-1] = torch.nan
        return codes.with_values(values)


class _RowlessWatcher(Watcher):
    budget_tokens = 100

    def rows(self) -> Sequence[TokenRow] | None:
        raise LookupError("the corpus has no such labels")

    def watch(self, batch: WatchedBatch, codes: Codes) -> list[Item]:
        raise AssertionError("fed without rows")


class _RowlessTask(toy_plan.FailingTask):
    """Its watcher can't tell its rows."""

    name: ClassVar[str] = "rowless"

    def watcher(self, setup: CellSetup) -> Watcher:
        return _RowlessWatcher()


def with_nan(plan: Plan) -> Plan:
    """The plan with its first dictionary's activations broken."""
    broken = _Nan(Site("resid_post", 1), 16, torch.device("cpu"), torch.float32)
    first = plan.cells[0].dictionary
    for cell in plan.cells:
        if cell.dictionary is first:
            object.__setattr__(cell, "dictionary", broken)
    return plan


def test_nan_fails_its_own_cells_and_no_others(tmp_path: Path) -> None:
    records = execute(with_nan(toy_plan.toy_plan([core()])), tmp_path)
    assert [record.status for record in records] == ["failed", "ok"]
    assert records[0].metrics == []
    assert records[0].error is not None
    assert "JSON" in records[0].error.message
    assert all(metric.value is not None for metric in records[1].metrics)


def test_a_watcher_without_rows_fails_alone(tmp_path: Path) -> None:
    tasks: list[Task] = [core(), _RowlessTask("none")]
    records = execute(toy_plan.toy_plan(tasks), tmp_path)
    assert [record.status for record in records] == ["ok", "failed", "ok", "failed"]
    assert records[1].error is not None
    assert records[1].error.type == "LookupError"


def test_a_model_that_fails_is_recorded_at_every_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = toy_plan.toy_plan()

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(plan.lm, "forward", fail)
    events: list[Event] = []
    records = execute(plan, tmp_path, events.append)
    assert [record.status for record in records] == ["failed"] * 4
    assert {record.error.message for record in records if record.error} == {"out of memory"}
    assert events[-1].kind == "finished"
    assert (events[-1].done, events[-1].total, events[-1].message) == (0, 4, "4 failed")


@pytest.mark.parametrize("stored", [37])
def test_a_kill_between_two_items_of_a_batch_leaves_the_numbers_as_they_are(
    stored: int, tmp_path: Path
) -> None:
    here = str(Path(__file__).parent)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", KILLED_WHILE_STORING, str(tmp_path / "killed"), str(stored), here]
    killed = subprocess.run(command, check=False, capture_output=True, timeout=120, env=environment)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    cells = list(ResultsFolder(tmp_path / "killed").cells())
    assert sum(len(list(cell.items())) for cell in cells) == stored
    assert not any(cell.record() for cell in cells)
    for out in ("killed", "calm"):
        execute(toy_plan.toy_plan(), tmp_path / out)
    for cell in ResultsFolder(tmp_path / "calm").cells():
        other = ResultsFolder(tmp_path / "killed").cell(cell.key)
        calm, resumed = ({(item["kind"], item["id"]): item for item in c.items()} for c in (cell, other))
        assert calm == resumed
        record, again = cell.record(), other.record()
        assert record is not None
        assert again is not None
        assert json.dumps([metric.model_dump() for metric in record.metrics]) == json.dumps(
            [metric.model_dump() for metric in again.metrics]
        )
        assert (record.curves, record.counts) == (again.curves, again.counts)
        assert other.verify() == []


def test_a_plan_says_what_each_cell_costs() -> None:
    plan = toy_plan.toy_plan()
    assert [plan.cost(cell) for cell in plan.cells] == [Cost(400, 0, 0, None), Cost(700, 0, 0, None)] * 2


def test_watchers_of_other_budgets_change_no_item(tmp_path: Path) -> None:
    """Rows of a cell depend on its own budget, so a cell run alone equals the same cell in company."""
    execute(toy_plan.toy_plan([core(200)]), tmp_path / "alone")
    company: list[Task] = [
        core(200),
        FeatureCountTask(FeatureCountConfig(budget_tokens=90)),
    ]
    execute(toy_plan.toy_plan(company), tmp_path / "company")
    compared = 0
    for cell in ResultsFolder(tmp_path / "alone").cells():
        other = ResultsFolder(tmp_path / "company").cell(cell.key)
        items, same = ({item["id"]: item for item in c.items()} for c in (cell, other))
        assert items.keys() == same.keys()
        for name, item in items.items():
            assert same[name]["latents"] == item["latents"]
            assert same[name]["ce_spliced"] == pytest.approx(item["ce_spliced"], rel=1e-4)
            compared += 1
    assert compared
