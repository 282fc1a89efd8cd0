"""Scores of explanations; no torch."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from latentbench.stats import unscored, wilson
from latentbench.store import Curve, Metric
from latentbench_tasks._judging import bounded, over_latents, status_counts
from latentbench_tasks.interpretability.metrics import auroc

__all__ = ["balanced_accuracy", "correlation", "recompute", "summarise"]

Flags = Sequence[tuple[int, int, float]]
"""Truth, answer and chance of a 1 of each text."""
_NOTES = {
    "detection": "texts with the latent told from texts without, by its explanation; chance is 0.5",
    "detection_shuffled": "control: by the explanation of another latent; chance is 0.5",
    "fuzzing": "right marks told from misplaced ones, by the explanation; chance is 0.5",
}


_SIMULATIONS = {
    "simulation": "simulated and true activation correlated over the tokens of a latent's texts; chance is 0",
    "simulation_shuffled": "control: simulated by the explanation of another latent; chance is 0",
}


def balanced_accuracy(flags: Flags) -> float | None:
    """Mean of the shares of ones and of zeros that are answered right; None without both."""
    shares = []
    for kind in (1, 0):
        mine = [answer == truth for truth, answer, _ in flags if truth == kind]
        if not mine:
            return None
        shares.append(sum(mine) / len(mine))
    return sum(shares) / 2


def correlation(pairs: Sequence[tuple[float, float]]) -> float | str:
    """Pearson's correlation of truth and simulation over tokens; or why there is none."""
    if not pairs:
        return "unanswered"
    truth, simulated = np.array(pairs, dtype=np.float64).T
    if np.ptp(truth) == 0:
        return "truth_constant"
    if np.ptp(simulated) == 0:
        return "constant"
    return float(np.clip(np.corrcoef(truth, simulated)[0, 1], -1.0, 1.0))


def summarise(
    items: Sequence[Mapping[str, Any]], judgements: Sequence[Mapping[str, Any]], *, simulated: bool = False
) -> tuple[list[Metric], list[Curve], dict[str, int]]:
    """Means over latents with intervals, and counts.

    Args:
        items: what was measured.
        judgements: explanations and scorers' answers.
        simulated: whether simulations were asked for.
    """
    metrics = []
    for kind, note in _NOTES.items():
        asked = [one for one in judgements if one["kind"] == kind]
        by_latent = _by_latent(asked)
        accuracies = [
            value for flags in by_latent.values() if (value := balanced_accuracy(flags)) is not None
        ]
        metric = Metric.from_estimate(
            kind,
            over_latents(accuracies, "were scored"),
            resampling_unit="latent",
            unit="balanced accuracy",
            direction="none" if kind == "detection_shuffled" else "higher",
            note=note,
            headline=kind == "detection",
        )
        missing = len({one["latent"] for one in asked}) - len(accuracies)
        metrics.append(bounded(metric, accuracies, missing, (0.0, 1.0), asked))
        if kind != "detection_shuffled":
            metrics.append(_area(kind, by_latent))
    metrics += [_intruder(judgements), _explained(judgements)]
    counts = {"latents_drawn": sum(item["kind"] == "latent" for item in items)}
    explanations = [one for one in judgements if one["kind"] == "explanation"]
    counts["latents_explained"] = sum(one["status"] == "ok" for one in explanations)
    if simulated:
        for kind in _SIMULATIONS:
            simulation, more = _simulation(kind, [one for one in judgements if one["kind"] == kind])
            metrics.append(simulation)
            counts |= more
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
    return summarise(items, judgements, simulated=config["simulations"] > 0)


def _by_latent(asked: Sequence[Mapping[str, Any]]) -> dict[int, list[tuple[int, int, float]]]:
    found: dict[int, list[tuple[int, int, float]]] = defaultdict(list)
    for one in asked:
        if one["status"] == "ok":
            answers = one["verdict"]
            chances = one.get("weights") or [float(answer) for answer in answers]
            found[one["latent"]] += zip(one["truth"], answers, chances, strict=True)
    return found


def _area(kind: str, by_latent: Mapping[int, Flags]) -> Metric:
    areas = [value for flags in by_latent.values() if (value := _auroc(flags)) is not None]
    return Metric.from_estimate(
        f"{kind}_auroc",
        over_latents(areas, "were scored"),
        resampling_unit="latent",
        unit="AUROC",
        direction="higher",
        note="from the judge's chances where it gives them, else from its flags",
    )


def _auroc(flags: Flags) -> float | None:
    positives, negatives = (np.array([c for truth, _, c in flags if truth == kind]) for kind in (1, 0))
    return auroc(positives, negatives) if len(positives) and len(negatives) else None


def _intruder(judgements: Sequence[Mapping[str, Any]]) -> Metric:
    found: dict[int, list[float]] = defaultdict(list)
    for one in judgements:
        if one["kind"] == "intruder" and one["status"] == "ok":
            found[one["latent"]].append(float(one["verdict"] == one["truth"][0]))
    shares = [float(np.mean(hits)) for hits in found.values()]
    return Metric.from_estimate(
        "intruder",
        over_latents(shares, "were asked about"),
        resampling_unit="latent",
        unit="share",
        direction="higher",
        note="sets of five contexts in which the one without the latent is found; chance is 0.2",
    )


def _simulation(kind: str, asked: Sequence[Mapping[str, Any]]) -> tuple[Metric, dict[str, int]]:
    """The mean correlation; how many latents it was asked of, and how many have none for which reason."""
    tokens: dict[int, list[tuple[float, float]]] = {one["latent"]: [] for one in asked}
    for one in asked:
        if one["status"] == "ok":
            given = one.get("weights") or one["verdict"]
            pairs = zip(one["truth"], given, strict=True)
            tokens[one["latent"]] += [(truth, value) for truth, value in pairs if truth is not None]
    found = [correlation(pairs) for pairs in tokens.values()]
    values = [one for one in found if isinstance(one, float)]
    missing = Counter(f"{kind}_{one}" for one in found if isinstance(one, str))
    metric = Metric.from_estimate(
        kind,
        over_latents(values, "have a correlation", (-1.0, 1.0)),
        resampling_unit="latent",
        unit="Pearson r",
        direction="higher" if kind == "simulation" else "none",
        note=_SIMULATIONS[kind],
    )
    metric = bounded(metric, values, missing.total(), (-1.0, 1.0), asked)
    constant = missing[f"{kind}_constant"]
    if constant and values:
        as_zero = sum(values) / (len(values) + constant)
        added = f"; {as_zero:.3f} if {constant} constant simulations, which have no correlation, counted as 0"
        metric = metric.model_copy(update={"note": metric.note + added})
    return metric, {f"{kind}_latents": len(tokens), **missing}


def _explained(judgements: Sequence[Mapping[str, Any]]) -> Metric:
    asked = [one for one in judgements if one["kind"] == "explanation"]
    estimate = (
        wilson(sum(one["status"] == "ok" for one in asked), len(asked))
        if asked
        else unscored("none was asked for", 0)
    )
    return Metric.from_estimate(
        "explained",
        estimate,
        resampling_unit="latent",
        unit="share",
        direction="higher",
        note="drawn latents for which the judge gave an explanation",
    )
