"""What `latentbench submit` packs: everything that a check needs, and no text that is not free."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from bundle_cells import checked, failures, read_zip
from leaderboard_records import DICTIONARIES, cell_of, finish, metric, record_of

from latentbench.cli._main import _run
from latentbench.errors import UserError
from latentbench.store import ResultsFolder
from latentbench_leaderboard.bundles import MANIFEST, write_bundle
from latentbench_leaderboard.bundles._publish import publish

SOURCES = {"free": "90_glue_qnli", "private": "111_yelp_data"}


def test_a_bundle_of_measured_cells_passes_its_check(bundle: Path) -> None:
    report = checked(bundle)
    assert [finding.line() for finding in report.findings if finding.fails] == []
    assert (len(report.cells), report.recomputed) == (6, 6)
    assert report.id is not None


def test_the_same_results_give_the_same_bytes(measured: Path, bundle: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copied results"
    shutil.copytree(measured, copy)
    write_bundle([copy], tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == bundle.read_bytes()


def test_single_cells_and_several_folders_can_be_packed(measured: Path, bundle: Path, tmp_path: Path) -> None:
    cells = [cell.path for cell in ResultsFolder(measured).cells()]
    assert write_bundle(cells[:1], tmp_path / "one.zip").cells == 1
    assert write_bundle([measured, *cells], tmp_path / "all.zip").cells == 6
    assert read_zip(tmp_path / "all.zip") == read_zip(bundle)


def test_the_manifest_lists_cells_environments_and_files(bundle: Path) -> None:
    files = read_zip(bundle)
    manifest = json.loads(files[MANIFEST])
    assert set(manifest["files"]) == set(files) - {MANIFEST}
    assert sorted({cell["task"] for cell in manifest["cells"].values()}) == [
        "core",
        "feature_count",
        "monosemanticity",
    ]
    (environment,) = manifest["environments"]
    assert environment["libraries"]["numpy"]
    assert "argv" not in environment
    cards = [json.loads(data) for name, data in files.items() if name.startswith("cards/")]
    assert sorted(card["family"] for card in cards) == ["routesae", "topk"]


def test_rows_of_the_feature_count_hold_no_token_classes(measured: Path, bundle: Path) -> None:
    files = read_zip(bundle)
    for cell in ResultsFolder(measured).cells():
        record = cell.record()
        assert record is not None
        if record.cell.task["name"] != "feature_count":
            continue
        name = f"runs/{cell.key[:2]}/{cell.key}/items.jsonl"
        after = [json.loads(line) for line in files[name].splitlines()]
        before = list(cell.items())
        rows = [(one, two) for one, two in zip(before, after, strict=True) if one["kind"] == "row"]
        events = sum(len(places) for _, row in rows for places in row["columns"])
        assert events
        assert sum(len(row["classes"]) for _, row in rows) == events  # nothing but events is left
        assert {len(one["classes"]) for one, _ in rows} != {len(two["classes"]) for _, two in rows}
        for row in (row for _, row in rows):
            assert [place for places in row["columns"] for place in places] == list(
                range(len(row["classes"]))
            )


def test_rows_keep_their_latents_and_lose_what_contexts_were_cut_by(measured: Path, bundle: Path) -> None:
    files, rows = read_zip(bundle), 0
    for cell in ResultsFolder(measured).cells():
        record = cell.record()
        assert record is not None
        if record.cell.task["name"] != "monosemanticity":
            continue
        after = files[f"runs/{cell.key[:2]}/{cell.key}/items.jsonl"].splitlines()
        for before, line in zip(cell.items(), after, strict=True):
            if before["kind"] != "row":
                continue
            rows += 1
            gone = {"at", "strengths", "near_latents", "near_columns", "near_strengths"}
            assert before.keys() - json.loads(line).keys() == gone
            assert json.loads(line).items() <= before.items()
    assert rows


def test_labelled_texts_lose_their_activations_and_counts_are_no_contexts() -> None:
    """Choices count their labelled texts under the names that hold contexts elsewhere."""
    label = {"kind": "contrast", "id": "a", "document": "a", "concepts": {"sport": 1}, "tokens": 9}
    text = {**label, "latents": [3], "sums": [1.5], "active": [2], "peaks": [1.0]}
    choice = {
        "kind": "choice",
        "id": "b",
        "concept": "sport",
        "positives": 24,
        "negatives": 24,
        "latents": [3],
    }
    rating = {"kind": "rating", "id": "c", "status": "ok", "verdict": 2, "raw": "what the judge said"}
    for task in ("steering", "steering_judged"):
        found = publish(task, {}, [text, choice], [rating])
        assert (found.items, found.judgements, found.reduced) == ([label, choice], [rating], True)
        assert publish(task, {}, found.items, found.judgements) == found._replace(reduced=False)


def excerpted(source: str, text: str) -> dict[str, Any]:
    place = {"document": "ab" * 32, "source": source, "start": 0, "end": 3, "text": "t"}
    return {**place, "excerpt": {"tokens": [text], "activations": [1.0], "activated": 0}}


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Results whose items hold excerpts and a judge's words, one of a free source and one of another."""
    results = ResultsFolder.create(tmp_path / "results")
    cell = cell_of(DICTIONARIES[0], "interpretability", {}, {"name": "openai"})
    items = [
        {
            "kind": "latent",
            "id": str(place),
            "latent": place,
            "positives": [excerpted(SOURCES[kind], f"{kind} text")],
            "nested": {"deeper": [{"source": SOURCES[kind], "excerpt": f"{kind} text"}]},
        }
        for place, kind in enumerate(SOURCES)
    ]
    judgements = [
        {
            "kind": "rating",
            "id": str(place),
            "latent": place,
            "status": "ok",
            "verdict": 4,
            "fields": {
                "explanation": f"the contexts say {kind} text again and again",
                "category": "low_level",
            },
            "raw": f"{kind} text",
        }
        for place, kind in enumerate(SOURCES)
    ]
    mixed = {
        "kind": "mixed",
        "id": "mixed-0",
        "status": "ok",
        "verdict": 1,
        "fields": None,
        "raw": "private text",
    }
    folder = finish(
        results, record_of(DICTIONARIES[0], cell, [metric("score", 0.5)]), items, [*judgements, mixed]
    )
    (folder.path / "texts.jsonl").write_text(
        '{"kind": "text", "tokens": ["private text"]}\n', encoding="utf-8"
    )
    return results.path


def test_texts_that_are_not_free_stay_at_home(texts: Path, tmp_path: Path) -> None:
    report = write_bundle([texts], tmp_path / "b.zip")
    files = read_zip(tmp_path / "b.zip")
    everything = b"".join(files.values())
    assert b"private text" not in everything
    assert everything.count(b"free text") == 4  # two excerpts, the judge's explanation and its reply
    assert (report.excerpts_removed, report.replies_removed) == (2, 2)
    assert not [name for name in files if name.endswith("texts.jsonl")]
    ratings = [
        json.loads(line)
        for name, data in files.items()
        if name.endswith("judgements.jsonl")
        for line in data.splitlines()
    ]
    assert [one["verdict"] for one in ratings] == [4, 4, 1]
    assert [one["fields"] and one["fields"]["category"] for one in ratings] == [
        "low_level",
        "low_level",
        None,
    ]
    assert "checksum" not in failures(tmp_path / "b.zip")  # made anew for what was left out


def test_paths_of_this_machine_are_not_in_labels(measured: Path, tmp_path: Path) -> None:
    results = ResultsFolder.create(tmp_path / "results")
    cell = cell_of(DICTIONARIES[0], "core", {})
    record = record_of(DICTIONARIES[0], cell, [metric("l0", 64.0)])
    labels = record.labels | {"card": {**record.labels["card"], "source": "/srv/people/somebody/sae-final"}}  # type: ignore[dict-item]
    finish(results, record.model_copy(update={"labels": labels}), [])
    write_bundle([results.path], tmp_path / "b.zip")
    everything = b"".join(read_zip(tmp_path / "b.zip").values())
    assert b"somebody" not in everything
    assert b"sae-final" in everything


def test_what_can_not_be_submitted_is_said(measured: Path, texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "b.zip"
    with pytest.raises(UserError, match=r"does not end in \.zip"):
        write_bundle([measured], tmp_path / "b.tar")
    empty = ResultsFolder.create(tmp_path / "empty").path
    with pytest.raises(UserError, match="no finished cell"):
        write_bundle([empty], out)
    with pytest.raises(UserError, match="not a results folder"):
        write_bundle([tmp_path], out)
    damaged = tmp_path / "damaged"
    shutil.copytree(measured, damaged)
    items = sorted(damaged.glob("runs/*/*/items.jsonl"))[0]
    items.write_bytes(items.read_bytes()[:-2] + b" }\n")
    with pytest.raises(UserError, match="differs from its checksum"):
        write_bundle([damaged], out)
    assert not list(tmp_path.glob("*.zip"))
    assert not list(tmp_path.glob(".*tmp"))
    out.write_bytes(b"mine")
    with pytest.raises(UserError, match="never overwritten"):
        write_bundle([measured], out)
    assert out.read_bytes() == b"mine"


def test_unfinished_cells_and_cells_without_items_are_named(results: Path, tmp_path: Path) -> None:
    report = write_bundle([results], tmp_path / "b.zip")
    assert len(report.unfinished) == 1
    assert report.failed == 1
    core = [record for record in ResultsFolder(results).records() if record.cell.task["name"] == "core"]
    without = {record.key for record in core if record.labels["dictionary"] != "RouteSAE"}
    assert without == set(report.without_items) & {record.key for record in core}


def test_the_command_says_what_it_left_out(
    texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(["submit", str(texts), "--out", str(tmp_path / "b.zip")]) == 0
    out = capsys.readouterr().out
    assert "2 excerpts were left out for the terms of their sources" in out
    assert "latentbench leaderboard check" in out
    assert _run(["submit", str(texts), "--out", str(tmp_path / "c.zip"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cells"] == 1
    assert _run(["submit", str(texts), "--out", str(tmp_path / "c.zip")]) == 2
    assert "never overwritten" in capsys.readouterr().err
