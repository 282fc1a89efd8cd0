"""`latentbench submit`, and `check` and `diff` of `latentbench leaderboard`."""

from __future__ import annotations

from pathlib import Path

import click

from latentbench.cli._output import echo_json, human_size

__all__ = ["check", "diff", "submit"]


@click.command()
@click.argument(
    "runs", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, file_okay=False)
)
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, metavar="BUNDLE", help="The file to write, .zip."
)
@click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON.")
def submit(runs: tuple[Path, ...], out: Path, as_json: bool) -> None:
    """Pack RUNS, results folders or single cells of them, into one BUNDLE that a leaderboard can check.

    It holds records, items, judgements, cards, calibrations, checksums and environments; and no text of sources whose
    terms are unknown or not free. Equal results give equal bytes.
    """
    from latentbench_leaderboard.bundles import write_bundle

    report = write_bundle(runs, out)
    if as_json:
        echo_json({**report._asdict(), "path": str(report.path)})
        return
    click.echo(f"{report.path}: {report.cells} cells, {human_size(report.bytes)}, id {report.id[:16]}")
    for what, n in (
        ("failed cells are in it", report.failed),
        ("unfinished cells were left out", len(report.unfinished)),
        ("cells have no items, so that nobody can compute their numbers again", len(report.without_items)),
        ("excerpts were left out for the terms of their sources", report.excerpts_removed),
        ("judgements lost the judge's words, which may quote such texts", report.replies_removed),
    ):
        if n:
            click.echo(f"{n} {what}")
    click.echo(f"Check it: latentbench leaderboard check {report.path}")


_allow = click.option(
    "--allow",
    multiple=True,
    metavar="CHECK",
    help="A check that may fail: missing-items, version, completeness, l0 or calibration. Can be given several times.",
)


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path, exists=True))
@_allow
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def check(bundle: Path, allow: tuple[str, ...], as_json: bool) -> int:
    """Check a BUNDLE, or a results folder, without any model.

    Every number is computed again from the items. Each failure is one line; exit code 1 if anything fails.
    """
    from latentbench.errors import unknown_name
    from latentbench_leaderboard.bundles import ALLOWABLE, check_bundle, isolated

    for name in allow:
        if name not in ALLOWABLE:
            raise unknown_name("check that may fail", name, ALLOWABLE)
    with isolated() as recompute:
        report = check_bundle(bundle, recompute).allowing(allow)
    if as_json:
        echo_json(report.as_json())
    else:
        for finding in report.findings:
            click.echo(finding.line())
        failures = sum(finding.fails for finding in report.findings)
        verdict = "ok" if report.ok else f"{failures} failures"
        click.echo(
            f"{verdict}: {len(report.cells)} cells, {report.recomputed} computed again from their items"
        )
    return 0 if report.ok else 1


@click.command()
@click.argument("old", type=click.Path(path_type=Path, exists=True))
@click.argument("new", type=click.Path(path_type=Path, exists=True))
@click.option("--exact", is_flag=True, help="Exit with 1 for any difference, within intervals too.")
@click.option("--json", "as_json", is_flag=True, help="Print the differences as JSON.")
def diff(old: Path, new: Path, exact: bool, as_json: bool) -> int:
    """Show what changed from OLD to NEW, two results folders or bundles.

    Exit code 0 if they say the same; 1 if a cell or a number went, or a number moved beyond its interval.
    """
    from latentbench_leaderboard.diffs import diff_results

    found = diff_results(old, new)
    if as_json:
        echo_json(found.as_json())
    else:
        for change in found.changes:
            click.echo(change.line())
        beyond = sum(change.beyond for change in found.changes)
        click.echo(
            f"{found.compared} cells compared: {len(found.changes)} differences, {beyond} beyond an interval"
        )
    return 1 if found.moved or (exact and found.changes) else 0
