"""Names -> things, through entry points, without importing anything until it is asked for.

The built-in tasks, judges, dictionary formats and commands register through the same entry-point groups as
anybody else's package, so a third party's addition is found and listed exactly like ours.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from latentbench.errors import UserError, unknown_name

__all__ = ["COMMANDS", "FORMATS", "JUDGES", "METRICS", "PUBLISHED", "RUBRICS", "TASKS", "UNITS", "Registry"]


class Registry:
    """The entry points of one group, loaded lazily by name."""

    def __init__(self, group: str, kind: str) -> None:
        """A registry of one entry-point group; imports nothing."""
        self.group = group
        """Entry-point group, such as `latentbench.tasks`."""
        self.kind = kind
        """What one entry is called in messages, singular."""

    def names(self) -> list[str]:
        """Every registered name, sorted; imports nothing."""
        return sorted(_entries(self.group))

    def load(self, name: str) -> Any:
        """Import and return what `name` stands for.

        Raises:
            UserError: the name is unknown (the nearest ones are named) or its module can't be imported.
        """
        entry = self._entry(name)
        try:
            return entry.load()
        except (ImportError, AttributeError) as error:
            raise UserError(
                f"{self.kind} {name!r} is registered as {entry.value!r} by {self.origin(name)}, but that "
                f"can't be imported: {error}. Reinstall that package or report it to its authors."
            ) from error

    def origin(self, name: str) -> str:
        """The distribution that registered `name`."""
        entry = self._entry(name)
        return entry.dist.name if entry.dist is not None else "an unknown distribution"

    def source(self, name: str) -> Path:
        """The source file of the module behind `name`, found without importing it or a package it lies in.

        Raises:
            UserError: the name is unknown, or its module is not there any more.
        """
        entry = self._entry(name)
        top, *inner = entry.module.split(".")
        spec = importlib.util.find_spec(top)  # of a top-level module, so nothing is imported
        for root in (spec.submodule_search_locations or []) if spec is not None else []:
            stem = Path(root).joinpath(*inner)
            for candidate in (stem.with_name(f"{stem.name}.py"), stem / "__init__.py"):
                if candidate.is_file():
                    return candidate
        if not inner and spec is not None and spec.origin is not None:
            return Path(spec.origin)
        raise UserError(f"{self.kind} {name!r}: module {entry.module!r} is not installed any more")

    def folder(self, name: str) -> Path:
        """The folder of the module behind `name`, found without importing that module."""
        return self.source(name).parent

    def _entry(self, name: str) -> EntryPoint:
        entries = _entries(self.group)
        if name not in entries:
            raise unknown_name(self.kind, name, entries)
        return entries[name]


@cache
def _entries(group: str) -> dict[str, EntryPoint]:
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=group):
        ours = entry.dist is not None and entry.dist.name == "latentbench"
        if entry.name not in found or ours:  # a third party can add a name, never take one of ours
            found[entry.name] = entry
    return found


TASKS = Registry("latentbench.tasks", "task")
METRICS = Registry("latentbench.metrics", "recomputation of task")
"""Summaries of a task's stored cells, without torch: each entry, named like its task, is a function of items,
judgements, options and generator that returns metrics, curves and counts. `latentbench leaderboard check` computes with
it again what a record says."""
UNITS = Registry("latentbench.units", "units of task")
"""How metrics of a task follow from sums over units that cells share (documents, contexts, concepts), without torch:
each entry, named like its task, is a function of items, judgements and options that returns `latentbench.stats.Units`,
or None without items. Sites rank and compare rows with it as pairs; tasks without an entry are compared unpaired."""
PUBLISHED = Registry("latentbench.published", "published form of task")
"""Of tasks whose items tell more of texts than may be published: each entry, named like its task, is a function of a
cell's items and options that returns items with the same summary. `latentbench submit` puts them through it."""
JUDGES = Registry("latentbench.judges", "judge")
RUBRICS = Registry("latentbench.rubrics", "rubric")
"""Rubrics of other packages: each entry is the path of a TOML file, as text or as a `Path`."""
FORMATS = Registry("latentbench.formats", "dictionary format")
COMMANDS = Registry("latentbench.commands", "command")
