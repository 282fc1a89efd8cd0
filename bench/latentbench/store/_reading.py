"""Reading the two files of a cell that hold a record, with errors that name the file and the field."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import JsonValue, TypeAdapter, ValidationError

from latentbench.errors import StoreError
from latentbench.store._migrate import migrated
from latentbench.store._records import CellIdentity, RunRecord

__all__ = ["read_identity", "read_record"]

_JSON: TypeAdapter[JsonValue] = TypeAdapter(JsonValue)


def read_identity(path: Path, key: str) -> CellIdentity | None:
    """The identity that `path` holds, or None when there is no such file.

    Raises:
        StoreError: the file can't be read, or is not the identity of the cell `key`.
    """
    if not path.exists():
        return None
    try:
        cell = CellIdentity.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise StoreError(f"{path} is not a cell's identity: {_first(error)}") from error
    if cell.key() != key:
        raise StoreError(f"{path} describes cell {cell.key()}, not the one the folder is named after ({key})")
    return cell


def read_record(path: Path, key: str) -> RunRecord | None:
    """The run record that `path` holds, or None when there is no such file.

    Raises:
        StoreError: the file can't be read, is of a newer format, or is not the record of the cell `key`.
    """
    if not path.exists():
        return None
    record = _parse_record(path)
    if record.key != key:
        raise StoreError(
            f"{path} is the record of cell {record.key}, not the one the folder is named after ({key})"
        )
    return record


def _parse_record(path: Path) -> RunRecord:
    data = path.read_bytes()
    try:
        raw = _JSON.validate_json(data)
    except ValidationError as error:
        raise StoreError(f"{path} is not JSON: {_first(error)}") from error
    if not isinstance(raw, dict):
        raise StoreError(f"{path} is not a run record: it is no JSON object")
    try:
        present = migrated(raw)
    except ValueError as error:
        raise StoreError(f"{path} {error}") from error
    if present is not raw:
        data = json.dumps(present).encode("utf-8")
    try:
        return RunRecord.model_validate_json(data)
    except ValidationError as error:
        raise StoreError(f"{path} is not a run record: {_first(error)}") from error


def _first(error: ValidationError) -> str:
    details = error.errors(include_url=False, include_context=False, include_input=False)
    where = ".".join(str(part) for part in details[0]["loc"])
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    return (f"{where}: " if where else "") + str(details[0]["msg"]) + more
