"""`latentbench compare`."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING

import click

from latentbench.cli import echo_json, echo_table

if TYPE_CHECKING:
    from latentbench_tasks._compare import Compared

__all__ = ["compare"]


@click.command()
@click.argument("results", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("first")
@click.argument("second")
@click.option(
    "--metric", "metrics", multiple=True, help="Metric or pattern; repeatable. [default: headline ones]"
)
@click.option("--json", "in_json", is_flag=True, help="Print as JSON.")
def compare(results: Path, first: str, second: str, metrics: tuple[str, ...], in_json: bool) -> None:
    """Compare two families of dictionaries in RESULTS over their training runs.

    FIRST and SECOND are shell patterns of the dictionaries' names, such as 'RouteSAE k 64*'. Counts of latents are
    compared as a ratio, everything else as a difference, with Welch's interval over seeds; a feature count whose
    items are there has its error over documents in the interval, other intervals hold for these documents alone.
    The last column is the smallest effect that such a design finds four times out of five.
    """
    from latentbench_tasks._compare import as_json
    from latentbench_tasks._compare import compare as compared
    from latentbench_tasks.feature_count.paired import document_log_error

    found = compared(results, first, second, metrics, {"feature_count": document_log_error})
    if in_json:
        echo_json([as_json(one) for one in found])
        return
    headings = ("TASK", "METRIC", "FIRST", "SECOND", "SEEDS", "", "VALUE", "INTERVAL", "DETECTABLE")
    echo_table(headings, [_row(one) for one in found])


def _row(one: Compared) -> tuple[str, ...]:
    estimate = one.estimate
    interval = "none" if estimate.low is None else f"{estimate.low:.4g} to {estimate.high:.4g}"
    return (
        one.task,
        one.metric,
        f"{statistics.fmean(one.first):.4g}",
        f"{statistics.fmean(one.second):.4g}",
        f"{len(one.first)}, {len(one.second)}",
        one.scale,
        "unscored" if estimate.value is None else f"{estimate.value:.4g}",
        interval,
        "-" if one.detectable is None else f"{one.detectable:.4g}",
    )
