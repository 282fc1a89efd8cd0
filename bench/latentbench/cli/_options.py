"""Options shared by the commands that plan and run: a suite by name, or one put together from options."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, NamedTuple, TypeVar

import click

from latentbench.errors import UserError
from latentbench.run._suite import Suite, checked_suite, load_suite

__all__ = ["Chosen", "parsed_options", "suite_options"]

F = TypeVar("F", bound=Callable[..., Any])


class Chosen(NamedTuple):
    """What the options of `suite_options` came to."""

    suite: str | None
    lm: str | None
    dictionaries: tuple[str, ...]
    tasks: tuple[str, ...]
    judges: tuple[str, ...]
    judge_url: str | None
    judge_options: tuple[str, ...]
    target_l0: float | None
    dtype: str | None

    def _judges(self, base: Mapping[str, Any]) -> list[str] | None:
        """Those named here come first; the suite's own stay for roles that these have not."""
        if not self.judges:
            return None
        suite = base.get("judge", "embed")
        return [*self.judges, *([suite] if isinstance(suite, str) else suite or ())]

    def _judge_options(self, base: Mapping[str, Any]) -> dict[str, dict[str, Any]] | None:
        given = parsed_options(self.judge_options)
        if self.judge_url:
            given.setdefault("openai", {})["url"] = self.judge_url
        stored: dict[str, dict[str, Any]] = base.get("judge_options", {})
        return {name: {**stored.get(name, {}), **given.get(name, {})} for name in {*stored, *given}} or None

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
            "judge": self._judges(base),
            "judge_options": self._judge_options(base),
            "target_l0": self.target_l0,
            "dtype": self.dtype,
        }
        changes = {key: value for key, value in given.items() if value}
        return checked_suite({**base, **changes}, "options")


def parsed_options(pairs: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Options from "JUDGE.KEY=VALUE"; a value that is TOML is read as such, another one is text, "none" is none.

    Raises:
        UserError: one is of another form.
    """
    found: dict[str, dict[str, Any]] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        judge, dot, key = name.partition(".")
        if not (equals and dot and judge and key):
            raise UserError(f"--judge-option {pair!r}: write JUDGE.KEY=VALUE, such as openai.max_cost=5")
        found.setdefault(judge, {})[key] = _value(value)
    return found


def _value(text: str) -> Any:
    if text.lower() == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def suite_options(command: F) -> F:
    """Add the argument SUITE and the options that stand in for it or change it; they come as one `chosen`."""

    @wraps(command)
    def gathered(**given: Any) -> Any:
        chosen = Chosen(*(given.pop(name) for name in Chosen._fields))
        return command(chosen=chosen, **given)

    decorated: Any = gathered
    for decorate in reversed(
        (
            click.argument("suite", required=False),
            click.option("--lm", help="Language model: asset, hub id or folder."),
            click.option(
                "--dict", "dictionaries", multiple=True, metavar="SOURCE", help="Dictionary; repeatable."
            ),
            click.option("--task", "tasks", multiple=True, metavar="NAME", help="Task; repeatable."),
            click.option(
                "--judge",
                "judges",
                multiple=True,
                metavar="JUDGE",
                help="Judge, such as openai:MODEL; repeatable.",
            ),
            click.option("--judge-url", metavar="URL", help="Base URL of the judge 'openai'."),
            click.option(
                "--judge-option",
                "judge_options",
                multiple=True,
                metavar="JUDGE.KEY=VALUE",
                help="Option of a judge, such as openai.max_cost=5; repeatable.",
            ),
            click.option("--target-l0", type=click.FloatRange(min=0, min_open=True), help="Target sparsity."),
            click.option("--dtype", help="float32, bfloat16, float16 or float64."),
            click.option("--device", default="cpu", show_default=True, help="Device of the language model."),
            click.option("--dict-device", help="Device of the dictionaries, if another."),
        )
    ):
        decorated = decorate(decorated)
    found: F = decorated
    return found
