"""`latentbench ls`."""

from __future__ import annotations

import click

from latentbench.cli._listing import KINDS, find_kind
from latentbench.cli._output import echo_json, echo_table

__all__ = ["ls"]


@click.command()
@click.argument("kind", required=False, metavar="[tasks|judges|formats|suites|dictionaries|controls|assets]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ls(kind: str | None, as_json: bool) -> None:
    """List what can be named on the command line and in suites: one kind, or all."""
    kinds = (find_kind(kind),) if kind is not None else KINDS
    if as_json:
        listed = {shown.plural: shown.rows() for shown in kinds}
        echo_json(listed if kind is None else listed[kinds[0].plural])
        return
    for number, shown in enumerate(kinds):
        if kind is None:
            click.echo(("\n" if number else "") + click.style(shown.plural.upper(), bold=True))
        rows = [[str(row.get(column, "")) for column in shown.columns] for row in shown.rows()]
        echo_table([column.upper() for column in shown.columns], rows)
