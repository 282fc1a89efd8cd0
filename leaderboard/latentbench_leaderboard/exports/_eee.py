"""Every Eval Ever: one JSON file per cell in the community's schema, 0.3.0, as its datastore lays them out.

The "model" of that schema is the dictionary on its language model. Scores without a value are left out, because the
schema has no place for a reason; so are failed cells. Nothing depends on the time of the export: ids derive from the
cell's key, and the time of retrieval is when the cell was finished.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from latentbench.store import Metric, RunRecord
from latentbench_leaderboard._format import slug
from latentbench_leaderboard.exports._rows import Row, rows_of

__all__ = ["EEE_VERSION", "eee_files"]

EEE_VERSION: Final = "0.3.0"
_DEVELOPER = "latentbench"
_SPACE = uuid.UUID("5b0c4f55-6c3a-5d0e-9b7e-4a5d3f0a1c11")
_BOUNDS = {"share": (0.0, 1.0), "AUROC": (0.0, 1.0), "cosine": (-1.0, 1.0)}
"""Ends of the scale by unit, where there are any."""


def eee_files(records: Sequence[RunRecord]) -> dict[str, str]:
    """The files by their path, `data/latentbench/<model>/<uuid>.json`; cells without any number give none."""
    files: dict[str, str] = {}
    for record in records:
        scored = [metric for metric in record.metrics if metric.value is not None]
        if not scored:
            continue
        row = rows_of([record])[0]
        model = slug(row.dictionary, row.dictionary_sha256 or record.key)
        name = f"data/{_DEVELOPER}/{model}/{uuid.uuid5(_SPACE, record.key)}.json"
        body = _evaluation(record, row, model, scored)
        files[name] = json.dumps(body, indent=2, sort_keys=True, allow_nan=False) + "\n"
    return files


def _evaluation(record: RunRecord, row: Row, model: str, scored: Sequence[Metric]) -> dict[str, Any]:
    finished = str(int(datetime.fromisoformat(record.finished).timestamp()))
    return {
        "schema_version": EEE_VERSION,
        "evaluation_id": f"latentbench-{row.task}/{model}/{record.key[:16]}",
        "evaluation_timestamp": record.finished,
        "retrieved_timestamp": finished,
        "source_metadata": {
            "source_name": "latentbench",
            "source_type": "evaluation_run",
            "source_organization_name": "latentbench",
            "evaluator_relationship": "other",
        },
        "eval_library": {
            "name": "latentbench",
            "version": row.package_version or "unknown",
            "additional_details": {"cell": record.key, "task_version": row.task_version or "unknown"},
        },
        "model_info": _model(row, model),
        "evaluation_results": [_result(record, row, metric) for metric in scored],
    }


def _model(row: Row, model: str) -> dict[str, Any]:
    details = {
        "deployment_type": "self_deployed",
        "model_availability": "unknown",
        "language_model": row.lm,
        "language_model_revision": row.lm_revision,
        "family": row.family,
        "sites": row.sites,
        "n_latents": row.n_latents,
        "sparsity_mode": row.sparsity,
        "target_l0": row.target_l0,
        "weights_sha256": row.dictionary_sha256,
        "control": row.control,
    }
    return {
        "name": row.dictionary,
        "id": f"{_DEVELOPER}/{model}",
        "developer": _DEVELOPER,
        "additional_details": _texts(details),
    }


def _result(record: RunRecord, row: Row, metric: Metric) -> dict[str, Any]:
    corpus = record.cell.corpus
    uncertainty: dict[str, Any] = {"num_samples": metric.n}
    if metric.interval is not None:
        uncertainty["confidence_interval"] = {
            "lower": metric.interval.low,
            "upper": metric.interval.high,
            "confidence_level": metric.interval.level,
            "method": metric.interval.method,
        }
    return {
        "evaluation_result_id": f"{record.key[:16]}/{metric.name}",
        "evaluation_name": f"{row.task}: {metric.name}",
        "evaluation_timestamp": record.finished,
        "source_data": {
            "dataset_name": str(corpus.get("name", "unnamed corpus")),
            "source_type": "other",
            "additional_details": _texts({"sha256": corpus.get("sha256"), "split": corpus.get("split")}),
        },
        "metric_config": _config(record, row, metric),
        "score_details": {
            "score": metric.value,
            "details": _texts({"resampling_unit": metric.resampling_unit, "seed": row.seed}),
            "uncertainty": uncertainty,
        },
    }


def _config(record: RunRecord, row: Row, metric: Metric) -> dict[str, Any]:
    low, high = _BOUNDS.get(metric.unit, ("-Infinity", "Infinity"))
    value = metric.value or 0.0
    if isinstance(low, float) and isinstance(high, float) and not low <= value <= high:
        low, high = "-Infinity", "Infinity"  # such as explained variance, which has no lower end
    return {
        "evaluation_description": metric.note,
        "metric_id": f"latentbench.{row.task}.{metric.name}",
        "metric_name": metric.name,
        "metric_unit": metric.unit,
        "lower_is_better": metric.direction == "lower",
        "score_type": "continuous",
        "min_score": low,
        "max_score": high,
        "additional_details": _texts(
            {
                "direction": metric.direction,
                "headline": metric.headline,
                "judge": row.judge,
                "rubrics": None if record.cell.judge is None else record.cell.judge.get("rubrics"),
            }
        ),
    }


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    """As the schema wants details: texts; what is not known is left out."""
    return {
        name: value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        for name, value in values.items()
        if value is not None
    }
