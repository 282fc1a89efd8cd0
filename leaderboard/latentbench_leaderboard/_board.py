"""The boards, one per language model and target sparsity: ranked rows, controls, and what is off target."""

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
from latentbench_leaderboard._units import UnitBook
from latentbench_leaderboard._values import real

__all__ = ["Board", "ColumnGroup", "Row", "Target", "boards_of", "by_model", "lm_label", "targets_of"]


_ROUNDING = 1e-9
"""So that 67.2 is within 5 % of 64 in floating point too."""
_USUAL_L0 = 64.0
_MOST_LATENTS = 1e12
"""No dictionary has as many, so no sparsity is meant."""


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
    reason: str = ""
    """Why it is not ranked at all: off the target sparsity, or without a measured one."""


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
    """Name of the board in addresses."""
    lm: str
    """Name of the model."""
    lm_key: str
    """sha256 of the model's identity."""
    lm_details: str
    """Revision, dtype and attention implementation."""
    target: Target
    """The sparsity at which it ranks."""
    groups: tuple[ColumnGroup, ...]
    """Columns by task."""
    rankings: tuple[str, ...]
    """How the ranks of each column were made; empty for one without ranks."""
    rows: tuple[Row, ...]
    """Ranked rows, best first by the first ranked column."""
    controls: tuple[Row, ...]
    """Controls, unranked."""
    asides: tuple[Row, ...]
    """Rows off the target sparsity, or without a measured one; unranked."""
    sorted_by: int
    """Position of the column that the rows are sorted by, -1 for none."""

    @property
    def columns(self) -> list[Column]:
        """All columns in order."""
        return [column for group in self.groups for column in group.columns]

    @property
    def bands(self) -> list[tuple[str, tuple[Row, ...]]]:
        """All rows by band: "ranked", "controls" and "asides"."""
        return [("ranked", self.rows), ("controls", self.controls), ("asides", self.asides)]

    @property
    def families(self) -> list[str]:
        """Families of its rows."""
        return sorted({row.subject.family for _, rows in self.bands for row in rows})

    @property
    def judges(self) -> list[str]:
        """Judges of its columns."""
        return sorted({group.judge for group in self.groups if group.judge})

    @property
    def suites(self) -> list[str]:
        """Suites that measured its rows."""
        return sorted({suite for _, rows in self.bands for row in rows for suite in row.subject.suites})


def targets_of(subjects: Sequence[Subject], tolerance: float) -> list[Target]:
    """The sparsities that the suites of the records compare at, ascending; L0 64 if they name none."""
    named = [real(subject.sparsity.get("target_l0")) for subject in subjects]
    found = sorted({l0 for l0 in named if l0 is not None and 0 < l0 < _MOST_LATENTS})
    return [Target(l0, tolerance) for l0 in found or [_USUAL_L0]]


def by_model(subjects: Sequence[Subject]) -> list[tuple[str, list[Subject]]]:
    """The subjects of each model by the hash of its identity, the model with most of them first."""
    found: dict[str, list[Subject]] = {}
    for subject in subjects:
        found.setdefault(sha256_json(subject.lm), []).append(subject)
    return sorted(found.items(), key=lambda item: (-len(item[1]), lm_label(item[1][0].lm), item[0]))


def boards_of(subjects: Sequence[Subject], targets: Sequence[Target], units: UnitBook) -> list[Board]:
    """The boards of a site: models with most rows first, of each the target with most ranked rows first."""
    boards: list[Board] = []
    for key, group in by_model(subjects):
        columns = columns_of(group)
        made = [_board(key, group, columns, target, units) for target in targets]
        boards += sorted(made, key=lambda board: (-len(board.rows), board.target.l0))
    return boards


def lm_label(lm: Mapping[str, Any]) -> str:
    """Name of a language model."""
    return clip(str(lm.get("name", "unnamed language model")))


def _board(
    key: str, subjects: list[Subject], columns: list[Column], target: Target, units: UnitBook
) -> Board:
    def at_target(subject: Subject) -> bool:
        l0 = subject.l0
        return l0 is not None and l0.value is not None and target.holds(l0.value)

    ranked = [s for s in subjects if not s.control and at_target(s)]
    controls = [s for s in subjects if s.control]
    others = [s for s in subjects if not s.control and not at_target(s)]
    table = [score_column(column, subjects, ranked, units) for column in columns]
    sorted_by = next((i for i, column in enumerate(columns) if column.ranked), -1)

    def rows(members: list[Subject], *, off: bool = False) -> tuple[Row, ...]:
        made = [
            Row(
                subject,
                tuple(cells.scores[subject.key] for cells in table),
                _aside_reason(subject, target) if off else "",
            )
            for subject in members
        ]
        return tuple(_sorted(made, columns, sorted_by))

    return Board(
        id=f"lm-{key[:8]}-l0-{plain(target.l0).replace(',', '').replace('.', '_')}",
        lm=lm_label(subjects[0].lm),
        lm_key=key,
        lm_details=_details(subjects[0].lm),
        target=target,
        groups=_grouped(columns),
        rankings=tuple(cells.ranking for cells in table),
        rows=rows(ranked),
        controls=rows(controls),
        asides=rows(others, off=True),
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
