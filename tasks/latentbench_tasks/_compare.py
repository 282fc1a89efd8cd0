"""Two families of dictionaries compared over their training runs, from the records of a results folder."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

from latentbench.errors import UserError, unknown_name
from latentbench.identity import sha256_json
from latentbench.stats import Estimate, seeds_difference, seeds_ratio
from latentbench.store import CellFolder, Metric, ResultsFolder, RunRecord

__all__ = ["Compared", "as_json", "compare"]

LogErrors = Callable[[Sequence[tuple[CellFolder, CellFolder]], str], float | None]
"""Standard error over documents of the log ratio of a metric, mean over pairs of cells; None where there is none."""


class Compared(NamedTuple):
    """One metric of two families."""

    task: str
    """Name of the task."""
    metric: str
    """Name of the metric."""
    unit: str
    """Its unit."""
    scale: str
    """"ratio" for counts of latents, "difference" for everything else."""
    first: list[float]
    """Values of the first family, one for each dictionary, by name."""
    second: list[float]
    """The same for the second family."""
    estimate: Estimate
    """First against second."""
    detectable: float | None
    """See `latentbench.stats.OverSeeds`."""
    document_error: float | None
    """Standard error of the log ratio over documents that is part of the interval; None where it has none."""


class _Group(NamedTuple):
    """Cells of one family that differ in the dictionary alone, by its name."""

    records: list[RunRecord]
    metrics: dict[str, list[Metric]]


def compare(
    results: Path,
    first: str,
    second: str,
    metrics: Sequence[str] = (),
    log_errors: dict[str, LogErrors] | None = None,
) -> list[Compared]:
    """Compare the dictionaries whose names match a shell pattern with those that match another.

    The dictionaries of a family are taken for training runs of one recipe, so its pattern must not mix sparsities.
    Controls are no training runs: only a pattern that fits nothing else means them.

    Args:
        results: a results folder.
        first: pattern of the display names of one family.
        second: of the other.
        metrics: patterns of the metrics to compare; none: the headline ones.
        log_errors: by task name, what knows how far the documents alone could move a count.

    Raises:
        UserError: a pattern fits no dictionary, or both fit the same one.
    """
    folder = ResultsFolder(results)
    records = [record for record in folder.records() if record.status == "ok"]
    controls = {_name(record): _is_control(record) for record in records}
    families = [_family(pattern, controls) for pattern in (first, second)]
    both = sorted(families[0] & families[1])
    if both:
        raise UserError(
            f"{both[0]!r} is in both families, {first!r} and {second!r}: a run can't be compared with itself"
        )
    found: list[Compared] = []
    for setting in _settings(records):
        groups = [_group(setting, family) for family in families]
        if all(group.records for group in groups):
            found += _compared(folder, groups[0], groups[1], metrics, log_errors or {})
    if not found:
        wanted = ", ".join(metrics) or "headline metrics"
        raise UserError(f"{first!r} and {second!r} have no {wanted} in common in {results}")
    return found


def _name(record: RunRecord) -> str:
    return str(record.labels["dictionary"])


def _is_control(record: RunRecord) -> bool:
    card = record.labels.get("card")
    return record.labels.get("control") is True or (isinstance(card, dict) and card.get("control") is True)


def _family(pattern: str, controls: Mapping[str, bool]) -> set[str]:
    """Names that fit a pattern; controls among them only if nothing else does.

    Raises:
        UserError: none fits.
    """
    fitting = {name for name in controls if fnmatch(name, pattern)}
    if not fitting:
        raise unknown_name("dictionary or pattern", pattern, sorted(controls))
    return {name for name in fitting if not controls[name]} or fitting


def _settings(records: Sequence[RunRecord]) -> Iterator[list[RunRecord]]:
    """Records that differ in nothing but the dictionary."""
    by_setting: dict[str, list[RunRecord]] = defaultdict(list)
    for record in records:
        identity = record.cell.model_dump(mode="json", exclude={"dictionary"})
        by_setting[sha256_json(identity)].append(record)
    yield from sorted(by_setting.values(), key=lambda group: str(group[0].cell.task["name"]))


def _group(records: Sequence[RunRecord], family: set[str]) -> _Group:
    chosen = sorted((record for record in records if _name(record) in family), key=_name)
    by_name: dict[str, list[Metric]] = defaultdict(list)
    for record in chosen:
        for metric in record.metrics:
            by_name[metric.name].append(metric)
    return _Group(chosen, by_name)


def _compared(
    folder: ResultsFolder,
    first: _Group,
    second: _Group,
    wanted: Sequence[str],
    log_errors: dict[str, LogErrors],
) -> Iterator[Compared]:
    task = str(first.records[0].cell.task["name"])
    pairs = [
        (folder.cell(one.key), folder.cell(other.key))
        for one, other in zip(first.records, second.records, strict=False)
    ]
    for name, metrics in first.metrics.items():
        others = second.metrics.get(name, [])
        shown = any(fnmatch(name, one) for one in wanted) if wanted else metrics[0].headline
        tops, bottoms = (
            [metric.value for metric in group if metric.value is not None] for group in (metrics, others)
        )
        if not shown or not tops or not bottoms:
            continue
        counted = metrics[0].unit == "latents"
        error = log_errors[task](pairs, name) if counted and task in log_errors else None
        over = (
            seeds_ratio(tops, bottoms, log_error=error or 0.0) if counted else seeds_difference(tops, bottoms)
        )
        yield Compared(
            task=task,
            metric=name,
            unit=metrics[0].unit,
            scale="ratio" if counted else "difference",
            first=tops,
            second=bottoms,
            estimate=over.estimate,
            detectable=over.detectable,
            document_error=error,
        )


def as_json(one: Compared) -> dict[str, Any]:
    """A comparison for programs."""
    return {
        **{key: value for key, value in one._asdict().items() if key != "estimate"},
        "first_mean": statistics.fmean(one.first),
        "second_mean": statistics.fmean(one.second),
        "value": one.estimate.value,
        "low": one.estimate.low,
        "high": one.estimate.high,
        "method": one.estimate.method,
        "seeds": one.estimate.n,
    }
