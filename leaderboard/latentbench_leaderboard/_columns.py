"""Which numbers stand in one column: the same metric from the same judge under the same settings.

Two cells of a task may differ in task version, options, corpus or token policy. The settings that most rows
share are the column's; a row measured only under others is shown there, marked with what differs, and
unranked. Settings under which a row was measured *besides* the column's get a column of their own. The judge
is never mixed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from latentbench.identity import sha256_json
from latentbench.store import Difference, Metric, differences
from latentbench_leaderboard._cards import TaskCard, task_card
from latentbench_leaderboard._format import clip, humanise, number
from latentbench_leaderboard._subjects import Entry, Subject

__all__ = ["Column", "Pick", "columns_of", "difference_text", "settings", "tokens_watched"]

_TASKS_FIRST = ("feature_count", "interpretability", "steering", "core")
_COUNT_UNITS = ("latents", "features")


@dataclass(frozen=True)
class Pick:
    """What one row has for a column."""

    entry: Entry
    """The cell."""
    metric: Metric | None
    """Its metric; None in a failed cell, or one that lacks the metric."""
    differs: tuple[Difference, ...] = ()
    """Settings other than the column's."""
    mark: str = ""
    """Why it is not comparable with the column, empty if it is."""
    more_seeds: tuple[int, ...] = ()
    """Further seeds under which the same was measured."""


@dataclass(frozen=True)
class Column:
    """One column of a board."""

    id: str
    """Unique on the site; letters, digits, dots and hyphens."""
    task: str
    """Name of the task."""
    task_title: str
    """Title of the task."""
    metric: str | None
    """Name of the metric; None when every cell of the task failed."""
    title: str
    """Title of the metric."""
    judge: str | None
    """Label of the judge."""
    calibration: str | None
    """What is known of the judge, in a line."""
    unit: str
    """Unit of the values."""
    direction: str
    """"higher", "lower" or "none"."""
    setting: str
    """Budget and differing settings, for the head of the column."""
    definition: str
    """The definition in one line."""
    headline: bool
    """Whether the board shows it."""
    picks: dict[str, Pick]
    """By key of the row."""

    @property
    def suites(self) -> list[str]:
        """Suites that measured it."""
        return sorted({suite for pick in self.picks.values() if (suite := pick.entry.suite)})

    @property
    def ranked(self) -> bool:
        """Whether the metric has a better end."""
        return self.direction in ("higher", "lower")


def columns_of(subjects: Sequence[Subject], *, headline: bool = True) -> list[Column]:
    """The columns of a board: every metric of every task, judge and setting.

    Args:
        subjects: the rows.
        headline: only the metrics that the board shows.
    """
    cells: dict[tuple[str, str | None, str], dict[str, list[Entry]]] = {}
    for subject in subjects:
        for entry in subject.entries:
            judge = entry.record.cell.judge
            place = (entry.task, entry.judge, sha256_json(judge) if judge is not None else "")
            cells.setdefault(place, {}).setdefault(subject.key, []).append(entry)
    columns: list[Column] = []
    for (task, name, judge_key), rows in sorted(cells.items(), key=_task_order):
        label = name
        if name and sum(place[:2] == (task, name) for place in cells) > 1:
            label = f"{name} [{judge_key[:6]}]"  # two judges of one name: still two columns
        columns += _task_columns(task_card(task), label, rows, subjects, headline)
    return columns


def settings(entry: Entry) -> dict[str, Any]:
    """What must be equal for the numbers of two dictionaries to be compared."""
    cell = entry.record.cell
    return {"task": cell.task, "corpus": cell.corpus, "token_policy": cell.token_policy}


def difference_text(found: Sequence[Difference], limit: int = 3) -> str:
    """Differing settings in words; the usual ones come first in each difference."""
    texts = [
        f"{difference.field.removeprefix('task.').removeprefix('config.')} {_short(difference.second)} "
        f"instead of {_short(difference.first)}"
        for difference in found
    ]
    more = f" and {len(texts) - limit} more" if len(texts) > limit else ""
    return ", ".join(texts[:limit]) + more


def tokens_watched(entry: Entry) -> int | None:
    """How many tokens a cell's counts come from."""
    counts = entry.record.counts
    return next((counts[name] for name in ("tokens_watched", "tokens") if name in counts), None)


def _task_order(item: tuple[tuple[str, str | None, str], Any]) -> tuple[int, str, str, str]:
    task, judge, key = item[0]
    place = _TASKS_FIRST.index(task) if task in _TASKS_FIRST else len(_TASKS_FIRST)
    return (place, task, judge or "", key)


def _task_columns(
    card: TaskCard,
    judge: str | None,
    rows: dict[str, list[Entry]],
    subjects: Sequence[Subject],
    headline: bool,
) -> list[Column]:
    usual, *extra = _variants(rows, subjects)
    columns = []
    for variant in (usual, *extra):
        picked = {
            key: pick for key, entries in rows.items() if (pick := _pick(entries, usual, variant, extra))
        }
        columns += _metric_columns(
            card, judge, picked, difference_text(differences(usual, variant)), headline
        )
    return columns


def _variants(rows: dict[str, list[Entry]], subjects: Sequence[Subject]) -> list[dict[str, Any]]:
    """The usual settings first, then those under which some row was measured besides the usual ones."""
    ranked = {subject.key for subject in subjects if not subject.control}
    known: dict[str, dict[str, Any]] = {}
    votes: Counter[str] = Counter()
    by_row: dict[str, set[str]] = {}
    for key, entries in rows.items():
        for entry in entries:
            name = sha256_json(settings(entry))
            known[name] = settings(entry)
            if name not in by_row.setdefault(key, set()):
                by_row[key].add(name)
                # An ok cell of a ranked row outvotes any number of controls and failures.
                votes[name] += 1 + 1000 * (key in ranked and entry.record.status == "ok")
    order = sorted(known, key=lambda name: (-votes[name], name))
    besides = [name for name in order[1:] if any({order[0], name} <= found for found in by_row.values())]
    return [known[order[0]], *(known[name] for name in besides)]


def _pick(
    entries: list[Entry], usual: dict[str, Any], variant: dict[str, Any], extra: list[dict[str, Any]]
) -> Pick | None:
    """The cell to show for one row: that of the lowest seed, an ok one before a failed one."""
    exact = sorted((e for e in entries if settings(e) == variant), key=_ok_first)
    if exact:
        seeds = tuple(sorted({e.record.cell.seed for e in exact[1:]} - {exact[0].record.cell.seed}))
        return Pick(exact[0], None, more_seeds=seeds)
    if variant is not usual:
        return None
    foreign = sorted((e for e in entries if settings(e) not in extra), key=_ok_first)
    if not foreign:
        return None
    return Pick(foreign[0], None, tuple(differences(usual, settings(foreign[0]))))


def _ok_first(entry: Entry) -> tuple[bool, int, str]:
    return (entry.record.status != "ok", entry.record.cell.seed, entry.record.key)


def _metric_columns(
    card: TaskCard, judge: str | None, picked: dict[str, Pick], variant: str, headline: bool
) -> list[Column]:
    names: dict[str, Metric] = {}
    for pick in picked.values():
        for metric in pick.entry.record.metrics:
            if metric.headline or not headline:
                names.setdefault(metric.name, metric)
    ordered = sorted(names.values(), key=lambda metric: card.order(metric.name))
    if not ordered:
        if all(pick.entry.record.status == "ok" for pick in picked.values()):
            return []  # a task without headline metrics is for the dictionary pages alone
        return [_column(card, judge, None, picked, variant)]
    return [_column(card, judge, metric, picked, variant) for metric in ordered]


def _column(
    card: TaskCard, judge: str | None, metric: Metric | None, picked: dict[str, Pick], variant: str
) -> Column:
    name = metric.name if metric else "failed"
    counted = metric is not None and metric.unit in _COUNT_UNITS
    budget = _usual_budget(picked.values()) if counted else None
    texts = [f"in {number(budget, 0)} tokens" if budget is not None else "", variant]
    return Column(
        id=f"{_safe(card.name)}.{_safe(name)}-{sha256_json([card.name, name, judge, variant])[:8]}",
        task=card.name,
        task_title=card.title,
        metric=metric.name if metric else None,
        title=card.metric_title(name) if metric else humanise("score"),
        judge=judge,
        calibration=next((pick.entry.calibration for pick in picked.values()), None),
        unit=clip(metric.unit, 40) if metric else "",
        direction=metric.direction if metric else "none",
        setting="; ".join(text for text in texts if text),
        definition=(card.metric_text(name, "definition") or clip(metric.note, 2000)) if metric else "",
        headline=metric is not None and metric.headline,
        picks={key: _with_metric(pick, name, budget) for key, pick in picked.items()},
    )


def _with_metric(pick: Pick, name: str, budget: int | None) -> Pick:
    watched = tokens_watched(pick.entry)
    differs, marks = list(pick.differs), []
    if budget is not None and watched is not None and watched != budget:
        # A count grows with the tokens watched, so another budget makes another quantity.
        marks.append(f"in {number(watched, 0)} tokens, not {number(budget, 0)}")
        differs = [d for d in differs if (d.first, d.second) != (budget, watched)]  # said already
    if differs:
        marks.append(f"other settings: {difference_text(differs)}")
    return replace(pick, metric=pick.entry.record.metric(name), mark="; ".join(marks))


def _usual_budget(picks: Iterable[Pick]) -> int | None:
    usual: Counter[int] = Counter()
    for pick in picks:
        watched = tokens_watched(pick.entry)
        if watched is not None and pick.entry.record.status == "ok" and not pick.differs:
            usual[watched] += 1
    return min(usual, key=lambda tokens: (-usual[tokens], -tokens)) if usual else None


def _safe(name: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in name)[:40]


def _short(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return clip(str(value), 40)
    return number(float(value), 0) if float(value).is_integer() else f"{value:g}"
