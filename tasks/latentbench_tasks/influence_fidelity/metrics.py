"""Summaries of the fidelity of influence from its per-example items; no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

from latentbench.stats import Units
from latentbench.store import Curve, CurvePoint, Metric
from latentbench_tasks._by_context import mean_by_context, units_by_context

__all__ = ["explained_curve", "recompute", "spearman", "summarise", "top_overlap", "units"]

Floats = NDArray[np.float64]
_TOP = 10
_STEPS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
"""Shares of an example's latents at which the curve is stored."""


def spearman(first: ArrayLike, second: ArrayLike) -> float | None:
    """Rank correlation with mid-ranks for ties; None where one of the two has no spread, or of fewer than 3 pairs."""
    ranks = [rankdata(np.asarray(values, dtype=np.float64)) for values in (first, second)]
    if len(ranks[0]) < 3 or any(np.ptp(rank) == 0 for rank in ranks):
        return None
    centred = [rank - rank.mean() for rank in ranks]
    norm = math.sqrt(float((centred[0] ** 2).sum() * (centred[1] ** 2).sum()))
    return float((centred[0] * centred[1]).sum()) / norm


def top_overlap(scores: ArrayLike, exact: ArrayLike, k: int = _TOP) -> float | None:
    """Share of the k largest exact effects that are among the k largest scores; None with fewer than 2k latents."""
    orders = [
        np.argsort(-np.asarray(values, dtype=np.float64), kind="stable")[:k] for values in (scores, exact)
    ]
    if len(np.asarray(exact)) < 2 * k:
        return None
    return len(set(orders[0].tolist()) & set(orders[1].tolist())) / k


def explained_curve(scores: ArrayLike, exact: ArrayLike) -> Floats | None:
    """`Float[k]`: share of the summed positive effects that the first 1, 2, ... latents of a ranking have.

    None where no effect is positive. Latents with a negative effect count as nothing, so the curve never falls.
    """
    gains = np.maximum(np.asarray(exact, dtype=np.float64), 0.0)
    total = float(gains.sum())
    if total <= 0:
        return None
    order = np.argsort(-np.asarray(scores, dtype=np.float64), kind="stable")
    curve: Floats = np.cumsum(gains[order]) / total
    return curve


def summarise(
    items: Sequence[dict[str, Any]], headline: str, rng: np.random.Generator
) -> tuple[list[Metric], list[Curve], dict[str, int]]:
    """Metrics, curves and counts of a cell.

    Args:
        items: one of kind "example" each, with `exact` effects and `scores` by selector.
        headline: the selector that the board shows.
        rng: source of the bootstrap's draws.
    """
    examples = sorted((item for item in items if item["kind"] == "example"), key=lambda item: item["id"])
    names = list(dict.fromkeys(name for item in examples for name in item["scores"]))
    metrics: list[Metric] = []
    curves: list[Curve] = []
    for name in names or [headline]:
        mine = [item for item in examples if name in item["scores"]]
        found = _values(name, mine)
        for kind, (unit, direction, note) in _DEFINITIONS.items():
            metrics.append(
                Metric.from_estimate(
                    f"{kind}_{name}",
                    mean_by_context(mine, found[kind], rng),
                    resampling_unit="context",
                    unit=unit,
                    direction=direction,  # type: ignore[arg-type]
                    note=note,
                    headline=kind == "spearman" and name == headline,
                )
            )
        if mine:
            curves.append(_curve(name, mine, rng))
    metrics.append(
        Metric.from_estimate(
            "correct",
            mean_by_context(examples, [float(item["correct"]) for item in examples], rng),
            resampling_unit="context",
            unit="share",
            direction="none",
            note="examples whose first answer token is the most likely one under the spliced pass",
        )
    )
    contexts = {item["context"] for item in examples}
    skipped = [item for item in items if item["kind"] == "skipped"]
    counts = {"examples": len(examples), "contexts": len(contexts), "skipped": len(skipped)}
    for reason in sorted({item["reason"] for item in skipped}):
        counts[f"skipped: {reason}"] = sum(item["reason"] == reason for item in skipped)
    return metrics, curves, counts


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


_DEFINITIONS = {
    "spearman": ("correlation", "higher", "Spearman correlation with the exact effects, mean over examples"),
    "overlap": (
        "share",
        "higher",
        f"share of the {_TOP} largest effects among the first {_TOP}, mean over examples",
    ),
    "explained": (
        "share",
        "higher",
        "area under the share of summed positive effects of the first k latents",
    ),
    "passes": (
        "passes",
        "lower",
        "forward and backward passes per example beyond the clean pass; what is paid once per latent is left out",
    ),
}


def units(
    items: Sequence[dict[str, Any]], _judgements: Sequence[dict[str, Any]], _config: Mapping[str, Any]
) -> Units | None:
    """Every selector's metrics, by context; None without items."""
    examples = sorted((item for item in items if item["kind"] == "example"), key=lambda item: item["id"])
    values: dict[str, list[float | None]] = {"correct": [float(item["correct"]) for item in examples]}
    for name in dict.fromkeys(name for item in examples for name in item["scores"]):
        found = _values(name, [item for item in examples if name in item["scores"]])
        for kind, column in found.items():
            rest = iter(column)
            values[f"{kind}_{name}"] = [next(rest) if name in item["scores"] else None for item in examples]
    asked = [item for item in items if item["kind"] in ("example", "skipped") and "context" in item]
    return units_by_context(asked, examples, values)


def _values(name: str, items: Sequence[dict[str, Any]]) -> dict[str, list[float | None]]:
    """What each metric of a selector is the mean of: one value for each example that has its scores."""
    pairs = [(item["scores"][name], item["exact"]) for item in items]
    return {
        "spearman": [spearman(*pair) for pair in pairs],
        "overlap": [top_overlap(*pair) for pair in pairs],
        "explained": [_area(*pair) for pair in pairs],
        "passes": [float(sum(item["passes"][name])) for item in items],
    }


def _area(scores: ArrayLike, exact: ArrayLike) -> float | None:
    curve = explained_curve(scores, exact)
    return None if curve is None else float(curve.mean())


def _curve(name: str, items: Sequence[dict[str, Any]], rng: np.random.Generator) -> Curve:
    points = []
    for share in _STEPS:
        at = []
        for item in items:
            curve = explained_curve(item["scores"][name], item["exact"])
            at.append(None if curve is None else float(curve[max(0, math.ceil(share * len(curve)) - 1)]))
        found = mean_by_context(items, at, rng)
        points.append(CurvePoint(x=share, value=found.value, low=found.low, high=found.high))
    return Curve(
        name=f"explained_{name}",
        x_name="share of the latents taken, best first",
        x_unit="share",
        unit="share",
        points=points,
        note="share of the summed positive exact effects, mean over examples; bootstrap over contexts",
    )
