"""What a board says of its judges."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from latentbench.errors import UserError
from latentbench.identity import sha256_json
from latentbench_leaderboard._calibration import calibration_text, load_calibrations

JUDGE = {"name": "openai", "model": "m"}
ASKED = {**JUDGE, "rubrics": {"monosemanticity": "a" * 64}}
GOOD = {
    "rubric": "monosemanticity",
    "rubric_sha256": "a" * 64,
    "kappa": 0.81,
    "kappa_interval": [0.7, 0.9],
    "good": True,
}


def stored(folder: Path, **change: object) -> Path:
    (folder / "calibration").mkdir(parents=True)
    content = {"judge": JUDGE, "rubrics": [{**GOOD, **change}]}
    (folder / "calibration" / f"{sha256_json(JUDGE)}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({}, "calibrated: monosemanticity kappa 0.81 (0.70 to 0.90)"),
        ({"good": False}, "calibrated: monosemanticity kappa 0.81 (0.70 to 0.90), below the mark"),
        ({"kappa": None}, "calibrated: monosemanticity kappa undefined"),
        ({"kappa_interval": None}, "calibrated: monosemanticity kappa 0.81"),
        ({"rubric_sha256": "b" * 64}, "not calibrated on what it was asked: monosemanticity"),
    ],
)
def test_a_calibration_counts_for_the_very_judge_and_rubric(
    tmp_path: Path, change: dict[str, object], text: str
) -> None:
    known = load_calibrations(stored(tmp_path, **change))
    assert calibration_text(ASKED, known) == text
    assert calibration_text({**ASKED, "model": "n"}, known) == "not calibrated"
    assert calibration_text({"name": "embed"}, known) == "judges by similarity: no calibration exists"
    assert calibration_text(None, known) is None


def test_a_calibration_of_another_judge_s_name_is_refused(tmp_path: Path) -> None:
    folder = stored(tmp_path)
    path = next((folder / "calibration").iterdir())
    path.rename(path.with_name(f"{'0' * 64}.json"))
    with pytest.raises(UserError, match="not named by the hash"):
        load_calibrations(folder)
    (folder / "calibration" / "x.json").write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match=r"can't be read as JSON|not named"):
        load_calibrations(folder)
    assert load_calibrations(tmp_path / "none") == {}
