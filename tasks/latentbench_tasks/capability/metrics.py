"""Summaries of the capability task from its per-item answers; no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from latentbench.stats import Units, mean, paired, ratio, wilson
from latentbench.store import Metric

__all__ = ["recompute", "summarise", "units"]

Answers = Mapping[tuple[str, str], Mapping[str, Any]]
"""Answers of one condition by task and item."""
Values = Mapping[tuple[str, str], float]
"""One number of every answer of a condition by task and item."""
Direction = Literal["higher", "lower", "none"]

_FLIPS = 1999


@dataclass(frozen=True)
class _Score:
    """One number of an answer."""

    field: str
    """Where it stands in the item."""
    unit: str
    better: Direction
    note: str


_SCORES = {
    "acc": _Score("correct", "share", "higher", "share of items answered correctly"),
    "margin": _Score(
        "margin", "nats", "higher", "log-likelihood of the right choice less that of the likeliest wrong one"
    ),
    "loss": _Score("loss", "nats/byte", "lower", "negative log-likelihood of a text per byte"),
}


@dataclass(frozen=True)
class _Row:
    """What one metric is made of."""

    name: str
    """Name of the metric."""
    score: _Score
    """Which number of an answer."""
    values: Values
    """The number in its condition, or the level of chance."""
    kind: Literal["level", "chance", "change"] = "level"
    """The number itself, that of a guess, or the difference to the plain model."""
    plain: Values = field(default_factory=dict)
    """The number of the plain model, of a change."""
    headline: bool = False

    @property
    def paired(self) -> list[tuple[str, str]]:
        """The items of a change that both conditions answered."""
        return [place for place in self.plain if place in self.values]

    @property
    def shared(self) -> Values:
        """What the metric is the mean of, by item."""
        if self.kind != "change":
            return self.values
        return {place: self.values[place] - self.plain[place] for place in self.paired}


def summarise(
    items: Sequence[dict[str, Any]], rng: np.random.Generator
) -> tuple[list[Metric], list[Any], dict[str, int]]:
    """Metrics, curves (none) and counts of a cell.

    Args:
        items: "answer" in the conditions "plain", "spliced" and "steered@FACTOR:CONCEPT"; "choice" of latents.
        rng: source of the bootstrap's draws.
    """
    answers = _by_condition(items)
    plain = answers.get("plain", {})
    make: dict[str, Callable[[_Row], Metric]] = {
        "level": _level,
        "chance": _chance,
        "change": partial(_change, rng=rng),
    }
    metrics = [make[row.kind](row) for row in _rows(answers)]
    choices = [item for item in items if item["kind"] == "choice"]
    tasks = sorted({task for task, _ in plain})
    counts = {"items": len(plain), "tasks": len(tasks)}
    counts |= {f"items of {task}": sum(place[0] == task for place in plain) for task in tasks}
    counts["unscored answers"] = sum(
        one.get("reason") is not None for found in answers.values() for one in found.values()
    )
    counts["concepts"] = len(choices)
    counts["concepts without a latent"] = sum(not item["latents"] for item in choices)
    return metrics, [], counts


def units(
    items: Sequence[dict[str, Any]], _judgements: Sequence[dict[str, Any]], _config: Mapping[str, Any]
) -> Units | None:
    """All metrics, which are means over items; None without an answer of the plain model.

    The units are the items that the plain model was asked; one that a metric has no number for counts not in it.
    """
    answers = _by_condition(items)
    rows = list(_rows(answers))
    places = {place: unit for unit, place in enumerate(answers.get("plain", {}))}
    if not places:
        return None
    sums = np.zeros((len(places), 2 * len(rows)))
    for column, row in enumerate(rows):
        for place, value in row.shared.items():
            if place in places:
                sums[places[place], 2 * column : 2 * column + 2] = [value, 1.0]
    names = tuple(f"{task}/{item}" for task, item in places)
    return Units(names, sums, {row.name: ratio(2 * i, 2 * i + 1) for i, row in enumerate(rows)})


def recompute(
    items: list[dict[str, Any]],
    judgements: list[dict[str, Any]],
    config: Mapping[str, Any],
    rng: np.random.Generator,
) -> tuple[list[Metric], list[Any], dict[str, int]]:
    """`summarise` of a stored cell, as entry points of `latentbench.metrics` are called.

    Args:
        items: what was measured.
        judgements: none; this task asks no judge.
        config: the task's options, as the run record holds them.
        rng: source of the draws.
    """
    return summarise(items, rng)


def _by_condition(items: Sequence[dict[str, Any]]) -> dict[str, dict[tuple[str, str], dict[str, Any]]]:
    """Answers by condition, then by task and item; in an order that does not depend on that of the file."""
    found: dict[str, dict[tuple[str, str], dict[str, Any]]] = {}
    for item in sorted(items, key=lambda item: str(item.get("id"))):
        if item["kind"] == "answer":
            found.setdefault(item["condition"], {})[item["task"], str(item["doc_id"])] = item
    return found


def _values(answers: Answers, score: _Score) -> dict[tuple[str, str], float]:
    return {place: item[score.field] for place, item in answers.items() if item[score.field] is not None}


def _steered(rows: Mapping[str, Values]) -> dict[str, dict[str, Values]]:
    """Values by "steered_at_FACTOR", ascending, and concept."""
    found: dict[float, dict[str, Values]] = {}
    for condition, values in sorted(rows.items()):
        if condition.startswith("steered@"):
            factor, _, concept = condition.removeprefix("steered@").partition(":")
            found.setdefault(float(factor), {})[concept] = values
    return {f"steered_at_{factor:g}": found[factor] for factor in sorted(found)}


def _mean(rows: Mapping[str, Values]) -> dict[tuple[str, str], float]:
    """Mean over the concepts by item, where all of them have a value."""
    several = list(rows.values())
    if not several:
        return {}
    return {
        place: float(np.mean([row[place] for row in several]))
        for place in several[0]
        if all(place in row for row in several)
    }


def _of(values: Values, task: str) -> dict[tuple[str, str], float]:
    return {place: value for place, value in values.items() if place[0] == task}


def _rows(answers: Mapping[str, Answers]) -> Iterator[_Row]:
    """What every metric is made of, in their order."""
    plain = answers.get("plain", {})
    tasks = sorted({task for task, _ in plain})
    for name, score in _SCORES.items():
        rows = {condition: _values(found, score) for condition, found in answers.items()}
        steered = _steered(rows)
        pooled = {"plain": rows.get("plain", {}), "spliced": rows.get("spliced", {})}
        pooled |= {condition: _mean(by_concept) for condition, by_concept in steered.items()}
        if not pooled["plain"] and name != "acc":
            continue
        yield from _levels(name, score, pooled, tasks, plain)
        yield from _changes(name, score, pooled, tasks)
        for condition, by_concept in steered.items():
            for concept, values in by_concept.items():
                title = f"{name}_change_{condition}_{concept}"
                yield _Row(title, score, values, "change", pooled["plain"])


def _levels(
    name: str, score: _Score, rows: Mapping[str, Values], tasks: Sequence[str], plain: Answers
) -> Iterator[_Row]:
    """The score itself in every condition, over all items and by task, and for accuracies the level of chance."""
    for condition, values in rows.items():
        for suffix, part in [("", values), *((f"_{task}", _of(values, task)) for task in tasks)]:
            if part or (not suffix and condition == "plain"):
                yield _Row(f"{name}_{condition}{suffix}", score, part)
    if name == "acc":
        chance = {place: item["chance"] for place, item in plain.items() if item["chance"] is not None}
        for suffix, part in [("", chance), *((f"_{task}", _of(chance, task)) for task in tasks)]:
            if part:
                yield _Row(f"acc_chance{suffix}", score, part, "chance")


def _changes(name: str, score: _Score, rows: Mapping[str, Values], tasks: Sequence[str]) -> Iterator[_Row]:
    for condition in rows:
        if condition == "plain":
            continue
        title = f"{name}_change_{condition}"
        shown = name == "acc" and condition == "spliced"
        if rows[condition] or shown:
            yield _Row(title, score, rows[condition], "change", rows["plain"], headline=shown)
        for task in tasks:
            part = _of(rows[condition], task)
            if part:
                yield _Row(f"{title}_{task}", score, part, "change", rows["plain"])


def _level(row: _Row) -> Metric:
    score, values = row.score, list(row.values.values())
    if score.field == "correct" and all(value in (0.0, 1.0) for value in values):
        estimate = wilson(int(sum(values)), len(values))
    else:
        estimate = mean(values, bounds=(0.0, 1.0) if score.field == "correct" else None)
    return Metric.from_estimate(
        row.name, estimate, resampling_unit="item", unit=score.unit, direction="none", note=score.note
    )


def _chance(row: _Row) -> Metric:
    return Metric(
        name=row.name,
        value=float(np.mean(list(row.values.values()))),
        n=len(row.values),
        resampling_unit="item",
        unit="share",
        direction="none",
        note="accuracy of a guess: one in the number of choices, and 0 where there are none to choose from",
    )


def _change(row: _Row, rng: np.random.Generator) -> Metric:
    """Mean difference to the plain model over the items that both answered."""
    columns: list[NDArray[np.float64]] = [
        np.array([[values[place], 1.0] for place in row.paired]).reshape(-1, 2)
        for values in (row.values, row.plain)
    ]
    found = paired(columns[0], columns[1], ratio(0, 1), rng, flips=_FLIPS)
    tested = found.test if found.p_value is None else f"p = {found.p_value:.3g}, {found.test}"
    return Metric.from_estimate(
        row.name,
        found.difference,
        resampling_unit="item",
        unit=row.score.unit,
        direction=row.score.better,
        note=f"{row.score.note}, less that of the plain model on the same items; {tested}",
        headline=row.headline,
    )
