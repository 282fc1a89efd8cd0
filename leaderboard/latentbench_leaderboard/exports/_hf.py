"""Hugging Face: the `.eval_results/latentbench.yaml` of each dictionary's repository, headline metrics alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from latentbench_leaderboard._format import slug
from latentbench_leaderboard.exports._rows import Row

__all__ = ["hf_files"]


def hf_files(rows: Sequence[Row], dataset: str, source_url: str | None) -> dict[str, str]:
    """The files by path, `<dictionary>/.eval_results/latentbench.yaml`.

    Args:
        rows: numbers of all dictionaries.
        dataset: id on the Hub of the benchmark's data set, whose board the numbers appear on.
        source_url: where the numbers can be looked up; None leaves it out.
    """
    import yaml  # only this export needs it

    entries: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row.headline and row.value is not None:
            name = slug(row.dictionary, row.dictionary_sha256 or row.key)
            entries.setdefault(name, []).append(_entry(row, dataset, source_url))
    return {
        f"{name}/.eval_results/latentbench.yaml": yaml.safe_dump(found, sort_keys=False, allow_unicode=True)
        for name, found in entries.items()
    }


def _entry(row: Row, dataset: str, source_url: str | None) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "dataset": {"id": dataset, "task_id": f"{row.task}.{row.metric}"},
        "value": row.value,
        "date": row.finished,
        "notes": _notes(row),
    }
    if source_url is not None:
        entry["source"] = {"url": source_url, "name": "latentbench"}
    return entry


def _notes(row: Row) -> str:
    parts = [row.unit or "", f"on {row.lm}", f"target L0 {row.target_l0:g}" if row.target_l0 else ""]
    if row.low is not None and row.high is not None:
        parts.append(f"{100 * (row.level or 0):g} % interval {row.low:.6g} to {row.high:.6g}")
    parts += [f"{row.n} of unit {row.resampling_unit}", f"seed {row.seed}"]
    parts.append(f"judge {row.judge}" if row.judge else "")
    parts.append("control" if row.control else "")
    return "; ".join(part for part in parts if part)
