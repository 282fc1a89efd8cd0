"""The method page: what every number means, in the words of the tasks and of the records themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from latentbench_leaderboard._cards import task_card
from latentbench_leaderboard._format import clip, flat, plain
from latentbench_leaderboard._subjects import Subject

__all__ = [
    "JudgeView",
    "MetricMeaning",
    "TaskMeaning",
    "TokenPolicyView",
    "judges_of",
    "meanings_of",
    "policies_of",
]


@dataclass(frozen=True)
class MetricMeaning:
    """What one metric means."""

    title: str
    """Title."""
    name: str
    """Name in records."""
    unit: str
    """Unit."""
    direction: str
    """Which end is better."""
    definition: str
    """Definition of the task's card, else of the records."""
    chance: str
    """What chance would give, if the card says so."""
    resampling_unit: str
    """What its interval resamples."""
    methods: tuple[str, ...]
    """How its intervals were made."""


@dataclass(frozen=True)
class TaskMeaning:
    """What one task measures."""

    name: str
    """Name of the task."""
    title: str
    """Title."""
    summary: str
    """Summary of its card."""
    versions: tuple[str, ...]
    """Versions among the records."""
    metrics: tuple[MetricMeaning, ...]
    """Its metrics."""


@dataclass(frozen=True)
class JudgeView:
    """One judge and everything that can change its verdicts."""

    label: str
    """Name."""
    calibration: str
    """What is known of it, in a line."""
    identity: tuple[tuple[str, str], ...]
    """All fields."""


@dataclass(frozen=True)
class TokenPolicyView:
    """Which tokens were measured."""

    text: str
    """In a sentence."""
    fields: tuple[tuple[str, str], ...]
    """All fields."""


def meanings_of(subjects: Sequence[Subject]) -> list[TaskMeaning]:
    """Every task of the records with its metrics, in order of name."""
    names = sorted({entry.task for subject in subjects for entry in subject.entries})
    return [_meaning(name, subjects) for name in names]


def judges_of(subjects: Sequence[Subject]) -> list[JudgeView]:
    """Every judge of the records."""
    found: dict[tuple[tuple[str, str], ...], tuple[str, str]] = {}
    for subject in subjects:
        for entry in subject.entries:
            if entry.record.cell.judge is not None and entry.judge is not None:
                found[tuple(flat(entry.record.cell.judge))] = (entry.judge, entry.calibration or "")
    return [
        JudgeView(label, calibration, identity)
        for identity, (label, calibration) in sorted(found.items(), key=lambda pair: (pair[1], pair[0]))
    ]


def policies_of(subjects: Sequence[Subject]) -> list[TokenPolicyView]:
    """Every token policy of the records; a board of one suite has one."""
    found: dict[tuple[tuple[str, str], ...], str] = {}
    for subject in subjects:
        for entry in subject.entries:
            policy = entry.record.cell.token_policy
            skipped = policy.get("skip_first")
            if isinstance(skipped, int) and skipped > 0:
                places = "Position 0" if skipped == 1 else f"The first {plain(skipped)} positions"
                text = f"{places} of every row, and padding, are left out of encoding, metrics and edits."
            else:
                text = "Padding is left out of encoding, metrics and edits; no position is skipped."
            found[tuple(flat(policy))] = text
    return [TokenPolicyView(text, fields) for fields, text in sorted(found.items())]


def _meaning(name: str, subjects: Sequence[Subject]) -> TaskMeaning:
    card = task_card(name)
    records = [entry.record for subject in subjects for entry in subject.entries if entry.task == name]
    metrics: dict[str, MetricMeaning] = {}
    methods: dict[str, set[str]] = {}
    for record in records:
        for metric in record.metrics:
            if metric.interval is not None:
                methods.setdefault(metric.name, set()).add(clip(metric.interval.method, 200))
            known = metrics.get(metric.name)
            if known is None or (not known.definition and metric.note):
                metrics[metric.name] = MetricMeaning(
                    title=card.metric_title(metric.name),
                    name=clip(metric.name),
                    unit=clip(metric.unit, 40),
                    direction=metric.direction,
                    definition=card.metric_text(metric.name, "definition") or clip(metric.note, 2000),
                    chance=card.metric_text(metric.name, "chance"),
                    resampling_unit=clip(metric.resampling_unit, 40),
                    methods=(),
                )
    ordered = sorted(metrics, key=card.order)
    return TaskMeaning(
        name=name,
        title=card.title,
        summary=card.summary,
        versions=tuple(
            sorted({clip(str(record.cell.task.get("version", "unknown")), 20) for record in records})
        ),
        metrics=tuple(_with_methods(metrics[metric], methods.get(metric, set())) for metric in ordered),
    )


def _with_methods(meaning: MetricMeaning, methods: set[str]) -> MetricMeaning:
    return replace(meaning, methods=tuple(sorted(methods)))
