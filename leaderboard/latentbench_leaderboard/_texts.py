"""The side file of texts that may be looked at here but not published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from latentbench.errors import UserError

__all__ = ["Place", "has_texts", "read_texts"]

Place = tuple[str, int | None, int | None]
"""Document sha256 and the offsets of a context in it."""

_NAME = "texts.jsonl"


def has_texts(cell: Path) -> bool:
    """Whether a cell's folder holds texts."""
    return (cell / _NAME).is_file()


def read_texts(cell: Path) -> dict[Place, dict[str, Any]]:
    """The texts of a cell by place; none when there is no file.

    Raises:
        UserError: a line is not a JSON object.
    """
    path = cell / _NAME
    if not path.is_file():
        return {}
    found: dict[Place, dict[str, Any]] = {}
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                text = json.loads(line)
            except ValueError:
                text = None
            if not isinstance(text, dict):
                raise UserError(
                    f"{path}:{number} is not a JSON object. Delete the file (it only holds texts for local "
                    "pages) or build with --public, which does not read it."
                )
            found[(str(text.get("document", "")), text.get("start"), text.get("end"))] = text
    return found
