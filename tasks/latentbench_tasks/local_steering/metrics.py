"""Summaries of local steering from its per-pair items; no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from latentbench.stats import Units
from latentbench.store import Curve, Metric
from latentbench_tasks._by_context import units_by_context
from latentbench_tasks._conditions import (
    Comparison,
    Score,
    condition_values,
    short_sets,
    summarise_conditions,
)
from latentbench_tasks._squad import exact_match, token_f1

__all__ = ["recompute", "summarise", "units"]

_SCORES = {
    "em": Score("exact match", "share", 1, lambda item, one: exact_match(one["text"], item["answers"])),
    "f1": Score("token F1", "share", 1, lambda item, one: token_f1(one["text"], item["answers"])),
    "first": Score("other answer begun", "share", 1, lambda _item, one: one["first"]),
    "own": Score(
        "own answer kept", "share", -1, lambda item, one: exact_match(one["text"], item["own_answers"])
    ),
    "shift": Score("rise of the other answer", "nats", 1, lambda _item, one: one["shift"]),
}
_COMPARISONS = (
    Comparison("equal", ("gradsae", "top"), ("gradsae", "bottom")),
    Comparison("activation", ("gradsae", "top"), ("activation", "top")),
    Comparison("random", ("gradsae", "top"), ("random", "top")),
    Comparison("activation_random", ("activation", "top"), ("random", "top")),
)
_AXIS = "latents swapped"


def summarise(
    items: Sequence[dict[str, Any]], headline: int | str, rng: np.random.Generator
) -> tuple[list[Metric], list[Curve], dict[str, int]]:
    """Metrics, curves and counts of a cell.

    Args:
        items: "example" (a pair) with its conditions; "context" and "skipped".
        headline: the count of latents of the metrics.
        rng: source of the bootstrap's draws.
    """
    ordered = sorted(items, key=lambda item: item["id"])
    pairs = [item for item in ordered if item["kind"] == "example"]
    contexts = [item for item in ordered if item["kind"] == "context"]
    skipped = [item for item in ordered if item["kind"] == "skipped"]
    metrics, curves = summarise_conditions(
        pairs, _SCORES, _COMPARISONS, headline, "em_gradsae_top", _AXIS, rng
    )
    counts = {
        "questions": sum(item["questions"] for item in contexts),
        "right": sum(item["right"] for item in contexts),
        "pairs": len(pairs),
        "contexts": len({item["context"] for item in pairs}),
        "skipped": len(skipped),
        "sets with fewer latents than asked for": short_sets(pairs),
    }
    for reason in sorted({item["reason"] for item in skipped}):
        counts[f"skipped: {reason}"] = sum(item["reason"] == reason for item in skipped)
    return metrics, curves, counts


def units(
    items: Sequence[dict[str, Any]], _judgements: Sequence[dict[str, Any]], config: Mapping[str, Any]
) -> Units | None:
    """The metrics at the headline count, by context; None without items."""
    ordered = sorted(items, key=lambda item: item["id"])
    pairs = [item for item in ordered if item["kind"] == "example"]
    contexts = [item for item in ordered if item["kind"] in ("context", "example")]
    return units_by_context(
        contexts, pairs, condition_values(pairs, _SCORES, _COMPARISONS, config["headline"])
    )


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
    return summarise(items, config["headline"], rng)
