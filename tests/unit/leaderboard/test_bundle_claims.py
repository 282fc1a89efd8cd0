"""What a bundle claims beside its numbers: items, words and kinds, notes, calibrations, cards, tiers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bundle_cells import Files, checked, edit_lines, edit_record, failures, file_of, forged, read_zip

from latentbench.errors import UserError
from latentbench.identity import sha256_file
from latentbench.store import CellIdentity, ResultsFolder, pretty_json
from latentbench_leaderboard import BuildOptions, build_site
from latentbench_leaderboard.bundles import (
    add_bundle,
    here,
    read_tiers,
    tiers_path,
    write_bundle,
    write_tiers,
)
from latentbench_leaderboard.bundles._layout import CELL_FILES

FOREIGN = {"source": "111_yelp_data", "document": "a", "excerpt": {"tokens": ["SECRET"]}}
RATING = "monosemanticity"


def again(files: Files, task: str, change: Callable[[dict[str, Any]], None]) -> str:
    """Add a copy of the first cell of a task under a changed identity, and give its folder."""
    folder = file_of(files, task, "")
    identity = json.loads(files[f"{folder}cell.json"])
    change(identity)
    cell = CellIdentity.model_validate(identity)
    record = json.loads(files[f"{folder}run.json"])
    record |= {"key": cell.key(), "measurement_key": cell.measurement_key(), "cell": identity}
    copy = f"runs/{cell.key()[:2]}/{cell.key()}/"
    for name in ("items.jsonl", "judgements.jsonl"):
        if f"{folder}{name}" in files:
            files[f"{copy}{name}"] = files[f"{folder}{name}"]
    files |= {
        f"{copy}run.json": pretty_json(record).encode(),
        f"{copy}cell.json": pretty_json(identity).encode(),
    }
    return copy


def another_judge(identity: dict[str, Any]) -> None:
    identity["judge"]["share"] = 0.5


def other(files: Files, task: str) -> list[str]:
    """Folders of the cells that share the measurement of the first cell of a task."""
    wanted = json.loads(files[file_of(files, task, "run.json")])["measurement_key"]
    records = {name: json.loads(data) for name, data in files.items() if name.endswith("/run.json")}
    return [
        name.removesuffix("run.json") for name, one in records.items() if one["measurement_key"] == wanted
    ]


def sum_up(folder: Path) -> None:
    """Write the checksums of a cell's folder anew."""
    (folder / "SHA256SUMS").unlink(missing_ok=True)
    present = [name for name in CELL_FILES if (folder / name).exists()]
    lines = [f"{sha256_file(folder / name)}  {name}\n" for name in sorted(present)]
    (folder / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


def calibrations(files: Files) -> list[str]:
    return [name for name in files if name.startswith("calibration/")]


class TestItems:
    def test_a_cell_s_own_items_count_and_not_those_of_its_measurement(
        self, bundle: Path, tmp_path: Path
    ) -> None:
        def second_judge(files: Files) -> None:
            for name in {file_of(files, RATING, ""), again(files, RATING, another_judge)}:
                lines = files[f"{name}items.jsonl"].splitlines(keepends=True)
                if name != min(other(files, RATING)):  # of the two, the one that is read last
                    files[f"{name}items.jsonl"] = lines[0]

        path = forged(bundle, tmp_path / "b.zip", second_judge)
        assert any("and" in message for message in failures(path)["summary"])

    def test_kinds_that_the_task_does_not_make(self, bundle: Path, tmp_path: Path) -> None:
        text = {"kind": "generation", "id": "g", "concept": "c", "factor": 1.0, "split": "test", "text": "t"}
        path = forged(
            bundle, tmp_path / "b.zip", lambda files: edit_lines(files, "core", lambda i: i.append(text))
        )
        (message,) = failures(path)["items"]
        assert message == "items.jsonl has items of the kind 'generation', which this task does not make"

    def test_excerpts_behind_something_else(self, bundle: Path, tmp_path: Path) -> None:
        def hide(items: list[dict[str, Any]]) -> None:
            items[0]["deep"] = [None, 1, FOREIGN]

        path = forged(bundle, tmp_path / "b.zip", lambda files: edit_lines(files, "core", hide))
        assert any("111_yelp_data" in message for message in failures(path)["texts"])

    def test_items_that_are_there_are_not_replaced(self, bundle: Path, tmp_path: Path) -> None:
        def other(items: list[dict[str, Any]]) -> None:
            items[0]["more"] = 1

        assert add_bundle(bundle, tmp_path / "board", here).ok
        before = {path: path.read_bytes() for path in (tmp_path / "board").rglob("*") if path.is_file()}
        path = forged(bundle, tmp_path / "b.zip", lambda files: edit_lines(files, "core", other))
        assert checked(path).ok
        with pytest.raises(UserError, match=r"another items\.jsonl of the cell"):
            add_bundle(path, tmp_path / "board", here)
        assert {path: path.read_bytes() for path in before} == before


class TestWords:
    @pytest.fixture
    def quoting(self, measured: Path, tmp_path: Path) -> Path:
        """Results whose judge said why it refused, on contexts of a source that is not free."""
        results = tmp_path / "results"
        shutil.copytree(measured, results)
        for cell in ResultsFolder(results).cells():
            record = cell.record()
            assert record is not None
            if record.cell.task["name"] == RATING:
                said = {
                    "status": "refused",
                    "reason": "refused: SECRET words of the text that I was shown",
                    "raw": "SECRET",
                }
                lines = [json.dumps({**one, **said}) for one in cell.items("judgements")]
                (cell.path / "judgements.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
                sum_up(cell.path)
        return results

    def test_a_refusal_in_the_judge_s_words_stays_at_home(self, quoting: Path, tmp_path: Path) -> None:
        report = write_bundle([quoting], tmp_path / "b.zip")
        files = read_zip(tmp_path / "b.zip")
        told = [
            json.loads(line)
            for name, data in files.items()
            if name.endswith("judgements.jsonl")
            for line in data.splitlines()
        ]
        quiet = [one for one in told if not one["raw"]]
        assert len(quiet) == report.replies_removed > 0
        assert all(one["reason"] is None and one["status"] == "refused" for one in quiet)
        assert "texts" not in failures(tmp_path / "b.zip")

    def test_words_that_were_not_left_out_are_found(self, bundle: Path, tmp_path: Path) -> None:
        def speak(judgements: list[dict[str, Any]]) -> None:
            for one in judgements:
                one["raw"] = "a long reply that quotes what the judge was shown"

        path = forged(
            bundle, tmp_path / "b.zip", lambda files: edit_lines(files, RATING, speak, "judgements.jsonl")
        )
        (message,) = failures(path)["texts"]
        assert "judgements hold the judge's words" in message

    def test_a_second_judge_s_words_are_guarded_by_the_items_it_shares(
        self, measured: Path, tmp_path: Path
    ) -> None:
        results = tmp_path / "results"
        shutil.copytree(measured, results)
        for cell in ResultsFolder(results).cells():
            record = cell.record()
            assert record is not None
            if record.cell.task["name"] != RATING:
                continue
            identity = record.cell.model_copy(update={"judge": {**(record.cell.judge or {}), "share": 0.5}})
            copy = ResultsFolder(results).cell(identity.key())
            copy.path.mkdir(parents=True)
            (copy.path / "cell.json").write_text(
                pretty_json(identity.model_dump(mode="json")), encoding="utf-8"
            )
            fields = {"key": identity.key(), "measurement_key": identity.measurement_key(), "cell": identity}
            (copy.path / "run.json").write_text(record.model_copy(update=fields).to_json(), encoding="utf-8")
            lines = [json.dumps({**one, "raw": "SECRET"}) for one in cell.items("judgements")]
            (copy.path / "judgements.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
            sum_up(copy.path)
        report = write_bundle([results], tmp_path / "b.zip")
        assert report.cells == 8
        assert report.replies_removed
        assert b"SECRET" not in b"".join(read_zip(tmp_path / "b.zip").values())


class TestNotes:
    @pytest.mark.parametrize("note", ["p = 0.0001", "warning: 3 of 7 are unscored", "2.5"])
    def test_numbers_in_notes_come_from_the_items(self, bundle: Path, tmp_path: Path, note: str) -> None:
        def claim(record: dict[str, Any]) -> None:
            record["metrics"][0]["note"] += f"; {note}"

        path = forged(bundle, tmp_path / "b.zip", lambda files: edit_record(files, "core", claim))
        (message,) = failures(path)["summary"]
        assert "a note with numbers that do not come from the items" in message


class TestSideFiles:
    def test_another_calibration_of_a_known_judge(self, bundle: Path, tmp_path: Path) -> None:
        def praise(files: Files) -> None:
            (name,) = calibrations(files)
            body = json.loads(files[name])
            body["rubrics"][0] |= {"kappa": 0.99, "kappa_interval": [0.98, 1], "good": True}
            files[name] = pretty_json(body).encode()

        assert add_bundle(bundle, tmp_path / "board", here).ok
        path = forged(bundle, tmp_path / "b.zip", praise)
        with pytest.raises(UserError, match="has another calibration of the judge"):
            add_bundle(path, tmp_path / "board", here)

    @pytest.mark.parametrize(
        "rubrics", [7, [7], [{"rubric": "x", "kappa": "high", "kappa_interval": ["a", 1]}]]
    )
    def test_a_calibration_of_another_form_is_no_calibration(
        self, bundle: Path, tmp_path: Path, rubrics: Any
    ) -> None:
        def change(files: Files) -> None:
            (name,) = calibrations(files)
            files[name] = pretty_json({**json.loads(files[name]), "rubrics": rubrics}).encode()

        assert "calibration" in failures(forged(bundle, tmp_path / "b.zip", change))

    @pytest.mark.parametrize(
        ("name", "data", "check"),
        [
            (f"calibration/{'ab' * 32}.json", b"not json", "json"),
            (f"calibration/{'ab' * 32}.json", b'{"judge": {"name": "other"}}', "schema"),
            (f"cards/{'ab' * 32}.json", b'{"a": NaN, "a": 1}', "json"),
            (f"cards/{'ab' * 32}.json", b'{"family": "topk"}', "schema"),
        ],
    )
    def test_cards_and_calibrations_are_read_though_nobody_asked(
        self, bundle: Path, tmp_path: Path, name: str, data: bytes, check: str
    ) -> None:
        def change(files: Files) -> None:
            files[name] = data

        assert check in failures(forged(bundle, tmp_path / "b.zip", change))


class TestTiers:
    def test_tiers_inside_of_a_folder_are_its_maker_s_word(self, bundle: Path, tmp_path: Path) -> None:
        shutil.unpack_archive(bundle, tmp_path / "folder")
        (tmp_path / "folder" / "bundle.json").unlink()
        keys = [cell.key for cell in ResultsFolder(tmp_path / "folder").cells()]
        write_tiers(tiers_path(tmp_path / "folder"), dict.fromkeys(keys, "reproduced"), {"last": None})
        (ResultsFolder(tmp_path / "folder").cell(keys[0]).path / "evil.html").write_text("<script>")
        assert add_bundle(tmp_path / "folder", tmp_path / "board", here).ok
        assert set(read_tiers(tiers_path(tmp_path / "board")).values()) == {"checked"}
        assert not list((tmp_path / "board").rglob("evil.html"))

    def test_tiers_of_another_form_are_the_user_s_error(self, tmp_path: Path) -> None:
        (tmp_path / "tiers.json").write_text('{"format": 1, "cells": {"a": [1]}}', encoding="utf-8")
        with pytest.raises(UserError, match="holds no tiers"):
            read_tiers(tmp_path / "tiers.json")


class TestBuild:
    """What a check may let pass must not break a build."""

    @pytest.mark.parametrize(
        "item",
        [
            {"contexts": 7},
            {"positives": 7, "negatives": "x"},
            {"contexts": [{"document": "a", "start": [1], "end": {}}]},
            {
                "contexts": [
                    {
                        "document": "a",
                        "source": "39_arith_infix",
                        "start": 0,
                        "end": 3,
                        "activation": 1e6,
                        "excerpt": {
                            "tokens": ["a", "b", "c"],
                            "activations": [1, True, 1e308],
                            "activated": 1,
                        },
                    }
                ]
            },
        ],
    )
    @pytest.mark.parametrize("local", [True, False])
    def test_items_of_latents(self, bundle: Path, tmp_path: Path, item: dict[str, Any], local: bool) -> None:
        latent = {"kind": "latent", "id": "zz", "latent": 0, "events": 3, **item}
        shutil.unpack_archive(
            forged(
                bundle,
                tmp_path / "b.zip",
                lambda files: edit_lines(files, "feature_count", lambda items: items.append(latent)),
            ),
            tmp_path / "r",
        )
        assert build_site(tmp_path / "r", tmp_path / "site", BuildOptions(local_texts=local)).latents

    @pytest.mark.parametrize("target", [[1], {"a": 1}, 1e308, -4, True, "64"])
    def test_targets(self, bundle: Path, tmp_path: Path, target: object) -> None:
        def change(files: Files) -> None:
            again(files, "core", lambda identity: identity["sparsity"].update(target_l0=target))

        shutil.unpack_archive(forged(bundle, tmp_path / "b.zip", change), tmp_path / "r")
        report = build_site(tmp_path / "r", tmp_path / "site", BuildOptions())
        assert report.cells == 7
        assert json.loads((tmp_path / "site" / "site.json").read_text())["target_l0"] == [4.0]

    @pytest.mark.parametrize("l0", [1e300, 1e308, -1e308])
    def test_numbers_that_overflow_when_drawn(self, bundle: Path, tmp_path: Path, l0: float) -> None:
        def change(record: dict[str, Any]) -> None:
            for one in record["metrics"]:
                one |= {"value": l0, "interval": None}

        path = forged(bundle, tmp_path / "b.zip", lambda files: edit_record(files, "core", change))
        shutil.unpack_archive(path, tmp_path / "r")
        assert build_site(tmp_path / "r", tmp_path / "site", BuildOptions()).cells == 6
