"""Scores of latents from embedded contexts, and their summary; no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from latentbench.stats import mean, unscored
from latentbench.store import Curve, Metric

__all__ = ["auroc", "score_latents", "summarise"]

Floats = NDArray[np.float64]
_MIN_CONTEXTS = 2
"""Contexts of each kind that a half needs for a score."""


def auroc(positives: Floats, negatives: Floats) -> float:
    """Chance that a positive scores above a negative; a tie counts half."""
    greater = (positives[:, None] > negatives[None, :]).mean()
    equal = (positives[:, None] == negatives[None, :]).mean()
    return float(greater + equal / 2)


def score_latents(
    latents: Sequence[Mapping[str, Any]], vectors: Mapping[str, NDArray[np.float32]], rng: np.random.Generator
) -> Iterator[dict[str, Any]]:
    """A judgement for each latent.

    Similarity is the cosine with the mean of a latent's training contexts. The shuffled control takes the mean of
    another scored latent's, so whatever separates test contexts without regard to the latent shows up there.

    Args:
        latents: items with `positives` and `negatives`, each context with `text` and `split`.
        vectors: unit vector of each text.
        rng: draws which latent's training contexts the control takes.
    """
    halves = [_halves(item, vectors) for item in latents]
    scored = [place for place, half in enumerate(halves) if min(map(len, half.values())) >= _MIN_CONTEXTS]
    shift = int(rng.integers(1, len(scored))) if len(scored) > 1 else 0
    partner = {place: scored[(n + shift) % len(scored)] for n, place in enumerate(scored)}
    for place, (item, half) in enumerate(zip(latents, halves, strict=True)):
        base = {"kind": "judgement", "id": item["id"], "latent": item["latent"]}
        if place not in partner:
            yield base | {"status": "unscored", "reason": _shortage(half)}
            continue
        centre = half["train_positives"].mean(axis=0)
        other = halves[partner[place]]["train_positives"].mean(axis=0)
        positives, negatives = half["test_positives"] @ centre, half["test_negatives"] @ centre
        yield base | {
            "status": "ok",
            "reason": None,
            "score": auroc(positives, negatives),
            "balanced_accuracy": _balanced_accuracy(half, centre),
            "shuffled": auroc(half["test_positives"] @ other, half["test_negatives"] @ other)
            if shift
            else None,
            "n_positive": len(positives),
            "n_negative": len(negatives),
        }


def _halves(item: Mapping[str, Any], vectors: Mapping[str, NDArray[np.float32]]) -> dict[str, Floats]:
    found: dict[str, Floats] = {}
    for kind in ("positives", "negatives"):
        for split in ("train", "test"):
            rows = [vectors[context["text"]] for context in item[kind] if context["split"] == split]
            found[f"{split}_{kind}"] = np.asarray(rows, dtype=np.float64)
    return found


def _balanced_accuracy(half: dict[str, Floats], centre: Floats) -> float:
    """At a threshold set on training contexts alone, each training positive left out of its own centre."""
    train = half["train_positives"]
    left_out = (train.sum(axis=0) - train) / (len(train) - 1)
    own = (train * left_out).sum(axis=1)
    threshold = (own.mean() + (half["train_negatives"] @ centre).mean()) / 2
    hits = (half["test_positives"] @ centre > threshold).mean()
    rejections = (half["test_negatives"] @ centre <= threshold).mean()
    return float((hits + rejections) / 2)


def _shortage(half: Mapping[str, Floats]) -> str:
    few = min(half, key=lambda name: len(half[name]))
    kind = "documents without the latent" if "negatives" in few else "documents with the latent"
    return f"only {len(half[few])} contexts in half {few!r}: too few {kind} among the watched ones"


def summarise(
    items: Sequence[Mapping[str, Any]], judgements: Sequence[Mapping[str, Any]], rng: np.random.Generator
) -> tuple[list[Metric], list[Curve], dict[str, int]]:
    """Means over latents with intervals, and counts.

    Args:
        items: what was measured.
        judgements: one a latent.
        rng: not used; means over latents have a t interval.
    """
    ok = [judgement for judgement in judgements if judgement["status"] == "ok"]
    nothing: dict[str, Any] = {"drawn": [], "eligible": 0, "live": 0}
    drawn: Mapping[str, Any] = next((item for item in items if item["kind"] == "drawn"), nothing)
    why = f"{len(ok)} of {len(drawn['drawn'])} drawn latents could be scored"
    metrics = [
        _mean_metric(
            "auroc", [j["score"] for j in ok], why, "AUROC", headline=True,
            note="similarity to a latent's training contexts separates its other contexts from contexts without it; "
            "chance is 0.5; interval over latents, which holds the judge's noise on them but not another judge's",
        ),
        _mean_metric(
            "balanced_accuracy", [j["balanced_accuracy"] for j in ok], why, "share",
            note="the same at a threshold set on training contexts; chance is 0.5",
        ),
        _mean_metric(
            "auroc_shuffled", [j["shuffled"] for j in ok if j["shuffled"] is not None], why, "AUROC", direction="none",
            note="control: similarity to another latent's training contexts; near 0.5 unless contexts give themselves "
            "away without regard to the latent",
        ),
    ]  # fmt: skip
    share = (drawn["eligible"] / drawn["live"]) if drawn["live"] else None
    metrics.append(
        Metric(
            name="eligible_latents",
            value=share,
            n=int(drawn["live"]),
            resampling_unit="none",
            unit="share of live latents",
            direction="none",
            reason=None if share is not None else "no latent was active",
            note="live latents that are active in enough documents to be drawn",
        )
    )
    counts = {
        "tokens": sum(item["tokens"] for item in items if item["kind"] == "row"),
        "latents_drawn": len(drawn["drawn"]),
        "latents_scored": len(ok),
        "unscored": len(judgements) - len(ok),
    }
    return metrics, [], counts


def _mean_metric(
    name: str,
    values: list[float],
    why: str,
    unit: str,
    *,
    note: str,
    direction: Any = "higher",
    headline: bool = False,
) -> Metric:
    estimate = mean(values, bounds=(0.0, 1.0)) if values else unscored(f"no latent was scored: {why}", 0)
    return Metric.from_estimate(
        name,
        estimate,
        resampling_unit="latent",
        unit=unit,
        direction=direction,
        note=f"{note}; {why}",
        headline=headline,
    )
