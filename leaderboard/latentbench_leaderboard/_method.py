"""The pages on method and metrics: what every number means, in the words of the tasks and of the records themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from latentbench.identity import sha256_json
from latentbench_leaderboard._board import by_model, lm_label
from latentbench_leaderboard._cards import task_card
from latentbench_leaderboard._columns import columns_of
from latentbench_leaderboard._errata import Erratum
from latentbench_leaderboard._format import clip, flat, plain
from latentbench_leaderboard._subjects import Subject
from latentbench_leaderboard._validity import validity_of

__all__ = [
    "MetricMeaning",
    "TaskMeaning",
    "TokenPolicyView",
    "meanings_of",
    "metric_id",
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
    law: str = ""
    """What holds for it whatever is measured, if the card says so."""
    id: str = ""
    """Anchor on the page."""
    validity: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """By model, judge and setting: what the records say of it."""
    errata: tuple[Erratum, ...] = ()
    """Corrections that name it."""


@dataclass(frozen=True)
class TaskMeaning:
    """What one task measures."""

    name: str
    """Name of the task."""
    title: str
    """Title."""
    summary: str
    """Summary of its card."""
    law: str
    """What holds for all its numbers, whatever is measured."""
    versions: tuple[str, ...]
    """Versions among the records."""
    metrics: tuple[MetricMeaning, ...]
    """Its metrics."""


@dataclass(frozen=True)
class TokenPolicyView:
    """Which tokens were measured."""

    text: str
    """In a sentence."""
    fields: tuple[tuple[str, str], ...]
    """All fields."""


def meanings_of(subjects: Sequence[Subject], errata: Sequence[Erratum] = ()) -> list[TaskMeaning]:
    """Every task of the records with its metrics, in order of name."""
    names = sorted({entry.task for subject in subjects for entry in subject.entries})
    validity = _validity(subjects)
    return [_meaning(name, subjects, validity, errata) for name in names]


def metric_id(task: str, metric: str) -> str:
    """Anchor of a metric on the metrics page; names may hold anything, so only safe letters stay."""
    safe = "".join(c if c.isascii() and c.isalnum() else "-" for c in f"{task}-{metric}")[:60]
    return f"{safe}-{sha256_json([task, metric])[:6]}"


def _validity(subjects: Sequence[Subject]) -> dict[tuple[str, str], list[tuple[str, tuple[str, ...]]]]:
    found: dict[tuple[str, str], list[tuple[str, tuple[str, ...]]]] = {}
    models = by_model(subjects)
    for _, group in models:
        for column in columns_of(group, headline=False):
            said = validity_of(column, group)
            if said and column.metric and column.ranked:
                where = [lm_label(group[0].lm) if len(models) > 1 else "", column.judge or "", column.setting]
                text = ", ".join(part for part in where if part)
                found.setdefault((column.task, column.metric), []).append((text, tuple(said)))
    return found


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


def _meaning(
    name: str,
    subjects: Sequence[Subject],
    validity: dict[tuple[str, str], list[tuple[str, tuple[str, ...]]]],
    errata: Sequence[Erratum],
) -> TaskMeaning:
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
                    law=card.metric_text(metric.name, "law"),
                    id=metric_id(name, metric.name),
                    validity=tuple(validity.get((name, metric.name), ())),
                    errata=tuple(one for one in errata if f"{name}.{metric.name}" in one.metrics),
                )
    ordered = sorted(metrics, key=card.order)
    return TaskMeaning(
        name=name,
        title=card.title,
        summary=card.summary,
        law=card.law,
        versions=tuple(
            sorted({clip(str(record.cell.task.get("version", "unknown")), 20) for record in records})
        ),
        metrics=tuple(_with_methods(metrics[metric], methods.get(metric, set())) for metric in ordered),
    )


def _with_methods(meaning: MetricMeaning, methods: set[str]) -> MetricMeaning:
    return replace(meaning, methods=tuple(sorted(methods)))
