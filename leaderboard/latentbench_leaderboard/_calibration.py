"""What the calibrations in a results folder say of its judges (`latentbench judge calibrate JUDGE --out RESULTS`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from latentbench.errors import UserError
from latentbench.identity import sha256_json
from latentbench_leaderboard._format import clip
from latentbench_leaderboard._values import as_list, real

__all__ = ["NO_RUBRICS", "UNCALIBRATED", "calibration_text", "load_calibrations"]

UNCALIBRATED = "not calibrated"
NO_RUBRICS = "judges by similarity: no calibration exists"


def load_calibrations(results: Path) -> dict[str, dict[str, Any]]:
    """The calibrations of a results folder, by the hash of the judge's identity.

    Raises:
        UserError: a file is not JSON, or its name is not the hash of the judge in it.
    """
    found = {}
    for path in sorted((results / "calibration").glob("*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"calibration {path.name} can't be read as JSON: {error}") from error
        judge = content.get("judge") if isinstance(content, dict) else None
        if not isinstance(judge, dict) or sha256_json(judge) != path.stem:
            raise UserError(
                f"calibration {path.name} is not named by the hash of the judge in it: make it with `latentbench judge "
                "calibrate JUDGE --out RESULTS`"
            )
        found[path.stem] = content
    return found


def calibration_text(judge: Mapping[str, Any] | None, known: Mapping[str, dict[str, Any]]) -> str | None:
    """What is known of a judge, in a line; None for tasks that ask none.

    Args:
        judge: the judge of a record, with the rubrics that it was asked.
        known: see `load_calibrations`.
    """
    if judge is None:
        return None
    rubrics = judge.get("rubrics")
    if rubrics is None:
        return NO_RUBRICS
    calibration = known.get(sha256_json({name: value for name, value in judge.items() if name != "rubrics"}))
    if calibration is None or not isinstance(rubrics, dict):
        return UNCALIBRATED
    parts = [
        _part(one)
        for one in as_list(calibration.get("rubrics"))
        if isinstance(one, dict)
        and str(one.get("rubric")) in rubrics
        and rubrics[str(one.get("rubric"))] == one.get("rubric_sha256")
    ]
    if not parts:
        return f"{UNCALIBRATED} on what it was asked: {clip(', '.join(map(str, rubrics)), 100)}"
    return "calibrated: " + "; ".join(parts)


def _part(one: Mapping[str, Any]) -> str:
    name, kappa, interval = (
        clip(str(one.get("rubric")), 40),
        real(one.get("kappa")),
        one.get("kappa_interval"),
    )
    if kappa is None:
        return f"{name} kappa undefined"
    ends = ""
    if isinstance(interval, list) and len(interval) == 2 and all(real(end) is not None for end in interval):
        ends = f" ({float(interval[0]):.2f} to {float(interval[1]):.2f})"
    return f"{name} kappa {kappa:.2f}{ends}{'' if one.get('good') is True else ', below the mark'}"
