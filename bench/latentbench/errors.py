"""The one exception tree.

A `UserError` is something the person at the keyboard can put right: the command line prints its message
without a traceback and exits with code 2. Anything else is a bug or a failed cell.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "AdapterError",
    "AssetError",
    "JudgeError",
    "LatentbenchError",
    "StoreError",
    "UserError",
    "nearest",
    "unknown_name",
]


class LatentbenchError(Exception):
    """Root of every error this project raises on purpose."""


class UserError(LatentbenchError):
    """Wrong input; the message says what was found, why it matters and what to do instead."""


class AdapterError(UserError):
    """A dictionary can't be loaded, or does not fit the model it is used with."""


class AssetError(UserError):
    """A named file can't be had, or is not the file its checksum names."""


class JudgeError(LatentbenchError):
    """A judge could not be asked at all (an unusable reply is a status of the score, not an error)."""


class StoreError(LatentbenchError):
    """A results folder can't be read or written as it should."""


def nearest(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """The known names closest in spelling to `name`, best first, at most `limit`."""
    return difflib.get_close_matches(name, sorted(set(known)), n=limit, cutoff=0.4)


def unknown_name(kind: str, name: str, known: Iterable[str], hint: str = "") -> UserError:
    """A `UserError` for a name that is not known.

    Args:
        kind: what the name should have named, singular ("task", "site").
        name: the name that was given.
        known: every name that would have been accepted.
        hint: what to do instead, added as a last sentence.
    """
    known = sorted(set(known))
    close = nearest(name, known)
    if close:
        advice = "did you mean " + " or ".join(repr(c) for c in close) + "?"
    elif known:
        advice = "known: " + ", ".join(known[:12]) + (", ..." if len(known) > 12 else "") + "."
    else:
        advice = "none is known here."
    return UserError(f"unknown {kind} {name!r}: {advice}" + (f" {hint}" if hint else ""))
