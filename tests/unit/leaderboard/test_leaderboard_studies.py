"""The studies in the repository: their records are sound, and their pages show what the records say."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from latentbench.store import ResultsFolder, load_records
from latentbench_leaderboard.bundles import check_bundle, isolated
from latentbench_leaderboard.pages import filled, markdown_table, page_main

STUDIES = sorted((Path(__file__).parents[3] / "leaderboard" / "results").iterdir())
BUNDLED = [folder for folder in STUDIES if list(folder.glob("*.zip"))]


@pytest.mark.parametrize(
    "folder", [one for one in STUDIES if one not in BUNDLED], ids=lambda folder: str(folder.name)
)
def test_records_are_sound_and_hold_no_texts(folder: Path) -> None:
    assert ResultsFolder(folder).verify() == []
    records = load_records(folder)
    assert records
    assert all(record.status == "ok" for record in records)
    assert not [file.name for file in folder.rglob("*.jsonl")]


@pytest.mark.parametrize("folder", BUNDLED, ids=lambda folder: str(folder.name))
def test_every_number_of_a_bundle_follows_from_its_items(folder: Path) -> None:
    assert not (folder / "runs").exists()
    with isolated() as recompute:
        report = check_bundle(folder / f"{folder.name}.zip", recompute)
    assert [finding.line() for finding in report.findings if finding.fails] == []
    assert report.recomputed == len(report.cells) > 0
    assert (folder / f"{folder.name}.zip").stat().st_size < 25e6, "the repository grows by as much each time"


def test_one_study_at_least_holds_its_items() -> None:
    assert [folder.name for folder in BUNDLED] == ["zoo-smollm2"]


@pytest.mark.parametrize("folder", STUDIES, ids=lambda folder: str(folder.name))
def test_the_page_shows_the_records(folder: Path) -> None:
    (script,) = folder.glob("tables_*.py")
    page = (folder / "README.md").read_text(encoding="utf-8")
    assert filled(page, runpy.run_path(str(script))["tables"]()) == page


def test_a_changed_record_shows_in_the_tables() -> None:
    page = "<!-- table a -->\n\n| old |\n| --- |\n\nText.\n"
    assert filled(page, {"a": "| new |"}) == "<!-- table a -->\n\n| new |\n\nText.\n"
    assert filled("<!-- table a -->\n\n| old |\nText.\n", {"a": "| new |"}).endswith("| new |\n\nText.\n")
    with pytest.raises(ValueError, match="no place for table 'b'"):
        filled(page, {"b": "| new |"})


def test_a_script_prints_its_tables_or_writes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "README.md"
    page.write_text("<!-- table a -->\n\n", encoding="utf-8")
    table = markdown_table(["x", "y"], [["1", "2"]])
    monkeypatch.setattr(sys, "argv", ["tables"])
    page_main(tmp_path, lambda: {"a": table}, "")
    assert capsys.readouterr().out == "\na\n\n| x | y |\n| --- | --- |\n| 1 | 2 |\n"
    monkeypatch.setattr(sys, "argv", ["tables", "--write"])
    page_main(tmp_path, lambda: {"a": table}, "")
    assert page.read_text(encoding="utf-8") == f"<!-- table a -->\n\n{table}\n"
