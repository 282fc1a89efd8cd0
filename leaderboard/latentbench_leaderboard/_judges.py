"""The page of judges: who they are, and what their calibration says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from latentbench.identity import sha256_json
from latentbench_leaderboard._calibration import UNCALIBRATED
from latentbench_leaderboard._format import clip, flat, plain
from latentbench_leaderboard._subjects import Subject

__all__ = ["JudgeView", "RubricView", "judges_of"]

_FACTS = (
    ("exact", "Share of verdicts that are exactly right"),
    ("retest", "Equal verdicts when asked again"),
    ("turned", "Equal verdicts with the material in reverse order"),
    ("turned_shift", "Mean change of the verdict when reversed"),
    ("canaries", "Planted verdicts that raised the rating"),
)


@dataclass(frozen=True)
class RubricView:
    """What a judge is worth on one rubric."""

    name: str
    """Name of the rubric."""
    asked: bool
    """Whether a record asked the judge this very rubric."""
    good: bool
    """Whether it passes the calibration's mark."""
    kappa: str
    """Weighted kappa with the truth, with its interval."""
    spearman: str
    """Rank correlation with the truth, with its interval."""
    anchors: str
    """How many cases were asked, and how many had no verdict."""
    facts: tuple[tuple[str, str], ...]
    """The rest: exactness, repeatability, order, planted verdicts, false positives by kind."""


@dataclass(frozen=True)
class JudgeView:
    """One judge of the records."""

    label: str
    """As on the board."""
    calibration: str
    """What is known of it, in a line."""
    tasks: tuple[str, ...]
    """Tasks that asked it."""
    models: str
    """Models that answered, as the server named them; empty without a calibration."""
    rubrics: tuple[RubricView, ...]
    """Its calibration by rubric."""
    identity: tuple[tuple[str, str], ...]
    """All fields of its identity."""


def judges_of(subjects: Sequence[Subject], calibrations: Mapping[str, dict[str, Any]]) -> list[JudgeView]:
    """Every judge of the records.

    Args:
        subjects: the rows.
        calibrations: by hash of the judge's identity, see `load_calibrations`.
    """
    judges: dict[str, Mapping[str, Any]] = {}
    labels: dict[str, tuple[str, str]] = {}
    tasks: dict[str, set[str]] = {}
    for subject in subjects:
        for entry in subject.entries:
            judge = entry.record.cell.judge
            if judge is not None and entry.judge is not None:
                key = sha256_json(judge)
                judges[key], labels[key] = judge, (entry.judge, entry.calibration or UNCALIBRATED)
                tasks.setdefault(key, set()).add(entry.task)
    return [
        _view(judges[key], *labels[key], sorted(tasks[key]), calibrations)
        for key in sorted(judges, key=lambda key: (labels[key], key))
    ]


def _view(
    judge: Mapping[str, Any],
    label: str,
    text: str,
    tasks: list[str],
    calibrations: Mapping[str, dict[str, Any]],
) -> JudgeView:
    bare = {name: value for name, value in judge.items() if name != "rubrics"}
    calibration = calibrations.get(sha256_json(bare), {})
    rubrics = calibration.get("rubrics")
    asked = judge.get("rubrics")
    models = calibration.get("models")
    return JudgeView(
        label=label,
        calibration=text,
        tasks=tuple(tasks),
        models=clip(", ".join(map(str, models)), 200) if isinstance(models, list) else "",
        rubrics=tuple(
            _rubric(one, asked if isinstance(asked, dict) else {})
            for one in (rubrics if isinstance(rubrics, list) else [])
            if isinstance(one, dict)
        ),
        identity=tuple(flat(judge)),
    )


def _rubric(one: Mapping[str, Any], asked: Mapping[str, Any]) -> RubricView:
    name = str(one.get("rubric"))
    facts = [(title, text) for key, title in _FACTS if (text := _text(one.get(key)))]
    false = one.get("false_positives")
    for kind, share in false.items() if isinstance(false, dict) else ():
        facts.append((f"Rated too high: {clip(str(kind), 60)}", _text(share)))
    unscored = one.get("unscored")
    lost = sum(v for v in unscored.values() if isinstance(v, int)) if isinstance(unscored, dict) else 0
    return RubricView(
        name=clip(name, 60),
        asked=asked.get(name) == one.get("rubric_sha256"),
        good=one.get("good") is True,
        kappa=_with_interval(one, "kappa"),
        spearman=_with_interval(one, "spearman"),
        anchors=f"{_text(one.get('anchors')) or 'unknown'} cases, {lost} without a verdict",
        facts=tuple(facts),
    )


def _with_interval(one: Mapping[str, Any], name: str) -> str:
    value, ends = _text(one.get(name)), one.get(f"{name}_interval")
    if not value:
        return "undefined"
    low, high = (_text(end) for end in ends) if isinstance(ends, list) and len(ends) == 2 else ("", "")
    return f"{value} ({low} to {high})" if low and high else value


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return ""
    return plain(round(value, 3)) if isinstance(value, (int, float)) else clip(str(value), 80)
