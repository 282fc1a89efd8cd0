"""Computing a cell's summary again from its items, by its task's entry point of `latentbench.metrics`.

The items are a stranger's, and the arithmetic is that of any installed task, so it is done in a process of its own with
limits on memory and time: what a hostile item can do is to end that process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from latentbench.registry import METRICS
from latentbench.store import Curve, Metric, RunRecord
from latentbench_leaderboard._cards import task_card
from latentbench_leaderboard.bundles._strict import shown

__all__ = [
    "Again",
    "CannotRecompute",
    "Recompute",
    "WrongVersion",
    "here",
    "installed_version",
    "isolated",
    "recompute_cell",
]

_MEMORY_BYTES = 6 * 1024**3
_CPU_SECONDS = 900


class CannotRecompute(Exception):
    """Why a summary can't be computed here; nothing is known of the record then."""


class WrongVersion(CannotRecompute):
    """The task is not installed here, or in another version: the record may still be right."""


class Again(NamedTuple):
    """A summary computed again."""

    metrics: list[Metric]
    """The numbers."""
    curves: list[Curve]
    """The curves."""
    counts: dict[str, int]
    """What went into it."""


class Recompute(Protocol):
    """How a summary is computed again."""

    def __call__(self, record: RunRecord, items: Path, judgements: Path) -> Again:
        """The summary of a cell.

        Args:
            record: its record.
            items: its file of items.
            judgements: its file of judgements, which may be missing.

        Raises:
            CannotRecompute: why not, in one line.
        """
        ...


def installed_version(task: str) -> str | None:
    """The version of a task that is installed here, from its card; None if it is not."""
    return task_card(task).version or None


def here(record: RunRecord, items: Path, judgements: Path) -> Again:
    """See `Recompute`; in this process, for files that are trusted."""
    return _again(recompute_cell(_request(record, items, judgements)))


@contextmanager
def isolated() -> Iterator[Recompute]:
    """A `Recompute` whose arithmetic is done in a process of its own, which ends with the `with`."""
    worker = _Worker()
    try:
        yield worker
    finally:
        worker.close()


def recompute_cell(request: dict[str, Any]) -> dict[str, Any]:
    """The worker's side: from a request to the summary as JSON, or to an `error`."""
    from latentbench.stats import generator

    try:
        function = METRICS.load(request["task"])
        metrics, curves, counts = function(
            _lines(Path(request["items"])),
            _lines(Path(request["judgements"])),
            request["config"],
            generator(f"{request['key']}/summary"),
        )
        return {
            "metrics": [metric.model_dump(mode="json") for metric in metrics],
            "curves": [curve.model_dump(mode="json") for curve in curves],
            "counts": {str(name): int(count) for name, count in counts.items()},
        }
    except Exception as error:  # noqa: BLE001 - items of a stranger: any error is a finding, not ours
        text = " ".join(str(error).split())
        return {"error": f"{type(error).__name__}: {shown(text, 160)}"}


class _Worker:
    """A process that computes one summary after another; a new one is started when it has died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __call__(self, record: RunRecord, items: Path, judgements: Path) -> Again:
        """See `Recompute`."""
        request = _request(record, items, judgements)
        process = self._process = self._process or _start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            self.close()
            raise CannotRecompute(
                f"computing its summary needs more than {_MEMORY_BYTES >> 30} GiB or {_CPU_SECONDS} s, or crashes"
            )
        return _again(json.loads(answer))

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        with process:  # closes the pipes and waits
            _close(process.stdin)
            process.kill()


def _close(stream: IO[str] | None) -> None:
    try:
        if stream is not None:
            stream.close()
    except BrokenPipeError:
        return  # it has died already


def _start() -> subprocess.Popen[str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "SYSTEMROOT", "LANG") if name in os.environ}
    path = os.pathsep.join(entry for entry in sys.path if entry)
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "latentbench_leaderboard.bundles._worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
        env={**kept, **one_thread, "PYTHONPATH": path},
    )


def _request(record: RunRecord, items: Path, judgements: Path) -> dict[str, Any]:
    """What the worker is asked.

    Raises:
        WrongVersion: the task or its version is not installed here, or tells no way to compute it.
    """
    task = record.cell.task
    name, version = str(task.get("name")), str(task.get("version"))
    if name not in METRICS.names():
        raise WrongVersion(f"no task {shown(name)} that can be computed again is installed here")
    installed = installed_version(name)
    if installed != version:
        raise WrongVersion(f"it is of version {shown(version)} of {name}; installed is {installed}")
    return {
        "task": name,
        "config": task.get("config") or {},
        "key": record.key,
        "items": str(items.resolve()),
        "judgements": str(judgements.resolve()),
    }


def _again(answer: dict[str, Any]) -> Again:
    if "error" in answer:
        raise CannotRecompute(f"its items do not give a summary: {answer['error']}")
    return Again(
        [Metric.model_validate(one) for one in answer["metrics"]],
        [Curve.model_validate(one) for one in answer["curves"]],
        answer["counts"],
    )


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]
