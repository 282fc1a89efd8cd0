"""What `latentbench leaderboard check` finds, bundles forged with fitting checksums included."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bundle_cells import (
    Files,
    checked,
    edit_lines,
    edit_record,
    failures,
    file_of,
    forged,
    write_calibration,
)
from leaderboard_records import DICTIONARIES, cell_of, finish, metric, record_of

from latentbench.cli._main import _run
from latentbench.store import ResultsFolder
from latentbench_leaderboard.bundles import MANIFEST, check_bundle, isolated, write_bundle

STUDIES = Path(__file__).parents[3] / "leaderboard" / "results"


def set_value(name: str, value: float) -> Callable[[dict[str, Any]], None]:
    def change(record: dict[str, Any]) -> None:
        one = next(metric for metric in record["metrics"] if metric["name"] == name)
        one["value"] = value

    return change


def test_an_edited_score_is_found_though_every_checksum_fits(bundle: Path, tmp_path: Path) -> None:
    path = forged(
        bundle, tmp_path / "b.zip", lambda files: edit_record(files, "core", set_value("kl", 0.001))
    )
    found = failures(path)
    assert set(found) == {"summary"}
    (message,) = found["summary"]
    assert re.fullmatch(r"metric 'kl' is 0.001 in the record and [\d.]+ from the items", message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r["metrics"][1].update(interval=None), "has the interval none in the record and"),
        (lambda r: r["metrics"][1]["interval"].update(method="guess"), "has the interval"),
        (lambda r: r["metrics"][1].update(n=12345), "has n '12345' in the record and"),
        (lambda r: r["metrics"][1].update(headline=False), "has headline 'False' in the record and"),
        (lambda r: r["metrics"].pop(1), "comes from the items and is not in the record"),
        (
            lambda r: r["metrics"][1].update(name="better"),
            "metric 'better' is in the record and does not come",
        ),
        (lambda r: r["counts"].update(tokens=10**6), "count 'tokens' is 1000000 in the record and"),
    ],
)
def test_every_part_of_a_summary_is_compared(
    bundle: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    path = forged(bundle, tmp_path / "b.zip", lambda files: edit_record(files, "core", change))
    assert message in "\n".join(failures(path)["summary"])


def test_an_edited_curve_is_found(bundle: Path, tmp_path: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        record["curves"][0]["points"][-1]["value"] += 1.0
        record["curves"][0]["points"][-1]["high"] += 2.0

    path = forged(bundle, tmp_path / "b.zip", lambda files: edit_record(files, "feature_count", change))
    (message,) = failures(path)["summary"]
    assert re.fullmatch(r"curve '.*' has 1 of 10 points that are not those of the items", message)


def test_edited_items_are_found(bundle: Path, tmp_path: Path) -> None:
    def change(items: list[dict[str, Any]]) -> None:
        items[0]["kl"] += 1.0

    path = forged(bundle, tmp_path / "b.zip", lambda files: edit_lines(files, "core", change))
    assert set(failures(path)) == {"summary"}
    path = forged(bundle, tmp_path / "c.zip", lambda files: edit_lines(files, "core", change), seal=False)
    assert set(failures(path)) == {"manifest", "checksum", "summary"}


def test_edited_judgements_are_found(bundle: Path, tmp_path: Path) -> None:
    def change(judgements: list[dict[str, Any]]) -> None:
        for one in judgements:
            one["verdict"] = 5

    def forge(files: Files) -> None:
        edit_lines(files, "monosemanticity", change, "judgements.jsonl")

    path = forged(bundle, tmp_path / "b.zip", forge)
    assert any("metric 'score'" in message for message in failures(path)["summary"])


def without(files: Files, name: str) -> None:
    del files[name]


def test_missing_items_are_named_and_never_pass_for_computed(bundle: Path, tmp_path: Path) -> None:
    path = forged(
        bundle, tmp_path / "b.zip", lambda files: without(files, file_of(files, "core", "items.jsonl"))
    )
    report = checked(path)
    (finding,) = [finding for finding in report.findings if finding.fails]
    assert finding.check == "missing-items"
    assert finding.about in ("core of random SAE", "core of random RouteSAE")
    allowed = report.allowing(["missing-items"])
    assert allowed.ok
    assert allowed.recomputed == 5
    assert [f.message for f in allowed.findings if f.check == "missing-items"]
    # Half of the items are no items.
    half = forged(
        bundle,
        tmp_path / "c.zip",
        lambda files: edit_lines(files, "core", lambda items: items.__delitem__(0)),
    )
    assert set(failures(half)) == {"summary"}


def test_items_that_are_not_of_the_task_are_a_finding(bundle: Path, tmp_path: Path) -> None:
    def strip(items: list[dict[str, Any]]) -> None:
        for item in items:
            item.pop("ce", None)

    path = forged(bundle, tmp_path / "b.zip", lambda files: edit_lines(files, "core", strip))
    assert "its items do not give a summary: KeyError: \"'ce'\"" in failures(path)["summary"]


def test_a_record_of_another_version_of_its_task_is_not_taken_for_right(tmp_path: Path) -> None:
    results = ResultsFolder.create(tmp_path / "results")
    cell = cell_of(DICTIONARIES[0], "core", {})  # version 1; core is further
    finish(results, record_of(DICTIONARIES[0], cell, [metric("l0", 64.0)]), [{"kind": "core", "id": "a"}])
    write_bundle([results.path], tmp_path / "b.zip")
    (message,) = failures(tmp_path / "b.zip")["version"]
    assert message.startswith(
        "its numbers can't be computed again: it is of version '1' of core; installed is "
    )


def test_readable_texts_are_found(measured: Path, bundle: Path, tmp_path: Path) -> None:
    raw = {
        f"runs/{cell.key[:2]}/{cell.key}/items.jsonl": (cell.path / "items.jsonl").read_bytes()
        for cell in ResultsFolder(measured).cells()
    }
    path = forged(bundle, tmp_path / "b.zip", lambda files: files.update(raw))
    assert any("what this task does not publish" in message for message in failures(path)["texts"])

    def excerpt(items: list[dict[str, Any]]) -> None:
        items[0]["deep"] = [{"source": "111_yelp_data", "excerpt": {"tokens": ["mine"]}}]

    path = forged(bundle, tmp_path / "c.zip", lambda files: edit_lines(files, "core", excerpt))
    assert failures(path) == {
        "texts": ["items.jsonl has excerpts of '111_yelp_data', whose texts are not free to publish"]
    }


def test_an_uncalibrated_judge_is_found(measured: Path, bundle: Path, tmp_path: Path) -> None:
    def forge(files: Files) -> None:
        for name in [name for name in files if name.startswith("calibration/")]:
            del files[name]

    report = checked(forged(bundle, tmp_path / "b.zip", forge))
    (finding,) = [finding for finding in report.findings if finding.fails]
    assert finding.check == "calibration"
    assert "its judge is not calibrated" in finding.message
    assert report.allowing(["calibration"]).ok
    copy = tmp_path / "results"
    shutil.copytree(measured, copy)
    record = next(record for record in ResultsFolder(copy).records() if record.cell.judge)
    judge = {name: value for name, value in (record.cell.judge or {}).items() if name != "rubrics"}
    write_calibration(copy, judge, {"other": "ab" * 32})
    assert "not calibrated on what it was asked" in failures(copy)["calibration"][0]


def test_a_dictionary_that_skipped_a_task_is_found(bundle: Path, tmp_path: Path) -> None:
    def forge(files: Files) -> None:
        folder = file_of(files, "feature_count", "")
        for name in [name for name in files if name.startswith(folder)]:
            del files[name]

    report = checked(forged(bundle, tmp_path / "b.zip", forge))
    (finding,) = [finding for finding in report.findings if finding.fails]
    assert finding.check == "completeness"
    assert finding.message == "has no cell of feature_count, which other dictionaries here have"


@pytest.mark.parametrize(
    ("mode", "l0", "fails", "message"),
    [
        ("native", 64.0, None, ""),
        ("native", 80.0, False, "measured L0 80 is +25 % off the target 64: on the curves, not in the table"),
        ("topk", 80.0, True, "to which mode 'topk' claims to have brought it"),
        ("topk", None, True, "has no measured L0"),
    ],
)
def test_l0_is_held_to_the_target(
    tmp_path: Path, mode: str, l0: float | None, fails: bool | None, message: str
) -> None:
    results = ResultsFolder.create(tmp_path / "results")
    cell = cell_of(DICTIONARIES[0], "core", {}).model_copy(
        update={"sparsity": {"mode": mode, "target_l0": 64.0}}
    )
    l0_metric = metric("l0", l0, reason=None if l0 else "no tokens were watched")
    finish(results, record_of(DICTIONARIES[0], cell, [l0_metric]), [])
    found = [finding for finding in checked(results.path).findings if finding.check == "l0"]
    assert [(finding.fails, message in finding.message) for finding in found] == (
        [] if fails is None else [(fails, True)]
    )


def test_a_newer_bundle_and_a_missing_manifest_are_refused(bundle: Path, tmp_path: Path) -> None:
    def newer(files: Files) -> None:
        manifest = json.loads(files[MANIFEST])
        files[MANIFEST] = json.dumps({**manifest, "format": 2}).encode()

    assert failures(forged(bundle, tmp_path / "b.zip", newer, seal=False)) == {
        "manifest": ["bundle.json has format 2, this latentbench reads 1: upgrade the older one"]
    }
    path = forged(bundle, tmp_path / "c.zip", lambda files: without(files, MANIFEST), seal=False)
    assert failures(path) == {"manifest": ["bundle.json is missing; `latentbench submit` writes it"]}


def test_a_record_of_another_cell_or_a_newer_format_is_refused(bundle: Path, tmp_path: Path) -> None:
    path = forged(
        bundle, tmp_path / "b.zip", lambda files: edit_record(files, "core", lambda r: r.update(key="0" * 64))
    )
    assert "run.json is not a run record: " in failures(path)["schema"][0]
    path = forged(
        bundle,
        tmp_path / "c.zip",
        lambda files: edit_record(files, "core", lambda r: r.update(schema_version=99)),
    )
    assert "run.json has record format 99" in failures(path)["schema"][0]
    path = forged(
        bundle,
        tmp_path / "d.zip",
        lambda files: edit_record(files, "core", lambda r: r.update(comment="trust me")),
    )
    assert "comment: Extra inputs are not permitted" in failures(path)["schema"][0]


def test_the_worker_gives_what_this_process_gives_and_survives_its_death(
    bundle: Path, tmp_path: Path
) -> None:
    with isolated() as recompute:
        report = check_bundle(bundle, recompute)
        assert report == checked(bundle)

        def huge(items: list[dict[str, Any]]) -> None:
            for item in items:
                item["n_latents"] = 10**13

        path = forged(bundle, tmp_path / "b.zip", lambda files: edit_lines(files, "core", huge))
        report = check_bundle(path, recompute)
    (finding,) = [finding for finding in report.findings if finding.fails]
    assert finding.check == "summary"
    assert report.recomputed == 5  # the others are computed after it


def test_exit_codes_and_json(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["leaderboard", "check", str(bundle)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "ok: 6 cells, 6 computed again from their items"
    bad = forged(bundle, tmp_path / "b.zip", lambda files: edit_record(files, "core", set_value("kl", 0.0)))
    assert _run(["leaderboard", "check", str(bad), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["recomputed"]) == (False, 5)
    assert report["findings"][0]["check"] == "summary"
    assert _run(["leaderboard", "check", str(tmp_path / "none.zip")]) == 2
    assert _run(["leaderboard", "check", str(bundle), "--allow", "sumary"]) == 2
    assert "unknown check that may fail 'sumary'" in capsys.readouterr().err
    assert _run(["leaderboard", "check", str(bad), "--allow", "summary"]) == 2
    capsys.readouterr()
    text = tmp_path / "text.zip"
    text.write_text("not a zip", encoding="utf-8")
    assert _run(["leaderboard", "check", str(text)]) == 2
    assert "is not a bundle" in capsys.readouterr().err


def test_an_unpacked_bundle_is_checked_like_a_packed_one(bundle: Path, tmp_path: Path) -> None:
    shutil.unpack_archive(bundle, tmp_path / "folder")
    assert checked(tmp_path / "folder") == checked(bundle)
    (tmp_path / "folder" / "notes.txt").write_text("hello", encoding="utf-8")
    assert failures(tmp_path / "folder") == {"manifest": ["'notes.txt' is not listed"]}


@pytest.mark.parametrize("study", sorted(path.parent.name for path in STUDIES.glob("*/runs")))
def test_our_own_studies_hold_and_their_missing_items_are_named(study: str) -> None:
    report = checked(STUDIES / study)
    left_out = [finding.cell for finding in report.findings if finding.check == "missing-items"]
    assert len(left_out) + report.recomputed == len(report.cells)
    assert len(set(left_out)) == len(left_out)
    unmeasured = study in ("influence-smollm2", "steering-smollm2")  # measure no L0
    assert report.allowing(["missing-items", *(["l0"] if unmeasured else [])]).ok


def test_sealing_alone_changes_nothing_that_is_checked(bundle: Path, tmp_path: Path) -> None:
    assert checked(forged(bundle, tmp_path / "b.zip", lambda files: None)).ok


def test_a_definition_that_is_worded_otherwise_is_a_note(bundle: Path, tmp_path: Path) -> None:
    assert not [one for one in checked(bundle).findings if "worded otherwise" in one.message]
    path = forged(
        bundle,
        tmp_path / "b.zip",
        lambda files: edit_record(files, "core", lambda r: r["metrics"][0].update(note="better")),
    )
    (finding,) = [one for one in checked(path).findings if "worded otherwise" in one.message]
    assert not finding.fails
    assert "the definition of 'l0' and of 0 more" in finding.message
