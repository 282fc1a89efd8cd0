"""Formats of the run record: its JSON Schema, and how records of older formats are read.

`run-record.schema.json` beside this file is the schema of the present format, for readers in other languages; a test
holds it to the model. A change of the format raises `SCHEMA_VERSION`, adds a step here and a golden file to the tests.
A step must leave `cell` as it is: a record's key is its hash.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any, Final

from latentbench.store._records import SCHEMA_VERSION, RunRecord

__all__ = ["MIGRATIONS", "SCHEMA_FILE", "Step", "migrated", "record_schema", "stored_schema"]

Step = Callable[[dict[str, Any]], dict[str, Any]]
"""From the JSON of a record of one format to that of the next, `schema_version` left out of account."""

MIGRATIONS: Final[Mapping[int, Step]] = {}
"""The step from each format that is not the present one. There has been one format so far."""

SCHEMA_FILE: Final = "run-record.schema.json"
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def migrated(
    record: dict[str, Any], steps: Mapping[int, Step] = MIGRATIONS, present: int = SCHEMA_VERSION
) -> dict[str, Any]:
    """A record's JSON in the present format.

    Args:
        record: of any format.
        steps: see `MIGRATIONS`.
        present: the present format.

    Raises:
        ValueError: the format is newer than the present one, or no step leads on from it.
    """
    version = record.get("schema_version", 1)
    if not isinstance(version, int) or isinstance(version, bool):
        raise ValueError(f"has record format {version!r}, which is no number")
    if version > present:
        raise ValueError(
            f"has record format {version}, this latentbench reads up to {present}; upgrade latentbench"
        )
    while version < present:
        if version not in steps:
            raise ValueError(f"has record format {version}, from which no step leads to {present}")
        version += 1
        record = {**steps[version - 1](record), "schema_version": version}
    return record


def record_schema() -> dict[str, Any]:
    """The JSON Schema of the present format, from the model."""
    schema = RunRecord.model_json_schema(mode="serialization")
    name = f"latentbench run record, format {SCHEMA_VERSION}"
    return {"$schema": _DIALECT, **schema, "title": name}


def stored_schema() -> dict[str, Any]:
    """The JSON Schema that is shipped as a file."""
    text = files("latentbench.store").joinpath(SCHEMA_FILE).read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema
