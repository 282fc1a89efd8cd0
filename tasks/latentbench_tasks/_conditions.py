"""Summaries of examples that were each measured under several conditions: a selector, a side of its ranking, a count.

No torch. Every number is a mean over examples with a bootstrap over contexts; two conditions are compared by their
difference on the same examples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from latentbench.store import Curve, CurvePoint, Metric
from latentbench_tasks._by_context import mean_by_context

__all__ = ["Comparison", "Score", "conditions_of", "share_metric", "summarise_conditions"]

Examples = Sequence[dict[str, Any]]
Condition = tuple[str, str]
"""Selector and side."""


class Score(NamedTuple):
    """What is measured under a condition."""

    title: str
    """For curves."""
    unit: str
    """Its unit."""
    sign: float
    """1 if a larger value is a larger effect, -1 if a smaller one is."""
    value: Callable[[dict[str, Any], dict[str, Any]], float]
    """Of an example and one of its conditions."""


class Comparison(NamedTuple):
    """Two conditions on the same examples; the gap is how much more the first one does."""

    name: str
    """Last part of the metric's name."""
    first: Condition
    second: Condition


def summarise_conditions(
    examples: Examples,
    scores: dict[str, Score],
    comparisons: Sequence[Comparison],
    headline: int | str,
    shown: str,
    axis: str,
    rng: np.random.Generator,
) -> tuple[list[Metric], list[Curve]]:
    """Metrics at one count, and curves over all of them.

    Args:
        examples: items with `context` and `conditions`, each of these with selector, side, k and n.
        scores: what is measured, by the first part of the metrics' names.
        comparisons: those whose conditions were both measured give gaps.
        headline: the count of the metrics.
        shown: the metric that the board shows.
        axis: what the count counts, for curves.
        rng: source of the bootstrap's draws.
    """
    metrics: list[Metric] = []
    curves: list[Curve] = []
    conditions = conditions_of(examples)

    def add(name: str, place: Condition, score: Score, value: _Value, direction: str) -> None:
        found = [value(item, headline) for item in examples]
        metrics.append(_metric(name, examples, found, score.unit, direction, rng, headline=name == shown))
        curves.append(_curve(name, examples, place, value, score, axis, rng))

    for name, score in scores.items():
        for place in conditions:
            whole = "_".join((name, *place))
            add(whole, place, score, lambda item, k, p=place, s=score: _at(item, p, k, s), "none")  # type: ignore[misc]
        for comparison in comparisons:
            if {comparison.first, comparison.second} <= set(conditions):
                add(
                    f"{name}_gap_{comparison.name}",
                    comparison.first,
                    score,
                    lambda item, k, c=comparison, s=score: gap(item, c, k, s),  # type: ignore[misc]
                    "higher",
                )
    if not examples and shown:
        score = scores[shown.partition("_")[0]]
        metrics.append(
            _metric(shown, [], [], score.unit, "higher" if "_gap_" in shown else "none", rng, headline=True)
        )
    return metrics, curves


def gap(item: dict[str, Any], comparison: Comparison, k: int | str, score: Score) -> float | None:
    """How much more the first condition does to an example than the second; None if one was not measured."""
    first, second = _at(item, comparison.first, k, score), _at(item, comparison.second, k, score)
    return None if first is None or second is None else score.sign * (first - second)


def conditions_of(examples: Examples) -> list[Condition]:
    """Selectors and sides in the order of the items."""
    return list(
        dict.fromkeys((one["selector"], one["side"]) for item in examples for one in item["conditions"])
    )


def share_metric(name: str, items: Examples, values: Sequence[float], rng: np.random.Generator) -> Metric:
    """A share of examples that is shown and not ranked."""
    return _metric(name, items, values, "share", "none", rng)


_Value = Callable[[dict[str, Any], int | str], float | None]


def _at(item: dict[str, Any], condition: Condition, k: int | str, score: Score) -> float | None:
    for one in item["conditions"]:
        if (one["selector"], one["side"]) == condition and one["k"] in (k, "all"):
            return score.value(item, one)
    return None


def _metric(
    name: str,
    items: Examples,
    values: Sequence[float | None],
    unit: str,
    direction: str,
    rng: np.random.Generator,
    *,
    headline: bool = False,
) -> Metric:
    return Metric.from_estimate(
        name,
        mean_by_context(items, values, rng),
        resampling_unit="context",
        unit=unit,
        direction=direction,  # type: ignore[arg-type]
        note="mean over examples; gaps are differences on the same examples",
        headline=headline,
    )


def _curve(
    name: str,
    examples: Examples,
    place: Condition,
    value: _Value,
    score: Score,
    axis: str,
    rng: np.random.Generator,
) -> Curve:
    points = []
    for k in _counts(examples, place):
        found = mean_by_context(examples, [value(item, k) for item in examples], rng)
        x = _size(examples, place, k)
        points.append(CurvePoint(x=x, value=found.value, low=found.low, high=found.high))
    return Curve(
        name=name,
        x_name=f"{axis}; the last point is half of the latents active at the last token",
        x_unit="latents",
        unit=score.unit,
        points=points,
        note=f"{score.title}, mean over examples; bootstrap over contexts",
    )


def _counts(examples: Examples, place: Condition) -> list[int | str]:
    found = dict.fromkeys(
        one["k"] for item in examples for one in item["conditions"] if (one["selector"], one["side"]) == place
    )
    return sorted(found, key=lambda k: (isinstance(k, str), k if isinstance(k, int) else 0))


def _size(examples: Examples, place: Condition, k: int | str) -> float:
    """Where a count stands on the axis: the mean number of latents that were chosen."""
    sizes = [
        one["n"]
        for item in examples
        for one in item["conditions"]
        if (one["selector"], one["side"]) == place and one["k"] == k
    ]
    return float(np.mean(sizes))
