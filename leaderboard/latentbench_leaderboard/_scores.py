"""One cell of a board's table: value, interval, rank, or why one of them is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from latentbench.registry import UNITS
from latentbench.stats import Estimate, RankInterval, generator, rank_independent, rank_intervals
from latentbench.store import Metric
from latentbench_leaderboard._columns import Column, Pick
from latentbench_leaderboard._dictionary import metric_anchor
from latentbench_leaderboard._format import clip, decimals_for, interval_text, listing, number, rank_text
from latentbench_leaderboard._subjects import Subject
from latentbench_leaderboard._units import Drawn, UnitBook

__all__ = ["Score", "ScoredColumn", "Strip", "score_column", "standard_error"]

_REASON = 300
_RANKED = 2
"""Rows that a rank needs: one alone is neither best nor worst."""


@dataclass(frozen=True)
class Strip:
    """A value and its interval as shares of the column's range, in per cent."""

    value: float
    """Position of the value."""
    low: float
    """Position of the lower end."""
    high: float
    """Position of the upper end."""


@dataclass(frozen=True)
class Score:
    """What the table shows for one row and column."""

    state: Literal["scored", "unscored", "failed", "absent"]
    """Kind of cell."""
    value: str = ""
    """The number as text."""
    interval: str = ""
    """Its ends, empty without an interval."""
    rank: str = ""
    """Rank with its interval, empty for an unranked cell."""
    group: int | None = None
    """Tie group; 1 are the rows not separable from the best."""
    mark: str = ""
    """Why a scored cell is unranked although its column is ranked."""
    reason: str = ""
    """Why there is no value: the metric's reason, or the error of a failed cell."""
    tip: str = ""
    """All of it in words."""
    sort: float | None = None
    """Number to sort by."""
    strip: Strip | None = None
    """The same as a small drawing."""
    anchor: str = ""
    """Place on the dictionary's page with everything about it."""

    @property
    def letter(self) -> str:
        """The tie group as a letter, a being the best."""
        return "" if self.group is None else chr(96 + self.group) if self.group <= 26 else str(self.group)


@dataclass(frozen=True)
class ScoredColumn:
    """The cells of one column."""

    scores: dict[str, Score]
    """By key of the row."""
    ranking: str
    """How its ranks were made; empty for a column without ranks."""


def score_column(
    column: Column, subjects: Sequence[Subject], ranked: Sequence[Subject], units: UnitBook
) -> ScoredColumn:
    """The cells of one column.

    Args:
        column: which.
        subjects: every row that is shown.
        ranked: the rows that take part in ranking: at the target sparsity and no controls.
        units: what the rows share.
    """
    picks = {subject.key: column.picks.get(subject.key) for subject in subjects}
    metrics = [pick.metric for pick in picks.values() if pick is not None and pick.metric is not None]
    decimals = decimals_for(metrics)
    usual = _usual_level(metrics)
    picks = {key: _check_level(pick, usual) for key, pick in picks.items()}
    places, ranking = _ranks(column, {subject.key: picks[subject.key] for subject in ranked}, usual, units)
    shown = [picks[subject.key] for subject in ranked]
    span = _span([pick.metric for pick in shown if pick is not None and pick.metric is not None])
    scores = {key: _score(column, pick, decimals, places.get(key), span) for key, pick in picks.items()}
    anchored = {s.key: replace(scores[s.key], anchor=_anchor(s, picks[s.key], column)) for s in subjects}
    return ScoredColumn(anchored, ranking)


def standard_error(metric: Metric) -> float | None:
    """Half a metric's interval over the normal quantile of its level; None without an interval."""
    interval = metric.interval
    if interval is None:
        return None
    return (interval.high - interval.low) / (2 * NormalDist().inv_cdf(0.5 + interval.level / 2))


def _anchor(subject: Subject, pick: Pick | None, column: Column) -> str:
    if pick is None:
        return ""
    place = next(i for i, entry in enumerate(subject.entries) if entry is pick.entry)
    return metric_anchor(column.task, place, column.metric or "") if pick.metric else f"cell-{place}"


def _usual_level(metrics: Sequence[Metric]) -> float:
    levels = Counter(metric.interval.level for metric in metrics if metric.interval)
    return min(levels, key=lambda level: (-levels[level], -level)) if levels else 0.95


def _check_level(pick: Pick | None, usual: float) -> Pick | None:
    """Intervals of another coverage can't be compared with the column's."""
    interval = pick.metric.interval if pick and pick.metric else None
    if pick is None or interval is None or interval.level == usual:
        return pick
    mark = f"{interval.level:.0%} interval, the others {usual:.0%}" + (f"; {pick.mark}" if pick.mark else "")
    return replace(pick, mark=mark)


def _ranks(
    column: Column, picks: Mapping[str, Pick | None], level: float, units: UnitBook
) -> tuple[dict[str, RankInterval], str]:
    """Places by row, and how they were found: paired where all rows share their units."""
    found = {
        key: pick
        for key, pick in picks.items()
        if pick is not None and not pick.mark and pick.metric is not None and pick.metric.value is not None
    }
    if column.direction not in ("higher", "lower") or len(found) < _RANKED:
        return {}, ""
    direction: Literal["higher", "lower"] = "higher" if column.direction == "higher" else "lower"
    metrics = [pick.metric for pick in found.values() if pick.metric is not None]
    drawn = {key: units.of(pick.entry) for key, pick in found.items()}
    table, why = _joint(column, drawn)
    if table is not None:
        placed = rank_intervals([metric.value for metric in metrics], table, direction, level)
        unit = clip(metrics[0].resampling_unit, 40)
        shared = next(one.n for one in drawn.values() if one is not None)
        return dict(
            zip(found, placed, strict=True)
        ), f"paired: all rows share the same {number(shared, 0)} {unit}s"
    rng = generator("\n".join(["ranks", column.id, *sorted(found)]))
    placed = rank_independent([_estimate(metric, level) for metric in metrics], direction, rng)
    return dict(zip(found, placed, strict=True)), f"unpaired: {why}"


def _joint(column: Column, drawn: Mapping[str, Drawn | None]) -> tuple[NDArray[np.float64] | None, str]:
    """Float[draw, row] of rows on the same units, or why there is none."""
    metric = column.metric or ""
    if column.task not in UNITS.names():
        return None, "numbers of this task are no sums over units that rows share"
    have = [one for one in drawn.values() if one is not None and metric in one.draws]
    if len(have) < len(drawn):
        return None, f"{len(drawn) - len(have)} of {len(drawn)} rows have no items by shared unit here"
    if len({one.key for one in have}) > 1:
        return None, "the rows were measured on different units"
    return np.column_stack([one.draws[metric] for one in have]), ""


def _estimate(metric: Metric, level: float) -> Estimate:
    interval = metric.interval
    if interval is None:
        return Estimate(metric.value, None, None, level, "no interval", metric.n)
    return Estimate(metric.value, interval.low, interval.high, level, interval.method, metric.n)


def _score(
    column: Column, pick: Pick | None, decimals: int, place: RankInterval | None, span: tuple[float, float]
) -> Score:
    if pick is None:
        return Score("absent", reason="not run", tip=f"{column.title}: this cell was not run")
    error = pick.entry.record.error
    if error is not None:
        reason = clip(f"{error.type}: {error.message}", _REASON)
        return Score("failed", reason=reason, tip=f"{column.task_title} failed. {reason}")
    metric = pick.metric
    if metric is None:
        return Score(
            "absent", reason="not in this record", tip=f"{column.title}: the record has no such metric"
        )
    if metric.value is None:
        reason = clip(metric.reason or "", _REASON)
        return Score("unscored", reason=reason, tip=f"{column.title}: no score. {reason}", mark=pick.mark)
    group = place.group if place else None
    rank = rank_text(place.rank, place.low, place.high) if place and place.rank is not None else ""
    return Score(
        "scored",
        value=number(metric.value, decimals),
        interval=interval_text(metric, decimals),
        rank=rank,
        group=group,
        mark=pick.mark,
        tip=_tip(column, pick, metric, decimals, rank),
        sort=metric.value,
        strip=_strip(metric, span),
    )


def _tip(column: Column, pick: Pick, metric: Metric, decimals: int, rank: str) -> str:
    unit = f" {column.unit}" if column.unit not in ("", "1") else ""
    parts = [f"{column.title}: {number(metric.value or 0.0, decimals)}{unit}"]
    if metric.interval is not None:
        method = clip(metric.interval.method, 120)
        parts.append(f"{metric.interval.level:.0%} interval {interval_text(metric, decimals)} ({method})")
    else:
        parts.append("no interval")
    parts.append(
        f"n = {number(metric.n, 0)}"
        + (f" {clip(metric.resampling_unit, 40)}s" if metric.resampling_unit != "none" else "")
    )
    if rank:
        parts.append(f"rank {rank}")
    if pick.mark:
        parts.append(f"unranked: {pick.mark}")
    if pick.more_seeds:
        seeds = listing([str(seed) for seed in pick.more_seeds[:8]])
        parts.append(f"seed {pick.entry.record.cell.seed} is shown; measured with {seeds} too")
    return "\n".join(parts)


def _span(metrics: Sequence[Metric]) -> tuple[float, float]:
    ends = [end for m in metrics if m.value is not None for end in (m.value, *_ends(m))]
    return (min(ends), max(ends)) if ends else (0.0, 0.0)


def _ends(metric: Metric) -> tuple[float, ...]:
    return (metric.interval.low, metric.interval.high) if metric.interval else ()


def _strip(metric: Metric, span: tuple[float, float]) -> Strip | None:
    low, high = span
    if metric.value is None or high <= low:
        return None
    if not low <= metric.value <= high:
        return None  # a control outside of what the ranked rows span
    ends = _ends(metric) or (metric.value, metric.value)

    def place(value: float) -> float:
        return round(4 + 92 * (min(max(value, low), high) - low) / (high - low), 1)

    return Strip(place(metric.value), place(ends[0]), place(ends[1]))
