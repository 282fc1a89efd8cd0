"""What changed between two results folders: cells that came or went, numbers that moved, and by how much.

Cells are matched by their key. Those left over are matched by what they are called (model, dictionary, sparsity, task,
judge, seed): a cell whose options, weights or task version changed has another key, and its numbers are still compared.

A number has moved beyond its interval if neither value lies in the other's interval; without any interval, if it moved
at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from latentbench.errors import StoreError, UserError
from latentbench.store import Curve, Interval, Metric, RunRecord, differences, load_records
from latentbench_leaderboard._subjects import judge_label
from latentbench_leaderboard.bundles import Refused, open_bundle
from latentbench_leaderboard.bundles._compare import close
from latentbench_leaderboard.bundles._findings import title_of

__all__ = ["Change", "Diff", "diff_records", "diff_results"]

Kind = Literal["added", "removed", "remade", "status", "metric", "curve"]
_FIELDS_NAMED = 3


@dataclass(frozen=True)
class Change:
    """One difference."""

    kind: Kind
    """"added", "removed": a cell. "remade": a cell with another key. "status": a cell that failed, or does no longer.
    "metric", "curve": a number that came, went or moved."""
    about: str
    """What to call the cell."""
    key: str
    """Key of the cell: the new one's, or the old one's where there is no new one."""
    name: str
    """Name of the metric or curve; empty otherwise."""
    old: float | None
    """Old value of a metric; None if there was none."""
    new: float | None
    """New value of a metric; None if there is none."""
    beyond: bool
    """Whether the result is another one: a cell or a number went, or a number moved beyond its interval."""
    message: str
    """In words."""

    def line(self) -> str:
        """As a line of text."""
        mark = "MOVED" if self.beyond else "     "
        return f"{mark}  {self.kind:7}  {self.about} ({self.key[:10]}): {self.message}"


@dataclass(frozen=True)
class Diff:
    """All differences between two folders."""

    compared: int
    """Cells that are in both."""
    changes: tuple[Change, ...]
    """The differences, those beyond an interval first."""

    @property
    def moved(self) -> bool:
        """Whether anything moved beyond its interval, or went."""
        return any(change.beyond for change in self.changes)

    def as_json(self) -> dict[str, Any]:
        """As JSON."""
        changes = [asdict(change) for change in self.changes]
        return {"moved": self.moved, "compared": self.compared, "changes": changes}


def diff_results(old: Path, new: Path) -> Diff:
    """What changed from one results folder or bundle to another.

    Raises:
        UserError: one of them can't be read.
    """
    return diff_records(_load(old), _load(new))


def diff_records(old: Sequence[RunRecord], new: Sequence[RunRecord]) -> Diff:
    """What changed from some records to others."""
    pairs, gone, come = _matched(old, new)
    changes = [
        Change("removed", title_of(one), one.key, "", None, None, True, "is not in the new results")
        for one in gone
    ]
    changes += [Change("added", title_of(one), one.key, "", None, None, False, "is new") for one in come]
    for first, second in pairs:
        changes += _cell(first, second)
    changes.sort(key=lambda change: (not change.beyond, change.about, change.key, change.name))
    return Diff(len(pairs), tuple(changes))


def _load(path: Path) -> list[RunRecord]:
    try:
        with open_bundle(path) as opened:
            return load_records(opened.path)
    except (Refused, StoreError) as error:
        raise UserError(f"{path} can't be compared: it {error}") from error


def _matched(
    old: Sequence[RunRecord], new: Sequence[RunRecord]
) -> tuple[list[tuple[RunRecord, RunRecord]], list[RunRecord], list[RunRecord]]:
    """Pairs of one cell, and what is left on either side."""
    by_key = {record.key: record for record in new}
    pairs = [(record, by_key.pop(record.key)) for record in old if record.key in by_key]
    left = [record for record in old if record.key not in {first.key for first, _ in pairs}]
    named: dict[tuple[str, ...], list[RunRecord]] = {}
    for record in by_key.values():
        named.setdefault(_called(record), []).append(record)
    gone = []
    for record in left:
        candidates = named.get(_called(record), [])
        if len(candidates) == 1:
            pairs.append((record, candidates.pop()))
        else:  # none, or several that nothing tells apart
            gone.append(record)
    return pairs, gone, [record for group in named.values() for record in group]


def _called(record: RunRecord) -> tuple[str, ...]:
    cell = record.cell
    return (
        str(cell.lm.get("name")),
        str(record.labels.get("dictionary")),
        str(cell.sparsity),
        str(cell.task.get("name")),
        str(judge_label(cell.judge)),
        str(cell.seed),
    )


def _cell(old: RunRecord, new: RunRecord) -> Iterator[Change]:
    about = title_of(new)

    def change(kind: Kind, message: str, beyond: bool) -> Change:
        return Change(kind, about, new.key, "", None, None, beyond, message)

    if old.key != new.key:
        fields = [one.field for one in differences(old.cell, new.cell)]
        more = f" and {len(fields) - _FIELDS_NAMED} more" if len(fields) > _FIELDS_NAMED else ""
        text = f"is another cell now, by {', '.join(fields[:_FIELDS_NAMED])}{more}"
        yield change("remade", text, False)
    if old.status != new.status:
        yield change("status", f"was {old.status}, is {new.status}", new.status == "failed")
        return
    yield from _metrics(old, new, about)
    yield from _curves(old, new, about)


def _metrics(old: RunRecord, new: RunRecord, about: str) -> Iterator[Change]:
    names = dict.fromkeys([one.name for one in (*old.metrics, *new.metrics)])
    for name in names:
        first, second = old.metric(name), new.metric(name)
        if first is None or second is None:
            value = (second or first).value  # type: ignore[union-attr]
            text = f"metric {name!r} is new" if first is None else f"metric {name!r} is gone"
            before, after = (None, value) if first is None else (value, None)
            yield Change("metric", about, new.key, name, before, after, second is None, text)
        elif not close(first.value, second.value):
            within = _within(first, second)
            how = "within the interval" if within else "beyond the interval"
            text = f"{name} moved from {_shown(first)} to {_shown(second)}, {how}"
            yield Change("metric", about, new.key, name, first.value, second.value, not within, text)
        elif not _same(first.interval, second.interval):
            text = f"{name} has another interval: {_shown(first)}, now {_shown(second)}"
            yield Change("metric", about, new.key, name, first.value, second.value, False, text)


def _within(first: Metric, second: Metric) -> bool:
    if first.value is None or second.value is None:
        return False
    return _holds(first.interval, second.value) or _holds(second.interval, first.value)


def _holds(interval: Interval | None, value: float) -> bool:
    return interval is not None and interval.low <= value <= interval.high


def _same(first: Interval | None, second: Interval | None) -> bool:
    if first is None or second is None:
        return first is second
    return close(first.low, second.low) and close(first.high, second.high)


def _shown(metric: Metric) -> str:
    if metric.value is None:
        return "unscored"
    interval = metric.interval
    ends = "" if interval is None else f" ({interval.low:.4g} to {interval.high:.4g})"
    return f"{metric.value:.4g}{ends}"


def _curves(old: RunRecord, new: RunRecord, about: str) -> Iterator[Change]:
    before, after = ({curve.name: curve for curve in record.curves} for record in (old, new))
    for name in sorted({*before, *after}):
        first, second = before.get(name), after.get(name)
        if first is None or second is None:
            text = f"curve {name!r} is {'new' if first is None else 'gone'}"
            yield Change("curve", about, new.key, name, None, None, second is None, text)
        elif (moved := _points(first, second)) is not None:
            text = f"{moved} of {len(first.points)} points of curve {name!r} moved out of their bands"
            if not moved:
                text = f"curve {name!r} moved within its band"
            yield Change("curve", about, new.key, name, None, None, moved > 0, text)


def _points(first: Curve, second: Curve) -> int | None:
    """Points whose new value is outside of the old band; None if no value changed."""
    known = {point.x: point for point in second.points}
    changed, out = len(first.points) != len(second.points), 0
    for point in first.points:
        other = known.get(point.x)
        if other is not None and close(point.value, other.value):
            continue
        changed = True
        inside = (
            other is not None
            and other.value is not None
            and point.low is not None
            and point.high is not None
            and point.low <= other.value <= point.high
        )
        out += not inside
    return out if changed else None
