"""Ratings of steered texts from stored judgements; no torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from latentbench.stats import Estimate, Units, mean, ratio, unscored
from latentbench.store import Curve, Metric
from latentbench_tasks._judging import bounded, status_counts
from latentbench_tasks.steering import metrics as offline
from latentbench_tasks.steering._judged import Rules, choose_factors, read_items
from latentbench_tasks.steering._methods import METHODS

__all__ = ["ASPECTS", "Rated", "chosen_texts", "rated_texts", "summarise", "units"]

ASPECTS = ("concept", "instruct", "fluency")
_SCALE = (0.0, 2.0)
_POINTS = "points of 0 to 2"


class Rated(NamedTuple):
    """One text with its ratings."""

    group: str
    """Method, "unsteered" or "degenerate"."""
    concept: str
    """Concept that it was rated for."""
    ratings: dict[str, float]
    """By aspect; only those that there are."""

    @property
    def score(self) -> float | None:
        """Harmonic mean of the three (AxBench, arXiv 2501.17148); 0 if one is 0, None if one is missing."""
        if any(value == 0 for value in self.ratings.values()):
            return 0.0
        if len(self.ratings) < len(ASPECTS):
            return None
        return len(ASPECTS) / sum(1 / value for value in self.ratings.values())


def chosen_texts(
    items: Sequence[Mapping[str, Any]], config: Mapping[str, Any]
) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Test texts to be rated, as (method, concept, item): those at the factor that was chosen offline.

    Args:
        items: of the task `steering`.
        config: its options.
    """
    book = read_items(items, Rules.of(config))
    factors = {
        (method, concept): factor
        for method in config["methods"]
        for concept, factor in choose_factors(book, method, book.scored_concepts(method)).by_concept.items()
    }
    found = {}
    for item in items:
        if item["kind"] == "generation" and item["split"] == "test" and item["status"] == "ok":
            name = (item["method"], item["concept"])
            if factors.get(name) == float(item["factor"]):
                found[item["id"]] = (*name, item)
    return list(found.values())


def rated_texts(judgements: Iterable[Mapping[str, Any]]) -> list[Rated]:
    """Ratings put together text by text."""
    found: dict[tuple[str, str], Rated] = {}
    for one in judgements:
        if one["kind"] == "rating":
            key = (one["text"], one["concept"])
            rated = found.setdefault(key, Rated(one["group"], one["concept"], {}))
            if one["status"] == "ok":
                rated.ratings[one["aspect"]] = float(one["verdict"])
    return list(found.values())


class _Row(NamedTuple):
    """What one metric of the judge is the mean of."""

    name: str
    """Name of the metric."""
    values: Mapping[str, float]
    """By concept."""
    note: str
    direction: Literal["higher", "lower", "none"] = "none"
    bounds: tuple[float, float] = _SCALE
    unit: str = _POINTS


def summarise(
    items: Sequence[Mapping[str, Any]],
    judgements: Sequence[Mapping[str, Any]],
    config: Mapping[str, Any],
    rng: np.random.Generator,
) -> tuple[list[Metric], list[Curve], dict[str, int]]:
    """The offline metrics and those of the judge.

    Args:
        items: of the task `steering`.
        judgements: "rating", with `group`, `concept`, `text` and `aspect`.
        config: the task's options, as the run record holds them.
        rng: source of the bootstrap.
    """
    metrics, curves, counts = offline.summarise(items, config, rng)
    first = config["methods"][0]
    of = _by_group(judgements)
    metrics = [metric.model_copy(update={"headline": False}) for metric in metrics]
    asked = [one for one in judgements if one.get("group") == first]
    missing = sum(one.score is None for one in of.get(first, []))
    scores = [value for one in of.get(first, []) if (value := one.score) is not None]
    headline, *others = _rows(of, config["methods"])
    score = _metric(headline).model_copy(update={"headline": True})
    metrics.append(bounded(score, scores, missing, _SCALE, asked))
    metrics += map(_metric, others)
    rated = sum(map(len, of.values()))
    return metrics, curves, counts | {"texts_rated": rated} | status_counts(judgements)


def units(
    items: Sequence[Mapping[str, Any]], judgements: Sequence[Mapping[str, Any]], config: Mapping[str, Any]
) -> Units | None:
    """Means over concepts, the offline ones and the judge's; None without a scored concept."""
    found = offline.units(items, judgements, config)
    if found is None:
        return None
    rows = list(_rows(_by_group(judgements), config["methods"]))
    sums = np.zeros((len(found.names), 2 * len(rows)))
    for unit, concept in enumerate(found.names):
        for column, row in enumerate(rows):
            if concept in row.values:
                sums[unit, 2 * column : 2 * column + 2] = [row.values[concept], 1.0]
    before = found.sums.shape[1]
    means = {row.name: ratio(before + 2 * i, before + 2 * i + 1) for i, row in enumerate(rows)}
    return Units(found.names, np.hstack([found.sums, sums]), {**found.statistics, **means})


def _by_group(judgements: Iterable[Mapping[str, Any]]) -> dict[str, list[Rated]]:
    found: dict[str, list[Rated]] = {}
    for one in rated_texts(judgements):
        found.setdefault(one.group, []).append(one)
    return found


def _rows(of: Mapping[str, Sequence[Rated]], methods: Sequence[str]) -> Iterator[_Row]:
    """What the judge's metrics are made of, in their order; the first is the score of the first method."""
    first, *others = (of.get(method, []) for method in methods)
    plain = of.get("unsteered", [])
    own = _by_concept(first)
    yield _Row("score", own, "test texts at the factor chosen offline", "higher")
    for aspect in ASPECTS:
        yield _Row(f"score_{aspect}", _by_concept(first, aspect), f"rating for {aspect} alone")
    yield _share("score_success", first, "higher")
    yield _share("score_success_unsteered", plain, "none")
    yield _Row("score_unsteered", _by_concept(plain), "unsteered texts")
    yield _Row("score_degenerate", _by_concept(of.get("degenerate", [])), "senseless texts")
    note = "score less that of unsteered texts, paired by concept"
    yield _gap("score_above_unsteered", own, _by_concept(plain), note)
    for name, other in zip(methods[1:], others, strict=True):
        theirs = _by_concept(other)
        yield _Row(f"score_{name}", theirs, METHODS[name].title)
        yield _gap(f"score_over_{name}", own, theirs, f"paired by concept: {METHODS[name].title}")


def _by_concept(texts: Iterable[Rated], aspect: str | None = None) -> dict[str, float]:
    """Mean score, or mean rating for an aspect, by concept."""
    return _means(
        (one.concept, value)
        for one in texts
        if (value := one.score if aspect is None else one.ratings.get(aspect)) is not None
    )


def _means(values: Iterable[tuple[str, float]]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for concept, value in values:
        found.setdefault(concept, []).append(value)
    return {concept: float(np.mean(several)) for concept, several in found.items()}


def _metric(row: _Row) -> Metric:
    values = list(row.values.values())
    found: Estimate = (
        mean(values, bounds=row.bounds)
        if len(values) > 1
        else unscored("fewer than 2 concepts were rated", len(values))
    )
    return Metric.from_estimate(
        row.name, found, resampling_unit="concept", unit=row.unit, direction=row.direction, note=row.note
    )


def _gap(name: str, first: Mapping[str, float], second: Mapping[str, float], note: str) -> _Row:
    both = {concept: first[concept] - second[concept] for concept in first if concept in second}
    return _Row(name, both, note, "higher", (-2.0, 2.0))


def _share(name: str, texts: Iterable[Rated], direction: Literal["higher", "none"]) -> _Row:
    means = _means((one.concept, float(one.score > 0)) for one in texts if one.score is not None)
    return _Row(name, means, "texts with no rating of 0", direction, (0.0, 1.0), "share")
