"""Taking a checked bundle into the results folder that a leaderboard is built from."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from latentbench.errors import UserError
from latentbench.store import CellFolder, ResultsFolder
from latentbench_leaderboard.bundles._check import check_opened
from latentbench_leaderboard.bundles._findings import CheckReport
from latentbench_leaderboard.bundles._layout import CELL_FILES
from latentbench_leaderboard.bundles._recompute import Recompute
from latentbench_leaderboard.bundles._tiers import tiers_of, tiers_of_check, tiers_path, write_tiers
from latentbench_leaderboard.bundles._unpack import open_bundle

__all__ = ["add_bundle"]

_MEASURED = ("items.jsonl", "judgements.jsonl")


def add_bundle(bundle: Path, results: Path, recompute: Recompute, allow: tuple[str, ...] = ()) -> CheckReport:
    """Check a bundle and copy its cells into a results folder, if nothing fails; with tiers.

    Args:
        bundle: the bundle.
        results: the results folder, made if missing.
        recompute: how summaries are computed again.
        allow: checks that may fail.

    Raises:
        UserError: the folder has other content of one of the cells, or another calibration of one of the judges.
        Refused: the file must not be opened.
    """
    with open_bundle(bundle) as opened:
        report = check_opened(opened, recompute).allowing(allow)
        if not report.ok:
            return report
        source, target = ResultsFolder(opened.path), ResultsFolder.create(results)
        finished = [cell for cell in source.cells() if cell.finished]
        for cell in finished:
            _refuse_another(cell, target.cell(cell.key), bundle, results)
        side = sorted(
            path for name in ("cards", "calibration") for path in opened.path.glob(f"{name}/*.json")
        )
        for path in side:
            _refuse_another_calibration(path, results)
        for cell in finished:
            _copy([cell.path / name for name in CELL_FILES], target.cell(cell.key).path)
        for path in side:
            _copy([path], results / path.parent.name)
    tiers = {**tiers_of_check(report), **tiers_of(bundle, report.id)}
    keys = {cell.key for cell in finished}
    write_tiers(
        tiers_path(results), {key: tier for key, tier in tiers.items() if key in keys}, {"last": report.id}
    )
    return report


def _refuse_another(cell: CellFolder, there: CellFolder, bundle: Path, results: Path) -> None:
    """Refuse a cell that the results folder has with another content: its numbers would rest on either."""
    if not there.finished:
        return
    differs = [name for name in _MEASURED if _bytes(cell.path / name) != _bytes(there.path / name)]
    if there.record() != cell.record() or differs:
        what = "record" if there.record() != cell.record() else differs[0]
        raise UserError(
            f"{results} has another {what} of the cell {cell.key[:10]}; nothing was added. Compare them "
            f"with `latentbench leaderboard diff {results} {bundle}`, and remove the one that is wrong."
        )


def _refuse_another_calibration(path: Path, results: Path) -> None:
    """Refuse another calibration of a known judge: nothing in a bundle proves which one is right."""
    there = results / path.parent.name / path.name
    if path.parent.name == "calibration" and there.exists() and there.read_bytes() != path.read_bytes():
        raise UserError(
            f"{results} has another calibration of the judge {path.stem[:10]}; nothing was added. Calibrate it "
            "yourself (`latentbench judge calibrate JUDGE`), and remove the one that is wrong."
        )


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _copy(files: Iterable[Path], folder: Path) -> None:
    """Copy those files that exist and are not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in files:
        if path.is_file() and not (folder / path.name).exists():
            shutil.copyfile(path, folder / path.name)
