"""Which field differs: the answer to "why was this not found in the cache?"."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from pydantic import BaseModel

from latentbench.identity import canonical_json

__all__ = ["ABSENT", "Difference", "differences"]

ABSENT: Final = "(absent)"
"""Stands for the side that lacks a field."""


class Difference(NamedTuple):
    """One field in which two identities differ."""

    field: str
    """Dotted name, with list positions in brackets ("task.config.thresholds[2]")."""
    first: Any
    """Its value in the first one, or `ABSENT`."""
    second: Any
    """Its value in the second one, or `ABSENT`."""


def differences(first: Any, second: Any) -> list[Difference]:
    """Every field in which two JSON values or two records differ, in order of the field names.

    Two leaves differ when their canonical JSON does, so the list is empty exactly when both have the same
    key: 1 and 1.0 differ here, as they do in the hash.
    """
    return list(_walk(_plain(first), _plain(second), ""))


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value


def _walk(first: Any, second: Any, name: str) -> Iterator[Difference]:
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for key in sorted({*first, *second}):
            inner = f"{name}.{key}" if name else str(key)
            yield from _step(key in first, key in second, first.get(key), second.get(key), inner)
    elif isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        for i in range(max(len(first), len(second))):
            one, two = (side[i] if i < len(side) else None for side in (first, second))
            yield from _step(i < len(first), i < len(second), one, two, f"{name}[{i}]")
    elif canonical_json(first) != canonical_json(second):
        yield Difference(name, first, second)


def _step(in_first: bool, in_second: bool, first: Any, second: Any, name: str) -> Iterator[Difference]:
    if in_first and in_second:
        yield from _walk(first, second, name)
    else:
        yield Difference(name, first if in_first else ABSENT, second if in_second else ABSENT)
