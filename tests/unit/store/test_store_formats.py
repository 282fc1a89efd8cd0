"""Formats of the run record: the shipped JSON Schema, golden files of every format, migration, refusal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from records_for_tests import cell, failed, record

from latentbench.errors import StoreError
from latentbench.store import SCHEMA_VERSION, ResultsFolder, record_schema, stored_schema
from latentbench.store._migrate import MIGRATIONS, SCHEMA_FILE, migrated
from latentbench.store._reading import read_record

GOLDEN = Path(__file__).parent / "golden"


def test_the_shipped_schema_is_that_of_the_model() -> None:
    advice = (
        f"the model of the run record and {SCHEMA_FILE} differ: if old records can still be read, write the file anew "
        "(`record_schema()`); if not, raise SCHEMA_VERSION, add a migration and a golden file first"
    )
    assert stored_schema() == record_schema(), advice
    Draft202012Validator.check_schema(stored_schema())


def test_records_are_valid_by_the_shipped_schema_and_changed_ones_are_not() -> None:
    validator = Draft202012Validator(stored_schema())
    for one in (record(), failed()):
        validator.validate(json.loads(one.to_json()))
    good = json.loads(record().to_json())
    wrong: list[dict[str, Any]] = [
        {**good, "comment": "x"},
        {**good, "schema_version": SCHEMA_VERSION + 1},
        {**good, "key": "short"},
        {**good, "metrics": [{**good["metrics"][0], "direction": "up"}]},
        {name: value for name, value in good.items() if name != "cell"},
    ]
    assert all(not validator.is_valid(one) for one in wrong)


def test_every_format_has_a_golden_file_that_can_be_read(tmp_path: Path) -> None:
    assert {path.name for path in GOLDEN.glob("run_v*.json")} == {
        f"run_v{version}.json" for version in range(1, SCHEMA_VERSION + 1)
    }
    assert set(MIGRATIONS) == set(range(1, SCHEMA_VERSION))
    for path in GOLDEN.glob("run_v*.json"):
        stored = json.loads(path.read_text(encoding="utf-8"))
        found = read_record(path, stored["key"])
        assert found is not None
        assert (found.schema_version, found.key) == (SCHEMA_VERSION, stored["key"])


def test_older_formats_go_on_step_by_step() -> None:
    steps = {
        1: lambda raw: {**raw, "one": raw["schema_version"]},
        2: lambda raw: {**raw, "two": raw["schema_version"]},
    }
    assert migrated({"schema_version": 1}, steps, 3) == {"schema_version": 3, "one": 1, "two": 2}
    assert migrated({"schema_version": 2}, steps, 3) == {"schema_version": 3, "two": 2}
    same = {"schema_version": 3}
    assert migrated(same, steps, 3) is same


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (SCHEMA_VERSION + 1, r"has record format 2, this latentbench reads up to 1; upgrade latentbench"),
        (0, "has record format 0, from which no step leads to"),
        (True, "has record format True, which is no number"),
        ("1", "has record format '1', which is no number"),
    ],
)
def test_unknown_formats_are_refused_with_the_file_named(tmp_path: Path, version: Any, message: str) -> None:
    folder = ResultsFolder.create(tmp_path).cell(cell().key())
    with folder.writer(cell()) as writer:
        writer.finish(record())
    path = folder.path / "run.json"
    raw = json.loads(path.read_text(encoding="utf-8")) | {"schema_version": version}
    path.write_text(json.dumps(raw), encoding="utf-8")
    with pytest.raises(StoreError, match=rf"run\.json {message}"):
        folder.record()


def test_a_record_that_is_no_object_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("[]", encoding="utf-8")
    with pytest.raises(StoreError, match="no JSON object"):
        read_record(tmp_path / "run.json", "ab" * 32)
