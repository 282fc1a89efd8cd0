"""Corrections of published numbers, from `errata.toml` in the results folder.

    [[erratum]]
    date = 2026-11-02
    title = "Explained variance was not centred"
    text = "Scores before task version 2 were too high by about 0.05; they are superseded, not deleted."
    metrics = ["core.explained_variance"]
    dictionaries = ["RouteSAE"]
    records = ["1be57cc584fd693d…"]     # keys of cells

All but date, title and text may be left out.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from latentbench.errors import UserError
from latentbench_leaderboard._format import clip
from latentbench_leaderboard._subjects import Subject

__all__ = ["Erratum", "load_errata"]

_NAME = "errata.toml"
_KNOWN = frozenset({"date", "title", "text", "metrics", "dictionaries", "records"})


@dataclass(frozen=True)
class Erratum:
    """One correction."""

    id: str
    """Anchor on the page."""
    date: str
    """When it was made, as an ISO date."""
    title: str
    """In a few words."""
    text: str
    """What was wrong, and what to read instead."""
    metrics: tuple[str, ...] = ()
    """Metrics that it is about, as "task.metric"."""
    dictionaries: tuple[str, ...] = ()
    """Display names of dictionaries that it is about."""
    records: tuple[str, ...] = ()
    """Keys of cells that it is about."""

    def concerns(self, subject: Subject) -> bool:
        """Whether it names a dictionary or one of its cells."""
        return subject.name in self.dictionaries or any(e.record.key in self.records for e in subject.entries)


def load_errata(results: Path) -> list[Erratum]:
    """The corrections of a results folder, newest first; none without the file.

    Raises:
        UserError: the file can't be read, or an entry lacks what it must say.
    """
    path = results / _NAME
    if not path.is_file():
        return []
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{path} can't be read as TOML: {error}") from error
    entries = raw.get("erratum", [])
    if set(raw) - {"erratum"} or not isinstance(entries, list):
        raise UserError(f"{path} holds {sorted(raw)}; corrections are tables called [[erratum]]")
    found = [_erratum(entry, number, path) for number, entry in enumerate(entries, start=1)]
    return sorted(found, key=lambda one: one.date, reverse=True)


def _erratum(entry: Any, number: int, path: Path) -> Erratum:
    where = f"{path}: erratum {number}"
    if not isinstance(entry, dict) or set(entry) - _KNOWN:
        known = ", ".join(sorted(_KNOWN))
        raise UserError(f"{where} has fields that mean nothing here; it may have {known}")
    day = entry.get("date")
    if not isinstance(day, date) or not all(
        isinstance(entry.get(k), str) and entry[k] for k in ("title", "text")
    ):
        raise UserError(f"{where} needs a date (date = 2026-11-02), a title and a text")
    for name in ("metrics", "dictionaries", "records"):
        value = entry.get(name, [])
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise UserError(f"{where}: {name} is {value!r}; it is a list of texts")
    return Erratum(
        id=f"erratum-{number}",
        date=day.isoformat()[:10],
        title=clip(entry["title"], 200),
        text=clip(entry["text"], 4000),
        metrics=_texts(entry.get("metrics", [])),
        dictionaries=_texts(entry.get("dictionaries", [])),
        records=_texts(entry.get("records", [])),
    )


def _texts(values: Sequence[str]) -> tuple[str, ...]:
    return tuple(clip(value, 80) for value in values)
