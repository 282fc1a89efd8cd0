"""Checks of `check_task` on numbers: they follow from the items, whoever computes them."""

from __future__ import annotations

import importlib.util
import math
import subprocess
import sys

from latentbench.registry import METRICS, PUBLISHED, TASKS, UNITS, Registry
from latentbench.run import Task
from latentbench.stats import Units, generator
from latentbench.store import Metric
from latentbench.testing._results import Finding
from latentbench.testing._task_subject import ROWS, TaskSubject

__all__ = ["batches", "empty", "light", "recomputed", "shared_units", "summaries"]

_TOLERANCE = 1e-3
"""Relative difference of a metric that rounding in other batches may explain."""


def batches(subject: TaskSubject) -> Finding:
    one, other = subject.run().record, subject.run(1).record
    if other.error is not None:
        return Finding(False, f"with single rows it failed with {other.error.type}: {other.error.message}")
    for first, second in zip(one.metrics, other.metrics, strict=True):
        if not _close(first, second):
            found = f"{first.name} is {first.value} with {ROWS} rows in a batch, {second.value} with one"
            return Finding(False, found, "Look for means over batches, or padding that is counted.")
    return Finding(True, f"{len(one.metrics)} metrics are the same with {ROWS} rows in a batch and with one")


def _close(first: Metric, second: Metric) -> bool:
    if first.value is None or second.value is None:
        return first.value == second.value
    return abs(first.value - second.value) <= _TOLERANCE * max(abs(first.value), abs(second.value), 1e-3)


def summaries(subject: TaskSubject) -> Finding:
    run, task = subject.run(), subject.task
    key = f"{run.record.key}/summary"
    again = task.summarise(run.items, run.judgements, generator(key))
    if list(again.metrics) != run.record.metrics or dict(again.counts) != run.record.counts:
        instead = "Take all randomness from `rng`, and everything else from the items."
        return Finding(False, "summarising the stored items again gives other numbers", instead)
    return Finding(True, "summarising the stored items again gives the same numbers")


def _registered(task: Task, registry: Registry) -> bool:
    """Whether an entry of this name is about this task, and not about another one of its name."""
    ours = task.name in TASKS.names() and TASKS.load(task.name) is type(task)
    return ours and task.name in registry.names()


def recomputed(subject: TaskSubject) -> Finding:
    run, task = subject.run(), subject.task
    if not _registered(task, METRICS):
        instead = f'Add {task.name} = "PACKAGE.metrics:recompute" to its entry points of {METRICS.group!r}.'
        return Finding(
            None, "nothing is registered that computes its summary again without the task", instead
        )
    config = task.config.model_dump(mode="json")
    items, what = run.items, "options and items"
    if _registered(task, PUBLISHED):
        items, what = (
            PUBLISHED.load(task.name)(run.items, config),
            "options and the items as they are published",
        )
    metrics, _, counts = METRICS.load(task.name)(
        items, run.judgements, config, generator(f"{run.record.key}/summary")
    )
    if list(metrics) != run.record.metrics or dict(counts) != run.record.counts:
        return Finding(
            False, f"its entry point of {METRICS.group!r} gives other numbers than the task, from {what}"
        )
    return Finding(True, f"its entry point of {METRICS.group!r} gives the same numbers from {what}")


def shared_units(subject: TaskSubject) -> Finding:
    run, task = subject.run(), subject.task
    if not _registered(task, UNITS):
        return Finding(True, f"it has no entry point of {UNITS.group!r}: its rows are compared unpaired")
    found: Units | None = UNITS.load(task.name)(
        run.items, run.judgements, task.config.model_dump(mode="json")
    )
    if found is None:
        return Finding(None, "its items hold no units")
    published = {metric.name: metric.value for metric in run.record.metrics}
    for name, value in found.values().items():
        known = published.get(name)
        if known is not None and not math.isclose(value, known, rel_tol=1e-6, abs_tol=1e-6):
            return Finding(False, f"{name!r} is {known:g}, and its units give {value:g}")
    return Finding(True, f"units of {len(found.statistics)} metrics give the published values")


def empty(subject: TaskSubject) -> Finding:
    summary = subject.task.summarise([], [], generator("testing/empty"))
    scored = [metric.name for metric in summary.metrics if metric.value is not None]
    if scored:
        return Finding(False, f"{scored[0]!r} has a value without any item", "Give None and the reason.")
    return Finding(True, f"without items, {len(summary.metrics)} metrics are None with a reason")


def light(subject: TaskSubject) -> Finding:
    package = type(subject.task).__module__.rpartition(".")[0]
    name = f"{package}.metrics"
    if not package or importlib.util.find_spec(name) is None:
        return Finding(None, "there is no module `metrics` beside the task's")
    code = f"import sys, {name}; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    path = [entry for entry in sys.path if entry]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}; {code}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["torch is imported"])[-1]
        return Finding(False, f"{name}: {last}", "Keep summaries to NumPy and latentbench.stats.")
    return Finding(True, f"{name} imports without torch")
