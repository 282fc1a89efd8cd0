"""Options shared by the commands that plan and run: a suite by name, or one put together from options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import click

from latentbench.errors import UserError
from latentbench.run._suite import Suite, checked_suite, load_suite

__all__ = ["Chosen", "suite_options"]

F = TypeVar("F", bound=Callable[..., Any])


class Chosen(NamedTuple):
    """What the options of `suite_options` came to."""

    suite: str | None
    lm: str | None
    dictionaries: tuple[str, ...]
    tasks: tuple[str, ...]
    judge: str | None
    target_l0: float | None
    dtype: str | None

    def load(self) -> Suite:
        """The suite, with the options laid over it.

        Raises:
            UserError: there is neither a suite nor enough options for one.
        """
        if self.suite is None and not (self.lm and self.dictionaries and self.tasks):
            raise UserError("name a suite (`latentbench ls suites`), or give all of --lm, --dict and --task")
        base: dict[str, Any] = {"name": "command-line"}
        if self.suite is not None:
            base = load_suite(self.suite).model_dump()
        known = {task["name"]: task for task in base.get("tasks", ())}
        given = {
            "lm": self.lm,
            "dictionaries": [{"source": source} for source in self.dictionaries],
            "tasks": [known.get(name, {"name": name}) for name in self.tasks],
            "judge": self.judge,
            "target_l0": self.target_l0,
            "dtype": self.dtype,
        }
        changes = {key: value for key, value in given.items() if value}
        return checked_suite({**base, **changes}, "options")


def suite_options(command: F) -> F:
    """Add the argument SUITE and the options that stand in for it or change it."""
    for decorate in reversed(
        (
            click.argument("suite", required=False),
            click.option("--lm", help="Language model: asset, hub id or folder."),
            click.option(
                "--dict", "dictionaries", multiple=True, metavar="SOURCE", help="Dictionary; repeatable."
            ),
            click.option("--task", "tasks", multiple=True, metavar="NAME", help="Task; repeatable."),
            click.option("--judge", help="Judge of the tasks that need one."),
            click.option("--target-l0", type=click.FloatRange(min=0, min_open=True), help="Target sparsity."),
            click.option("--dtype", help="float32, bfloat16, float16 or float64."),
            click.option("--device", default="cpu", show_default=True, help="Device of the language model."),
            click.option("--dict-device", help="Device of the dictionaries, if another."),
        )
    ):
        command = decorate(command)
    return command
