"""`latentbench leaderboard`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from latentbench_leaderboard.cli_bundles import add, check, diff, push, verify

__all__ = ["leaderboard"]


@click.group()
def leaderboard() -> None:
    """Build the static leaderboard site, and check what is submitted to it."""


for _command in (check, verify, add, diff, push):
    leaderboard.add_command(_command)


@leaderboard.command()
@click.argument("results", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, metavar="SITE", help="Folder of the site."
)
@click.option("--title", default="latentbench", show_default=True, help="Title of the board.")
@click.option(
    "--target-l0",
    type=float,
    multiple=True,
    help="Sparsity at which a table compares; repeatable, a table for each. [default: those of the suites]",
)
@click.option(
    "--tolerance",
    type=float,
    default=0.05,
    show_default=True,
    help="Largest distance of a measured L0 from the target, as a share of it.",
)
@click.option(
    "--local-texts/--public",
    default=True,
    show_default=True,
    help="Show texts from texts.jsonl files beside the items (for looking at on this machine), or leave them "
    "out (for a site that is published).",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was built as JSON.")
def build(
    *,
    results: Path,
    out: Path,
    title: str,
    target_l0: tuple[float, ...],
    tolerance: float,
    local_texts: bool,
    as_json: bool,
) -> None:
    """Build a static site from a RESULTS folder.

    The site opens from a file or from any static host, and asks the network for nothing. The same results
    give the same files, byte for byte. SITE is replaced as a whole; a folder that is not an older site is
    left alone.
    """
    from latentbench_leaderboard._build import (
        BuildOptions,
        build_site,
    )  # jinja2 and the records only when needed

    report = build_site(results, out, BuildOptions(title, target_l0, tolerance, local_texts))
    if as_json:
        values = {**report.__dict__, "index": str(report.index)}
        click.echo(json.dumps(values, indent=2, sort_keys=True))
        return
    click.echo(
        f"{report.dictionaries} dictionaries, {report.cells} cells ({report.failed} failed, "
        f"{report.unfinished} unfinished), {report.latents} latents: "
        f"{report.files} files, {report.bytes / 1e6:.1f} MB"
    )
    if report.local_texts:
        click.echo(
            "The pages hold texts that are not for publication; build with --public for a site to publish."
        )
    click.echo(f"Open {report.index.resolve()}")


@leaderboard.command()
@click.argument("sites", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--title", default="latentbench", show_default=True, help="Title of the page.")
@click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON.")
def front(*, sites: Path, title: str, as_json: bool) -> None:
    """Write the page before several sites, index.html in the folder SITES that they were built into."""
    from latentbench_leaderboard._front import write_front

    report = write_front(sites, title)
    if as_json:
        click.echo(json.dumps({"path": str(report.path), "sites": report.sites}, indent=2))
        return
    click.echo(f"{len(report.sites)} sites: {', '.join(report.sites)}")
    click.echo(f"Open {report.path.resolve()}")
