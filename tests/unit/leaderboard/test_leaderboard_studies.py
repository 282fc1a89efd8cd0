"""The studies in the repository: their records are sound, and their pages show what the records say."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from latentbench.store import ResultsFolder, load_records

STUDIES = sorted((Path(__file__).parents[3] / "leaderboard" / "results").iterdir())


@pytest.mark.parametrize("folder", STUDIES, ids=lambda folder: str(folder.name))
def test_records_are_sound_and_hold_no_texts(folder: Path) -> None:
    assert ResultsFolder(folder).verify() == []
    records = load_records(folder)
    assert records
    assert all(record.status == "ok" for record in records)
    assert not [file.name for file in folder.rglob("*.jsonl")]


@pytest.mark.parametrize("folder", STUDIES, ids=lambda folder: str(folder.name))
def test_the_page_shows_the_records(folder: Path) -> None:
    study = runpy.run_path(str(folder / "tables.py"))
    page = (folder / "README.md").read_text(encoding="utf-8")
    assert study["filled"](page, study["tables"]()) == page


def test_a_changed_record_shows_in_the_tables(tmp_path: Path) -> None:
    study = runpy.run_path(str(STUDIES[0] / "tables.py"))
    page = "<!-- table a -->\n\n| old |\n| --- |\n\nText.\n"
    assert study["filled"](page, {"a": "| new |"}) == "<!-- table a -->\n\n| new |\n\nText.\n"
    with pytest.raises(ValueError, match="no place for table 'b'"):
        study["filled"](page, {"b": "| new |"})
