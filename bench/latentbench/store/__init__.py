"""Results: append-only items, atomic run records, the response cache, and provenance. No torch."""

from __future__ import annotations

from latentbench.store._cache import NearMiss, ResponseCache
from latentbench.store._files import read_lines
from latentbench.store._folder import CellFolder, Problem, ResultsFolder, load_records
from latentbench.store._migrate import record_schema, stored_schema
from latentbench.store._provenance import provenance, redact
from latentbench.store._records import (
    SCHEMA_VERSION,
    CellIdentity,
    Curve,
    CurvePoint,
    ErrorRecord,
    Interval,
    Metric,
    RunRecord,
    pretty_json,
    utc_now,
)
from latentbench.store._why import ABSENT, Difference, differences
from latentbench.store._writer import CellWriter, ItemFile

__all__ = [
    "ABSENT",
    "SCHEMA_VERSION",
    "CellFolder",
    "CellIdentity",
    "CellWriter",
    "Curve",
    "CurvePoint",
    "Difference",
    "ErrorRecord",
    "Interval",
    "ItemFile",
    "Metric",
    "NearMiss",
    "Problem",
    "ResponseCache",
    "ResultsFolder",
    "RunRecord",
    "differences",
    "load_records",
    "pretty_json",
    "provenance",
    "read_lines",
    "record_schema",
    "redact",
    "stored_schema",
    "utc_now",
]
