"""Pages of studies: Markdown with tables that a script beside it makes from the records."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import click

__all__ = ["filled", "markdown_table", "page_main"]


def markdown_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Rows of cells as a Markdown table, without a line break at the end."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def filled(page: str, made: dict[str, str]) -> str:
    """The page with each `<!-- table NAME -->` followed by that table, in place of the one that is there.

    Raises:
        ValueError: the page has no place for a table.
    """
    for name, table in made.items():
        place = re.compile(rf"(<!-- table {name} -->\n\n)(?:\|.*\n)*")
        if not place.search(page):
            raise ValueError(
                f"the page has no place for table {name!r}: <!-- table {name} --> and an empty line"
            )
        page = place.sub(partial(_put, table), page)
    return page


def _put(table: str, found: re.Match[str]) -> str:
    """The table in its place, with an empty line before what follows: Markdown takes the next line for a row."""
    follows = found.string[found.end() : found.end() + 1]
    return f"{found[1]}{table}\n" + ("\n" if follows not in ("", "\n") else "")


def page_main(folder: Path, tables: Callable[[], dict[str, str]], description: str) -> None:
    """Command line of a script of tables: print them, or write them into README.md.

    Args:
        folder: where README.md is.
        tables: makes the tables, by the name of their place.
        description: help text.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--write", action="store_true", help="write them into README.md")
    write = parser.parse_args().write
    made = tables()
    if write:
        page = folder / "README.md"
        page.write_text(filled(page.read_text(encoding="utf-8"), made), encoding="utf-8")
        return
    for name, table in made.items():
        click.echo(f"\n{name}\n\n{table}")
