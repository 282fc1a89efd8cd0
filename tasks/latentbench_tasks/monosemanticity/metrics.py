"""Summaries of ratings; no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from latentbench.errors import UserError
from latentbench.stats import krippendorff_alpha, seeds_difference, unscored, wilson
from latentbench.store import Curve, Metric
from latentbench_judges import load_rubric, rubric_names
from latentbench_tasks._judging import bounded, over_latents, status_counts

__all__ = ["CATEGORIES", "recompute", "scale_of", "summarise"]

CATEGORIES = ("low_level", "high_level", "undiscernible")


def summarise(
    items: Sequence[Mapping[str, Any]],
    judgements: Sequence[Mapping[str, Any]],
    scale: tuple[float, float],
) -> tuple[list[Metric], list[Curve], dict[str, int]]:
    """Mean ratings with intervals, shares of categories, counts.

    Args:
        items: what was measured.
        judgements: one a latent of kind "rating", and those of kind "mixed".
        scale: lowest and highest rating.
    """
    rated = [one for one in judgements if one["kind"] == "rating"]
    mixed = [one for one in judgements if one["kind"] == "mixed"]
    own, other = ([float(one["verdict"]) for one in part if one["status"] == "ok"] for part in (rated, mixed))
    unit = f"points of {scale[0]:g} to {scale[1]:g}"
    score = Metric.from_estimate(
        "score", over_latents(own, "were rated", scale), resampling_unit="latent", unit=unit, direction="higher",
        note="mean rating of the strongest contexts of drawn latents", headline=True,
    )  # fmt: skip
    control = Metric.from_estimate(
        "score_mixed", over_latents(other, "mixed sets were rated", scale), resampling_unit="set", unit=unit,
        direction="none", note="control: every context is of another latent",
    )  # fmt: skip
    metrics = [
        bounded(score, own, len(rated) - len(own), scale, rated),
        control,
        _above(own, other),
        *(_share(rated, category) for category in CATEGORIES),
        *_agreement(rated),
    ]
    drawn = next((item for item in items if item["kind"] == "drawn"), {"eligible": 0, "live": 0})
    counts = {
        "latents_drawn": sum(item["kind"] == "latent" for item in items),
        "latents_rated": len(own),
        "eligible": int(drawn["eligible"]),
        "live": int(drawn["live"]),
    }
    return metrics, [], counts | status_counts(judgements)


def recompute(
    items: list[dict[str, Any]],
    judgements: list[dict[str, Any]],
    config: Mapping[str, Any],
    rng: np.random.Generator,
) -> tuple[list[Metric], list[Curve], dict[str, int]]:
    """`summarise` of a stored cell, as entry points of `latentbench.metrics` are called.

    Args:
        items: what was measured.
        judgements: what was judged.
        config: the task's options, as the run record holds them.
        rng: source of the draws.
    """
    return summarise(items, judgements, _shipped_scale(config["rubric"]))


def scale_of(rubric: str) -> tuple[float, float]:
    """Lowest and highest rating of a rubric, a shipped one or a file."""
    return load_rubric(rubric).scale or (1.0, 5.0)


def _shipped_scale(rubric: str) -> tuple[float, float]:
    """`scale_of`, but of no file: a record of somebody else must not make us read one.

    Raises:
        UserError: the rubric is not installed here.
    """
    if rubric not in rubric_names():
        raise UserError(f"its rubric {rubric!r} is not installed here, so its ratings have no known scale")
    return scale_of(rubric)


def _above(own: Sequence[float], other: Sequence[float]) -> Metric:
    found = unscored(f"{len(own)} latents and {len(other)} mixed sets were rated", min(len(own), len(other)))
    if min(len(own), len(other)) > 1:
        found = seeds_difference(own, other).estimate
    return Metric.from_estimate(
        "score_above_mixed",
        found,
        resampling_unit="latent",
        unit="points",
        direction="higher",
        note="score less the mean rating of mixed sets",
    )


def _agreement(rated: Sequence[Mapping[str, Any]]) -> list[Metric]:
    """Krippendorff's alpha of a panel's members; nothing for a single judge."""
    given = [
        one["fields"]["members"]
        for one in rated
        if one["status"] == "ok" and "members" in (one["fields"] or {})
    ]
    members = sorted({name for one in given for name in one})
    if len(members) < 2:
        return []
    alpha = krippendorff_alpha([[one.get(name) for one in given] for name in members], "ordinal")
    return [
        Metric(
            name="panel_alpha",
            value=alpha,
            n=len(given),
            resampling_unit="none",
            unit="alpha",
            direction="higher",
            reason=None if alpha is not None else "all ratings are the same",
            note=f"agreement of {len(members)} judges, ordinal; 1 perfect, 0 what chance gives",
        )
    ]


def _share(rated: Sequence[Mapping[str, Any]], category: str) -> Metric:
    named = [
        one["fields"]["category"]
        for one in rated
        if one["status"] == "ok" and "category" in (one["fields"] or {})
    ]
    estimate = (
        wilson(named.count(category), len(named)) if named else unscored("no rating names a category", 0)
    )
    return Metric.from_estimate(
        category,
        estimate,
        resampling_unit="latent",
        unit="share",
        direction="lower" if category == "undiscernible" else "none",
        note="share of the rated latents that the judge puts there",
    )
