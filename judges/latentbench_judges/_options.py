"""Judge options from suites and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from latentbench.errors import UserError, nearest

__all__ = ["checked_options"]

T = TypeVar("T", bound=BaseModel)


def checked_options(form: type[T], options: Mapping[str, Any], judge: str) -> T:
    """Options of a judge.

    Args:
        form: what they are.
        options: as given.
        judge: what the error calls it.

    Raises:
        UserError: one is unknown or wrong; the first such is named.
    """
    try:
        return form.model_validate(dict(options))
    except ValidationError as error:
        first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
        name = ".".join(map(str, first["loc"])) or "options"
        close = nearest(name, form.model_fields) if first["type"] == "extra_forbidden" else []
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise UserError(f"judge {judge!r}, option {name}: {first['msg']}{hint}") from error
