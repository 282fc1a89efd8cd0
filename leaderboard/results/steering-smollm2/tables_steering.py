"""The tables of the page beside this file, from the records in this folder and `concepts.json`.

    python leaderboard/results/steering-smollm2/tables_steering.py            prints them
    python leaderboard/results/steering-smollm2/tables_steering.py --write    puts them into README.md
    python leaderboard/results/steering-smollm2/collect_steering.py RESULTS   makes `concepts.json` from a run's items

Comparisons are of the same concepts, each with its mean over dictionaries: concepts are what is drawn. A test holds the
page to what this prints.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from latentbench.stats import (
    Estimate,
    bootstrap,
    generator,
    holm,
    minimum_detectable_difference,
    paired,
    ratio,
)
from latentbench.store import Metric, RunRecord, load_records
from latentbench_leaderboard.pages import markdown_table, page_main
from latentbench_tasks.steering._methods import METHODS

HERE = Path(__file__).parent
LATENTS = (
    "contrast",
    "auroc",
    "output_score",
    "output_score_low",
    "gradsae",
    "gradsae_low",
    "random_latent",
    "random_direction",
)
BASELINES = ("diffmean", "pca", "probe", "wrong_layer", "prompting")
QUESTIONS = (
    ("GradSAE's highest over its lowest candidate", "gradsae", "gradsae_low"),
    ("highest output score over the lowest", "output_score", "output_score_low"),
    ("output score over GradSAE", "output_score", "gradsae"),
    ("output score over contrast", "output_score", "contrast"),
    ("GradSAE over contrast", "gradsae", "contrast"),
    ("AUROC (SAE-A) over contrast", "auroc", "contrast"),
    ("contrast over a random latent", "contrast", "random_latent"),
    ("contrast over a random direction", "contrast", "random_direction"),
    ("contrast over DiffMean", "contrast", "diffmean"),
    ("contrast over the probe's direction", "contrast", "probe"),
    ("contrast over prompting", "contrast", "prompting"),
    ("DiffMean over its direction at a wrong layer", "diffmean", "wrong_layer"),
)
Rows = Mapping[str, Mapping[str, Mapping[str, Mapping[str, float | None]]]]
"""Dictionary, method, concept, metric."""


def tables(folder: Path = HERE) -> dict[str, str]:
    """Markdown tables by the name of their place in the page."""
    records = {str(record.labels["dictionary"]): record for record in load_records(folder)}
    rows: Rows = json.loads((folder / "concepts.json").read_text(encoding="utf-8"))
    order = [name for name in rows if name in records]
    return {
        "success": _success(records, order),
        "baselines": _baselines(records, order),
        "inflation": _inflation(rows, order),
        "questions": _questions(rows, order),
        "costs": _costs(records, order),
        "counts": _counts(records, order),
        "concepts": _concepts(rows, order),
    }


def _metric(record: RunRecord, name: str) -> Metric | None:
    return next((metric for metric in record.metrics if metric.name == name), None)


def _shown(record: RunRecord, name: str, digits: int = 2) -> str:
    metric = _metric(record, name)
    if metric is None or metric.value is None:
        return "none"
    interval = metric.interval
    return _number(
        metric.value, interval.low if interval else None, interval.high if interval else None, digits
    )


def _of(method: str, name: str) -> str:
    return name if method == LATENTS[0] else f"{name}_{method}"


def _success(records: Mapping[str, RunRecord], order: Sequence[str]) -> str:
    lines = [
        [METHODS[method].title, *(_shown(records[name], _of(method, "success")) for name in order)]
        for method in LATENTS
    ]
    floors = (("unsteered text", "success_unsteered"), ("senseless text", "success_degenerate"))
    lines += [[title, *(_shown(records[name], metric) for name in order)] for title, metric in floors]
    lines.append(
        ["contrast, one factor for all", *(_shown(records[name], "success_fixed_factor") for name in order)]
    )
    return markdown_table(["what steers", *order], lines)


def _baselines(records: Mapping[str, RunRecord], order: Sequence[str]) -> str:
    record = records[order[0]]
    names = ("success", "success_fixed_factor", "success_on_selection", "fluency_change", "kl")
    lines = [
        [METHODS[method].title, *(_shown(record, f"{name}_{method}") for name in names)]
        for method in BASELINES
    ]
    head = [
        "baseline",
        "success",
        "at one factor",
        "on the selection prompts",
        "fluency, nats/token",
        "KL, nats/token",
    ]
    return markdown_table(head, lines)


def _inflation(rows: Rows, order: Sequence[str]) -> str:
    """Success as the maximum over factors shows it, and as other prompts do."""
    lines = []
    for method in (*LATENTS, *BASELINES):
        shared = order if method in LATENTS else order[:1]
        values = {name: _by_concept(rows, shared, method, name) for name in _INFLATION}
        lines.append([METHODS[method].title, *(_estimate_text(values[name]) for name in _INFLATION)])
    return markdown_table(
        ["what steers", "selection prompts", "test prompts", "gap", "optimum at an end of the grid"], lines
    )


_INFLATION = ("success_on_selection", "success", "selection_gap", "boundary_share")


def _by_concept(rows: Rows, order: Sequence[str], method: str, metric: str) -> dict[str, float]:
    """Mean over dictionaries of each concept that all of them have."""
    each = [
        {
            concept: value
            for concept, one in rows[name].get(method, {}).items()
            if (value := one[metric]) is not None
        }
        for name in order
    ]
    shared = set.intersection(*(set(one) for one in each)) if each else set()
    return {concept: float(np.mean([one[concept] for one in each])) for concept in sorted(shared)}


def _estimate_text(values: Mapping[str, float]) -> str:
    found = _bootstrap(list(values.values()), "inflation")
    return _number(found.value, found.low, found.high)


def _bootstrap(values: Sequence[float], key: str) -> Estimate:
    table = np.column_stack([values, np.ones(len(values))])
    return bootstrap(table, ratio(0, 1), generator(f"steering-smollm2:{key}"))


def _questions(rows: Rows, order: Sequence[str]) -> str:
    lines, p_values = [], []
    for title, first, second in QUESTIONS:
        one, two = (_by_concept(rows, order, method, "success") for method in (first, second))
        both = sorted(set(one) & set(two))
        left, right = ([side[concept] for concept in both] for side in (one, two))
        ones = np.ones(len(both))
        found = paired(
            np.column_stack([left, ones]), np.column_stack([right, ones]), ratio(0, 1),
            generator(f"steering-smollm2:{first}:{second}"),
        )  # fmt: skip
        spread = np.subtract(left, right)
        least = minimum_detectable_difference(len(both), float(np.std(spread, ddof=1))) or math.nan
        difference = found.difference
        p_values.append(found.p_value)
        lines.append(
            [
                title,
                _number(difference.value, difference.low, difference.high),
                f"{least:.2f}",
                str(len(both)),
            ]
        )
    adjusted = ["none" if p is None else f"{p:.3f}" for p in holm(p_values)]
    lines = [[*line, p] for line, p in zip(lines, adjusted, strict=True)]
    return markdown_table(["question", "difference in success", "detectable", "concepts", "p (Holm)"], lines)


def _costs(records: Mapping[str, RunRecord], order: Sequence[str]) -> str:
    names = (
        ("lift", "success over unsteered"),
        ("fluency_change", "fluency, nats/token"),
        ("kl", "KL, nats/token"),
        ("success_at_20", "success@20, tokens"),
        ("side_effect", "other concepts, mean change"),
        ("side_effect_largest", "other concepts, largest rise"),
        ("coverage", "coverage"),
        ("boundary_share", "optimum at an end of the grid"),
    )
    lines = [[title, *(_shown(records[name], metric) for name in order)] for metric, title in names]
    return markdown_table(["latents by contrast", *order], lines)


def _counts(records: Mapping[str, RunRecord], order: Sequence[str]) -> str:
    wanted = ("generations", "unscored_generations", "empty_generations", "disfluent_generations",
              "repetitive_generations", "concepts", "concepts_excluded_by_scorer")  # fmt: skip
    lines = [[name.replace("_", " "), *(str(records[one].counts[name]) for one in order)] for name in wanted]
    return markdown_table(["", *order], lines)


def _concepts(rows: Rows, order: Sequence[str]) -> str:
    shown = ("contrast", "output_score", "gradsae", "diffmean", "probe", "prompting")
    values = {
        method: _by_concept(rows, order if method in LATENTS else order[:1], method, "success")
        for method in shown
    }
    floor = _by_concept(rows, order[:1], "contrast", "success_unsteered")
    lines = [
        [
            concept,
            *(f"{values[method].get(concept, math.nan):.2f}" for method in shown),
            f"{floor[concept]:.2f}",
        ]
        for concept in sorted(floor)
    ]
    return markdown_table(["concept", *shown, "unsteered"], lines)


def _number(value: Any, low: Any, high: Any, digits: int = 2) -> str:
    if value is None:
        return "none"
    alone = f"{value:.{digits}f}"
    return alone if low is None or high is None else f"{alone} ({low:.{digits}f} to {high:.{digits}f})"


if __name__ == "__main__":
    page_main(HERE, tables, __doc__)
