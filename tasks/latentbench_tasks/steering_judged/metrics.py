"""Ratings of steered texts from stored judgements; no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from latentbench.stats import Estimate, mean, unscored
from latentbench.store import Curve, Metric
from latentbench_tasks._judging import bounded, status_counts
from latentbench_tasks.steering import metrics as offline
from latentbench_tasks.steering._judged import Rules, choose_factors, read_items
from latentbench_tasks.steering._methods import METHODS

__all__ = ["ASPECTS", "Rated", "chosen_texts", "rated_texts", "summarise"]

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
    first, *others = config["methods"]
    rated = rated_texts(judgements)
    of = {group: [one for one in rated if one.group == group] for group in {one.group for one in rated}}
    metrics = [metric.model_copy(update={"headline": False}) for metric in metrics]
    asked = [one for one in judgements if one.get("group") == first]
    own, plain = _by_concept(of.get(first, [])), _by_concept(of.get("unsteered", []))
    missing = sum(one.score is None for one in of.get(first, []))
    score = _metric("score", own, "test texts at the factor chosen offline", "higher", headline=True)
    scores = [value for one in of.get(first, []) if (value := one.score) is not None]
    metrics.append(bounded(score, scores, missing, _SCALE, asked))
    for aspect in ASPECTS:
        ratings = _by_concept(of.get(first, []), aspect)
        metrics.append(_metric(f"score_{aspect}", ratings, f"rating for {aspect} alone", "none"))
    metrics += [
        _share("score_success", of.get(first, []), "higher"),
        _share("score_success_unsteered", of.get("unsteered", []), "none"),
        _metric("score_unsteered", plain, "unsteered texts", "none"),
        _metric("score_degenerate", _by_concept(of.get("degenerate", [])), "senseless texts", "none"),
        _gap("score_above_unsteered", own, plain, "score less that of unsteered texts, paired by concept"),
    ]
    for other in others:
        theirs = _by_concept(of.get(other, []))
        metrics.append(_metric(f"score_{other}", theirs, METHODS[other].title, "none"))
        metrics.append(_gap(f"score_over_{other}", own, theirs, f"paired by concept: {METHODS[other].title}"))
    return metrics, curves, counts | {"texts_rated": len(rated)} | status_counts(judgements)


def _by_concept(texts: Iterable[Rated], aspect: str | None = None) -> dict[str, float]:
    """Mean score, or mean rating for an aspect, by concept."""
    found: dict[str, list[float]] = {}
    for one in texts:
        value = one.score if aspect is None else one.ratings.get(aspect)
        if value is not None:
            found.setdefault(one.concept, []).append(value)
    return {concept: float(np.mean(values)) for concept, values in found.items()}


def _over(values: Mapping[str, float], bounds: tuple[float, float]) -> Estimate:
    found = list(values.values())
    return (
        mean(found, bounds=bounds)
        if len(found) > 1
        else unscored("fewer than 2 concepts were rated", len(found))
    )


def _metric(
    name: str,
    values: Mapping[str, float],
    note: str,
    direction: Literal["higher", "lower", "none"],
    *,
    headline: bool = False,
) -> Metric:
    return Metric.from_estimate(
        name, _over(values, _SCALE), resampling_unit="concept", unit=_POINTS, direction=direction, note=note,
        headline=headline,
    )  # fmt: skip


def _gap(name: str, first: Mapping[str, float], second: Mapping[str, float], note: str) -> Metric:
    both = {concept: first[concept] - second[concept] for concept in first if concept in second}
    return Metric.from_estimate(
        name, _over(both, (-2.0, 2.0)), resampling_unit="concept", unit=_POINTS, direction="higher", note=note
    )


def _share(name: str, texts: Iterable[Rated], direction: Literal["higher", "none"]) -> Metric:
    found: dict[str, list[float]] = {}
    for one in texts:
        if one.score is not None:
            found.setdefault(one.concept, []).append(float(one.score > 0))
    means = {concept: float(np.mean(values)) for concept, values in found.items()}
    return Metric.from_estimate(
        name, _over(means, (0.0, 1.0)), resampling_unit="concept", unit="share", direction=direction,
        note="texts with no rating of 0",
    )  # fmt: skip
