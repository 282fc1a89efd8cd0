"""The tables of the page beside this file, from the records in this folder.

    python leaderboard/results/influence-smollm2/tables_influence.py

prints them; `--write` puts them into README.md. A test holds the page to what this prints.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from latentbench.store import CurvePoint, RunRecord, load_records
from latentbench_leaderboard.pages import markdown_table, page_main

HERE = Path(__file__).parent
COUNTS = ("1", "10", "20", "30", "50 %")
SETS = (
    ("GradSAE, highest", "gradsae_top"),
    ("activation, highest", "activation_top"),
    ("matched to GradSAE's by activation", "matched_top"),
    ("random active", "random_top"),
    ("GradSAE, lowest", "gradsae_bottom"),
    ("activation, lowest", "activation_bottom"),
    ("all of the last token, 64", "everything_top"),
)
GAPS = (
    ("GradSAE over activation", "gap_activation"),
    ("GradSAE over matched", "gap_matched"),
    ("GradSAE over random", "gap_random"),
    ("highest over lowest", "gap_equal"),
    ("activation over random", "gap_activation_random"),
)
SELECTORS = (
    ("attribution", "attribution"),
    ("GradSAE", "gradsae"),
    ("GradSAE, cut before the mean (code)", "gradsae_code"),
    ("integrated gradients, 10 steps", "integrated_gradients"),
    ("activation", "activation"),
    ("vocabulary projection", "vocabulary"),
    ("output score", "output_score"),
    ("delta token confidence", "delta_confidence"),
    ("random", "random"),
)
DICTIONARIES = {"TopK resid_post.21": "topk", "JumpReLU resid_post.21": "jumprelu", "RouteSAE": "routesae"}
"""Names of the dictionaries, and the ends of their tables' names."""


def tables(folder: Path = HERE) -> dict[str, str]:
    """Markdown tables by the name of their place in the page."""
    found: dict[str, str] = {}
    records = {
        (str(record.labels["dictionary"]), str(record.cell.task["name"])): record
        for record in load_records(folder)
    }
    for name, end in DICTIONARIES.items():
        perturbed, steered = records[name, "perturbation"], records[name, "local_steering"]
        for score in ("em", "kl"):
            found[f"perturbation-{score}-{end}"] = _by_count(perturbed, score, SETS)
            found[f"perturbation-{score}-gaps-{end}"] = _by_count(perturbed, score, GAPS)
        for score in ("em", "own", "shift"):
            found[f"steering-{score}-{end}"] = _by_count(steered, score, SETS)
            found[f"steering-{score}-gaps-{end}"] = _by_count(steered, score, GAPS)
        found[f"fidelity-{end}"] = _fidelity(records[name, "influence_fidelity"])
    found["summary"] = _summary(records)
    found["examples"] = _examples(records)
    return found


def _summary(records: dict[tuple[str, str], RunRecord]) -> str:
    """What decides the two hypotheses, at ten latents, by dictionary."""
    perturbed = (
        "em_gradsae_top",
        "em_activation_top",
        "em_matched_top",
        "em_random_top",
        "em_gap_activation",
    )
    steered = ("em_gradsae_top", "em_activation_top", "em_gap_activation")
    rows = []
    for name in DICTIONARIES:
        first, second = records[name, "perturbation"], records[name, "local_steering"]
        rows.append(
            [
                name,
                *(_at(first, curve, 10) for curve in perturbed),
                *(_at(second, curve, 10) for curve in steered),
            ]
        )
    head = [
        "dictionary",
        "GradSAE's ten at zero",
        "most active ten",
        "matched",
        "random",
        "GradSAE over activation",
    ]
    return markdown_table(
        [*head, "swapped: GradSAE's ten", "most active ten", "GradSAE over activation"], rows
    )


def _at(record: RunRecord, name: str, count: float) -> str:
    curve = next(curve for curve in record.curves if curve.name == name)
    return _point(next(point for point in curve.points if point.x == count))


def _by_count(record: RunRecord, score: str, rows: Sequence[tuple[str, str]]) -> str:
    curves = {curve.name: curve for curve in record.curves}
    lines = []
    for title, name in rows:
        if f"{score}_{name}" in curves:
            points = [_point(point) for point in curves[f"{score}_{name}"].points]
            lines.append([title, *[""] * (len(COUNTS) - len(points)), *points])
    return markdown_table(["latents", *COUNTS], lines)


def _fidelity(record: RunRecord) -> str:
    metrics = {metric.name: metric for metric in record.metrics}

    def shown(name: str) -> str:
        metric = metrics[name]
        interval = metric.interval
        return _number(metric.value, interval.low if interval else None, interval.high if interval else None)

    kinds = ("spearman", "overlap", "explained", "passes")
    lines = [[title, *(shown(f"{kind}_{name}") for kind in kinds)] for title, name in SELECTORS]
    return markdown_table(
        ["selector", "rank correlation", "top-10 overlap", "area explained", "passes"], lines
    )


def _examples(records: dict[tuple[str, str], RunRecord]) -> str:
    lines = [
        [
            name,
            task,
            ", ".join(
                f"{count} {what}" for what, count in sorted(records[name, task].counts.items()) if count
            ),
        ]
        for name in DICTIONARIES
        for task in sorted(task for other, task in records if other == name)
    ]
    return markdown_table(["dictionary", "task", "measured"], lines)


def _point(point: CurvePoint) -> str:
    return _number(point.value, point.low, point.high)


def _number(value: float | None, low: float | None, high: float | None) -> str:
    if value is None:
        return "none"
    alone = f"{value:.3f}"
    return alone if low is None or high is None else f"{alone} ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    page_main(HERE, tables, __doc__)
