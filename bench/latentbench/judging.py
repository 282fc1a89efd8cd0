"""What the core knows of judges: how one is made from its name, and which failures are worth asking again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from latentbench.errors import UserError
from latentbench.registry import JUDGES

__all__ = ["ASK_AGAIN", "STATUSES", "Status", "judge_price", "make_judge", "unanswered"]

Status = Literal[
    "ok", "parse_failed", "refused", "truncated", "filtered", "transport_error", "over_budget", "missing"
]
"""Only "ok" has a verdict. "missing": a human's sheet or a store of replies has no answer to this question, or its
batch is not back yet."""
STATUSES: tuple[str, ...] = get_args(Status)

ASK_AGAIN = frozenset({"transport_error", "over_budget", "missing"})
"""Statuses of judgements that another run may well mend: such a cell is not done, and is asked again."""


def make_judge(spec: str, options: Mapping[str, Any] | None = None) -> Any:
    """A judge by name, such as "embed" or "openai:gpt-4o-mini-2024-07-18".

    Args:
        spec: registered name, and behind a colon what its class makes of it.
        options: what its `make` takes.

    Raises:
        UserError: the name is unknown, or the judge takes no argument or no such option.
    """
    name, colon, argument = spec.partition(":")
    found = JUDGES.load(name)
    if hasattr(found, "make"):
        return found.make(argument, dict(options or {}))
    if colon or options:
        raise UserError(
            f"judge {name!r} takes no argument and no options; found {spec!r} and {dict(options or {})}"
        )
    return found()


def judge_price(spec: str, options: Mapping[str, Any] | None = None) -> Any:
    """What a judge would cost, without making it (which may want a key); None if it costs nothing or is not known.

    Args:
        spec: as in `make_judge`.
        options: as in `make_judge`.

    Raises:
        UserError: the name is unknown, or an option is.
    """
    name, _, argument = spec.partition(":")
    found = JUDGES.load(name)
    return found.price_of(argument, dict(options or {})) if hasattr(found, "price_of") else None


def unanswered(counts: Mapping[str, int]) -> int:
    """Judgements of a record that are worth asking again."""
    return sum(counts.get(f"unscored: {status}", 0) for status in ASK_AGAIN)
