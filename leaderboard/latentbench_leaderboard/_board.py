"""The boards, one per language model: rows at the target sparsity, controls, and what is off target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from latentbench.identity import sha256_json
from latentbench_leaderboard._columns import Column, columns_of
from latentbench_leaderboard._format import clip, number, plain, short_sha
from latentbench_leaderboard._scores import Score, score_column
from latentbench_leaderboard._subjects import Subject

__all__ = ["Aside", "Board", "ColumnGroup", "Row", "Target", "boards_of", "lm_label"]


_ROUNDING = 1e-9
"""So that 67.2 is within 5 % of 64 in floating point too."""


@dataclass(frozen=True)
class Target:
    """The sparsity at which the table compares."""

    l0: float
    """Active latents per token."""
    tolerance: float
    """Largest distance from it, as a share of it."""

    def holds(self, l0: float) -> bool:
        """Whether a measured L0 counts as being at the target."""
        return abs(l0 - self.l0) <= self.tolerance * self.l0 * (1 + _ROUNDING)

    @property
    def text(self) -> str:
        """The same as text, "64 ± 5 %"."""
        return f"{plain(self.l0)} ± {plain(100 * self.tolerance)} %"


@dataclass(frozen=True)
class Row:
    """One dictionary in the table."""

    subject: Subject
    """Which."""
    scores: tuple[Score, ...]
    """One per column of the board."""


@dataclass(frozen=True)
class Aside:
    """A dictionary that the table at this sparsity leaves out."""

    subject: Subject
    """Which."""
    reason: str
    """Why."""


@dataclass(frozen=True)
class ColumnGroup:
    """Columns of one task and judge, side by side."""

    title: str
    """Title of the task."""
    judge: str | None
    """Label of the judge."""
    calibration: str | None
    """What is known of the judge, in a line."""
    columns: tuple[Column, ...]
    """In order."""


@dataclass(frozen=True)
class Board:
    """Everything comparable: dictionaries of one language model."""

    id: str
    """Anchor of the board."""
    lm: str
    """Name of the model."""
    lm_details: str
    """Revision, dtype and attention implementation."""
    groups: tuple[ColumnGroup, ...]
    """Columns by task."""
    rows: tuple[Row, ...]
    """Ranked rows, best first by the first ranked column."""
    controls: tuple[Row, ...]
    """Controls, unranked."""
    asides: tuple[Aside, ...]
    """Rows off the target sparsity, or without a measured one."""
    subjects: tuple[Subject, ...]
    """Every row of the board, for the curves."""
    sorted_by: int
    """Position of the column that the rows are sorted by, -1 for none."""

    @property
    def columns(self) -> list[Column]:
        """All columns in order."""
        return [column for group in self.groups for column in group.columns]


def boards_of(subjects: Sequence[Subject], target: Target) -> list[Board]:
    """The boards of a site, the one with most rows first."""
    by_lm: dict[str, list[Subject]] = {}
    for subject in subjects:
        by_lm.setdefault(sha256_json(subject.lm), []).append(subject)
    ordered = sorted(by_lm.items(), key=lambda item: (-len(item[1]), lm_label(item[1][0].lm), item[0]))
    return [_board(key, group, target) for key, group in ordered]


def lm_label(lm: Mapping[str, Any]) -> str:
    """Name of a language model."""
    return clip(str(lm.get("name", "unnamed language model")))


def _board(key: str, subjects: list[Subject], target: Target) -> Board:
    ranked = [
        s for s in subjects if not s.control and s.l0 is not None and target.holds(float(s.l0.value or 0))
    ]
    controls = [s for s in subjects if s.control]
    others = [s for s in subjects if not s.control and s not in ranked]
    columns = columns_of(subjects)
    table = [score_column(column, [*ranked, *controls], ranked) for column in columns]

    def row(subject: Subject) -> Row:
        return Row(subject, tuple(cells[subject.key] for cells in table))

    sorted_by = next((i for i, column in enumerate(columns) if column.ranked), -1)
    return Board(
        id=f"lm-{key[:8]}",
        lm=lm_label(subjects[0].lm),
        lm_details=_details(subjects[0].lm),
        groups=_grouped(columns),
        rows=tuple(_sorted([row(subject) for subject in ranked], columns, sorted_by)),
        controls=tuple(row(subject) for subject in controls),
        asides=tuple(Aside(subject, _aside_reason(subject, target)) for subject in others),
        subjects=tuple(subjects),
        sorted_by=sorted_by,
    )


def _details(lm: Mapping[str, Any]) -> str:
    """The rest of the model's identity in a line."""
    parts = []
    for name, value in lm.items():
        if name != "name" and isinstance(value, (str, int, float)) and value != "":
            text = clip(str(value), 60)
            parts.append(f"{clip(name, 30)} {short_sha(text) if len(text) >= 40 else text}")
    return ", ".join(parts)


def _grouped(columns: list[Column]) -> tuple[ColumnGroup, ...]:
    groups = groupby(
        columns, key=lambda column: (column.task, column.task_title, column.judge, column.calibration)
    )
    return tuple(
        ColumnGroup(title, judge, calibration, tuple(members))
        for (_, title, judge, calibration), members in groups
    )


def _sorted(rows: list[Row], columns: list[Column], by: int) -> list[Row]:
    if by < 0:
        return rows
    sign = -1.0 if columns[by].direction == "higher" else 1.0

    def place(row: Row) -> tuple[bool, float]:
        value = row.scores[by].sort
        return (value is None, sign * (value or 0.0))

    return sorted(rows, key=place)


def _aside_reason(subject: Subject, target: Target) -> str:
    l0 = subject.l0
    if l0 is not None and l0.value is not None:
        off = 100 * (l0.value - target.l0) / target.l0
        side = "above" if off > 0 else "below"
        return f"measured L0 {plain(round(l0.value, 2))}, {number(abs(off), 0)} % {side} the target"
    core = [entry.record for entry in subject.entries if entry.task == "core"]
    failed = next((record.error for record in core if record.error is not None), None)
    if failed is not None:
        return f"L0 not measured: the core task failed with {clip(f'{failed.type}: {failed.message}', 300)}"
    return "L0 not measured: " + ("the core task gave no L0" if core else "the core task was not run")
