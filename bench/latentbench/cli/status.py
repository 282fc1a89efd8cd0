"""`latentbench status`."""

from __future__ import annotations

from pathlib import Path

import click

from latentbench.cli._output import echo_json, echo_table

__all__ = ["status"]


@click.command()
@click.argument("results", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def status(results: Path, as_json: bool) -> int:
    """Show how far the cells of a RESULTS folder are. Exit code 1 if a cell failed."""
    from latentbench.store import ResultsFolder

    rows = []
    for cell in ResultsFolder(results).cells():
        record, identity = cell.record(), cell.identity()
        task = identity.task.get("name", "?") if identity else "?"
        rows.append(
            {
                "key": cell.key,
                "state": record.status if record else "unfinished",
                "task": str(task),
                "dictionary": str(record.labels.get("dictionary", "?")) if record else "?",
                "items": sum(1 for _ in cell.items()),
                "error": f"{record.error.type}: {record.error.message}" if record and record.error else "",
            }
        )
    if as_json:
        echo_json(rows)
    else:
        echo_table(
            ("KEY", "STATE", "ITEMS", "TASK", "DICTIONARY"),
            [
                (str(r["key"])[:10], str(r["state"]), f"{r['items']:,}", str(r["task"]),
                 str(r["dictionary"]) + (f"  {r['error']}" if r["error"] else ""))
                for r in rows
            ],
        )  # fmt: skip
    return 1 if any(row["state"] == "failed" for row in rows) else 0
