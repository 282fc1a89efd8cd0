"""How a run is shown: live bars on a terminal, one line per event otherwise, JSON lines if asked for."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click

from latentbench.run._events import Event, Listener

__all__ = ["listening"]

_MARKS = {"cell_done": "done", "cell_failed": "FAILED", "cell_cached": "stored already"}
_EVERY_S = 10.0
"""Longest silence between two progress lines of one step, in seconds."""


@contextmanager
def listening(*, as_json: bool) -> Iterator[Listener]:
    """A listener for the length of a run.

    Args:
        as_json: write every event as a JSON line to standard output.
    """
    if as_json:
        yield lambda event: click.echo(json.dumps(event.to_json(), ensure_ascii=False))
    elif sys.stderr.isatty():
        with _live() as listener:
            yield listener
    else:
        yield _Lines()


class _Lines:
    """One plain line per event on standard error; long steps speak up now and then."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}

    def __call__(self, event: Event) -> None:
        if event.kind == "progress":
            now = time.monotonic()
            due = now - self._last.get(event.what, 0.0) >= _EVERY_S
            if not due and event.done < event.total:
                return
            self._last[event.what] = now
        click.echo(_line(event), err=True)


def _line(event: Event) -> str:
    if event.kind == "progress":
        return f"{event.what}: {event.done:,} of {event.total:,}"
    if event.kind == "plan":
        return f"suite {event.what}: {event.total} cells, {event.done} stored already"
    if event.kind == "finished":
        return f"suite {event.what}: {event.done} of {event.total} cells ok, {event.message}"
    return f"{_MARKS[event.kind]}: {event.what}" + (f" ({event.message})" if event.message else "")


@contextmanager
def _live() -> Iterator[Listener]:
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        steps: dict[str, int] = {}

        def show(event: Event) -> None:
            if event.kind != "progress":
                console.print(escape(_line(event)), style="red" if event.kind == "cell_failed" else None)
                return
            if event.what not in steps:
                steps[event.what] = bars.add_task(escape(event.what), total=event.total)
            step = bars.tasks[[task.id for task in bars.tasks].index(steps[event.what])]  # type: ignore[arg-type]
            bars.update(step.id, completed=event.done, total=event.total, visible=event.done < event.total)

        yield show
