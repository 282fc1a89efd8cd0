"""The page of curves: every headline score against L0, and feature counts over the tokens watched."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from latentbench.stats import mean
from latentbench.store import Curve
from latentbench_leaderboard._cards import task_card
from latentbench_leaderboard._columns import Column, columns_of
from latentbench_leaderboard._format import clip, humanise, plain
from latentbench_leaderboard._plots import Axis, Line, Point, line_chart, point_chart
from latentbench_leaderboard._series import series_key, series_title
from latentbench_leaderboard._subjects import Entry, Subject

__all__ = ["Chart", "ChartRow", "charts_against_l0", "charts_over_tokens"]

_WIDE = 8.0
"""From this ratio of the largest to the smallest L0, the axis is logarithmic."""
_LABELLED = 14
"""Most points that each carry their own name; more are told apart by the series."""
_TABLED = 200
_DRAWN = 80
"""Most curves over tokens in one drawing, those that end highest."""
_APART = 1.1
"""Ratio of two L0 from which they are two sparsities and not two runs at one."""


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
    front: tuple[Subject, ...] = ()
    """Dictionaries on the Pareto front, sparsest first."""
    more: int = 0
    """Rows that the table of the data leaves out."""


@dataclass(frozen=True)
class _Look:
    """How the rows of one model are drawn."""

    series: dict[str, str]
    """Key of the series of each row."""
    styles: dict[str, int]
    """Colour and marker of each row; -1 for controls."""
    titles: dict[str, str]
    """Name of each series."""


def charts_against_l0(subjects: Sequence[Subject], targets: Sequence[float]) -> list[Chart]:
    """One chart per ranked column, off-target rows and controls included.

    Args:
        subjects: the dictionaries of one model.
        targets: sparsities at which tables compare.
    """
    look = _look(subjects)
    return [
        chart
        for column in columns_of(subjects)
        if column.ranked and (chart := _against_l0(subjects, column, look, targets))
    ]


def charts_over_tokens(subjects: Sequence[Subject]) -> list[Chart]:
    """One chart per curve over tokens that the tasks of one model's dictionaries recorded, all of them together."""
    look = _look(subjects)
    curves: dict[tuple[str, str], list[tuple[Subject, Entry, Curve]]] = {}
    for subject in subjects:
        for entry in subject.entries:
            for curve in entry.record.curves:
                if curve.x_unit == "tokens":
                    curves.setdefault((entry.task, curve.name), []).append((subject, entry, curve))
    return [
        chart
        for place, found in sorted(curves.items(), key=_by_number)
        if (chart := _over_tokens(place, found, look.styles))
    ]


def _by_number(item: tuple[tuple[str, str], object]) -> list[tuple[int, str]]:
    """Order of names in which 5 comes before 10."""
    parts = re.split(r"(\d+)", "/".join(item[0]))
    return [(int(part) if part.isdecimal() else -1, part) for part in parts]


def _look(subjects: Sequence[Subject]) -> _Look:
    series = {subject.key: series_key(subject) for subject in subjects}
    members: dict[str, list[Subject]] = {}
    for subject in subjects:
        members.setdefault(series[subject.key], []).append(subject)
    order = sorted({series[subject.key] for subject in subjects if not subject.control})
    return _Look(
        series=series,
        styles={s.key: -1 if s.control else order.index(series[s.key]) for s in subjects},
        titles={key: series_title(group) for key, group in members.items()},
    )


def _against_l0(
    subjects: Sequence[Subject], column: Column, look: _Look, targets: Sequence[float]
) -> Chart | None:
    rows, left_out, drawn = [], [], []
    for subject in subjects:
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
        else:
            drawn.append(
                (subject, Point(l0, metric.value, low, high, subject.name, look.styles[subject.key]))
            )
    if not drawn:
        return None
    drawn, outside = _in_sight(drawn)
    left_out += outside
    best = _front([(s, p) for s, p in drawn if not s.control], higher=column.direction == "higher")
    points = [replace(point, front=subject.key in best) for subject, point in drawn]
    xs = [point.x for point in points]
    log = min(xs) > 0 and max(*xs, *targets) / min(*xs, *targets) >= _WIDE
    unit = f" ({column.unit})" if column.unit else ""
    svg = point_chart(
        points,
        Axis("L0 (active latents per token)" + (", log scale" if log else ""), log),
        Axis(column.title + unit),
        f"{column.title} against L0",
        guides=targets,
        lines=_lines(drawn, look),
        legend=_legend(drawn, look) if len(drawn) > _LABELLED else None,
    )
    front = tuple(subject for subject, _ in drawn if subject.key in best)
    return Chart(
        title=column.title,
        subtitle=_subtitle(column),
        svg=svg,
        x_title="L0",
        y_title=column.title + unit,
        rows=tuple(rows[:_TABLED]),
        left_out=_few(left_out),
        front=tuple(sorted(front, key=lambda s: (s.l0.value or 0.0) if s.l0 else 0.0)),
        more=max(0, len(rows) - _TABLED),
    )


def _front(drawn: Sequence[tuple[Subject, Point]], *, higher: bool) -> set[str]:
    """Rows than which no other is at least as sparse and at least as good, and better in one of the two."""
    sign = 1.0 if higher else -1.0
    best, found = -math.inf, set()
    for subject, point in sorted(drawn, key=lambda pair: (pair[1].x, -sign * pair[1].y)):
        if sign * point.y > best:
            best = sign * point.y
            found.add(subject.key)
    return found


def _in_sight(
    drawn: Sequence[tuple[Subject, Point]],
) -> tuple[list[tuple[Subject, Point]], list[str]]:
    """Without the controls so far off that everything else would shrink to a line, and what is said of those."""
    ends = [v for s, p in drawn if not s.control for v in (p.y, p.low, p.high) if v is not None]
    if not ends or max(ends) == min(ends):
        return list(drawn), []
    reach = 0.6 * (max(ends) - min(ends))
    near = [(s, p) for s, p in drawn if not s.control or min(ends) - reach <= p.y <= max(ends) + reach]
    kept = {subject.key for subject, _ in near}
    return near, [
        f"{s.name}: a control outside of the drawing, {plain(p.y)}" for s, p in drawn if s.key not in kept
    ]


def _lines(drawn: Sequence[tuple[Subject, Point]], look: _Look) -> list[Line]:
    """Series at two sparsities or more: joined through the mean of each, with a band."""
    by_series: dict[str, list[Point]] = {}
    for subject, point in drawn:
        if not subject.control:
            by_series.setdefault(look.series[subject.key], []).append(point)
    lines = []
    for key, points in by_series.items():
        nodes = [_node(group) for group in _close(sorted(points, key=lambda point: point.x))]
        if len(nodes) > 1:
            lines.append(Line(nodes, look.titles[key], points[0].style))
    return lines


def _close(points: Sequence[Point]) -> Iterator[list[Point]]:
    """Neighbours in L0: training seeds at one sparsity."""
    group: list[Point] = []
    for point in points:
        if group and point.x > _APART * group[-1].x:
            yield group
            group = []
        group.append(point)
    if group:
        yield group


def _node(group: Sequence[Point]) -> tuple[float, float, float | None, float | None]:
    """Mean of the seeds with the interval of that mean; a single run has its own interval."""
    x = sum(point.x for point in group) / len(group)
    if len(group) == 1:
        return x, group[0].y, group[0].low, group[0].high
    over = mean([point.y for point in group])
    return x, sum(point.y for point in group) / len(group), over.low, over.high


def _legend(drawn: Sequence[tuple[Subject, Point]], look: _Look) -> list[tuple[str, int]]:
    named = {
        look.styles[subject.key]: look.titles[look.series[subject.key]]
        for subject, _ in drawn
        if not subject.control
    }
    entries = [(named[style], style) for style in sorted(named)]
    return [*entries, ("controls", -1)] if any(subject.control for subject, _ in drawn) else entries


def _few(texts: Sequence[str], limit: int = 12) -> tuple[str, ...]:
    more = (f"and {len(texts) - limit} more",) if len(texts) > limit else ()
    return (*texts[:limit], *more)


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
    longest: dict[str, tuple[Subject, Curve]] = {}
    for subject, _, curve in found:
        known = longest.get(subject.key)
        if known is None or _reach(curve) > _reach(known[1]):
            longest[subject.key] = (subject, curve)
    lines, rows = [], []
    for subject, curve in longest.values():
        points = sorted((p.x, p.value, p.low, p.high) for p in curve.points if p.value is not None)
        if not points:
            continue
        lines.append(Line(points, subject.name, styles[subject.key]))
        x, value, low, high = points[-1]
        interval = f"{plain(low)} to {plain(high)}" if low is not None and high is not None else ""
        mark = "control" if subject.control else ""
        rows.append(ChartRow(subject.name, subject.slug, plain(x), plain(value), interval, mark))
    if not lines:
        return None
    sample, card = found[0][2], task_card(place[0])
    title = card.metric_title(sample.name)
    axis = Axis(f"{humanise(sample.x_name)}" + ("" if "token" in sample.x_name else " (tokens)"))
    highest = sorted(lines, key=lambda line: (-line.points[-1][1], line.label))
    subtitle = " · ".join(text for text in (card.title, clip(sample.note, 300)) if text)
    return Chart(
        title=title,
        subtitle=subtitle,
        svg=line_chart(highest[:_DRAWN], axis, Axis(clip(sample.unit, 40)), f"{title} over tokens watched"),
        x_title="Tokens at the end",
        y_title=clip(sample.unit, 40),
        rows=tuple(rows[:_TABLED]),
        left_out=_few([line.label for line in highest[_DRAWN:]]),
        more=max(0, len(rows) - _TABLED),
    )


def _reach(curve: Curve) -> float:
    return max((point.x for point in curve.points), default=0.0)
