"""Taking a checked bundle into the results folder that a leaderboard is built from."""

from __future__ import annotations

import shutil
from pathlib import Path

from latentbench.errors import UserError
from latentbench.store import ResultsFolder
from latentbench_leaderboard.bundles._check import check_opened
from latentbench_leaderboard.bundles._findings import CheckReport
from latentbench_leaderboard.bundles._recompute import Recompute
from latentbench_leaderboard.bundles._tiers import read_tiers, tiers_of_check, tiers_path, write_tiers
from latentbench_leaderboard.bundles._unpack import open_bundle

__all__ = ["add_bundle"]


def add_bundle(bundle: Path, results: Path, recompute: Recompute, allow: tuple[str, ...] = ()) -> CheckReport:
    """Check a bundle and copy its cells into a results folder, if nothing fails; with tiers.

    Args:
        bundle: the bundle.
        results: the results folder, made if missing.
        recompute: how summaries are computed again.
        allow: checks that may fail.

    Raises:
        UserError: the folder has another record of one of the cells.
        Refused: the file must not be opened.
    """
    with open_bundle(bundle) as opened:
        report = check_opened(opened, recompute).allowing(allow)
        if not report.ok:
            return report
        source, target = ResultsFolder(opened.path), ResultsFolder.create(results)
        finished = [cell for cell in source.cells() if cell.finished]
        for cell in finished:
            there = target.cell(cell.key)
            if there.finished and there.record() != cell.record():
                raise UserError(
                    f"{results} has another record of the cell {cell.key[:10]}; nothing was added. Compare them "
                    f"with `latentbench leaderboard diff {results} {bundle}`, and remove the one that is wrong."
                )
        for cell in finished:
            shutil.copytree(cell.path, target.cell(cell.key).path, dirs_exist_ok=True)
        for side in ("cards", "calibration"):
            if (opened.path / side).is_dir():
                shutil.copytree(opened.path / side, results / side, dirs_exist_ok=True)
    known = tiers_path(bundle)
    tiers = {**tiers_of_check(report), **(read_tiers(known) if known.exists() else {})}
    keys = {cell.key for cell in finished}
    write_tiers(
        tiers_path(results), {key: tier for key, tier in tiers.items() if key in keys}, {"last": report.id}
    )
    return report
