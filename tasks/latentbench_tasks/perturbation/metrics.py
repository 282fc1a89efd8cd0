"""Summaries of the perturbation task from its per-example items; no torch."""

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
    share_metric,
    short_sets,
    summarise_conditions,
)
from latentbench_tasks._squad import exact_match, token_f1

__all__ = ["recompute", "summarise", "units"]

_SCORES = {
    "em": Score("exact match", "share", -1, lambda item, one: exact_match(one["text"], item["answers"])),
    "f1": Score("token F1", "share", -1, lambda item, one: token_f1(one["text"], item["answers"])),
    "kl": Score("KL divergence on the answer", "nats/token", 1, lambda _item, one: float(one["kl"])),
}
_COMPARISONS = (
    Comparison("equal", ("gradsae", "top"), ("gradsae", "bottom")),
    Comparison("activation", ("gradsae", "top"), ("activation", "top")),
    Comparison("matched", ("gradsae", "top"), ("matched", "top")),
    Comparison("random", ("gradsae", "top"), ("random", "top")),
    Comparison("activation_random", ("activation", "top"), ("random", "top")),
)
_AXIS = "latents set to zero"


def summarise(
    items: Sequence[dict[str, Any]], headline: int | str, rng: np.random.Generator
) -> tuple[list[Metric], list[Curve], dict[str, int]]:
    """Metrics, curves and counts of a cell.

    Args:
        items: "example" with its conditions; "wrong" and "skipped" questions; "guess" without contexts.
        headline: the count of latents of the metrics.
        rng: source of the bootstrap's draws.
    """
    ordered = sorted(items, key=lambda item: item["id"])
    examples = [item for item in ordered if item["kind"] == "example"]
    kept = [item for item in examples if item["correct"]]
    metrics, curves = summarise_conditions(
        kept, _SCORES, _COMPARISONS, headline, "em_gap_activation", _AXIS, rng
    )
    anyhow = [item for item in examples if item["unfiltered"]]
    if anyhow:
        divergence = {"kl": _SCORES["kl"]}
        wide, _ = summarise_conditions(anyhow, divergence, _COMPARISONS, headline, "", _AXIS, rng)
        metrics += [metric.model_copy(update={"name": f"{metric.name}_unfiltered"}) for metric in wide]
    asked = [item for item in ordered if item["kind"] in ("example", "wrong", "skipped")]
    right = [exact_match(item["text"], item["answers"]) for item in asked]
    metrics.append(share_metric("survivors", asked, right, rng))
    guesses = [item for item in ordered if item["kind"] == "guess"]
    if guesses:
        metrics.append(share_metric("guessed", guesses, [float(item["correct"]) for item in guesses], rng))
    return metrics, curves, _counts(asked, kept)


def units(
    items: Sequence[dict[str, Any]], _judgements: Sequence[dict[str, Any]], config: Mapping[str, Any]
) -> Units | None:
    """The metrics at the headline count, by context; None without items."""
    ordered = sorted(items, key=lambda item: item["id"])
    asked = [item for item in ordered if item["kind"] in ("example", "wrong", "skipped")]
    kept = [item for item in ordered if item["kind"] == "example" and item["correct"]]
    return units_by_context(asked, kept, condition_values(kept, _SCORES, _COMPARISONS, config["headline"]))


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


def _counts(asked: Sequence[dict[str, Any]], kept: Sequence[dict[str, Any]]) -> dict[str, int]:
    skipped = [item for item in asked if item["kind"] == "skipped"]
    counts = {
        "questions": len(asked),
        "survivors": len(kept),
        "contexts": len({item["context"] for item in kept}),
        "skipped": len(skipped),
        "unfiltered": sum(item["unfiltered"] for item in asked),
        "sets with fewer latents than asked for": short_sets(kept),
        "answers that rounding changed": sum(item["again"] != item["text"] for item in kept),
    }
    for reason in sorted({item["reason"] for item in skipped}):
        counts[f"skipped: {reason}"] = sum(item["reason"] == reason for item in skipped)
    return counts
