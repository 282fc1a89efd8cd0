"""What the records say of a metric's worth: whether it tells dictionaries from controls and recipes from seeds.

Beside that stands how its judge does where the truth is known.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from latentbench_leaderboard._columns import Column
from latentbench_leaderboard._format import plain
from latentbench_leaderboard._series import siblings_of
from latentbench_leaderboard._subjects import Subject

__all__ = ["validity_of"]

_LEAST_RECIPES = 2


def validity_of(column: Column, subjects: Sequence[Subject]) -> list[str]:
    """Sentences on a metric's column, empty without any rows to say something of.

    Args:
        column: the metric, of one judge under one setting.
        subjects: the rows of the language model.
    """
    values = {
        subject.key: pick.metric.value
        for subject in subjects
        if (pick := column.picks.get(subject.key)) is not None
        and not pick.mark
        and pick.metric is not None
        and pick.metric.value is not None
    }
    said = [
        _controls(subjects, values),
        _seeds(subjects, values),
        _noise(column, values),
        _judge(column),
    ]
    return [text for text in said if text]


def _controls(subjects: Sequence[Subject], values: dict[str, float]) -> str:
    real = [values[s.key] for s in subjects if not s.control and s.key in values]
    null = [values[s.key] for s in subjects if s.control and s.key in values]
    if not real:
        return ""
    text = f"{len(real)} {'dictionaries score' if len(real) > 1 else 'dictionary scores'} {_range(real)}"
    return (
        f"{text}; {len(null)} {'controls' if len(null) > 1 else 'control'} {_range(null)}."
        if null
        else f"{text}."
    )


def _seeds(subjects: Sequence[Subject], values: dict[str, float]) -> str:
    """Spread between training seeds of one recipe against the spread between recipes."""
    runs = [[values[s.key] for s in group if s.key in values] for group in siblings_of(subjects).values()]
    runs = [found for found in runs if len(found) > 1]
    if not runs:
        return ""
    freedom = sum(len(found) - 1 for found in runs)
    within = math.sqrt(sum(statistics.variance(found) * (len(found) - 1) for found in runs) / freedom)
    recipes = "recipe" if len(runs) == 1 else "recipes"
    text = f"Training seeds of one recipe differ by a standard deviation of {plain(within)} ({len(runs)} {recipes})"
    if len(runs) < _LEAST_RECIPES or within == 0:
        return f"{text}."
    between = statistics.stdev(statistics.fmean(found) for found in runs)
    return f"{text}; the means of recipes by {plain(between)}, {plain(round(between / within, 1))} times as much."


def _noise(column: Column, values: dict[str, float]) -> str:
    halves = [
        (pick.metric.interval.high - pick.metric.interval.low) / 2
        for key, pick in column.picks.items()
        if key in values and pick.metric is not None and pick.metric.interval is not None
    ]
    return f"Half an interval is {plain(statistics.median(halves))} in the middle row." if halves else ""


def _judge(column: Column) -> str:
    """How the judge does on anchors, whose right verdicts are known."""
    return f"Judge, where the right verdict is known: {column.calibration}." if column.calibration else ""


def _range(values: Sequence[float]) -> str:
    low, high = plain(min(values)), plain(max(values))
    return low if low == high else f"{low} to {high}"
