"""Results as a flat table: one row per metric, and one per failed cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from latentbench.identity import sha256_json
from latentbench.store import Metric, RunRecord
from latentbench_leaderboard._subjects import judge_label, task_name
from latentbench_leaderboard._values import real, whole

__all__ = ["Row", "rows_of"]


class Row(NamedTuple):
    """One number with everything that it needs to be read alone."""

    lm: str
    """Name of the language model."""
    lm_revision: str | None
    """Its revision."""
    dictionary: str
    """Display name of the dictionary."""
    dictionary_sha256: str | None
    """sha256 of its weights."""
    family: str | None
    """Its family."""
    control: bool
    """Whether its scores are known to mean nothing."""
    sites: str
    """Sites that it reads, with spaces between them."""
    n_latents: int | None
    """Its width."""
    sparsity: str | None
    """How it meets the target: native, topk or calibrated."""
    target_l0: float | None
    """Active latents per token that it is compared at."""
    task: str
    """Name of the task."""
    task_version: str | None
    """Version of the task."""
    judge: str | None
    """What to call the judge; None for tasks that ask none."""
    seed: int
    """Seed of the cell."""
    status: str
    """"ok" or "failed"."""
    metric: str | None
    """Name of the metric; None for a failed cell."""
    value: float | None
    """The number; None where there is none, never 0 for that."""
    low: float | None
    """Lower end of its interval."""
    high: float | None
    """Upper end."""
    level: float | None
    """Nominal coverage of the interval."""
    method: str | None
    """How the interval was made."""
    n: int | None
    """Number of resampling units."""
    resampling_unit: str | None
    """What was sampled independently."""
    unit: str | None
    """Unit of the value."""
    direction: str | None
    """Which end is better."""
    headline: bool
    """Whether the board shows it in its main table."""
    reason: str | None
    """Why there is no value, or what made the cell fail."""
    note: str
    """The definition in one line."""
    settings: str
    """Hash of task, options, corpus and token policy: numbers compare only where it is equal."""
    key: str
    """Key of the cell."""
    finished: str
    """When it was finished, ISO 8601, UTC."""
    package_version: str | None
    """Version of the package that measured it."""


def rows_of(records: Sequence[RunRecord]) -> list[Row]:
    """The rows of some records, sorted by model, dictionary, task, judge and seed."""
    ordered = sorted(
        records, key=lambda r: (_lm(r), _dictionary(r), task_name(r), _judge(r), r.cell.seed, r.key)
    )
    return [row for record in ordered for row in _rows(record)]


def _rows(record: RunRecord) -> list[Row]:
    if record.error is not None:
        return [_row(record, None, f"{record.error.type}: {record.error.message}")]
    return [_row(record, metric, metric.reason) for metric in record.metrics]


def _row(record: RunRecord, metric: Metric | None, reason: str | None) -> Row:
    cell, card = record.cell, _card(record)
    interval = None if metric is None else metric.interval
    package = record.provenance.get("package")
    return Row(
        lm=_lm(record),
        lm_revision=_text(cell.lm.get("revision")),
        dictionary=_dictionary(record),
        dictionary_sha256=_text(cell.dictionary.get("sha256")),
        family=_text(card.get("family")),
        control=card.get("control") is True or record.labels.get("control") is True,
        sites=" ".join(str(site) for site in card.get("reads") or ()),
        n_latents=whole(card.get("n_latents")),
        sparsity=_text(cell.sparsity.get("mode")),
        target_l0=real(cell.sparsity.get("target_l0")),
        task=task_name(record),
        task_version=_text(cell.task.get("version")),
        judge=judge_label(cell.judge),
        seed=cell.seed,
        status=record.status,
        metric=None if metric is None else metric.name,
        value=None if metric is None else metric.value,
        low=None if interval is None else interval.low,
        high=None if interval is None else interval.high,
        level=None if interval is None else interval.level,
        method=None if interval is None else interval.method,
        n=None if metric is None else metric.n,
        resampling_unit=None if metric is None else metric.resampling_unit,
        unit=None if metric is None else metric.unit,
        direction=None if metric is None else metric.direction,
        headline=metric is not None and metric.headline,
        reason=reason,
        note="" if metric is None else metric.note,
        settings=sha256_json([cell.task, cell.corpus, cell.token_policy])[:16],
        key=record.key,
        finished=record.finished,
        package_version=_text(package.get("version")) if isinstance(package, dict) else None,
    )


def _lm(record: RunRecord) -> str:
    return str(record.cell.lm.get("name", "unnamed language model"))


def _judge(record: RunRecord) -> str:
    return judge_label(record.cell.judge) or ""


def _dictionary(record: RunRecord) -> str:
    name = record.labels.get("dictionary") or _card(record).get("name")
    return str(name or sha256_json(record.cell.dictionary)[:8])


def _card(record: RunRecord) -> dict[str, Any]:
    card = record.labels.get("card")
    return {**record.cell.dictionary, **(card if isinstance(card, dict) else {})}


def _text(value: object) -> str | None:
    return None if value is None else str(value)
