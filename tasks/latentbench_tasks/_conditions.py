"""Summaries of examples that were each measured under several conditions: a selector, a side of its ranking, a count.

No torch. Every number is a mean over examples with a bootstrap over contexts; two conditions are compared by their
difference on the same examples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from latentbench.stats import Estimate
from latentbench.store import Curve, CurvePoint, Metric
from latentbench_tasks._by_context import mean_by_context

__all__ = ["Comparison", "Score", "condition_values", "share_metric", "short_sets", "summarise_conditions"]

Examples = Sequence[dict[str, Any]]
Condition = tuple[str, str]
"""Selector and side."""
Count = int | str
"""How many latents: a number, "50%", or "all"."""


class Score(NamedTuple):
    """What is measured under a condition."""

    title: str
    """For curves."""
    unit: str
    """Its unit."""
    sign: float
    """1 if a larger value is a larger effect, -1 if a smaller one is."""
    value: Callable[[dict[str, Any], dict[str, Any]], float | None]
    """Of an example and one of its conditions; None where it is undefined."""


class Comparison(NamedTuple):
    """Two conditions on the same examples; the gap is how much more the first one does."""

    name: str
    """Last part of the metric's name."""
    first: Condition
    second: Condition


class _Line(NamedTuple):
    """One metric and the curve it is a point of."""

    name: str
    score: Score
    place: Condition
    """The condition whose counts are the curve's points."""
    value: Callable[[dict[str, Any], Count], float | None]
    """Of an example at a count."""
    direction: Literal["higher", "none"]


def summarise_conditions(
    examples: Examples,
    scores: dict[str, Score],
    comparisons: Sequence[Comparison],
    headline: Count,
    shown: str,
    axis: str,
    rng: np.random.Generator,
) -> tuple[list[Metric], list[Curve]]:
    """Metrics at one count, and the curves over all counts that they are points of.

    Args:
        examples: items with `context` and `conditions`, each of these with selector, side, k and n.
        scores: what is measured, by the first part of the metrics' names.
        comparisons: those whose conditions were both measured give gaps.
        headline: the count of the metrics; a condition with one count alone ("all") is taken at that.
        shown: the metric that the board shows, unscored if there are no examples; "" for none.
        axis: what the count counts, for curves.
        rng: source of the bootstrap's draws.
    """
    metrics: list[Metric] = []
    curves: list[Curve] = []
    for line in _lines(examples, scores, comparisons):
        found = {
            k: mean_by_context(examples, [line.value(item, k) for item in examples], rng)
            for k in _counts(examples, line.place)
        }
        at = found[headline] if headline in found else next(iter(found.values()))
        metrics.append(_metric(line.name, at, line.score.unit, line.direction, headline=line.name == shown))
        curves.append(_curve(line, examples, found, axis))
    if not examples and shown:
        unit = scores[shown.partition("_")[0]].unit
        direction: Literal["higher", "none"] = "higher" if "_gap_" in shown else "none"
        metrics.append(_metric(shown, mean_by_context([], [], rng), unit, direction, headline=True))
    return metrics, curves


def condition_values(
    examples: Examples, scores: dict[str, Score], comparisons: Sequence[Comparison], headline: Count
) -> dict[str, list[float | None]]:
    """What each metric of `summarise_conditions` is the mean of: one value for each example."""
    found: dict[str, list[float | None]] = {}
    for line in _lines(examples, scores, comparisons):
        counts = _counts(examples, line.place)
        at = headline if headline in counts else next(iter(counts))
        found[line.name] = [line.value(item, at) for item in examples]
    return found


def share_metric(name: str, items: Examples, values: Sequence[float], rng: np.random.Generator) -> Metric:
    """A share of examples that is shown and not ranked."""
    return _metric(name, mean_by_context(items, values, rng), "share", "none")


def short_sets(examples: Examples) -> int:
    """Sets that hold fewer latents than a number asked for, because fewer have a positive score."""
    return sum(
        isinstance(one["k"], int) and one["n"] < one["k"] for item in examples for one in item["conditions"]
    )


def _lines(examples: Examples, scores: dict[str, Score], comparisons: Sequence[Comparison]) -> list[_Line]:
    conditions = list(
        dict.fromkeys((one["selector"], one["side"]) for item in examples for one in item["conditions"])
    )
    measured = [pair for pair in comparisons if {pair.first, pair.second} <= set(conditions)]
    found = []
    for name, score in scores.items():
        found += [
            _Line("_".join((name, *place)), score, place, partial(_at, condition=place, score=score), "none")
            for place in conditions
        ]
        found += [
            _Line(
                f"{name}_gap_{pair.name}", score, pair.first, partial(_gap, pair=pair, score=score), "higher"
            )
            for pair in measured
        ]
    return found


def _gap(item: dict[str, Any], k: Count, *, pair: Comparison, score: Score) -> float | None:
    """How much more the first condition does to an example than the second; None if one was not measured."""
    first = _at(item, k, condition=pair.first, score=score)
    second = _at(item, k, condition=pair.second, score=score)
    return None if first is None or second is None else score.sign * (first - second)


def _at(item: dict[str, Any], k: Count, *, condition: Condition, score: Score) -> float | None:
    for one in item["conditions"]:
        if (one["selector"], one["side"], one["k"]) == (*condition, k):
            return score.value(item, one)
    return None


def _metric(
    name: str, found: Estimate, unit: str, direction: Literal["higher", "none"], *, headline: bool = False
) -> Metric:
    return Metric.from_estimate(
        name,
        found,
        resampling_unit="context",
        unit=unit,
        direction=direction,
        note="mean over examples; gaps are differences on the same examples",
        headline=headline,
    )


def _curve(line: _Line, examples: Examples, found: dict[Count, Estimate], axis: str) -> Curve:
    return Curve(
        name=line.name,
        x_name=f"{axis}; the last point is half of the latents active at the last token",
        x_unit="latents",
        unit=line.score.unit,
        points=[
            CurvePoint(x=_size(examples, line.place, k), value=one.value, low=one.low, high=one.high)
            for k, one in found.items()
        ],
        note=f"{line.score.title}, mean over examples; bootstrap over contexts",
    )


def _counts(examples: Examples, place: Condition) -> list[Count]:
    found = dict.fromkeys(
        one["k"] for item in examples for one in item["conditions"] if (one["selector"], one["side"]) == place
    )
    return sorted(found, key=lambda k: (isinstance(k, str), k if isinstance(k, int) else 0))


def _size(examples: Examples, place: Condition, k: Count) -> float:
    """Where a count stands on the axis: the mean number of latents that were chosen."""
    sizes = [
        one["n"]
        for item in examples
        for one in item["conditions"]
        if (one["selector"], one["side"], one["k"]) == (*place, k)
    ]
    return float(np.mean(sizes))
