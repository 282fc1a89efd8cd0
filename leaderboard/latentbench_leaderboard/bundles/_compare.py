"""Where a record and a summary computed again differ."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from latentbench.store import Curve, CurvePoint, Interval, Metric, RunRecord
from latentbench_leaderboard.bundles._recompute import Again
from latentbench_leaderboard.bundles._strict import shown

__all__ = ["RELATIVE", "close", "mismatches", "reworded"]

RELATIVE = 1e-6
"""Relative difference that another processor or another version of NumPy may make; published numbers show 4 digits."""
_ABSOLUTE = 1e-9
_NOTE = 0.02
"""The same of numbers in notes, which have three digits and may be rounded either way."""
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[-+]?\d+)?")
_EXACT = ("n", "resampling_unit", "unit", "direction", "reason", "headline")


def close(first: float | None, second: float | None) -> bool:
    """Whether two numbers are the same up to rounding; None is only equal to None."""
    if first is None or second is None:
        return first is second
    return math.isclose(first, second, rel_tol=RELATIVE, abs_tol=_ABSOLUTE)


def mismatches(record: RunRecord, again: Again) -> list[str]:
    """Everything that the record says and its items do not, each in one line."""
    return [
        *_metrics(record.metrics, again.metrics),
        *_curves(record.curves, again.curves),
        *_counts(record.counts, again.counts),
    ]


def reworded(record: RunRecord, again: Again) -> list[str]:
    """Names of metrics and curves whose definition is worded otherwise in the record."""
    metrics = {one.name: one.note for one in again.metrics}
    curves = {one.name: one.note for one in again.curves}  # a curve may be called like its metric
    return [one.name for one in record.metrics if metrics.get(one.name, one.note) != one.note] + [
        one.name for one in record.curves if curves.get(one.name, one.note) != one.note
    ]


def _metrics(stored: Sequence[Metric], again: Sequence[Metric]) -> Iterator[str]:
    yield from _names("metric", [one.name for one in stored], [one.name for one in again])
    known = {one.name: one for one in again}
    for metric in stored:
        other = known.get(metric.name)
        if other is None:
            continue
        name = f"metric {shown(metric.name)}"
        if not close(metric.value, other.value):
            yield f"{name} is {_text(metric.value)} in the record and {_text(other.value)} from the items"
            continue
        for field in _EXACT:
            first, second = getattr(metric, field), getattr(other, field)
            if first != second:
                yield f"{name} has {field} {shown(first)} in the record and {shown(second)} from the items"
        if not _same_numbers(metric.note, other.note):
            yield f"{name} has a note with numbers that do not come from the items: {shown(metric.note)}"
        if not _same_interval(metric.interval, other.interval):
            yield f"{name} has the interval {_ends(metric)} in the record and {_ends(other)} from the items"


def _same_numbers(first: str, second: str) -> bool:
    """Whether two notes say the same numbers: p-values, bounds and counts stand there, and wording may change."""
    numbers = [[float(number) for number in _NUMBER.findall(note)] for note in (first, second)]
    return len(numbers[0]) == len(numbers[1]) and all(
        math.isclose(one, other, rel_tol=_NOTE, abs_tol=_ABSOLUTE)
        for one, other in zip(*numbers, strict=True)
    )


def _same_interval(first: Interval | None, second: Interval | None) -> bool:
    if first is None or second is None:
        return first is second
    ends = all(close(getattr(first, name), getattr(second, name)) for name in ("low", "high", "level"))
    return ends and first.method == second.method


def _curves(stored: Sequence[Curve], again: Sequence[Curve]) -> Iterator[str]:
    yield from _names("curve", [one.name for one in stored], [one.name for one in again])
    known = {one.name: one for one in again}
    for curve in stored:
        other = known.get(curve.name)
        if other is None:
            continue
        named = [(curve.x_name, curve.x_unit, curve.unit), (other.x_name, other.x_unit, other.unit)]
        pairs = list(zip_longest(curve.points, other.points))
        wrong = sum(not _same_point(first, second) for first, second in pairs)
        if wrong or named[0] != named[1]:
            yield f"curve {shown(curve.name)} has {wrong} of {len(pairs)} points that are not those of the items"


def _same_point(first: CurvePoint | None, second: CurvePoint | None) -> bool:
    if first is None or second is None:
        return False
    return all(close(getattr(first, name), getattr(second, name)) for name in ("x", "value", "low", "high"))


def _counts(stored: dict[str, int], again: dict[str, int]) -> Iterator[str]:
    for name in sorted({*stored, *again}):
        first, second = stored.get(name), again.get(name)
        if first != second:
            yield f"count {shown(name)} is {first} in the record and {second} from the items"


def _names(what: str, stored: list[str], again: list[str]) -> Iterator[str]:
    for name in sorted(set(stored) - set(again)):
        yield f"{what} {shown(name)} is in the record and does not come from the items"
    for name in sorted(set(again) - set(stored)):
        yield f"{what} {shown(name)} comes from the items and is not in the record"


def _text(value: float | None) -> str:
    return "unscored" if value is None else f"{value:.6g}"


def _ends(metric: Metric) -> str:
    interval = metric.interval
    return "none" if interval is None else f"{interval.low:.6g} to {interval.high:.6g}"
