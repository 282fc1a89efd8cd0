"""Scores of latents from embedded contexts, and their summary; no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import mannwhitneyu

from latentbench.stats import Estimate, mean, unscored, wilson
from latentbench.store import Curve, Metric

__all__ = ["SIGNIFICANT", "auroc", "recompute", "score_latents", "summarise"]

Floats = NDArray[np.float64]
SIGNIFICANT = 0.05
"""Largest one-sided Mann-Whitney p-value at which a latent's contexts count as told apart."""
_MIN_CONTEXTS = 2
"""Contexts of each kind that a half needs for a score."""
_PARTNERS = 8
"""Other latents whose training contexts the control takes in turn: one alone makes it noisy."""
_MIN_LATENTS = 2
"""Scored latents that a mean needs."""


def auroc(positives: Floats, negatives: Floats) -> float:
    """Chance that a positive scores above a negative; a tie counts half."""
    greater = (positives[:, None] > negatives[None, :]).mean()
    equal = (positives[:, None] == negatives[None, :]).mean()
    return float(greater + equal / 2)


def score_latents(
    latents: Sequence[Mapping[str, Any]],
    vectors: Mapping[str, NDArray[np.float32]],
    rng: np.random.Generator,
) -> Iterator[dict[str, Any]]:
    """A judgement for each latent.

    Similarity is the scalar product with the mean of a latent's training contexts. The shuffled control takes those
    of other scored latents, one after the other, and averages the AUROCs: whatever separates test contexts without
    regard to the latent shows up there. As in the score, no document of the test contexts is among them.

    Args:
        latents: items with `positives` and `negatives`, each context with `text`, `document` and `split`.
        vectors: unit vector of each text.
        rng: draws which latents' training contexts the control takes.
    """
    halves = [_halves(item, vectors) for item in latents]
    scored = [place for place, half in enumerate(halves) if min(map(len, half.values())) >= _MIN_CONTEXTS]
    partners = _partners(scored, rng)
    for place, (item, half) in enumerate(zip(latents, halves, strict=True)):
        base = {"kind": "judgement", "id": item["id"], "latent": item["latent"]}
        if place not in partners:
            yield base | {"status": "unscored", "reason": _shortage(half)}
            continue
        positives, negatives = _similarities(half, half["train_positives"])
        shuffled = _shuffled(item, half, [(latents[other], halves[other]) for other in partners[place]])
        yield base | {
            "status": "ok",
            "reason": None,
            "score": auroc(positives, negatives),
            "p_value": float(mannwhitneyu(positives, negatives, alternative="greater").pvalue),
            "balanced_accuracy": _balanced_accuracy(half),
            "shuffled": shuffled,
            "n_positive": len(positives),
            "n_negative": len(negatives),
        }


def _partners(scored: Sequence[int], rng: np.random.Generator) -> dict[int, list[int]]:
    """For each place some others: each place is the partner of as many as it has."""
    others = max(0, len(scored) - 1)
    shifts = (1 + rng.choice(others, size=min(_PARTNERS, others), replace=False)).tolist() if others else []
    return {place: [scored[(n + shift) % len(scored)] for shift in shifts] for n, place in enumerate(scored)}


def _shuffled(
    item: Mapping[str, Any],
    half: Mapping[str, Floats],
    others: Sequence[tuple[Mapping[str, Any], Mapping[str, Floats]]],
) -> float | None:
    """Mean AUROC by the training contexts of other latents; None if none has any of another document."""
    tested = {c["document"] for c in (*item["positives"], *item["negatives"]) if c["split"] == "test"}
    found = []
    for other, vectors in others:
        training = [c["document"] not in tested for c in other["positives"] if c["split"] == "train"]
        if any(training):
            found.append(auroc(*_similarities(half, vectors["train_positives"][training])))
    return float(np.mean(found)) if found else None


def _similarities(half: Mapping[str, Floats], training: Floats) -> tuple[Floats, Floats]:
    """Of a latent's test contexts with and without it, to some training contexts."""
    centre = training.mean(axis=0)
    return half["test_positives"] @ centre, half["test_negatives"] @ centre


def _halves(item: Mapping[str, Any], vectors: Mapping[str, NDArray[np.float32]]) -> dict[str, Floats]:
    found: dict[str, Floats] = {}
    for kind in ("positives", "negatives"):
        for split in ("train", "test"):
            rows = [vectors[context["text"]] for context in item[kind] if context["split"] == split]
            found[f"{split}_{kind}"] = np.asarray(rows, dtype=np.float64)
    return found


def _balanced_accuracy(half: Mapping[str, Floats]) -> float:
    """At a threshold set on training contexts alone, each training positive left out of its own centre."""
    train = half["train_positives"]
    left_out = (train.sum(axis=0) - train) / (len(train) - 1)
    own = (train * left_out).sum(axis=1)
    threshold = (own.mean() + (half["train_negatives"] @ train.mean(axis=0)).mean()) / 2
    positives, negatives = _similarities(half, train)
    return float(((positives > threshold).mean() + (negatives <= threshold).mean()) / 2)


def _shortage(half: Mapping[str, Floats]) -> str:
    few = min(half, key=lambda name: len(half[name]))
    split, kind = few.split("_")
    words = "documents without the latent" if kind == "negatives" else "documents with the latent"
    return f"too few {words} among the watched ones: {len(half[few])} in the {split} half"


class _Definition(NamedTuple):
    name: str
    values: list[float]
    unit: str
    direction: Literal["higher", "lower", "none"]
    note: str
    share: bool = False
    """Whether the values are 0 or 1 and their mean is a proportion."""


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
    nothing: Mapping[str, Any] = {"asked": 0, "drawn": [], "eligible": 0, "live": 0}
    drawn = next((item for item in items if item["kind"] == "drawn"), nothing)
    which = _which(drawn, len(ok))
    metrics = [_metric(definition, which) for definition in _definitions(ok)]
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
    negatives = [c for item in items if item["kind"] == "latent" for c in item["negatives"]]
    counts = {
        "tokens": sum(item["tokens"] for item in items if item["kind"] == "row"),
        "latents_drawn": len(drawn["drawn"]),
        "latents_scored": len(ok),
        "unscored": len(judgements) - len(ok),
        "negatives": len(negatives),
        "negatives_of_the_same_source": sum(context["matched"] for context in negatives),
    }
    return metrics, [], counts


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
    return summarise(items, judgements, rng)


def _definitions(ok: Sequence[Mapping[str, Any]]) -> list[_Definition]:
    return [
        _Definition(
            "auroc", [j["score"] for j in ok], "AUROC", "higher",
            "similarity to a latent's training contexts separates its other contexts from contexts without it; "
            "chance is 0.5; the interval is over latents: it holds the noise of this judge and of the documents "
            "on each latent, not what another judge would say",
        ),
        _Definition(
            "balanced_accuracy", [j["balanced_accuracy"] for j in ok], "share", "higher",
            "the same at a threshold set on training contexts; chance is 0.5",
        ),
        _Definition(
            "separated_latents", [float(j["p_value"] <= SIGNIFICANT) for j in ok], "share", "higher",
            f"latents whose AUROC is above 0.5 with one-sided Mann-Whitney p <= {SIGNIFICANT}; by chance at most "
            f"{SIGNIFICANT}",
            share=True,
        ),
        _Definition(
            "auroc_shuffled", [j["shuffled"] for j in ok if j["shuffled"] is not None], "AUROC", "none",
            "control: similarity to other latents' training contexts; near 0.5 unless contexts give themselves "
            "away without regard to the latent",
        ),
    ]  # fmt: skip


def _which(drawn: Mapping[str, Any], scored: int) -> str:
    """Which latents a mean is over."""
    count, eligible, asked = len(drawn["drawn"]), drawn["eligible"], drawn["asked"]
    of = (
        f"all {eligible} eligible latents, {asked} were asked for"
        if count < asked
        else f"{count} drawn latents"
    )
    return f"{scored} of {of} could be scored"


def _metric(definition: _Definition, which: str) -> Metric:
    return Metric.from_estimate(
        definition.name,
        _estimate(definition, which),
        resampling_unit="latent",
        unit=definition.unit,
        direction=definition.direction,
        note=f"{definition.note}; {which}",
        headline=definition.name == "auroc",
    )


def _estimate(definition: _Definition, which: str) -> Estimate:
    values = definition.values
    if len(values) < _MIN_LATENTS:
        return unscored(f"a mean needs {_MIN_LATENTS} latents: {which}", len(values))
    if definition.share:
        return wilson(round(sum(values)), len(values))
    return mean(values, bounds=(0.0, 1.0))
