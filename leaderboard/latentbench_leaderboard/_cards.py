"""Task cards: what a task says of itself and of its metrics, read without importing the task."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from latentbench.errors import UserError
from latentbench.registry import TASKS
from latentbench_leaderboard._format import clip, humanise
from latentbench_leaderboard._values import as_list

__all__ = ["TaskCard", "task_card"]

_LONG = 2000


@dataclass(frozen=True)
class TaskCard:
    """What `card.toml` says; all empty for a task that is not installed here."""

    name: str
    """Registered name."""
    title: str
    """Its title, or a readable form of its name."""
    summary: str = ""
    """What it measures."""
    version: str = ""
    """Version of the task."""
    law: str = ""
    """What holds for all its numbers, whatever is measured."""
    items: tuple[str, ...] = ()
    """Kinds of items that its cells hold; empty if the card does not say."""
    installed: bool = False
    """Whether there was a card to read."""
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The card's table of each metric: title, unit, definition, law, chance."""

    def metric_title(self, name: str) -> str:
        """Title of a metric, or a readable form of its name."""
        title = self.metrics.get(name, {}).get("title")
        return clip(title) if isinstance(title, str) and title else humanise(name)

    def metric_text(self, name: str, key: str) -> str:
        """A text of the metric's table ("definition", "law", "chance"), empty if it is not there."""
        value = self.metrics.get(name, {}).get(key)
        return "" if value is None else clip(str(value), _LONG)

    def order(self, name: str) -> int:
        """Place of a metric in the card; metrics that it lacks come last."""
        names = list(self.metrics)
        return names.index(name) if name in names else len(names)


@cache
def task_card(name: str) -> TaskCard:
    """The card of a task; empty for a task that is not installed, or whose card is damaged."""
    bare = TaskCard(name, humanise(name))
    if name not in TASKS.names():
        return bare
    try:
        raw = tomllib.loads((TASKS.folder(name) / "card.toml").read_text(encoding="utf-8"))
    except (UserError, ImportError, OSError, tomllib.TOMLDecodeError, UnicodeDecodeError):
        return bare  # the records carry a one-line definition of every metric, which is shown then
    tables = raw.get("metric")
    metrics = tables if isinstance(tables, dict) else {}
    return TaskCard(
        name,
        clip(str(raw.get("title") or bare.title)),
        clip(str(raw.get("summary", "")), _LONG),
        str(raw.get("version", "")),
        clip(str(raw.get("law", "")), _LONG),
        tuple(str(kind) for kind in as_list(raw.get("items"))),
        True,
        {str(key): table for key, table in metrics.items() if isinstance(table, dict)},
    )
