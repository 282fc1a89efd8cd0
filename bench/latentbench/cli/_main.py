"""The `latentbench` command: finds subcommands by name only, and turns errors into exit codes."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

import click

from latentbench import __version__
from latentbench.errors import LatentbenchError, UserError, nearest
from latentbench.registry import COMMANDS

__all__ = ["cli", "main"]


class _Command(NamedTuple):
    module: str
    attribute: str
    help: str


_BUILT_IN = {
    "run": _Command(
        "latentbench.cli.run", "run", "Measure dictionaries: a suite, or one cell given by options."
    ),
    "plan": _Command("latentbench.cli.plan", "plan", "Show what a suite would measure, and what that costs."),
    "status": _Command("latentbench.cli.status", "status", "Show how far a results folder is."),
    "show": _Command("latentbench.cli.show", "show", "Show the records of a results folder."),
    "train": _Command("latentbench.cli.train", "train", "Train dictionaries on a shared activation stream."),
    "doctor": _Command(
        "latentbench.cli.doctor", "doctor", "Examine a dictionary, a task or a judge, and name what is wrong."
    ),
    "new": _Command("latentbench.cli.new", "new", "Write a package with an adapter, a task or a judge."),
    "assets": _Command(
        "latentbench.cli.assets", "assets", "Download, check and find weights and texts by name."
    ),
    "ls": _Command(
        "latentbench.cli.ls", "ls", "List tasks, judges, formats, suites, dictionaries, controls and assets."
    ),
    "describe": _Command(
        "latentbench.cli.describe", "describe", "Explain one of the things that `ls` lists."
    ),
}
_KNOWN_HELP = {
    "compare": "Compare two families of dictionaries over their training runs.",
    "export": "Write results as CSV, Parquet, Markdown, LaTeX, and for other projects.",
    "judge": "Calibrate judges, and ask people in their place.",
    "leaderboard": "Build the static leaderboard site, and check what is submitted to it.",
    "submit": "Pack results into a bundle that a leaderboard can check.",
}
"""Help of our own entry-point commands: their modules are not imported for a list."""


class _LazyGroup(click.Group):
    """A group whose subcommands are imported when they are called, and listed from a table."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Built-in commands in their order, then those of entry points."""
        return [*_BUILT_IN, *(name for name in COMMANDS.names() if name not in _BUILT_IN)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, imported now; None if there is none."""
        if cmd_name in _BUILT_IN:
            built_in = _BUILT_IN[cmd_name]
            found = getattr(importlib.import_module(built_in.module), built_in.attribute)
        elif cmd_name in COMMANDS.names():
            found = COMMANDS.load(cmd_name)
        else:
            return None
        if not isinstance(found, click.Command):
            raise UserError(f"command {cmd_name!r} is not a click command but {type(found).__name__}")
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but an unknown name comes with the nearest known ones.

        Raises:
            click.UsageError: there is no such command.
        """
        name = args[0]
        if not name.startswith("-") and name not in self.list_commands(ctx):
            close = nearest(name, self.list_commands(ctx))
            advice = "did you mean " + " or ".join(repr(c) for c in close) + "?" if close else "see --help."
            raise click.UsageError(f"unknown command {name!r}: {advice}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, from the table alone."""
        rows = [(name, _help(name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _help(name: str) -> str:
    if name in _BUILT_IN:
        return _BUILT_IN[name].help
    return _KNOWN_HELP.get(name) or f"From the package {COMMANDS.origin(name)}."


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="latentbench")
def cli() -> None:
    """Benchmark sparse dictionaries of language models: feature counts, interpretability, steering."""


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 something failed, 2 wrong input, 130 interrupted."""
    sys.exit(_run(args))


def _run(args: Sequence[str] | None) -> int:
    try:
        code = cli.main(
            args=list(args) if args is not None else None, prog_name="latentbench", standalone_mode=False
        )
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt) as error:
        said = str(error if isinstance(error, KeyboardInterrupt) else error.__cause__ or "")
        click.echo(f"interrupted{f': {said}' if said else ''}", err=True)
        return 130
    except UserError as error:
        click.echo(f"error: {_one_line(error)}", err=True)
        return 2
    except LatentbenchError as error:
        click.echo(f"failed: {_one_line(error)}", err=True)
        return 1
    except BrokenPipeError:  # the reader of a pipe (head, less) has gone; python would complain again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code if isinstance(code, int) else 0


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
