"""A task under examination, and the toy cell that it is run in."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from latentbench.adapters import Dictionary
from latentbench.data import Corpus
from latentbench.lm import LM
from latentbench.run import DictionarySpec, Item, Judge, Suite, Task, TaskSpec, TokenPolicy
from latentbench.run._execute import execute
from latentbench.run._plan import Cell, Plan, _cell, _Ground
from latentbench.store import ResultsFolder, RunRecord

__all__ = ["ROWS", "Run", "TaskSubject", "card_path"]

ROWS = 4
"""Rows of a batch, where a check does not ask for others."""


class Run(NamedTuple):
    record: RunRecord
    items: list[Item]
    judgements: list[Item]


class TaskSubject:
    """A task and the toy cell that it is run in; runs are kept."""

    def __init__(
        self,
        task: Task,
        judge: Judge,
        lm: LM,
        dictionary: Dictionary,
        load_split: Callable[[str], Corpus],
        folder: Path,
    ) -> None:
        self.task = task
        self._judge = judge
        self._lm = lm
        self._dictionary = dictionary
        self._load_split = load_split
        self.folder = folder
        self._runs: dict[int, Run] = {}

    def plan(self, batch_rows: int) -> tuple[Plan, Cell]:
        policy = TokenPolicy(context=24, batch_rows=batch_rows)
        suite = Suite(
            name="toy",
            lm=self._lm.name,
            target_l0=self._dictionary.card.nominal_l0 or 4,
            dictionaries=(DictionarySpec(source="toy"),),
            tasks=(TaskSpec(name=self.task.name),),
        )
        ground = _Ground(suite, self._lm, self._load_split("test"), policy)
        judge = self._judge if self.task.judge_role is not None else None
        cell = _cell(ground, suite.dictionaries[0], self._dictionary, self.task, judge, 0)
        return Plan(suite, self._lm, ground.corpus, self._load_split, policy, [cell]), cell

    def run(self, batch_rows: int = ROWS) -> Run:
        if batch_rows not in self._runs:
            plan, cell = self.plan(batch_rows)
            out = self.folder / str(batch_rows)
            (record,) = execute(plan, out)
            stored = ResultsFolder(out).cell(cell.key)
            self._runs[batch_rows] = Run(record, list(stored.items()), list(stored.items("judgements")))
        return self._runs[batch_rows]

    def card(self) -> dict[str, Any]:
        return tomllib.loads(card_path(self.task).read_text(encoding="utf-8"))


def card_path(task: Task) -> Path:
    return Path(inspect.getfile(type(task))).with_name("card.toml")
