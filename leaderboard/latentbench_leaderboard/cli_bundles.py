"""`latentbench submit`, and `add`, `check`, `diff` and `verify` of `latentbench leaderboard`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from latentbench.cli._output import echo_json, human_size

if TYPE_CHECKING:
    from latentbench_leaderboard.bundles import CheckReport

__all__ = ["add", "check", "diff", "push", "submit", "verify"]


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
@click.option(
    "--tiers", is_flag=True, help="Write beside it which cells are checked, for the leaderboard to show."
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def check(bundle: Path, allow: tuple[str, ...], tiers: bool, as_json: bool) -> int:
    """Check a BUNDLE, or a results folder, without any model.

    Every number is computed again from the items. Each failure is one line; exit code 1 if anything fails.
    """
    from latentbench_leaderboard.bundles import (
        check_bundle,
        isolated,
        tiers_of_check,
        tiers_path,
        write_tiers,
    )

    _known(allow)
    with isolated() as recompute:
        report = check_bundle(bundle, recompute).allowing(allow)
    if tiers:
        write_tiers(tiers_path(bundle), tiers_of_check(report), {"last": report.id})
    _show(report, as_json)
    return 0 if report.ok else 1


def _known(allow: tuple[str, ...]) -> None:
    from latentbench.errors import unknown_name
    from latentbench_leaderboard.bundles import ALLOWABLE

    for name in allow:
        if name not in ALLOWABLE:
            raise unknown_name("check that may fail", name, ALLOWABLE)


def _show(report: CheckReport, as_json: bool) -> None:
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


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path, exists=True))
@click.option(
    "--to", "results", type=click.Path(path_type=Path, file_okay=False), required=True, help="Results folder."
)
@_allow
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def add(bundle: Path, results: Path, allow: tuple[str, ...], as_json: bool) -> int:
    """Check a BUNDLE, and copy its cells into a results folder if nothing fails.

    The folder remembers how far each cell is proved; `latentbench leaderboard build` shows it.
    """
    from latentbench_leaderboard.bundles import add_bundle, isolated

    _known(allow)
    with isolated() as recompute:
        report = add_bundle(bundle, results, recompute, allow)
    _show(report, as_json)
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


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path, exists=True))
@click.option(
    "--cells", type=click.IntRange(min=1), default=3, show_default=True, help="Cells to measure again."
)
@click.option("--seed", default=0, show_default=True, help="Draws the cells, together with the bundle's id.")
@click.option(
    "--dict",
    "dictionaries",
    multiple=True,
    metavar="NAME=SOURCE",
    help="Where a dictionary is, as `latentbench run --dict` takes it. Those of the zoo need not be named.",
)
@click.option("--judge", help="Judge of judged cells, as `latentbench run --judge` takes it.")
@click.option("--device", default="cpu", show_default=True, help="Device.")
@_allow
@click.option("--json", "as_json", is_flag=True, help="Print the outcomes as JSON.")
def verify(
    *,
    bundle: Path,
    cells: int,
    seed: int,
    dictionaries: tuple[str, ...],
    judge: str | None,
    device: str,
    allow: tuple[str, ...],
    as_json: bool,
) -> int:
    """Check a BUNDLE, measure a sample of its cells again, and write beside it how far each cell is proved.

    Exit code 0 if all of the sample agree within their intervals, 1 otherwise; a cell that can't be measured here
    agrees with nothing.
    """
    from latentbench_leaderboard.bundles import tiers_path
    from latentbench_leaderboard.bundles._verify import by_command
    from latentbench_leaderboard.verification import verify_bundle

    _known(allow)
    found = verify_bundle(
        bundle, cells, seed, by_command(device), dictionaries=_named(dictionaries), judge=judge, allow=allow
    )
    if as_json:
        echo_json(found.as_json())
        return 0 if found.ok else 1
    if not found.report.ok:
        _show(found.report, False)
    for one in found.outcomes:
        click.echo(f"{one.result:8}  {one.about} ({one.key[:10]})")
        for line in one.lines:
            click.echo(f"          {line}")
    agree = sum(one.result == "agrees" for one in found.outcomes)
    click.echo(f"{agree} of {len(found.outcomes)} cells were reproduced")
    if found.report.ok:
        click.echo(f"Written beside it: {tiers_path(bundle)}; `latentbench leaderboard add` takes it along")
    return 0 if found.ok else 1


def _named(given: tuple[str, ...]) -> dict[str, str]:
    pairs = [one.rpartition("=") for one in given]
    for name, sign, source in pairs:
        if not (name and sign and source):
            raise click.UsageError(f"--dict takes NAME=SOURCE, not {name or source!r}")
    return {name: source for name, _, source in pairs}


@click.command()
@click.argument("results", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--git", "remote", required=True, metavar="REMOTE", help="Repository, as git takes it.")
@click.option(
    "--branch", required=True, help="Branch to push to; made from the default one if it is not there."
)
@click.option("--json", "as_json", is_flag=True, help="Print what was pushed as JSON.")
def push(results: Path, remote: str, branch: str, as_json: bool) -> None:
    """Pack RESULTS as `latentbench submit` does, and push the bundle as one commit, never by force."""
    from latentbench_leaderboard.pushing import push as send

    sent = send(results, remote, branch)
    if as_json:
        echo_json(sent._asdict())
    elif sent.commit:
        click.echo(f"{sent.path} is on {branch} ({sent.commit[:10]}), id {sent.id[:16]}")
    else:
        click.echo(f"{branch} holds the same {sent.path} already; nothing was pushed")
