"""Options of a task, for `latentbench describe task`: loads the task, and torch with it."""

from __future__ import annotations

from typing import Any

from latentbench.registry import TASKS

__all__ = ["options_of"]


def options_of(name: str) -> dict[str, Any]:
    """The options of a registered task with their defaults, as a suite writes them.

    Raises:
        UserError: it can't be imported.
    """
    defaults: dict[str, Any] = TASKS.load(name).Config().model_dump(mode="json")
    return defaults
