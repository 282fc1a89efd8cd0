"""Charts as SVG text, drawn here so that a page needs no script and a test can read them.

Colours and fonts come from the style sheet by class, so that both themes work. Series differ by colour and by
marker; every series is labelled directly, in a gutter at the right where labels can be spread without
overlap.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from latentbench_leaderboard._format import clip, plain

__all__ = ["Axis", "Bar", "Line", "Point", "bar_chart", "line_chart", "point_chart"]

_WIDTH, _HEIGHT = 470, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 154, 14, 44
_LABEL_STEP = 14
_LABEL_CHARS = 18
_DODGE = 9.0
_SAME_PLACE = 8.0
_MARKERS = 6
_WHISKERS = 150
"""Most points that each get a whisker and a note."""


@dataclass(frozen=True)
class Axis:
    """One axis."""

    title: str
    """Quantity and unit."""
    log: bool = False
    """Logarithmic, for positive values."""


@dataclass(frozen=True)
class Point:
    """A value with its interval."""

    x: float
    """Position."""
    y: float
    """Height."""
    low: float | None
    """Lower end of the interval."""
    high: float | None
    """Upper end of the interval."""
    label: str
    """Name of the row."""
    style: int
    """Number of the series' colour and marker; -1 for a control."""
    front: bool = False
    """Whether no other point is at least as sparse and at least as good: drawn with a ring."""


@dataclass(frozen=True)
class Line:
    """A curve with a band."""

    points: Sequence[tuple[float, float, float | None, float | None]]
    """x, y and the band's ends, in order of x."""
    label: str
    """Name of the row."""
    style: int
    """Number of the series' colour and marker; -1 for a control."""


@dataclass(frozen=True)
class Bar:
    """One bar of a histogram."""

    label: str
    """Under the bar."""
    value: float
    """Height."""
    low: float | None
    """Lower end of its interval."""
    high: float | None
    """Upper end of its interval."""


def point_chart(
    points: Sequence[Point],
    x: Axis,
    y: Axis,
    title: str,
    guides: Sequence[float] = (),
    lines: Sequence[Line] = (),
    legend: Sequence[tuple[str, int]] | None = None,
) -> Markup:
    """Scores against L0 with interval whiskers.

    Args:
        points: what to draw.
        x: horizontal axis.
        y: vertical axis.
        title: read out by screen readers.
        guides: vertical lines at these x (the target sparsities).
        lines: what joins points of one series, with bands.
        legend: names of the series with their styles, in place of a label at every point.
    """
    around = [end for guide in guides for end in (guide * 0.8, guide * 1.25)]  # small differences stay small
    xs = [*(point.x for point in points), *around]
    scale_x = _Scale([v for v in xs if v > 0 or not x.log], _LEFT, _WIDTH - _RIGHT, x.log, margin=0.1)
    few = len(points) <= _WHISKERS
    ys = [v for p in points for v in ((p.y, p.low, p.high) if few or p.front else (p.y,)) if v is not None]
    scale_y = _Scale(ys, _HEIGHT - _BOTTOM, _TOP, y.log, margin=0.05)
    exact = [scale_x(point.x) for point in points]
    places = _dodged(exact) if few else exact
    parts = _frame(scale_x, scale_y, x, y)
    for guide in guides:
        place = scale_x(guide)
        parts.append(
            f'<line class="guide" x1="{place:.1f}" x2="{place:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>'
        )
    parts += [_band(line, scale_x, scale_y) for line in lines]
    parts += [_path(line, scale_x, scale_y, "chain") for line in lines]
    parts.append(_front(points, places, scale_y))
    drawn = sorted(zip(points, places, strict=True), key=lambda pair: (pair[0].front, pair[0].style))
    parts += [_mark(point, place, scale_y, plain_mark=not (few or point.front)) for point, place in drawn]
    if legend is not None:
        return _svg(title, parts + _legend(legend))
    labels = [(place + 5, scale_y(point.y), point.label, point.style) for point, place in drawn]
    return _svg(title, parts + _labels(labels))


def bar_chart(bars: Sequence[Bar], x_title: str, y: Axis, title: str) -> Markup:
    """A histogram with intervals, such as the share of tokens that a router sends to each layer."""
    ys = [0.0, *(v for bar in bars for v in (bar.value, bar.low, bar.high) if v is not None)]
    scale_y = _Scale(ys, _HEIGHT - _BOTTOM, _TOP, log=False, margin=0.02)
    left, right, ground = _LEFT, _WIDTH - 20, scale_y(0.0)
    step = (right - left) / len(bars)
    parts = _heights(scale_y, right)
    every = math.ceil(len(bars) * 26 / (right - left))  # labels need about 26 units each
    for place, bar in enumerate(bars):
        start, height = left + (place + 0.12) * step, scale_y(bar.value)
        top, size = min(height, ground), abs(ground - height)
        spoken = f"{clip(bar.label, 40)}: {plain(bar.value)}"
        whisker = ""
        if bar.low is not None and bar.high is not None:
            spoken += f", interval {plain(bar.low)} to {plain(bar.high)}"
            middle = left + (place + 0.5) * step
            whisker = (
                f'<path class="on-bar" d="M{middle:.1f} {scale_y(bar.low):.1f}V{scale_y(bar.high):.1f}"/>'
            )
        box = f'x="{start:.1f}" y="{top:.1f}" width="{0.76 * step:.1f}" height="{size:.1f}"'
        parts.append(f'<g class="s0"><title>{escape(spoken)}</title><rect class="bar" {box}/>{whisker}</g>')
        if place % every == 0:
            at = f'x="{left + (place + 0.5) * step:.1f}" y="{_HEIGHT - _BOTTOM + 17}"'
            parts.append(f'<text class="tick mid" {at}>{escape(clip(bar.label, 12))}</text>')
    parts += _titles(x_title, y.title, (left + right) / 2)
    return _svg(title, parts)


def line_chart(lines: Sequence[Line], x: Axis, y: Axis, title: str) -> Markup:
    """Curves with bands, such as a feature count over the tokens watched."""
    scale_x = _Scale([p[0] for line in lines for p in line.points], _LEFT, _WIDTH - _RIGHT, x.log, margin=0.0)
    ys = [v for line in lines for p in line.points for v in p[1:] if v is not None]
    scale_y = _Scale(ys if y.log else [0.0, *ys], _HEIGHT - _BOTTOM, _TOP, y.log, margin=0.02)
    parts = _frame(scale_x, scale_y, x, y)
    parts += [_band(line, scale_x, scale_y) for line in lines]
    labels = []
    for line in lines:
        parts.append(_path(line, scale_x, scale_y, "curve"))
        last = line.points[-1]
        labels.append((scale_x(last[0]) + 3, scale_y(last[1]), line.label, line.style))
        parts.append(
            f'<g class="{_class(line.style)}">{_marker(line.style, scale_x(last[0]), scale_y(last[1]))}</g>'
        )
    return _svg(title, parts + _labels(labels))


_POWERS = 300
_LARGEST = 10.0**_POWERS
"""Values of a submission that are larger are drawn there: nothing may overflow."""


class _Scale:
    """From values to places on the drawing."""

    def __init__(self, values: Iterable[float], start: float, end: float, log: bool, margin: float) -> None:
        self._log = log
        found = [self._to(value) for value in values]
        low, high = min(found, default=0.0), max(found, default=1.0)
        if high - low <= 1e-12 * max(abs(high), abs(low), 1.0):
            pad = 0.5 if log else max(abs(high), 1.0) * 0.1
            low, high = low - pad, high + pad
        width = high - low
        self.low, self.high = low - margin * width, high + margin * width
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        return self._start + (self._end - self._start) * (self._to(value) - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """About five round values inside of the range."""
        if self._log:
            return self._log_ticks()
        raw = (self.high - self.low) / 5
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [round(i * step, 12) for i in range(first, last + 1)]

    def _log_ticks(self) -> list[float]:
        first, last = max(-_POWERS, math.floor(self.low)), min(_POWERS, math.ceil(self.high))
        factors = (1, 2, 5) if self.high - self.low < 2.2 else (1, 3) if self.high - self.low < 4 else (1,)
        ticks = [m * 10.0**p for p in range(first, last + 1) for m in factors]
        return [tick for tick in ticks if self.low - 1e-9 <= math.log10(tick) <= self.high + 1e-9]

    def _to(self, value: float) -> float:
        value = min(max(value, -_LARGEST), _LARGEST)
        return math.log10(max(value, 1e-12)) if self._log else value


def _frame(scale_x: _Scale, scale_y: _Scale, x: Axis, y: Axis) -> list[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = _heights(scale_y, right)
    for tick in scale_x.ticks():
        place = scale_x(tick)
        parts.append(
            f'<line class="axis" x1="{place:.1f}" x2="{place:.1f}" y1="{bottom}" y2="{bottom + 4}"/>'
        )
        parts.append(f'<text class="tick mid" x="{place:.1f}" y="{bottom + 17}">{_tick(tick)}</text>')
    return parts + _titles(x.title, y.title, (_LEFT + right) / 2)


def _heights(scale_y: _Scale, right: float) -> list[str]:
    """The vertical axis: lines across, and the ground."""
    parts = []
    for tick in scale_y.ticks():
        place = scale_y(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{place:.1f}" y2="{place:.1f}"/>')
        parts.append(f'<text class="tick end" x="{_LEFT - 6}" y="{place + 4:.1f}">{_tick(tick)}</text>')
    bottom = _HEIGHT - _BOTTOM
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
    return parts


def _titles(x: str, y: str, middle: float) -> list[str]:
    up = (_TOP + _HEIGHT - _BOTTOM) / 2
    turned = f'transform="translate(11 {up:.0f}) rotate(-90)"'
    return [
        f'<text class="axis-title mid" x="{middle:.0f}" y="{_HEIGHT - 6}">{escape(clip(x, 60))}</text>',
        f'<text class="axis-title mid" {turned}>{escape(clip(y, 44))}</text>',
    ]


def _tick(value: float) -> str:
    if abs(value) >= 1e6:
        return f"{plain(value / 1e6)}M"
    return f"{plain(value / 1e3)}k" if abs(value) >= 1e4 else plain(value)


def _dodged(places: Sequence[float]) -> list[float]:
    """Points that would cover each other are spread sideways around their common place."""
    order = sorted(range(len(places)), key=lambda i: (places[i], i))
    result = list(places)
    cluster: list[int] = []
    for i in [*order, -1]:
        if cluster and (i < 0 or places[i] - places[cluster[-1]] > _SAME_PLACE):
            middle = sum(places[j] for j in cluster) / len(cluster)
            step = min(_DODGE, 44.0 / len(cluster))
            for rank, j in enumerate(cluster):
                result[j] = middle + step * (rank - (len(cluster) - 1) / 2)
            cluster = []
        cluster.append(i)
    return result


def _path(line: Line, scale_x: _Scale, scale_y: _Scale, name: str) -> str:
    path = " ".join(f"{scale_x(px):.1f},{scale_y(py):.1f}" for px, py, *_ in line.points)
    spoken = f"<title>{escape(clip(line.label))}</title>"
    return f'<polyline class="{name} {_class(line.style)}" points="{path}">{spoken}</polyline>'


def _front(points: Sequence[Point], places: Sequence[float], scale_y: _Scale) -> str:
    """Steps along the points of the front: what is reached at most so many active latents."""
    found = sorted(
        (place, scale_y(point.y)) for point, place in zip(points, places, strict=True) if point.front
    )
    if not found:
        return ""
    steps = f"M{found[0][0]:.1f} {found[0][1]:.1f}" + "".join(f"H{x:.1f}V{y:.1f}" for x, y in found[1:])
    return f'<path class="front" d="{steps}H{_WIDTH - _RIGHT}"/>'


def _mark(point: Point, place: float, scale_y: _Scale, *, plain_mark: bool) -> str:
    marker = _marker(point.style, place, scale_y(point.y))
    if plain_mark:  # among very many, a whisker and a note for each are neither legible nor light
        return f'<g class="{_class(point.style)} faint">{marker}</g>'
    whisker = ring = ""
    spoken = f"{clip(point.label)}: {plain(point.y)} at {plain(round(point.x, 2))}"
    if point.low is not None and point.high is not None:
        low, high = scale_y(point.low), scale_y(point.high)
        whisker = f'<path class="whisker" d="M{place:.1f} {low:.1f}V{high:.1f}"/>'
        spoken += f", interval {plain(point.low)} to {plain(point.high)}"
    if point.front:
        spoken += ", on the front"
        ring = f'<circle class="ring" cx="{place:.1f}" cy="{scale_y(point.y):.1f}" r="7"/>'
    return f'<g class="{_class(point.style)}"><title>{escape(spoken)}</title>{whisker}{marker}{ring}</g>'


def _marker(style: int, x: float, y: float) -> str:
    if style < 0:  # controls are hollow
        return f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3.6"/>'
    shapes = (
        "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0Z",
        "M-3.7-3.7H3.7V3.7H-3.7Z",
        "M0-5L4.6 3.4H-4.6Z",
        "M0-5L5 0L0 5L-5 0Z",
        "M0 5L4.6-3.4H-4.6Z",
        "M-1.6-4.6H1.6V-1.6H4.6V1.6H1.6V4.6H-1.6V1.6H-4.6V-1.6H-1.6Z",
    )
    shape = shapes[(style + style // _MARKERS) % _MARKERS]  # colours come round again with other markers
    return f'<path class="dot" transform="translate({x:.1f} {y:.1f})" d="{shape}"/>'


def _band(line: Line, scale_x: _Scale, scale_y: _Scale) -> str:
    banded = [(p[0], p[2], p[3]) for p in line.points if p[2] is not None and p[3] is not None]
    if len(banded) < 2:
        return ""
    upper = [f"{scale_x(px):.1f},{scale_y(min(high, scale_y.high)):.1f}" for px, _, high in banded]
    lower = [f"{scale_x(px):.1f},{scale_y(max(low, scale_y.low)):.1f}" for px, low, _ in reversed(banded)]
    return f'<polygon class="band {_class(line.style)}" points="{" ".join(upper + lower)}"/>'


def _labels(labels: Sequence[tuple[float, float, str, int]]) -> list[str]:
    """Names in the gutter, spread so that none covers another, each joined to its point by a thin line."""
    room = int((_HEIGHT - _TOP - 20) // _LABEL_STEP)
    shown = sorted(labels, key=lambda label: label[3] < 0)[:room]
    shown.sort(key=lambda label: (label[1], label[2]))
    heights = _spread([label[1] for label in shown], _TOP + 4, _HEIGHT - 26)
    gutter = _WIDTH - _RIGHT + 14
    parts = []
    for (x, y, text, style), height in zip(shown, heights, strict=True):
        parts.append(f'<path class="leader" d="M{x:.1f} {y:.1f}L{gutter - 6} {height:.1f}H{gutter - 2}"/>')
        name = escape(clip(text, _LABEL_CHARS))
        parts.append(f'<g class="{_class(style)}">{_marker(style, gutter + 3, height)}</g>')
        parts.append(f'<text class="label" x="{gutter + 11}" y="{height + 4:.1f}">{name}</text>')
    if len(labels) > room:
        parts.append(
            f'<text class="tick" x="{gutter}" y="{_HEIGHT - 6}">+ {len(labels) - room} in the table</text>'
        )
    return parts


def _legend(entries: Sequence[tuple[str, int]]) -> list[str]:
    """Names of the series in the gutter, without lines to their points."""
    gutter, parts = _WIDTH - _RIGHT + 14, []
    room = int((_HEIGHT - _TOP - 20) // _LABEL_STEP)
    for place, (text, style) in enumerate(entries[:room]):
        height = _TOP + 6 + place * _LABEL_STEP
        parts.append(f'<g class="{_class(style)}">{_marker(style, gutter + 3, height)}</g>')
        name = escape(clip(text, _LABEL_CHARS + 3))
        parts.append(f'<text class="label" x="{gutter + 11}" y="{height + 4:.1f}">{name}</text>')
    if len(entries) > room:
        more = f"+ {len(entries) - room} in the table"
        parts.append(f'<text class="tick" x="{gutter}" y="{_HEIGHT - 6}">{more}</text>')
    return parts


def _spread(wanted: Sequence[float], top: float, bottom: float) -> list[float]:
    """Heights at least one label apart and as close to `wanted` (ascending) as that allows."""
    places: list[float] = []
    for height in wanted:
        places.append(max(height, places[-1] + _LABEL_STEP if places else top))
    limit = bottom
    for i in range(len(places) - 1, -1, -1):
        places[i] = min(places[i], limit)
        limit = places[i] - _LABEL_STEP
    return places


def _class(style: int) -> str:
    return "control" if style < 0 else f"s{style % _MARKERS}"


def _svg(title: str, parts: Sequence[str]) -> Markup:
    body = "\n".join(parts)
    head = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(clip(title, 200))}"'
    return Markup(f"<svg {head}>\n{body}\n</svg>")  # every text in the parts went through `escape`
