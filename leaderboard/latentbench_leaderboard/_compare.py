"""Two dictionaries side by side: what the comparing page loads.

Index shard: {rows: [{s: slug, n: name, f: family, m: model, lm: its name, c: control, l: measured L0}],
columns: [{id, m: model, title, task, judge, unit, setting, up: whether higher is better, main: whether the
board shows it}], first: slugs to start with}. Shard of a row, by id of the column: {v: value, e: standard
error from its interval, n: units, o: what a unit is, m: why it is not comparable, u: hash of its units, k:
scale, d: joint draws less the value, as base64 of little-endian int16 in units of the scale}.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from latentbench_leaderboard._board import by_model, lm_label
from latentbench_leaderboard._columns import Column, Pick, columns_of
from latentbench_leaderboard._format import clip
from latentbench_leaderboard._scores import standard_error
from latentbench_leaderboard._subjects import Subject
from latentbench_leaderboard._units import UnitBook

__all__ = ["compare_shards"]

_STEPS = 32_000


def compare_shards(
    subjects: Sequence[Subject], units: UnitBook, first: Sequence[str]
) -> Iterator[tuple[str, Any]]:
    """The shards by name: one of every row, then the index.

    Args:
        subjects: every row of the site.
        units: what rows share.
        first: slugs of the rows that the page compares until others are chosen.
    """
    rows: list[dict[str, Any]] = []
    columns: list[dict[str, Any]] = []
    for number, (_, group) in enumerate(by_model(subjects)):
        found = [column for column in columns_of(group, headline=False) if column.ranked and column.metric]
        columns += [_column(column, number) for column in found]
        for subject in group:
            rows.append(_row(subject, number))
            cells = {column.id: cell for column in found if (cell := _cell(column, subject, units))}
            yield f"compare/{subject.slug}", cells
    yield "compare/index", {"rows": rows, "columns": columns, "first": list(first[:2])}


def _row(subject: Subject, model: int) -> dict[str, Any]:
    return {
        "s": subject.slug,
        "n": subject.name,
        "f": subject.family,
        "m": model,
        "lm": lm_label(subject.lm),
        "c": subject.control,
        "l": None if subject.l0 is None else subject.l0.value,
    }


def _column(column: Column, model: int) -> dict[str, Any]:
    return {
        "id": column.id,
        "m": model,
        "title": column.title,
        "task": column.task_title,
        "judge": column.judge or "",
        "unit": column.unit,
        "setting": column.setting,
        "up": column.direction == "higher",
        "main": column.headline,
    }


def _cell(column: Column, subject: Subject, units: UnitBook) -> dict[str, Any] | None:
    pick = column.picks.get(subject.key)
    if pick is None:
        return None
    if pick.metric is None or pick.metric.value is None:
        return {"m": _why_not(pick)}
    metric, value = pick.metric, pick.metric.value
    error = standard_error(metric)
    cell: dict[str, Any] = {"v": value, "n": metric.n, "o": clip(metric.resampling_unit, 40)}
    if pick.mark:
        cell["m"] = pick.mark
    if error is not None:
        cell["e"] = float(f"{error:.6g}")
    drawn = units.of(pick.entry)
    if drawn is not None and metric.name in drawn.draws:
        cell |= {"u": drawn.key[:16], "n": drawn.n} | _packed(drawn.draws[metric.name] - value)
    return cell


def _why_not(pick: Pick) -> str:
    error = pick.entry.record.error
    if error is not None:
        return clip(f"failed: {error.type}", 200)
    return clip(pick.metric.reason or "no score", 200) if pick.metric else "not in this record"


def _packed(deltas: NDArray[np.float64]) -> dict[str, Any]:
    scale = float(np.abs(deltas).max()) / _STEPS or 1.0
    steps = np.rint(deltas / scale).astype("<i2")
    return {"k": scale, "d": base64.b64encode(steps.tobytes()).decode("ascii")}
