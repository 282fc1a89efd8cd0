"""What commands print: JSON for programs, aligned text for people."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

import click

__all__ = ["echo_json", "echo_table", "human_size", "terminal_width"]


def echo_json(value: Any, *, line: bool = False) -> None:
    """Print a value as JSON on standard output: indented, or as one line among others."""
    click.echo(json.dumps(value, indent=None if line else 2, ensure_ascii=False))


def echo_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows in aligned columns; the last column is wrapped on a terminal and left whole in a pipe."""
    if not rows:
        click.echo("  (none)")
        return
    widths = [max(len(cells[i]) for cells in (headings, *rows)) for i in range(len(headings) - 1)]
    indent = sum(widths) + 2 * len(widths)
    room = max(24, terminal_width() - indent) if sys.stdout.isatty() else 10**6
    for number, cells in enumerate((headings, *rows)):
        start = "".join(f"{cell:<{width}}  " for cell, width in zip(cells[:-1], widths, strict=True))
        lines = textwrap.wrap(cells[-1], room) or [""]
        text = (start + lines[0]).rstrip()
        click.echo(click.style(text, bold=True) if number == 0 else text)
        for line in lines[1:]:
            click.echo(" " * indent + line)


def human_size(size: int | None) -> str:
    """Bytes as "93 MB"; a dash if unknown."""
    if size is None:
        return "-"
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size} B"


def terminal_width() -> int:
    """Columns of the terminal, at most 120."""
    return min(120, shutil.get_terminal_size().columns)
