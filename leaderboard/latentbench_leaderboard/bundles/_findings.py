"""What a check of a bundle found."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from latentbench.store import RunRecord
from latentbench_leaderboard.bundles._strict import shown

__all__ = ["ALLOWABLE", "CHECKS", "CellState", "CheckReport", "Finding", "title_of"]

CHECKS: Final = {
    "container": "the zip file and the names in it",
    "manifest": "bundle.json, and that it lists every file with its size and sha256",
    "json": "every file is JSON with one meaning, and of a bounded size",
    "schema": "records and identities are of a known format, and of the cell that their folder is named after",
    "checksum": "SHA256SUMS of each cell",
    "items": "every item has a kind, and an id of its own",
    "texts": "no text of a source that is not free can be read in it or read back from it",
    "summary": "every number, interval, curve and count follows from the items",
    "missing-items": "the items are there",
    "version": "the task is installed here in the version of the record",
    "completeness": "no cell is unfinished, and every dictionary went through the same tasks",
    "l0": "every dictionary has a measured L0, and is at the target if it claims to have been brought there",
    "calibration": "judges that were asked by rubrics are calibrated on them",
}
"""What is checked, by name."""
ALLOWABLE: Final = ("missing-items", "version", "completeness", "l0", "calibration")
"""Checks whose failure says that something is not known, not that something is wrong."""


@dataclass(frozen=True)
class Finding:
    """One thing that a check found."""

    check: str
    """Name of the check; see `CHECKS`."""
    message: str
    """What was found, in one line."""
    cell: str | None = None
    """Key of the cell; None for the whole bundle."""
    about: str = ""
    """What to call the cell or the dictionary."""
    fails: bool = True
    """Whether the bundle fails by it; otherwise it is to be known."""

    def line(self) -> str:
        """As a line of text."""
        where = (
            f"{self.about} ({self.cell[:10]}): " if self.cell else (f"{self.about}: " if self.about else "")
        )
        return f"{'FAILS' if self.fails else 'note '}  {self.check:13}  {where}{self.message}"


class CellState(NamedTuple):
    """What is known of a cell after the check."""

    key: str
    """Its key."""
    about: str
    """What to call it."""
    status: str
    """"ok", "failed", "unfinished" or "unreadable"."""
    recomputed: bool
    """Whether its numbers follow from its items."""


@dataclass(frozen=True)
class CheckReport:
    """What a check found."""

    id: str | None
    """sha256 of the bundle's manifest; None without one."""
    cells: tuple[CellState, ...]
    """Its cells, by key."""
    findings: tuple[Finding, ...]
    """What was found, failures first."""

    @property
    def ok(self) -> bool:
        """Whether nothing fails."""
        return not any(finding.fails for finding in self.findings)

    @property
    def recomputed(self) -> int:
        """Number of cells whose numbers follow from their items."""
        return sum(cell.recomputed for cell in self.cells)

    def allowing(self, checks: Collection[str]) -> CheckReport:
        """The same with failures of some checks as notes."""
        found = [replace(one, fails=one.fails and one.check not in checks) for one in self.findings]
        return replace(self, findings=tuple(sorted(found, key=lambda one: not one.fails)))

    def as_json(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "ok": self.ok,
            "id": self.id,
            "recomputed": self.recomputed,
            "cells": [cell._asdict() for cell in self.cells],
            "findings": [
                {"check": f.check, "fails": f.fails, "cell": f.cell, "about": f.about, "message": f.message}
                for f in self.findings
            ],
        }


def title_of(record: RunRecord) -> str:
    """What to call a stranger's record in one line."""
    name = record.labels.get("dictionary") or record.cell.dictionary.get("name") or "unnamed"
    return f"{_plain(record.cell.task.get('name'))} of {_plain(name)}"


def _plain(text: object) -> str:
    """A short printable name, without the quotes."""
    return shown(text, 60)[1:-1]
