"""The tables of the page beside this file, from the records and comparisons in this folder.

    python leaderboard/results/study-smollm2/tables_study.py

prints them; `--write` puts them into README.md. A test holds the page to what this prints.
"""

from __future__ import annotations

import json
import re
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from latentbench.store import RunRecord, load_records
from latentbench_leaderboard.pages import markdown_table, page_main

HERE = Path(__file__).parent
FAMILIES = ("RouteSAE", "TopK", "Random routing", "ReLU", "Gated", "JumpReLU", "MLSAE", "Crosscoder")
LAYERS = ("TopK layer 6", "TopK layer 17", "TopK layer 19")
"""Single-layer SAEs where routers went; plain TopK is at the last routed layer, 21."""
CONTROLS = {
    "TopK, random codes": "TopK k 64 seed 0, random codes",
    "RouteSAE, random codes": "RouteSAE k 64 seed 0, random codes",
    "TopK, untrained": "TopK k 64 seed 0, untrained",
    "RouteSAE, untrained": "RouteSAE k 64 seed 0, untrained",
}
_NAME = re.compile(r"(.+) k (\d+) seed (\d+)")

Values = dict[str, dict[str, float | None]]
"""Metrics by dictionary."""


def tables(folder: Path = HERE) -> dict[str, str]:
    """Markdown tables by the name of their place in the page."""
    records = load_records(folder)
    values: Values = defaultdict(dict)
    for record in records:
        for metric in record.metrics:
            values[str(record.labels["dictionary"])][metric.name] = metric.value
    compared = {
        file.stem: json.loads(file.read_text(encoding="utf-8")) for file in folder.glob("compare/*.json")
    }
    return {
        "families": _families(values),
        "ratios": _ratios(compared),
        "differences": _differences(compared),
        "layers": _layers(compared),
        "sweep": _sweep(values, compared),
        "curve": _curve(records),
        "router": _router(records, values),
    }


def _families(values: Values) -> str:
    columns = (
        ("features at 15", "features_at_15", 0),
        ("at 10", "features_at_10", 0),
        ("at 7.5", "features_at_7.5", 0),
        ("of any number of classes, at 15", "unlimited_at_15", 0),
        ("interpretability (AUROC)", "auroc", 3),
        ("normalised MSE", "normalised_mse_input", 3),
        ("KL (nats)", "kl", 3),
        ("CE recovered", "ce_recovered", 3),
        ("L0", "l0", 1),
    )
    rows = []
    for family in (*FAMILIES, *LAYERS):
        names = [name for name in values if _part(name, family, 64)]
        cells = [_mean([values[name][key] for name in names], digits) for _, key, digits in columns]
        rows.append([f"{family} ({len(names)})", *cells])
    for title, name in CONTROLS.items():
        rows.append(
            [f"{title} (control)", *[_mean([values[name][key]], digits) for _, key, digits in columns]]
        )
    return markdown_table(["family (seeds)", *[title for title, _, _ in columns]], rows)


def _ratios(compared: dict[str, list[dict[str, Any]]]) -> str:
    rows = []
    for other in ("topk", "random"):
        by_metric = {one["metric"]: one for one in compared[f"routesae-{other}-k64"]}
        for metric in (f"{kind}_at_{t}" for kind in ("features", "unlimited") for t in ("7.5", "10", "15")):
            one = by_metric[metric]
            rule = "rule" if metric.startswith("features") else "any number of classes"
            rows.append(
                [
                    {"topk": "TopK", "random": "Random routing"}[other],
                    metric.rsplit("_", 1)[1],
                    rule,
                    f"{one['first_mean']:.0f}",
                    f"{one['second_mean']:.0f}",
                    f"**{one['value']:.2f}** ({one['low']:.2f} to {one['high']:.2f})",
                    f"{one['detectable']:.2f}",
                ]
            )
    headings = [
        "against",
        "threshold",
        "count",
        "RouteSAE",
        "other",
        "ratio (95 %)",
        "smallest detectable ratio",
    ]
    return markdown_table(headings, rows)


def _differences(compared: dict[str, list[dict[str, Any]]]) -> str:
    titles = {
        "auroc": "interpretability (AUROC, embed judge)",
        "normalised_mse_input": "normalised MSE",
        "kl": "KL (nats/token)",
        "ce_recovered": "CE recovered",
    }
    rows = []
    for other in ("topk", "random"):
        by_metric = {one["metric"]: one for one in compared[f"routesae-{other}-k64"]}
        for metric, title in titles.items():
            one = by_metric[metric]
            rows.append(
                [
                    {"topk": "TopK", "random": "Random routing"}[other],
                    title,
                    f"{one['first_mean']:.3f}",
                    f"{one['second_mean']:.3f}",
                    f"{one['value']:+.3f} ({one['low']:+.3f} to {one['high']:+.3f})",
                    f"{one['detectable']:.3f}",
                ]
            )
    headings = ["against", "metric", "RouteSAE", "other", "difference (95 %)", "smallest detectable"]
    return markdown_table(headings, rows)


def _layers(compared: dict[str, list[dict[str, Any]]]) -> str:
    rows = []
    for layer in (6, 17, 19):
        found = {one["metric"]: one for one in compared[f"topk-r{layer}-topk-k64"]}
        ratios = [found[f"features_at_{threshold}"] for threshold in ("7.5", "10", "15")]
        rows.append(
            [str(layer), *[f"{one['value']:.2f} ({one['low']:.2f} to {one['high']:.2f})" for one in ratios]]
        )
    return markdown_table(["TopK at layer", "against layer 21, at 7.5", "at 10", "at 15"], rows)


def _sweep(values: Values, compared: dict[str, list[dict[str, Any]]]) -> str:
    rows = []
    for k in (32, 64, 96):
        means = [
            _mean([values[name]["features_at_10"] for name in values if _part(name, family, k)], 0)
            for family in FAMILIES[:3]
        ]
        found = []
        for other in ("topk", "random"):
            one = next(c for c in compared[f"routesae-{other}-k{k}"] if c["metric"] == "features_at_10")
            found.append(f"{one['value']:.2f} ({one['low']:.2f} to {one['high']:.2f})")
        rows.append([str(k), *means, *found])
    headings = [
        "k",
        *[f"{family}" for family in FAMILIES[:3]],
        "RouteSAE / TopK",
        "RouteSAE / Random routing",
    ]
    return markdown_table(headings, rows)


def _curve(records: list[RunRecord]) -> str:
    """Mean over seeds of the count at each budget, and what twice the documents would add."""
    points: dict[str, list[list[float]]] = defaultdict(list)
    more: dict[str, list[dict[str, float | None]]] = defaultdict(list)
    for record in records:
        found = _NAME.fullmatch(str(record.labels["dictionary"]))
        if found is None or found[2] != "64" or record.cell.task["name"] != "feature_count":
            continue
        (curve,) = [curve for curve in record.curves if curve.name == "unlimited_at_10"]
        points[found[1]].append([float(point.value or 0) for point in curve.points])
        more[found[1]].append({metric.name: metric.value for metric in record.metrics})
        shares = [point.x for point in curve.points]
    wanted = (0, 2, 4, 6, 9)
    rows = []
    for family in FAMILIES:
        means = [statistics.fmean(curve[place] for curve in points[family]) for place in wanted]
        gain = means[-1] / means[2] - 1
        rows.append(
            [
                family,
                *[f"{mean:.0f}" for mean in means],
                f"{gain:+.0%}",
                _mean([one["richness_at_10"] for one in more[family]], 0),
                _mean([one["coverage_at_10"] for one in more[family]], 4),
                _percent([one["doubling_gain_at_10"] for one in more[family]]),
            ]
        )
    headings = [
        "family",
        *[f"{round(shares[place], -3):,.0f}" for place in wanted],
        "last half's gain",
        "Chao2, latents with an event",
        "coverage",
        "their gain on doubling",
    ]
    return markdown_table(headings, rows)


def _router(records: list[RunRecord], values: Values) -> str:
    rows = []
    for record in sorted(records, key=lambda one: str(one.labels["dictionary"])):
        name = str(record.labels["dictionary"])
        if not _part(name, "RouteSAE", 64) or record.cell.task["name"] != "core":
            continue
        (curve,) = [curve for curve in record.curves if curve.name == "route_shares"]
        used = sorted(((point.value or 0, int(point.x)) for point in curve.points), reverse=True)
        shown = ", ".join(f"{layer}: {share:.0%}" for share, layer in used if share >= 0.02)
        mine = values[name]
        rows.append(
            [
                name.rsplit(" ", 1)[1],
                shown,
                f"{mine['effective_layers']:.1f}",
                *[f"{mine[key]:.0f}" for key in ("features_at_7.5", "features_at_10", "features_at_15")],
                f"{mine['normalised_mse_input']:.3f}",
                f"{mine['auroc']:.3f}",
            ]
        )
    headings = [
        "seed",
        "tokens by layer",
        "effective layers",
        "at 7.5",
        "at 10",
        "at 15",
        "normalised MSE",
        "AUROC",
    ]
    return markdown_table(headings, rows)


def _part(name: str, family: str, k: int) -> bool:
    found = _NAME.fullmatch(name)
    return found is not None and (found[1], found[2]) == (family, str(k))


def _mean(values: list[float | None], digits: int) -> str:
    """The mean, and from two seeds on the smallest and the largest value."""
    known = [value for value in values if value is not None]
    if not known:
        return "unscored"
    mean = f"{statistics.fmean(known):.{digits}f}"
    return mean if len(known) == 1 else f"{mean} ({min(known):.{digits}f} to {max(known):.{digits}f})"


def _percent(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.fmean(known):+.0%}" if known else "unscored"


if __name__ == "__main__":
    page_main(HERE, tables, __doc__)
