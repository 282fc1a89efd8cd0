"""Tiers, measuring a sample again, and taking a bundle in."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from bundle_cells import edit_lines, edit_record, file_of, forged, read_zip, sealed, write_zip

from latentbench.cli._main import _run
from latentbench.errors import UserError
from latentbench.run._suite import checked_suite
from latentbench.store import Metric, ResultsFolder, RunRecord, load_records
from latentbench_leaderboard import BuildOptions, build_site
from latentbench_leaderboard.bundles import (
    Tier,
    add_bundle,
    here,
    lowest,
    read_tiers,
    tiers_path,
    write_tiers,
)
from latentbench_leaderboard.bundles._verify import NotRun, by_command, sample, suite_of, suite_text
from latentbench_leaderboard.verification import Verification, verify_bundle

NAMES = {"random SAE": "zoo:a", "random RouteSAE": "zoo:b"}


@pytest.fixture
def records(measured: Path) -> list[RunRecord]:
    return load_records(measured)


@pytest.fixture
def copied(bundle: Path, tmp_path: Path) -> Path:
    return write_zip(tmp_path / "b.zip", read_zip(bundle))


class Again:
    """Gives the records that are there, changed or not, in place of running anything."""

    def __init__(self, records: list[RunRecord], change: Any = lambda metric: metric) -> None:
        self.records, self.change = records, change
        self.asked: list[Mapping[str, Any]] = []

    def __call__(self, suite: Mapping[str, Any]) -> list[RunRecord]:
        self.asked.append(suite)
        task, name = suite["tasks"][0]["name"], suite["dictionaries"][0]["name"]
        return [
            record.model_copy(update={"metrics": [self.change(metric) for metric in record.metrics]})
            for record in self.records
            if (record.cell.task["name"], record.labels["dictionary"]) == (task, name)
        ]


def verified(bundle: Path, again: Any, cells: int = 6, seed: int = 0) -> Verification:
    return verify_bundle(bundle, cells, seed, again, dictionaries=NAMES, judge=None)


def test_cells_that_agree_are_reproduced(copied: Path, records: list[RunRecord]) -> None:
    found = verified(copied, Again(records), cells=2)
    assert found.ok
    assert [one.result for one in found.outcomes] == ["agrees", "agrees"]
    assert sorted(found.tiers.values()) == ["checked"] * 4 + ["reproduced"] * 2
    assert read_tiers(tiers_path(copied)) == found.tiers
    assert tiers_path(copied).name == "b.zip.tiers.json"


def shifted(metric: Metric, by: float) -> Metric:
    if metric.value is None or metric.interval is None:
        return metric
    width = metric.interval.high - metric.interval.low
    moved = metric.interval.model_copy(
        update={"low": metric.interval.low + by * width, "high": metric.interval.high + by * width}
    )
    return metric.model_copy(update={"value": metric.value + by * width, "interval": moved})


def test_numbers_must_agree_within_their_intervals(copied: Path, records: list[RunRecord]) -> None:
    assert verified(copied, Again(records, lambda metric: shifted(metric, 0.01))).ok
    found = verified(copied, Again(records, lambda metric: shifted(metric, 3.0)))
    assert not found.ok
    differs = [one for one in found.outcomes if one.result == "differs"]
    assert len(differs) >= 4
    assert all("beyond the interval" in line for one in differs for line in one.lines)
    assert {found.tiers[one.key] for one in differs} == {"self-reported"}


def test_another_cell_proves_nothing(copied: Path, records: list[RunRecord]) -> None:
    def other(suite: Mapping[str, Any]) -> list[RunRecord]:
        cell = records[0].cell.model_copy(update={"lm": {"name": "another"}})
        return [
            records[0].model_copy(
                update={"cell": cell, "key": cell.key(), "measurement_key": cell.measurement_key()}
            )
        ]

    found = verified(copied, other)
    assert {one.result for one in found.outcomes} == {"not run"}
    assert "what is here is another cell, by " in found.outcomes[0].lines[0]
    assert not found.ok
    assert set(found.tiers.values()) == {"checked"}


def test_a_bundle_that_fails_its_check_is_not_run(
    bundle: Path, tmp_path: Path, records: list[RunRecord]
) -> None:
    bad = forged(
        bundle, tmp_path / "b.zip", lambda files: edit_record(files, "core", lambda r: r["counts"].clear())
    )
    again = Again(records)
    found = verified(bad, again)
    assert (found.ok, found.outcomes, again.asked) == (False, (), [])
    assert set(found.tiers.values()) == {"self-reported"}


def test_the_draw_is_fixed_by_bundle_and_seed(records: list[RunRecord]) -> None:
    drawn = {seed: tuple(r.key for r in sample(records, 2, f"id/{seed}")) for seed in range(12)}
    assert drawn[0] == tuple(r.key for r in sample(records[::-1], 2, "id/0"))
    assert len(set(drawn.values())) > 4
    assert len(sample(records, 99, "id/0")) == 6


def test_the_suite_says_what_the_record_says(records: list[RunRecord]) -> None:
    for record in records:
        text = suite_text(suite_of(record, NAMES, None))
        suite = checked_suite(tomllib.loads(text), "suite")
        assert suite.seeds == (record.cell.seed,)
        assert suite.dictionaries[0].source == NAMES[str(record.labels["dictionary"])]
        assert suite.tokens.context == record.cell.token_policy["context"]
        options = {k: v for k, v in record.cell.task["config"].items() if v is not None}  # type: ignore[union-attr]
        assert suite.tasks[0].options == options
        assert suite.judge == "chance" or record.cell.judge is None
        assert suite.target_l0 == record.cell.sparsity["target_l0"]


@pytest.mark.parametrize("name", ['a"b\\', "new\nline", "\x7f\x00 \u2028 größer", "= ]] }", "a.b"])
def test_toml_holds_any_text(name: str) -> None:
    suite = {name: {name: [name, 1.5, True, 3, {"x": name}]}, "nothing": None}
    assert tomllib.loads(suite_text(suite)) == {name: {name: [name, 1.5, True, 3, {"x": name}]}}


def test_nothing_that_a_stranger_names_is_opened_unasked(records: list[RunRecord]) -> None:
    for source in ("/home/me/sae", "somebody/repository", "toy"):
        card = {"source": source}
        record = records[0].model_copy(update={"labels": {"dictionary": "x", "card": card}})
        with pytest.raises(NotRun, match="say where its dictionary is: --dict 'x=SOURCE'"):
            suite_of(record, {}, None)
    record = records[0].model_copy(update={"labels": {"dictionary": "x", "card": {"source": "zoo:y"}}})
    assert suite_of(record, {}, None)["dictionaries"][0]["source"] == "zoo:y"
    judged = next(record for record in records if record.cell.judge)
    foreign = judged.cell.model_copy(update={"judge": {"name": "openai", "model": "x"}})
    with pytest.raises(NotRun, match="name its judge with --judge"):
        suite_of(judged.model_copy(update={"cell": foreign}), NAMES, None)
    assert suite_of(judged.model_copy(update={"cell": foreign}), NAMES, "openai:x")["judge"] == "openai:x"


def test_the_command_runs_cells_and_says_why_it_can_not(records: list[RunRecord]) -> None:
    suite = suite_of(records[0], {"random SAE": "zoo:no-such", "random RouteSAE": "zoo:no-such"}, None)
    with pytest.raises(NotRun, match="`latentbench run` refused it: error: "):
        by_command("cpu")(suite)


def test_exit_codes(copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["leaderboard", "verify", str(copied), "--cells", "1"]
    assert _run(command) == 1  # nothing here knows these dictionaries
    out = capsys.readouterr().out
    assert "say where its dictionary is" in out
    assert "0 of 1 cells were reproduced" in out
    assert _run([*command, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["outcomes"][0]["result"] == "not run"
    assert _run([*command, "--dict", "nothing"]) == 2
    assert _run(["leaderboard", "check", str(copied), "--tiers"]) == 0
    assert set(read_tiers(tiers_path(copied)).values()) == {"checked"}


def test_a_checked_bundle_is_taken_in_with_its_tiers(copied: Path, tmp_path: Path) -> None:
    results = tmp_path / "board"
    report = add_bundle(copied, results, here)
    assert report.ok
    keys = [cell.key for cell in ResultsFolder(results).cells()]
    assert len(keys) == 6
    assert read_tiers(tiers_path(results)) == dict.fromkeys(keys, "checked")
    write_tiers(tiers_path(copied), {keys[0]: "reproduced"}, {"last": "another bundle of this name"})
    assert add_bundle(copied, results, here).ok  # again is no harm
    assert read_tiers(tiers_path(results)) == dict.fromkeys(keys, "checked")
    write_tiers(tiers_path(copied), {keys[0]: "reproduced"}, {"last": report.id})
    assert add_bundle(copied, results, here).ok
    assert read_tiers(tiers_path(results)) == {**dict.fromkeys(keys, "checked"), keys[0]: "reproduced"}
    assert ResultsFolder(results).verify() == []
    assert len(list(results.glob("cards/*.json"))) == 2


def test_a_bundle_that_fails_or_contradicts_is_not_taken_in(
    bundle: Path, copied: Path, tmp_path: Path
) -> None:
    results = tmp_path / "board"

    def worse(items: list[dict[str, Any]]) -> None:
        items.pop()

    bad = forged(bundle, tmp_path / "bad.zip", lambda files: edit_lines(files, "core", worse))
    assert not add_bundle(bad, results, here).ok
    assert not results.exists()
    assert add_bundle(copied, results, here).ok
    other = forged(
        bundle,
        tmp_path / "other.zip",
        lambda files: edit_record(files, "core", lambda r: r["labels"].update(suite="another")),
    )
    before = {path: path.read_bytes() for path in results.rglob("*.json")}
    with pytest.raises(UserError, match="has another record of the cell"):
        add_bundle(other, results, here)
    assert {path: path.read_bytes() for path in results.rglob("*.json")} == before


def test_the_board_shows_the_weakest_tier_of_each_row(measured: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    shutil.copytree(measured, results)
    build_site(results, tmp_path / "plain", BuildOptions())
    assert 'class="sub tier"' not in (tmp_path / "plain" / "index.html").read_text(encoding="utf-8")
    records = load_records(results)
    tiers: dict[str, Tier] = {record.key: "reproduced" for record in records}
    weak = next(record for record in records if record.labels["dictionary"] == "random SAE")
    write_tiers(tiers_path(results), {**tiers, weak.key: "checked"}, {})
    build_site(results, tmp_path / "site", BuildOptions(target_l0=(4.0,), tolerance=0.99))
    page = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert sorted(re.findall(r'class="sub tier">([\w-]+)<', page)) == ["checked", "reproduced"]


def test_tiers_of_others_are_refused(bundle: Path, tmp_path: Path) -> None:
    for text in ("[]", '{"format": 1, "cells": {"a": "certain"}}', '{"format": 2, "cells": {}}', "x"):
        (tmp_path / "t.json").write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match="tiers"):
            read_tiers(tmp_path / "t.json")
    assert lowest(["reproduced", "checked"]) == "checked"
    assert lowest([]) == "self-reported"
    files = read_zip(bundle)
    files[file_of(files, "core", "").rpartition("/runs")[0] + "tiers.json"] = b"{}"
    assert (
        verified(write_zip(tmp_path / "b.zip", sealed(files)), Again([])).report.findings[0].check
        == "container"
    )
