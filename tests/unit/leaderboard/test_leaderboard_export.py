"""Exports: complete, escaped, and valid by the other projects' own schemas."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import yaml
from huggingface_hub import parse_eval_result_entries
from jsonschema import Draft202012Validator
from leaderboard_records import DICTIONARIES, HOSTILE, HOSTILE_IMAGE, cell_of, metric, record_of

from latentbench.cli._main import _run
from latentbench.store import RunRecord, load_records
from latentbench_leaderboard.exports import (
    EEE_VERSION,
    Row,
    csv_text,
    eee_files,
    hf_files,
    latex_text,
    markdown_text,
    rows_of,
    write_parquet,
)

SCHEMA = Path(__file__).parent / "every_eval_ever" / "eval.schema.json"
MADE = DICTIONARIES[0]


@pytest.fixture(scope="module")
def records(results: Path) -> list[RunRecord]:
    return load_records(results)


@pytest.fixture(scope="module")
def rows(records: list[RunRecord]) -> list[Row]:
    return rows_of(records)


def named(name: str, **fields: Any) -> RunRecord:
    record = record_of(MADE, cell_of(MADE, "core", {}), [metric("kl", -0.5, 0.1), metric("b", 1.0)])
    return record.model_copy(update={"labels": {**record.labels, "dictionary": name}, **fields})


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_there_is_a_row_for_every_metric_and_every_failed_cell(
    records: list[RunRecord], rows: list[Row]
) -> None:
    assert len(rows) == sum(len(record.metrics) or 1 for record in records)
    failed = [row for row in rows if row.status == "failed"]
    assert [(row.metric, row.value, row.task) for row in failed] == [(None, None, "steering")]
    assert str(failed[0].reason).startswith("AdapterError: ")
    by_place = {(record.key, one.name): one for record in records for one in record.metrics}
    for row in rows:
        if row.metric is not None:
            one = by_place[(row.key, row.metric)]
            assert (row.value, row.n, row.unit, row.note) == (one.value, one.n, one.unit, one.note)
            assert (row.low, row.high) == (
                (one.interval.low, one.interval.high) if one.interval else (None, None)
            )


def test_csv_keeps_every_value(rows: list[Row]) -> None:
    read = read_csv(csv_text(rows))
    assert len(read) == len(rows)
    for line, row in zip(read, rows, strict=True):
        assert line["value"] == ("" if row.value is None else repr(row.value))
        assert line["control"] in ("true", "false")
    assert all(not line["value"] for line in read if line["status"] == "failed")


@pytest.mark.parametrize(
    "name",
    ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "  =1", "\N{FULLWIDTH EQUALS SIGN}1"],
)
def test_no_text_of_a_csv_is_a_formula(name: str) -> None:
    line, _ = read_csv(csv_text(rows_of([named(name)])))
    assert line["dictionary"] == f"'{name}"
    assert line["value"] == "-0.5"  # a number stays a number


@pytest.mark.parametrize("name", ['a "quoted", name', "two\nlines", "größer", "plain"])
def test_a_csv_holds_any_name(name: str) -> None:
    assert read_csv(csv_text(rows_of([named(name)])))[0]["dictionary"] == name


def test_parquet_is_typed_and_complete(rows: list[Row], tmp_path: Path) -> None:
    write_parquet(rows, tmp_path / "t.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "t.parquet")
    assert table.to_pylist() == [row._asdict() for row in rows]
    kinds = {field.name: str(field.type) for field in table.schema}
    assert (kinds["value"], kinds["n"], kinds["headline"], kinds["metric"]) == (
        "double",
        "int64",
        "bool",
        "string",
    )


def test_without_pyarrow_parquet_says_what_to_do(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert _run(["export", "parquet", str(results), "--out", str(tmp_path / "t.parquet")]) == 2
    assert "pip install latentbench[parquet]" in capsys.readouterr().err
    assert not (tmp_path / "t.parquet").exists()


def test_markdown_shows_names_as_they_are(rows: list[Row]) -> None:
    text = markdown_text(rows)
    assert HOSTILE not in text
    assert HOSTILE_IMAGE not in text
    assert "JumpReLU &lt;script&gt;" in text
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in table}) == 1
    assert "Intervals in brackets: 95 %." in text
    hostile = markdown_text(rows_of([named("a | b\n| c | `x` [y](z) *w* $v$ \\")]))
    assert r"| a \| b \| c \| \`x\` \[y\](z) \*w\* \$v\$ \\ |" in hostile


def test_tables_hold_headline_numbers_with_intervals_and_controls_are_named(rows: list[Row]) -> None:
    text = markdown_text(rows)
    row = next(r for r in rows if r.dictionary == "RouteSAE" and r.metric == "explained_variance")
    assert f"{row.value:.3f} ({row.low:.3f} to {row.high:.3f})" in text
    assert "normalised\\_mse" not in text  # no headline metric
    assert "TopK, random decoder (control)" in text
    assert "unscored" in text
    negative = markdown_text(rows_of([named("x")]))
    assert "\N{MINUS SIGN}0.50 (\N{MINUS SIGN}0.60 to \N{MINUS SIGN}0.40)" in negative


def test_several_seeds_are_rows_of_their_own() -> None:
    made = [
        record_of(MADE, cell_of(MADE, "core", {}, seed=seed), [metric("kl", 0.5 + seed, 0.1)])
        for seed in (0, 1)
    ]
    text = markdown_text(rows_of(made))
    assert "seed 0 | 0.50 (0.40 to 0.60)" in text
    assert "seed 1 | 1.50 (1.40 to 1.60)" in text


def test_numbers_under_other_settings_are_marked(rows: list[Row]) -> None:
    text = markdown_text(rows)
    marked = [line for line in text.splitlines() if line.startswith("| JumpReLU")]
    assert re.search(r"\d \([\d.]+ to [\d.]+\)\* \|", marked[0])  # its counts are of a smaller budget
    assert "* measured under other settings than most of its column: not comparable." in text
    assert "% * measured under other settings" in latex_text(rows)
    assert "measured under other settings" not in markdown_text([one for one in rows if one.task == "core"])


def test_latex_escapes_everything() -> None:
    name = r"\input{/etc/passwd} % & # $x$ _ ^ ~ < > { } |" + "\n\\write18{rm}"
    text = latex_text(rows_of([named(name)]))
    line = next(line for line in text.splitlines() if "passwd" in line)
    assert r"\textbackslash{}input\{/etc/passwd\} \% \& \# \$x\$ \_" in line
    assert r"\textbackslash{}write18\{rm\}" in line  # the line break became a space
    assert line.endswith(r"\\")
    assert len(re.findall(r"(?<!\\)&", line)) == 2
    assert "$-0.50$ ($-0.60$ to $-0.40$)" in line


def test_every_eval_ever_is_valid_by_its_own_schema(records: list[RunRecord]) -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    assert schema["version"] == EEE_VERSION
    validator = Draft202012Validator(schema)
    files = eee_files(records)
    scored = [record for record in records if any(one.value is not None for one in record.metrics)]
    assert len(files) == len(scored)
    for name, text in files.items():
        body = json.loads(text)
        assert [error.message for error in validator.iter_errors(body)] == []
        assert re.fullmatch(r"data/latentbench/[a-z0-9-]+/[0-9a-f-]{36}\.json", name)
        for result in body["evaluation_results"]:
            config = result["metric_config"]
            if isinstance(config["min_score"], float):
                assert config["min_score"] <= result["score_details"]["score"] <= config["max_score"]
    assert eee_files(records) == files  # nothing depends on the time
    body["comment"] = "x"
    assert not validator.is_valid(body)


def test_every_eval_ever_says_how_sure_a_score_is() -> None:
    (text,) = eee_files([named("x")]).values()
    first, second = json.loads(text)["evaluation_results"]
    interval = first["score_details"]["uncertainty"]["confidence_interval"]
    assert interval == {
        "lower": -0.6, "upper": -0.4, "confidence_level": 0.95, "method": "cluster bootstrap, bca",
    }  # fmt: skip
    assert (first["metric_config"]["min_score"], second["metric_config"]["min_score"]) == ("-Infinity", 0.0)
    assert second["score_details"]["uncertainty"] == {"num_samples": 120}


def test_hugging_face_reads_its_own_format(rows: list[Row]) -> None:
    files = hf_files(rows, "somebody/latentbench", "https://example.org/board")
    names = {row.dictionary for row in rows if row.headline and row.value is not None}
    assert len(files) == len(names)
    for name, text in files.items():
        assert re.fullmatch(r"[a-z0-9-]+/\.eval_results/latentbench\.yaml", name)
        entries = parse_eval_result_entries(yaml.safe_load(text))
        assert {entry.dataset_id for entry in entries} == {"somebody/latentbench"}
        assert all(isinstance(entry.value, float) for entry in entries)
        assert {entry.source_url for entry in entries} == {"https://example.org/board"}
    assert "95 % interval" in text


def test_the_command(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["export", "csv", str(results)]) == 0
    assert capsys.readouterr().out.startswith("lm,lm_revision,dictionary,")
    for kind, name in (("csv", "t.csv"), ("md", "t.md"), ("latex", "t.tex"), ("parquet", "t.parquet")):
        assert _run(["export", kind, str(results), "--out", str(tmp_path / name)]) == 0
        assert (tmp_path / name).stat().st_size > 500
    assert _run(["export", "eee", str(results), "--out", str(tmp_path / "eee")]) == 0
    assert _run(["export", "hf", str(results), "--out", str(tmp_path / "hf"), "--dataset", "a/b"]) == 0
    assert len(list((tmp_path / "hf").glob("*/.eval_results/latentbench.yaml"))) == 7
    capsys.readouterr()
    for wrong, message in (
        (["eee", "--out", str(tmp_path / "eee")], "nothing is overwritten"),
        (["eee"], "name what to write with --out"),
        (["hf", "--out", str(tmp_path / "x")], "--dataset OWNER/NAME"),
        (["csv", "--dataset", "a/b"], "are for hf, not for csv"),
        (["exel"], "is not one of"),
    ):
        assert _run(["export", wrong[0], str(results), *wrong[1:]]) == 2
        assert message in capsys.readouterr().err
