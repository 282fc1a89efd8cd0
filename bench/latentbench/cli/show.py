"""`latentbench show`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from latentbench.cli._output import echo_json, echo_table
from latentbench.errors import UserError

if TYPE_CHECKING:
    from latentbench.store import Metric, RunRecord

__all__ = ["show"]


@click.command()
@click.argument("results", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("key", required=False)
@click.option("--all", "everything", is_flag=True, help="Every metric, not only the headline ones.")
@click.option("--json", "as_json", is_flag=True, help="The whole records as JSON.")
def show(results: Path, key: str | None, everything: bool, as_json: bool) -> None:
    """Show the records of a RESULTS folder, or the one whose KEY starts with the digits given."""
    from latentbench.store import load_records

    records = [record for record in load_records(results) if key is None or record.key.startswith(key)]
    if key is not None and not records:
        raise UserError(f"no finished cell of {results} has a key that starts with {key!r}")
    if as_json:
        echo_json([record.model_dump(mode="json") for record in records])
        return
    everything = everything or key is not None
    records.sort(key=lambda record: (str(record.cell.task["name"]), str(record.labels["dictionary"])))
    rows = [row for record in records for row in _rows(record, everything)]
    echo_table(("KEY", "TASK", "METRIC", "VALUE", "INTERVAL", "N", "UNIT", "DICTIONARY"), rows)


def _rows(record: RunRecord, everything: bool) -> list[tuple[str, ...]]:
    name, task = str(record.labels["dictionary"]), str(record.cell.task["name"])
    if record.error is not None:
        return [(record.key[:10], task, "-", "failed", "-", "-", "-", f"{name}: {record.error.message}")]
    return [
        (
            record.key[:10],
            task,
            metric.name,
            *_numbers(metric),
            f"{metric.n} {metric.resampling_unit}",
            metric.unit,
            name,
        )
        for metric in record.metrics
        if everything or metric.headline
    ]


def _numbers(metric: Metric) -> tuple[str, str]:
    if metric.value is None:
        return "-", f"unscored: {metric.reason}"
    if metric.interval is None:
        return f"{metric.value:.4g}", "none"
    return f"{metric.value:.4g}", f"{metric.interval.low:.4g} to {metric.interval.high:.4g}"
