"""How far a number is proved: self-reported, checked (it follows from its items), reproduced (measured again).

Tiers are the maintainer's word, so they are never part of a bundle: they are written beside it, or into the results
folder that the leaderboard is built from.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, get_args

from latentbench import __version__
from latentbench.errors import UserError
from latentbench.store import pretty_json
from latentbench_leaderboard.bundles._findings import CheckReport

__all__ = [
    "TIERS_FILE",
    "Tier",
    "lowest",
    "read_tiers",
    "tiers_of",
    "tiers_of_check",
    "tiers_path",
    "write_tiers",
]

Tier = Literal["self-reported", "checked", "reproduced"]
"""From the weakest to the strongest."""
TIERS_FILE: Final = "tiers.json"
_ORDER = get_args(Tier)
_FORMAT = 1


def tiers_path(bundle: Path) -> Path:
    """Where the tiers of a bundle or a results folder are."""
    return bundle / TIERS_FILE if bundle.is_dir() else bundle.with_name(f"{bundle.name}.{TIERS_FILE}")


def tiers_of_check(report: CheckReport) -> dict[str, Tier]:
    """The tier of each cell after a check: checked, where nothing fails and its numbers follow from its items."""
    return {
        cell.key: "checked" if report.ok and cell.recomputed else "self-reported" for cell in report.cells
    }


def write_tiers(path: Path, tiers: Mapping[str, Tier], about: Mapping[str, Any]) -> None:
    """Write the tiers of cells, over those of other cells that are there; stronger ones of the same cells go.

    Args:
        path: see `tiers_path`.
        tiers: by key of the cell.
        about: what they rest on, such as the bundle's id and the sample that was measured again.
    """
    known = read_tiers(path) if path.exists() else {}
    body: dict[str, Any] = {
        "format": _FORMAT,
        "made_by": {"name": "latentbench", "version": __version__},
        "about": dict(about),
        "cells": {**known, **tiers},
    }
    path.write_text(pretty_json(body), encoding="utf-8")


def read_tiers(path: Path) -> dict[str, Tier]:
    """The tiers of a file by key of the cell.

    Raises:
        UserError: it is not such a file.
    """
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} can't be read as tiers: {error}") from error
    cells = body.get("cells") if isinstance(body, dict) else None
    if (
        not isinstance(cells, dict)
        or body.get("format") != _FORMAT
        or any(tier not in _ORDER for tier in cells.values())
    ):
        raise UserError(
            f"{path} holds no tiers of format {_FORMAT}; `latentbench leaderboard check` writes them"
        )
    return cells


def tiers_of(bundle: Path, id: str | None) -> dict[str, Tier]:
    """What was written beside a bundle of its cells; nothing if it was written of another bundle of that name.

    Args:
        bundle: the bundle. One in a folder has none: what is in there comes from who made it.
        id: its id.

    Raises:
        UserError: the file beside it holds no tiers.
    """
    path = tiers_path(bundle)
    if bundle.is_dir() or id is None or not path.exists():
        return {}
    tiers = read_tiers(path)
    about = json.loads(path.read_text(encoding="utf-8")).get("about")
    return tiers if isinstance(about, dict) and about.get("last") == id else {}


def lowest(tiers: Iterable[Tier]) -> Tier:
    """The weakest of some tiers; "self-reported" where there is none."""
    return min(tiers, key=_ORDER.index, default="self-reported")
