"""What the site reads: the finished cells of a results folder, sorted into the rows of boards.

A row is one dictionary at one sparsity on one language model. Its display name and card come from the
records' labels, which are not hashed; everything that tells rows apart comes from the cells' identities.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from latentbench.errors import StoreError, UserError
from latentbench.identity import sha256_json
from latentbench.store import CellFolder, Metric, ResultsFolder, RunRecord
from latentbench_leaderboard._calibration import calibration_text, load_calibrations
from latentbench_leaderboard._format import clip, short_sha, slug
from latentbench_leaderboard._values import as_list
from latentbench_leaderboard.bundles import Tier, lowest, read_tiers, tiers_path

__all__ = ["Entry", "Subject", "items_of_kind", "judge_label", "load_subjects", "task_name"]

_L0_NAMES = ("l0", "measured_l0")


@dataclass(frozen=True)
class Entry:
    """One finished cell."""

    record: RunRecord
    """Its record, ok or failed."""
    folder: CellFolder
    """Where its items are."""
    measured: CellFolder
    """Where its items are: its own folder, or that of the cell whose measurement it shares."""
    calibration: str | None = None
    """What is known of its judge, in a line; None for tasks that ask none."""

    @property
    def task(self) -> str:
        """Name of the task."""
        return task_name(self.record)

    @property
    def judge(self) -> str | None:
        """Label of the judge, None for tasks that ask none."""
        return judge_label(self.record.cell.judge)

    @property
    def suite(self) -> str:
        """Name of the suite that measured it, empty if the record has none."""
        suite = self.record.labels.get("suite")
        return clip(suite, 60) if isinstance(suite, str) else ""


@dataclass(frozen=True)
class Subject:
    """One row of a board."""

    key: str
    """sha256 of the model, the dictionary and the sparsity."""
    slug: str
    """Name of its pages."""
    name: str
    """Display name, unique on the site."""
    card: dict[str, Any]
    """What the dictionary says of itself, as far as the records tell."""
    lm: dict[str, Any]
    """The language model's identity."""
    sparsity: dict[str, Any]
    """Mode and target L0."""
    entries: tuple[Entry, ...]
    """Its cells, by task, judge and seed."""
    tier: str = ""
    """How far its weakest number is proved, "checked" or "reproduced"; empty where no `tiers.json` says anything."""

    @property
    def control(self) -> bool:
        """Whether its scores are known to mean nothing (identity, random directions)."""
        return self.card.get("control") is True

    @property
    def family(self) -> str:
        """Family of the dictionary ("topk")."""
        return clip(str(self.card.get("family", "unknown family")), 40)

    @property
    def sites(self) -> list[str]:
        """Sites that it reads, then those that only it writes."""
        read = [clip(str(site), 40) for site in as_list(self.card.get("reads"))]
        return read + [
            s for site in as_list(self.card.get("writes")) if (s := clip(str(site), 40)) not in read
        ]

    @property
    def suites(self) -> list[str]:
        """Suites that measured it."""
        return sorted({entry.suite for entry in self.entries if entry.suite})

    @property
    def l0(self) -> Metric | None:
        """Measured number of active latents per token, None if no cell measured it."""
        for entry in self.entries:
            for name in _L0_NAMES:
                metric = entry.record.metric(name)
                if entry.task == "core" and metric is not None and metric.value is not None:
                    return metric
        return None


def load_subjects(results: Path) -> tuple[list[Subject], int]:
    """The rows of a results folder in a fixed order, and the number of cells that are not finished.

    Raises:
        UserError: the folder is missing, is not a results folder, or holds a damaged record.
    """
    try:
        cells = ResultsFolder(results).cells()
        finished = [(cell, record) for cell in cells if (record := cell.record()) is not None]
    except StoreError as error:
        raise UserError(str(error)) from error
    if not finished:
        raise UserError(
            f"{results} holds no finished cell, so there is nothing to show; run a suite into it first "
            f"(`latentbench run SUITE --out {results}`)"
        )
    entries = _entries(finished, load_calibrations(results))
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(_row_key(entry.record), []).append(entry)
    tiers = _tiers(results)
    subjects = [_with_tier(_subject(key, group), tiers) for key, group in groups.items()]
    subjects.sort(key=lambda subject: (subject.name.casefold(), subject.key))
    return _unique(subjects), len(cells) - len(finished)


def task_name(record: RunRecord) -> str:
    """Name of the task that a record belongs to."""
    return clip(str(record.cell.task.get("name", "unknown task")))


def items_of_kind(cell: CellFolder, kind: str) -> list[dict[str, Any]]:
    """The items of one kind of a cell.

    Most cells hold none of the kind that is asked for and may be large: their lines are searched, not parsed.
    """
    path, mark = cell.path / "items.jsonl", f'"{kind}"'.encode("ascii")
    if not path.is_file():
        return []
    with path.open("rb") as stream:
        if not any(mark in line for line in stream):
            return []
    return list(cell.items("items", kind))


def judge_label(judge: Mapping[str, Any] | None) -> str | None:
    """What to call a judge: its name, and the model behind it if that is something else."""
    if judge is None:
        return None
    name = judge.get("name") or judge.get("kind") or judge.get("judge")
    model = judge.get("model") or judge.get("embedder")
    parts = [clip(str(part), 40) for part in (name, model) if isinstance(part, str) and part]
    return f"{parts[0]} ({parts[1]})" if len(set(parts)) == 2 else (parts or [sha256_json(judge)[:8]])[0]


def _entries(
    finished: list[tuple[CellFolder, RunRecord]], calibrations: Mapping[str, dict[str, Any]]
) -> list[Entry]:
    with_items: dict[str, CellFolder] = {}
    for cell, record in finished:
        if (cell.path / "items.jsonl").exists():
            with_items.setdefault(record.measurement_key, cell)
    entries = []
    for cell, record in finished:
        own = (cell.path / "items.jsonl").exists()
        measured = cell if own else with_items.get(record.measurement_key, cell)
        entries.append(Entry(record, cell, measured, calibration_text(record.cell.judge, calibrations)))
    return sorted(entries, key=lambda e: (e.task, e.judge or "", e.record.cell.seed, e.record.key))


def _row_key(record: RunRecord) -> str:
    cell = record.cell
    return sha256_json({"lm": cell.lm, "dictionary": cell.dictionary, "sparsity": cell.sparsity})


def _subject(key: str, entries: list[Entry]) -> Subject:
    first = entries[0].record
    card = dict(first.cell.dictionary)
    for entry in reversed(entries):
        labelled = entry.record.labels.get("card")
        if isinstance(labelled, dict):
            card.update(labelled)
        if isinstance(entry.record.labels.get("control"), bool):
            card["control"] = entry.record.labels["control"]
    name = clip(str(_label(entries, "dictionary") or card.get("name") or short_sha(card.get("sha256", key))))
    return Subject(key, slug(name, key), name, card, first.cell.lm, first.cell.sparsity, tuple(entries))


def _tiers(results: Path) -> dict[str, Tier] | None:
    path = tiers_path(results)
    return read_tiers(path) if path.is_file() else None


def _with_tier(subject: Subject, tiers: Mapping[str, Tier] | None) -> Subject:
    if tiers is None:
        return subject
    return replace(
        subject, tier=lowest(tiers.get(entry.record.key, "self-reported") for entry in subject.entries)
    )


def _label(entries: Iterable[Entry], name: str) -> str | None:
    """What most cells say, or the one that was finished first: another submission's name renames no row."""
    found = [
        (value, entry.record.finished)
        for entry in entries
        if isinstance(value := entry.record.labels.get(name), str) and value.strip()
    ]
    votes = Counter(value for value, _ in found)
    return min(found, key=lambda one: (-votes[one[0]], one[1], one[0]))[0] if found else None


def _unique(subjects: list[Subject]) -> list[Subject]:
    """Names that two rows of one model share get the first digits of their keys."""
    seen: dict[tuple[str, str], int] = {}
    for subject in subjects:
        place = (sha256_json(subject.lm), subject.name)
        seen[place] = seen.get(place, 0) + 1
    return [
        subject
        if seen[(sha256_json(subject.lm), subject.name)] == 1
        else replace(subject, name=f"{subject.name} [{subject.key[:6]}]")
        for subject in subjects
    ]
