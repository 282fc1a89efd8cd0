"""The page of curves: every headline score against L0, and feature counts over the tokens watched."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from latentbench.identity import canonical_json
from latentbench.store import Curve
from latentbench_leaderboard._board import Board
from latentbench_leaderboard._cards import task_card
from latentbench_leaderboard._columns import Column
from latentbench_leaderboard._format import clip, humanise, plain
from latentbench_leaderboard._plots import Axis, Line, Point, line_chart, point_chart
from latentbench_leaderboard._subjects import Entry, Subject

__all__ = ["Chart", "ChartRow", "charts_against_l0", "charts_over_tokens"]

_WIDE = 8.0
"""From this ratio of the largest to the smallest L0, the axis is logarithmic."""
_SPARSITY_OPTIONS = frozenset({"k", "l0", "threshold", "sparsity"})


@dataclass(frozen=True)
class ChartRow:
    """One line of the table behind a chart."""

    name: str
    """Name of the row."""
    slug: str
    """Its page."""
    x: str
    """Position."""
    value: str
    """Height."""
    interval: str
    """Its interval."""
    mark: str
    """Control, or what makes it not comparable."""


@dataclass(frozen=True)
class Chart:
    """A chart with its data."""

    title: str
    """Title."""
    subtitle: str
    """Task, judge, direction, budget."""
    svg: Markup
    """The drawing."""
    x_title: str
    """Head of the column of positions."""
    y_title: str
    """Head of the column of heights."""
    rows: tuple[ChartRow, ...]
    """The data."""
    left_out: tuple[str, ...]
    """What is not drawn and why."""


def charts_against_l0(board: Board, target: float) -> list[Chart]:
    """One chart per ranked column of a board, off-target rows and controls included."""
    styles = _styles(board.subjects)
    return [
        chart
        for column in board.columns
        if column.ranked and (chart := _against_l0(board, column, styles, target))
    ]


def charts_over_tokens(board: Board) -> list[Chart]:
    """One chart per curve over tokens that the board's tasks recorded, all dictionaries together."""
    styles = _styles(board.subjects)
    curves: dict[tuple[str, str], list[tuple[Subject, Entry, Curve]]] = {}
    for subject in board.subjects:
        for entry in subject.entries:
            for curve in entry.record.curves:
                if curve.x_unit == "tokens":
                    curves.setdefault((entry.task, curve.name), []).append((subject, entry, curve))
    return [
        chart
        for place, found in sorted(curves.items(), key=_by_number)
        if (chart := _over_tokens(place, found, styles))
    ]


def _by_number(item: tuple[tuple[str, str], object]) -> list[tuple[int, str]]:
    """Order of names in which 5 comes before 10."""
    parts = re.split(r"(\d+)", "/".join(item[0]))
    return [(int(part) if part.isdecimal() else -1, part) for part in parts]


def _styles(subjects: Sequence[Subject]) -> dict[str, int]:
    """One colour and marker per series; -1 for controls."""
    series = sorted({_series(subject) for subject in subjects if not subject.control})
    return {s.key: -1 if s.control else series.index(_series(s)) for s in subjects}


def _series(subject: Subject) -> str:
    """What dictionaries that differ in nothing but their sparsity have in common."""
    card = subject.card
    options, training = card.get("options"), card.get("training")
    kept = (
        {k: v for k, v in options.items() if k not in _SPARSITY_OPTIONS} if isinstance(options, dict) else {}
    )
    kind = training.get("kind") if isinstance(training, dict) else None
    shape = [card.get("n_latents"), card.get("normalisation"), kept, kind]
    return canonical_json([subject.family, subject.sites, *shape])


def _chain(subject: Subject, subjects: Sequence[Subject]) -> str:
    """The series of a row if its members stand at clearly different L0, so that a line makes sense."""
    series = _series(subject)
    found = sorted(
        float(s.l0.value or 0) for s in subjects if not s.control and s.l0 and _series(s) == series
    )
    apart = all(high > 1.1 * low for low, high in pairwise(found))
    return series if apart and not subject.control else ""


def _against_l0(board: Board, column: Column, styles: dict[str, int], target: float) -> Chart | None:
    points, rows, left_out = [], [], []
    for subject in board.subjects:
        pick = column.picks.get(subject.key)
        metric = pick.metric if pick else None
        l0 = subject.l0.value if subject.l0 else None
        if pick is None or metric is None or metric.value is None or l0 is None:
            left_out.append(f"{subject.name}: {_why_left_out(subject, column)}")
            continue
        low, high = (metric.interval.low, metric.interval.high) if metric.interval else (None, None)
        interval = f"{plain(low)} to {plain(high)}" if low is not None and high is not None else ""
        mark = "control" if subject.control else pick.mark
        rows.append(
            ChartRow(subject.name, subject.slug, plain(round(l0, 2)), plain(metric.value), interval, mark)
        )
        if pick.mark:
            left_out.append(f"{subject.name}: {pick.mark}")
            continue
        chain = _chain(subject, board.subjects)
        points.append(Point(l0, metric.value, low, high, subject.name, styles[subject.key], chain))
    if not points:
        return None
    xs = [point.x for point in points]
    log = min(xs) > 0 and max(*xs, target) / min(*xs, target) >= _WIDE
    x = Axis("L0 (active latents per token)" + (", log scale" if log else ""), log)
    unit = f" ({column.unit})" if column.unit else ""
    svg = point_chart(points, x, Axis(column.title + unit), f"{column.title} against L0", guide=target)
    return Chart(
        column.title, _subtitle(column), svg, "L0", column.title + unit, tuple(rows), tuple(left_out)
    )


def _why_left_out(subject: Subject, column: Column) -> str:
    pick = column.picks.get(subject.key)
    if pick is None:
        return "not run"
    if pick.entry.record.error is not None:
        return f"failed ({clip(pick.entry.record.error.type, 60)})"
    if pick.metric is None or pick.metric.value is None:
        return clip(pick.metric.reason or "", 200) if pick.metric else "not in this record"
    return "L0 not measured"


def _subtitle(column: Column) -> str:
    better = {"higher": "higher is better", "lower": "lower is better"}[column.direction]
    parts = [column.task_title, f"judge {column.judge}" if column.judge else "", column.setting, better]
    return " · ".join(part for part in parts if part)


def _over_tokens(
    place: tuple[str, str], found: list[tuple[Subject, Entry, Curve]], styles: dict[str, int]
) -> Chart | None:
    lines, rows = [], []
    longest: dict[str, tuple[Subject, Curve]] = {}
    for subject, _, curve in found:
        known = longest.get(subject.key)
        if known is None or _reach(curve) > _reach(known[1]):
            longest[subject.key] = (subject, curve)
    for subject, curve in longest.values():
        drawn = sorted((p for p in curve.points if p.value is not None), key=lambda p: p.x)
        if not drawn:
            continue
        points = [(p.x, p.value, p.low, p.high) for p in drawn if p.value is not None]
        lines.append(Line(points, subject.name, styles[subject.key]))
        last = points[-1]
        interval = (
            f"{plain(last[2])} to {plain(last[3])}" if last[2] is not None and last[3] is not None else ""
        )
        mark = "control" if subject.control else ""
        rows.append(ChartRow(subject.name, subject.slug, plain(last[0]), plain(last[1]), interval, mark))
    if not lines:
        return None
    sample, card = found[0][2], task_card(place[0])
    title = card.metric_title(sample.name)
    x = Axis(f"{humanise(sample.x_name)}" + ("" if "token" in sample.x_name else " (tokens)"))
    svg = line_chart(lines, x, Axis(clip(sample.unit, 40)), f"{title} over tokens watched")
    subtitle = " · ".join(text for text in (card.title, clip(sample.note, 300)) if text)
    return Chart(title, subtitle, svg, "Tokens at the end", clip(sample.unit, 40), tuple(rows), ())


def _reach(curve: Curve) -> float:
    return max((point.x for point in curve.points), default=0.0)
