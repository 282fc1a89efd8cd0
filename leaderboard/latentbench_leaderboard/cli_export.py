"""`latentbench export`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from latentbench.errors import UserError

if TYPE_CHECKING:
    from latentbench.store import RunRecord

__all__ = ["export"]

_TEXTS = ("csv", "md", "latex")
_FORMATS = ("csv", "parquet", "md", "latex", "eee", "hf")


@click.command()
@click.argument("kind", metavar="FORMAT", type=click.Choice(_FORMATS))
@click.argument("results", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="File to write; for eee and hf a folder. By default csv, md and latex are printed.",
)
@click.option(
    "--dataset",
    metavar="ID",
    help="For hf: id on the Hub of the benchmark's data set, such as somebody/latentbench.",
)
@click.option("--source-url", metavar="URL", help="For hf: where the numbers can be looked up.")
def export(kind: str, results: Path, out: Path | None, dataset: str | None, source_url: str | None) -> None:
    """Write RESULTS for other programs.

    csv and parquet hold one row per metric; md and latex are tables of headline metrics with intervals; eee is the
    schema of Every Eval Ever; hf is .eval_results/*.yaml of the Hugging Face Hub.
    """
    from latentbench.store import load_records

    records = load_records(results)
    if not records:
        raise UserError(f"{results} holds no finished cell, so there is nothing to export")
    if kind != "hf" and (dataset or source_url):
        raise UserError(f"--dataset and --source-url are for hf, not for {kind}")
    if kind in _TEXTS:
        _text(kind, records, out)
        return
    if out is None:
        raise UserError(f"{kind} is not for a terminal: name what to write with --out")
    if kind == "parquet":
        from latentbench_leaderboard.exports import rows_of, write_parquet

        write_parquet(rows_of(records), out)
        click.echo(str(out))
        return
    _write_all(_files(kind, records, dataset, source_url), out)


def _text(kind: str, records: list[RunRecord], out: Path | None) -> None:
    from latentbench_leaderboard.exports import csv_text, latex_text, markdown_text, rows_of

    make = {"csv": csv_text, "md": markdown_text, "latex": latex_text}[kind]
    text = make(rows_of(records))
    if out is None:
        click.echo(text, nl=False)
        return
    out.write_bytes(text.encode("utf-8"))
    click.echo(str(out))


def _files(
    kind: str, records: list[RunRecord], dataset: str | None, source_url: str | None
) -> Mapping[str, str]:
    from latentbench_leaderboard.exports import eee_files, hf_files, rows_of

    if kind == "eee":
        return eee_files(records)
    if dataset is None:
        raise UserError(
            "the Hub shows results under a benchmark's data set: name yours with --dataset OWNER/NAME"
        )
    return hf_files(rows_of(records), dataset, source_url)


def _write_all(files: Mapping[str, str], out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is there and is not an empty folder: nothing is overwritten; name another")
    for name, text in files.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("utf-8"))
    click.echo(f"{len(files)} files in {out}")
