"""What tasks with a rubric's judge share: contexts as a judge sees them, what unscored judgements do to a number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from latentbench.stats import Estimate, mean, unscored
from latentbench.store import Metric
from latentbench_judges import MarkedText

__all__ = [
    "TOO_MANY",
    "WARNING",
    "bounded",
    "marked_texts",
    "over_latents",
    "status_counts",
    "unscored_share",
]

WARNING, TOO_MANY = 0.02, 0.05
"""Shares of unscored judgements from which a number carries a warning, and is withheld."""


def marked_texts(items: Sequence[Mapping[str, Any]]) -> dict[str, MarkedText]:
    """The stored texts by id; where strengths were not kept, the strongest token alone is marked."""
    found = {}
    for item in items:
        if item["kind"] == "text":
            strengths = item["activations"]
            if strengths is None:
                strengths = [float(place == item["activated"]) for place in range(len(item["tokens"]))]
            found[item["id"]] = MarkedText(tuple(item["tokens"]), tuple(map(float, strengths)))
    return found


def status_counts(judgements: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """How many judgements there are, and of each reason for having no verdict."""
    failed = Counter(str(one["status"]) for one in judgements if one["status"] != "ok")
    models = {one["model"] for one in judgements if one.get("model")}
    return {
        "judgements": len(judgements),
        "unscored": sum(failed.values()),
        "judge_models": len(models),
        **{f"unscored: {status}": count for status, count in sorted(failed.items())},
    }


def unscored_share(judgements: Sequence[Mapping[str, Any]]) -> float:
    """Share of judgements without a verdict."""
    return sum(one["status"] != "ok" for one in judgements) / len(judgements) if judgements else 0.0


def bounded(
    metric: Metric,
    values: Sequence[float],
    missing: int,
    scale: tuple[float, float],
    asked: Sequence[Mapping[str, Any]],
) -> Metric:
    """A mean with what the unscored do to it: bounds and a warning in its note, or no value at all.

    Args:
        metric: the mean over the scored ones.
        values: of the scored ones.
        missing: how many have no value.
        scale: the lowest and the highest value that they could have.
        asked: the judgements behind them.
    """
    share = unscored_share(asked)
    note = metric.note
    if missing and values:
        total = sum(values)
        low, high = ((total + missing * end) / (len(values) + missing) for end in scale)
        note += f"; with {missing} unscored at their worst and best: {low:.3f} to {high:.3f}"
    models = {one["model"] for one in asked if one.get("model")}
    if len(models) > 1:
        note += f"; warning: verdicts of {len(models)} versions of the judge's model are mixed"
    if share > WARNING:
        note += f"; warning: {share:.1%} of the judgements are unscored"
    if share > TOO_MANY and metric.headline:
        reason = f"{share:.1%} of the judgements are unscored, more than {TOO_MANY:.0%}"
        return metric.model_copy(update={"value": None, "interval": None, "reason": reason, "note": note})
    return metric.model_copy(update={"note": note})


def over_latents(values: Sequence[float], what: str, scale: tuple[float, float] = (0.0, 1.0)) -> Estimate:
    """A mean over latents with its t interval, which ends where the scale does."""
    if len(values) < 2:
        return unscored(f"a mean needs 2 latents; {len(values)} {what}", len(values))
    return mean(values, bounds=scale)
