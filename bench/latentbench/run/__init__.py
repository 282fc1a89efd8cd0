"""Suites, plans and their execution: the shared token pass, cells, resume."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from latentbench.run._estimate import Estimate, estimate
from latentbench.run._events import Event, Listener, silent
from latentbench.run._execute import execute
from latentbench.run._plan import Cell, Cost, Plan, make_plan
from latentbench.run._rows import stream_acts, stream_rows
from latentbench.run._suite import DictionarySpec, Suite, TaskSpec, TokenSpec, load_suite, shipped_suites
from latentbench.run._task import (
    CellSetup,
    Item,
    Judge,
    Shared,
    Summary,
    Task,
    TaskConfig,
    TokenPolicy,
    Watcher,
)
from latentbench.run._watch import WatchedBatch

if TYPE_CHECKING:
    from latentbench.store import RunRecord

__all__ = [
    "Cell",
    "CellSetup",
    "Cost",
    "DictionarySpec",
    "Estimate",
    "Event",
    "Item",
    "Judge",
    "Listener",
    "Plan",
    "Shared",
    "Suite",
    "Summary",
    "Task",
    "TaskConfig",
    "TaskSpec",
    "TokenPolicy",
    "TokenSpec",
    "WatchedBatch",
    "Watcher",
    "estimate",
    "execute",
    "load_suite",
    "make_plan",
    "run",
    "shipped_suites",
    "silent",
    "stream_acts",
    "stream_rows",
]


def run(
    suite: str | Path | Suite, out: str | Path, *, device: str = "cpu", listener: Listener = silent
) -> list[RunRecord]:
    """Run a suite and return the records of all its cells.

    Args:
        suite: name of a shipped suite, path of a TOML file, or a `Suite`.
        out: results folder, made if missing; what it already holds is not measured again.
        device: "cpu", "cuda", ...
        listener: told what happens.

    Raises:
        UserError: something the suite names is unknown, does not load or does not fit.
    """
    loaded = suite if isinstance(suite, Suite) else load_suite(suite)
    return execute(make_plan(loaded, device=device), Path(out), listener)


class _CallableModule(ModuleType):
    """Lets `latentbench.run(...)` be called: the public function and this package share a name."""

    def __call__(
        self, suite: str | Path | Suite, out: str | Path, *, device: str = "cpu", listener: Listener = silent
    ) -> list[RunRecord]:
        """See `run`."""
        return run(suite, out, device=device, listener=listener)


sys.modules[__name__].__class__ = _CallableModule
