"""The page of one dictionary: what it is, and everything that was measured of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import Any

from markupsafe import Markup

from latentbench.stats import mean
from latentbench.store import Curve, Metric
from latentbench_leaderboard._cards import TaskCard, task_card
from latentbench_leaderboard._columns import Column, columns_of, tokens_watched
from latentbench_leaderboard._format import (
    clip,
    decimals_for,
    flat,
    humanise,
    interval_text,
    number,
    plain,
    sites_text,
)
from latentbench_leaderboard._plots import Axis, Bar, Line, bar_chart, line_chart
from latentbench_leaderboard._series import training_seed
from latentbench_leaderboard._subjects import Entry, Subject

__all__ = [
    "CellView",
    "CurveView",
    "DictionaryView",
    "MetricView",
    "SeedsView",
    "dictionary_view",
    "metric_anchor",
]


@dataclass(frozen=True)
class MetricView:
    """One row of a table of metrics."""

    id: str
    """Anchor on the page."""
    title: str
    """Title."""
    name: str
    """Name in records."""
    value: str
    """Number as text, empty when unscored."""
    interval: str
    """Its ends."""
    level: str
    """Coverage of the interval ("95 %")."""
    method: str
    """How the interval was made."""
    unit: str
    """Unit."""
    direction: str
    """"higher", "lower" or "none"."""
    n: str
    """Number of units."""
    resampling_unit: str
    """What was resampled."""
    reason: str
    """Why there is no value."""
    note: str
    """Definition in one line."""
    headline: bool
    """Whether it is on the board."""


@dataclass(frozen=True)
class CurveView:
    """A curve as a drawing and as a table."""

    title: str
    """Title."""
    note: str
    """Definition."""
    chart: Markup
    """SVG; empty for a curve without two points."""
    x_title: str
    """Head of the first column."""
    y_title: str
    """Head of the second column."""
    points: tuple[tuple[str, str, str], ...]
    """x, value and band of each point."""


@dataclass(frozen=True)
class CellView:
    """One finished cell."""

    id: str
    """Anchor on the page."""
    key: str
    """The cell's key."""
    title: str
    """Title of the task."""
    judge: str | None
    """Label of the judge."""
    seed: int
    """Seed."""
    tokens: str
    """Tokens watched, empty if not recorded."""
    error: str
    """Error of a failed cell."""
    metrics: tuple[MetricView, ...]
    """Its metrics."""
    curves: tuple[CurveView, ...]
    """Its curves."""
    counts: tuple[tuple[str, str], ...]
    """What went into it."""
    settings: tuple[tuple[str, str], ...]
    """Identity of the cell: task options, corpus, token policy, judge."""
    provenance: tuple[tuple[str, str], ...]
    """Where it was made."""
    finished: str
    """When."""


@dataclass(frozen=True)
class SeedsView:
    """One board metric over the training seeds of one recipe."""

    title: str
    """Title of the metric."""
    about: str
    """Task, judge and setting."""
    unit: str
    """Its unit."""
    direction: str
    """Which end is better."""
    values: tuple[str, ...]
    """One for each training seed, a dash where it has no score."""
    mean: str
    """Mean over seeds, with its interval."""
    spread: str
    """Standard deviation over seeds."""


@dataclass(frozen=True)
class DictionaryView:
    """The page."""

    subject: Subject
    """Which dictionary."""
    facts: tuple[tuple[str, str], ...]
    """What the card says, in order of interest."""
    more_facts: tuple[tuple[str, str], ...]
    """The rest of the card."""
    cells: tuple[CellView, ...]
    """What was measured."""
    runs: tuple[tuple[Subject, int], ...] = ()
    """Training runs of the same recipe with their seeds, itself included; empty if there is no other."""
    seeds: tuple[SeedsView, ...] = ()
    """The board's metrics over those runs."""


def dictionary_view(subject: Subject, runs: Sequence[Subject] = ()) -> DictionaryView:
    """Everything that the page of a dictionary shows.

    Args:
        subject: which.
        runs: training runs of its recipe, itself included; none if it has no other.
    """
    used = {
        "name",
        "family",
        "reads",
        "writes",
        "n_latents",
        "d_model",
        "nominal_l0",
        "normalisation",
        "source",
        "sha256",
    }
    rest = {
        key: value
        for key, value in subject.card.items()
        if key not in used and value not in (None, "", {}, [])
    }
    return DictionaryView(
        subject=subject,
        facts=tuple((name, value) for name, value in _facts(subject) if value),
        more_facts=tuple(flat({**rest, "sparsity": subject.sparsity})),
        cells=tuple(_cell(entry, place) for place, entry in enumerate(subject.entries)),
        runs=tuple((run, training_seed(run) or 0) for run in runs),
        seeds=tuple(_seeds(column, runs) for column in columns_of(runs) if column.metric) if runs else (),
    )


def metric_anchor(task: str, place: int, name: str) -> str:
    """Anchor of a metric on its dictionary's page; names may hold anything, so only safe letters stay."""
    letters = "".join(c if c.isascii() and c.isalnum() else "-" for c in f"{task}-{name}")[:80]
    return f"m{place}-{letters}"


def _seeds(column: Column, runs: Sequence[Subject]) -> SeedsView:
    picks = [column.picks.get(run.key) for run in runs]
    metrics = [pick.metric if pick is not None and not pick.mark else None for pick in picks]
    found = [metric for metric in metrics if metric is not None and metric.value is not None]
    decimals = decimals_for(found)
    values = [metric.value for metric in found if metric.value is not None]
    over = mean(values)
    ends = (
        f" ({number(over.low, decimals)} to {number(over.high, decimals)})"
        if over.low is not None and over.high is not None
        else ""
    )
    return SeedsView(
        title=column.title,
        about=" · ".join(part for part in (column.task_title, column.judge or "", column.setting) if part),
        unit=column.unit,
        direction=column.direction,
        values=tuple(
            number(metric.value, decimals) if metric is not None and metric.value is not None else "—"
            for metric in metrics
        ),
        mean=f"{number(over.value, decimals)}{ends}" if over.value is not None else "—",
        spread=number(stdev(values), decimals + 1) if len(values) > 1 else "—",
    )


def _facts(subject: Subject) -> list[tuple[str, str]]:
    card = subject.card
    training = card.get("training")
    training = training if isinstance(training, dict) else {}
    held_out = training.get("held_out")
    held_out = held_out if isinstance(held_out, dict) else {}
    l0 = subject.l0
    return [
        ("Family", subject.family),
        ("Reads", sites_text(_texts(card.get("reads")))),
        ("Writes", sites_text(_texts(card.get("writes")))),
        ("Latents", _number(card.get("n_latents"))),
        ("Width of the activations", _number(card.get("d_model"))),
        ("k it was built for", _number(card.get("nominal_l0"))),
        ("Measured L0", plain(round(l0.value, 3)) if l0 is not None and l0.value is not None else ""),
        ("Input transform", clip(str(card.get("normalisation", "")), 40)),
        ("Language model", clip(str(subject.lm.get("name", "")), 80)),
        ("Training tokens", _number(training.get("tokens", training.get("training_tokens")))),
        (
            "Held-out normalised MSE",
            _number(held_out.get("normalised_mse", training.get("held_out_normalised_mse"))),
        ),
        ("Source", clip(str(card.get("source", "")), 200)),
        ("Weights sha256", clip(str(card.get("sha256", "")), 64)),
    ]


def _cell(entry: Entry, place: int) -> CellView:
    record, card = entry.record, task_card(entry.task)
    tokens = tokens_watched(entry)
    cell = record.cell.model_dump(mode="json", exclude={"dictionary", "sparsity"})
    return CellView(
        id=f"cell-{place}",
        key=record.key,
        title=card.title,
        judge=entry.judge,
        seed=record.cell.seed,
        tokens=number(tokens, 0) if tokens is not None else "",
        error=clip(f"{record.error.type}: {record.error.message}", 600) if record.error else "",
        metrics=tuple(_metric(metric, card, entry.task, place) for metric in record.metrics),
        curves=tuple(_curve(curve, card) for curve in record.curves),
        counts=tuple((humanise(name), number(count, 0)) for name, count in sorted(record.counts.items())),
        settings=tuple(flat(cell)),
        provenance=tuple(flat(record.provenance)),
        finished=record.finished,
    )


def _metric(metric: Metric, card: TaskCard, task: str, place: int) -> MetricView:
    decimals = decimals_for([metric])
    interval = metric.interval
    return MetricView(
        id=metric_anchor(task, place, metric.name),
        title=card.metric_title(metric.name),
        name=clip(metric.name),
        value=number(metric.value, decimals) if metric.value is not None else "",
        interval=interval_text(metric, decimals),
        level=f"{interval.level:.0%}".replace("%", " %") if interval else "",
        method=clip(interval.method, 200) if interval else "",
        unit=clip(metric.unit, 40),
        direction=metric.direction,
        n=number(metric.n, 0),
        resampling_unit=clip(metric.resampling_unit, 40),
        reason=clip(metric.reason or "", 400),
        note=clip(metric.note, 600),
        headline=metric.headline,
    )


def _curve(curve: Curve, card: TaskCard) -> CurveView:
    title = card.metric_title(curve.name)
    x_title = (
        f"{humanise(curve.x_name)} ({clip(curve.x_unit, 40)})"
        if curve.x_unit != curve.x_name
        else humanise(curve.x_name)
    )
    drawn = [(p.x, p.value, p.low, p.high) for p in curve.points if p.value is not None]
    chart = Markup("")
    if (
        curve.x_unit == "layer" and drawn
    ):  # a histogram: its bars stand side by side, nothing lies between them
        bars = [Bar(plain(x), value, low, high) for x, value, low, high in drawn]
        chart = bar_chart(bars, x_title, Axis(clip(curve.unit, 40)), title)
    elif len(drawn) > 1:
        line = Line(sorted(drawn, key=lambda point: point[0]), "", 0)
        chart = line_chart([line], Axis(x_title), Axis(clip(curve.unit, 40)), title)
    points = tuple(
        (
            plain(p.x),
            plain(p.value) if p.value is not None else "—",
            f"{plain(p.low)} to {plain(p.high)}" if p.low is not None and p.high is not None else "",
        )
        for p in curve.points
    )
    return CurveView(title, clip(curve.note, 600), chart, x_title, clip(curve.unit, 40), points)


def _texts(value: object) -> list[str]:
    return [clip(str(item), 60) for item in value] if isinstance(value, (list, tuple)) else []


def _number(value: Any) -> str:
    return plain(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else ""
