"""Joint bootstrap draws of cells that were measured on the same documents, contexts or concepts.

A task's entry point of `latentbench.units` says how its metrics follow from sums over units; the cell's items hold
the sums. Cells with the same set of units get the same units in every draw, so that the difference of
two rows' draws is a draw of their difference. Cells without items, or of tasks without such a function (counts,
which are no sums; scores of a dictionary's own latents), have no joint draws.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from latentbench.errors import StoreError, UserError
from latentbench.registry import UNITS
from latentbench.stats import Units
from latentbench_leaderboard._cards import task_card
from latentbench_leaderboard._subjects import Entry

__all__ = ["DRAWS", "Drawn", "UnitBook"]

DRAWS = 1000
"""Draws of every cell."""
_AGREE = 1e-6


@dataclass(frozen=True)
class Drawn:
    """The draws of one cell."""

    key: str
    """Hash of its units; cells with equal keys are drawn together."""
    n: int
    """Number of units."""
    draws: dict[str, NDArray[np.float64]]
    """Float[draw] by metric: those whose items give exactly the published value, and no undefined draw."""


@dataclass
class UnitBook:
    """The draws of all cells of a site, made once each."""

    _known: dict[str, Drawn | None] = field(default_factory=dict)

    def of(self, entry: Entry) -> Drawn | None:
        """The draws of a cell; None if it has none.

        Raises:
            UserError: an item file is damaged.
        """
        key = entry.record.key
        if key not in self._known:
            self._known[key] = _drawn(entry)
        return self._known[key]


def _drawn(entry: Entry) -> Drawn | None:
    units = _units(entry)
    if units is None or len(units.names) < 2:
        return None
    values, kept = units.values(), {}
    for name, draws in units.draws(DRAWS).items():
        metric = entry.record.metric(name)
        published = metric.value if metric is not None else None
        agrees = published is not None and abs(values[name] - published) <= _AGREE * max(1.0, abs(published))
        if agrees and np.isfinite(draws).all():
            kept[name] = draws
    return Drawn(units.key, len(units.names), kept)


def _units(entry: Entry) -> Units | None:
    record, task = entry.record, entry.record.cell.task
    if record.status != "ok" or not (entry.measured.path / "items.jsonl").is_file():
        return None
    # Items of another version of the task may look different.
    if entry.task not in UNITS.names() or task.get("version") != task_card(entry.task).version:
        return None
    try:
        items = list(entry.measured.items())
        judgements = list(entry.folder.items("judgements"))
    except StoreError as error:
        raise UserError(str(error)) from error
    try:
        found: Units | None = UNITS.load(entry.task)(items, judgements, task.get("config", {}))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return None  # items that a submission got wrong: its numbers stand, its rows are compared unpaired
    return found
