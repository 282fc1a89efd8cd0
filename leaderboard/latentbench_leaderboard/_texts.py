"""The side file of texts that may be looked at here but not published."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from latentbench.errors import UserError
from latentbench_leaderboard._values import whole

__all__ = ["Place", "Texts", "has_texts", "read_texts", "text_of"]

Place = tuple[str, int | None, int | None]
"""Document sha256 and the offsets of a context in it."""
Texts = Mapping[Place | str, dict[str, Any]]
"""Texts by place, and by id where they have one."""

_NAME = "texts.jsonl"


def has_texts(cell: Path) -> bool:
    """Whether a cell's folder holds texts."""
    return (cell / _NAME).is_file()


def read_texts(cell: Path) -> Texts:
    """The texts of a cell; none when there is no file.

    Raises:
        UserError: a line is not a JSON object.
    """
    path = cell / _NAME
    if not path.is_file():
        return {}
    found: dict[Place | str, dict[str, Any]] = {}
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
            place = (str(text.get("document", "")), whole(text.get("start")), whole(text.get("end")))
            found[place] = text
            if isinstance(text.get("id"), str):
                found[text["id"]] = text
    return found


def text_of(texts: Texts, context: Mapping[str, Any]) -> dict[str, Any] | None:
    """The text of a context, None if it is not there.

    A context that names its text has that one: two latents may have contexts in the same place, and the text holds
    the activations of one of them.
    """
    if isinstance(context.get("text"), str):
        return texts.get(context["text"])
    return texts.get(
        (str(context.get("document", "")), whole(context.get("start")), whole(context.get("end")))
    )
