"""Running the cells of a plan: watch together, then measure, judge and summarise each; failures are recorded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from latentbench.identity import sha256_json
from latentbench.judging import ASK_AGAIN
from latentbench.run._events import Event, Listener, silent
from latentbench.run._pass import Fed, run_pass
from latentbench.run._plan import Cell, Plan
from latentbench.run._task import CellSetup, Item, Shared
from latentbench.stats import generator
from latentbench.store import CellWriter, ErrorRecord, ResultsFolder, RunRecord, provenance, utc_now

__all__ = ["execute"]

_TEXTS = "texts.jsonl"


@dataclass(eq=False)
class _Open:
    """A cell that is being run."""

    cell: Cell
    writer: CellWriter
    setup: CellSetup
    started: str
    error: Exception | None = None
    texts: set[str] = field(default_factory=set)
    stored: set[tuple[str, str]] | None = None

    def fail(self, error: Exception) -> None:
        self.error = error

    def store(self, items: Iterable[Item]) -> None:
        """Append items that are not stored yet; texts go to a file of their own that is never published."""
        for item in items:
            named = item if "id" in item else {"id": sha256_json(item)[:16], **item}
            if named["kind"] == "text":
                self._store_text(named)
            elif (named["kind"], named["id"]) not in self.known():
                self.writer.append([named])
                self.known().add((named["kind"], named["id"]))

    def known(self) -> set[tuple[str, str]]:
        """Kind and id of the stored items."""
        if self.stored is None:
            # The writer is asked first: it mends a line torn by a kill.
            self.writer.ids()
            self.stored = {(item["kind"], item["id"]) for item in self.items()}
        return self.stored

    def items(self, file: str = "items") -> list[Item]:
        """The stored items, in the order of writing."""
        return self.read(f"{file}.jsonl")

    def read(self, name: str) -> list[Item]:
        """The lines of one of the cell's files; none if it is not there."""
        path = self.writer.path / name
        if not path.is_file():
            return []
        with path.open(encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]

    def _store_text(self, item: Item) -> None:
        path = self.writer.path / _TEXTS
        if not self.texts and path.is_file():
            path.unlink()  # made again from the start: nothing is derived from it
        if item["id"] not in self.texts:
            self.texts.add(item["id"])
            with path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(item, ensure_ascii=True) + "\n")


def execute(plan: Plan, out: Path, listener: Listener = silent) -> list[RunRecord]:
    """Run every cell of a plan that has no ok record yet.

    A killed run goes on where it stopped: items are appended as they come and never measured twice. A cell that
    raises becomes a failed record with its error, and the rest of the suite goes on.

    Args:
        plan: what to run.
        out: results folder, made if missing.
        listener: told what happens.

    Returns:
        The records of all cells of the plan, in its order.

    Raises:
        UserError: a judge can't be asked, or something that a task needs is missing; nothing was measured.
    """
    results = ResultsFolder.create(out)
    finished = plan.finished(out)
    todo = [cell for cell in plan.cells if cell.key not in finished]
    listener(Event("plan", plan.suite.name, len(finished), len(plan.cells)))
    for cell in plan.cells:
        if cell.key in finished:
            listener(Event("cell_cached", cell.title))
    for judge in {id(cell.judge): cell.judge for cell in todo if cell.judge is not None}.values():
        if hasattr(judge, "preflight"):
            judge.preflight()
    for task in {id(cell.task): cell.task for cell in todo}.values():
        task.preflight()
    shared = Shared()
    with ExitStack() as stack:
        opened = [
            _Open(
                cell,
                stack.enter_context(results.cell(cell.key).writer(cell.identity, reopen=True)),
                _setup(plan, cell, out, shared, listener),
                utc_now(),
            )
            for cell in todo
        ]
        for one in opened:
            _borrow(one, results)
        _watch(plan, opened, listener)
        for one in opened:
            _complete(one, listener)
    records = [results.cell(cell.key).record() for cell in plan.cells]
    found = [record for record in records if record is not None]
    failed = sum(record.status == "failed" for record in found)
    listener(Event("finished", plan.suite.name, len(found) - failed, len(plan.cells), f"{failed} failed"))
    return found


def _setup(plan: Plan, cell: Cell, out: Path, shared: Shared, listener: Listener) -> CellSetup:
    return CellSetup(
        lm=plan.lm,
        dictionary=cell.dictionary,
        corpus=plan.corpus,
        load_split=plan.load_split,
        tokens=plan.policy,
        seed=cell.seed,
        cache=out / "cache",
        shared=shared,
        progress=lambda what, done, total: _progress(listener, f"{cell.title}: {what}", done, total),
    )


def _progress(listener: Listener, what: str, done: int, total: int) -> None:
    listener(Event("progress", what, done, total))


def _borrow(one: _Open, results: ResultsFolder) -> None:
    """Take over what another cell measured that differs in its judge alone: a second judge measures nothing again."""
    if one.cell.judge is None or (one.writer.path / "items.jsonl").exists():
        return
    for other in results.measured(one.cell.identity.measurement_key()):
        record = other.record()
        if other.key != one.cell.key and record is not None and record.status == "ok":
            if (other.path / _TEXTS).is_file():
                shutil.copyfile(other.path / _TEXTS, one.writer.path / _TEXTS)
            one.writer.append(other.items())
            return


def _watch(plan: Plan, opened: Sequence[_Open], listener: Listener) -> None:
    """One shared pass per stream."""
    streams: dict[str, list[tuple[_Open, Fed]]] = {}
    for one in opened:
        feed: Fed | None = _attempt(one, partial(_fed, one))
        if feed is not None:
            streams.setdefault(feed.watcher.stream(), []).append((one, feed))
    for stream, watching in streams.items():
        try:
            run_pass(
                plan.lm,
                plan.policy,
                [feed for _, feed in watching],
                partial(_progress, listener, f"watching {stream}"),
            )
        except Exception as error:  # noqa: BLE001 - the model failed: every cell of the pass records that
            for one, _ in watching:
                one.error = one.error or error


def _fed(one: _Open) -> Fed | None:
    watcher = one.cell.task.watcher(one.setup)
    if watcher is None:
        return None
    rows = watcher.rows()
    if rows is None:
        rows = one.setup.rows(watcher.budget_tokens)
    stored = {identifier for _, identifier in one.known()}
    return Fed(one.cell.dictionary, watcher, rows, stored, one.store, one.fail)


def _complete(one: _Open, listener: Listener) -> None:
    """Measure, judge and summarise one cell, and publish its record."""
    cell = one.cell
    record: RunRecord | None = None
    if one.error is None:
        record = _attempt(one, lambda: _measured(one))
    if record is None:
        assert one.error is not None
        record = _record(one, status="failed", error=ErrorRecord.from_exception(one.error))
        listener(Event("cell_failed", cell.title, message=f"{type(one.error).__name__}: {one.error}"))
    else:
        listener(Event("cell_done", cell.title, message=_headline(record)))
    one.writer.finish(record)


def _measured(one: _Open) -> RunRecord:
    task, cell = one.cell.task, one.cell
    one.store(task.measure(one.setup, one.items()))
    items = one.items()
    if cell.judge is not None:
        one.writer.drop("judgements", lambda item: item.get("status") in ASK_AGAIN)
        stored = one.items("judgements")
        known = {(item["kind"], item["id"]) for item in stored}
        judged = task.judge([*items, *one.read(_TEXTS), *stored], cell.judge, generator(_judge_seed(cell)))
        fresh = ({"id": sha256_json(item)[:16], **item} for item in judged)
        one.writer.append(
            (item for item in fresh if (item["kind"], item["id"]) not in known), file="judgements"
        )
    summary = task.summarise(items, one.items("judgements"), generator(f"{cell.key}/summary"))
    return _record(one, status="ok", metrics=summary.metrics, curves=summary.curves, counts=summary.counts)


def _judge_seed(cell: Cell) -> str:
    """Rubrics are asked the same questions whoever judges; without one, the draws of records published so far stay."""
    return f"{cell.identity.measurement_key() if cell.task.rubrics() else cell.key}/judge"


def _record(one: _Open, **fields: Any) -> RunRecord:
    identity = one.cell.identity
    return RunRecord(
        key=one.cell.key,
        measurement_key=identity.measurement_key(),
        cell=identity,
        labels=one.cell.labels,
        provenance=provenance(),
        started=one.started,
        finished=utc_now(),
        **{"error": None, "metrics": [], "curves": [], "counts": {}, **fields},
    )


def _attempt(one: _Open, step: Callable[[], Any]) -> Any:
    """The step's result, or None with the cell marked as failed."""
    try:
        return step()
    except Exception as error:  # noqa: BLE001 - a failing cell is recorded, and the others go on
        one.error = error
        return None


def _headline(record: RunRecord) -> str:
    shown: Iterator[str] = (
        f"{metric.name} {metric.value:.4g}"
        for metric in record.metrics
        if metric.headline and metric.value is not None
    )
    return ", ".join(shown)
