"""Records that the tests of the store share."""

from __future__ import annotations

from typing import Any

from latentbench.store import (
    CellIdentity,
    Curve,
    CurvePoint,
    ErrorRecord,
    Interval,
    Metric,
    RunRecord,
)


def cell(**changes: Any) -> CellIdentity:
    """A cell, with any field changed."""
    fields: dict[str, Any] = {
        "lm": {"name": "toy", "revision": "r1", "dtype": "float32", "attention": "sdpa"},
        "dictionary": {"sha256": "ab" * 32, "loader": 1, "overrides": {"k": 64}},
        "task": {"name": "core", "version": "1.0", "config": {"thresholds": [0.1, 0.2]}},
        "judge": {"model": "m", "rubric": "r", "temperature": 0.0},
        "corpus": {"name": "texts", "sha256": "cd" * 32, "split": "test"},
        "token_policy": {"skip_first": 1},
        "sparsity": {"mode": "topk", "target_l0": 64},
        "seed": 0,
    }
    return CellIdentity.model_validate(fields | changes)


def record(of: CellIdentity | None = None, **changes: Any) -> RunRecord:
    """An ok record with one of everything."""
    of = of or cell()
    fields: dict[str, Any] = {
        "key": of.key(),
        "measurement_key": of.measurement_key(),
        "status": "ok",
        "cell": of,
        "labels": {"dictionary": "TopK, größer"},
        "metrics": [
            Metric(
                name="explained_variance",
                value=0.1 + 0.2,
                interval=Interval(low=0.25, high=0.35, method="cluster bootstrap, bca"),
                n=120,
                resampling_unit="document",
                unit="share",
                direction="higher",
                note="centred, raw space",
                headline=True,
            ),
            Metric(
                name="agreement",
                value=None,
                n=0,
                resampling_unit="latent",
                unit="share",
                direction="higher",
                reason="no units",
            ),
        ],
        "curves": [
            Curve(
                name="rarefaction",
                x_name="tokens watched",
                x_unit="tokens",
                unit="latents",
                points=[
                    CurvePoint(x=1000.0, value=12.5, low=10.0, high=15.0),
                    CurvePoint(x=2000.0, value=None),
                ],
            )
        ],
        "counts": {"tokens": 2000, "unscored": 3},
        "provenance": {"package": {"name": "latentbench", "version": "0.1.0"}},
        "started": "2026-01-02T03:04:05+00:00",
        "finished": "2026-01-02T03:05:05+00:00",
    }
    return RunRecord.model_validate(fields | changes)


def failed(of: CellIdentity | None = None) -> RunRecord:
    """A failed record."""
    error = ErrorRecord(type="AdapterError", message="does not fit", traceback="...")
    return record(of, status="failed", error=error, metrics=[], curves=[])
