"""Checking a bundle: everything that can be known of it without the models."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from latentbench.identity import sha256_file
from latentbench.store import CellFolder, ResultsFolder, RunRecord
from latentbench_leaderboard.bundles._check_cell import Checked, check_cell, read_cell
from latentbench_leaderboard.bundles._check_whole import check_manifest, check_side_files, check_subjects
from latentbench_leaderboard.bundles._findings import CellState, CheckReport, Finding
from latentbench_leaderboard.bundles._layout import MANIFEST
from latentbench_leaderboard.bundles._recompute import Recompute
from latentbench_leaderboard.bundles._strict import Refused, shown
from latentbench_leaderboard.bundles._unpack import DEFAULT_LIMITS, Limits, Opened, open_bundle

__all__ = ["check_bundle", "check_opened"]


def check_bundle(path: Path, recompute: Recompute, limits: Limits = DEFAULT_LIMITS) -> CheckReport:
    """Check a bundle, or a results folder.

    Args:
        path: a bundle, or a folder.
        recompute: how summaries are computed again: `isolated()` for what strangers send.
        limits: of its size.

    Raises:
        UserError: there is no bundle at that path.
    """
    try:
        with open_bundle(path, limits) as opened:
            return check_opened(opened, recompute)
    except Refused as error:
        return CheckReport(None, (), (Finding("container", f"the bundle {error}"),))


def check_opened(opened: Opened, recompute: Recompute) -> CheckReport:
    """Check an opened bundle; see `check_bundle`."""
    findings: list[Finding] = []
    manifest = opened.path / MANIFEST
    if opened.is_bundle:
        findings += check_manifest(opened.path)
    cells = ResultsFolder(opened.path).cells() if (opened.path / "runs").is_dir() else []
    if not cells:
        findings.append(Finding("completeness", "there is no cell in it"))
    records, states = _read(cells, findings)
    measured = _measured(records)
    for folder, record in records:
        own = (folder.path / "items.jsonl").is_file()  # what the site shows of it
        shared = folder if own else measured.get(record.measurement_key)
        checked: Checked = check_cell(folder, record, shared, opened.is_bundle, recompute)
        states.append(checked.state)
        findings += checked.findings
    findings += check_side_files(opened.path, [record for _, record in records], opened.is_bundle)
    findings += check_subjects([record for _, record in records], opened.path)
    return CheckReport(
        id=sha256_file(manifest) if manifest.is_file() else None,
        cells=tuple(sorted(states)),
        findings=tuple(sorted(findings, key=lambda finding: not finding.fails)),
    )


def _read(
    cells: Iterable[CellFolder], findings: list[Finding]
) -> tuple[list[tuple[CellFolder, RunRecord]], list[CellState]]:
    """The finished cells whose records can be read; of others the state, and why not."""
    records: list[tuple[CellFolder, RunRecord]] = []
    states: list[CellState] = []
    for folder in cells:
        key = shown(folder.key, 64)[1:-1]
        try:
            record = read_cell(folder)
        except Refused as error:
            findings.append(Finding("schema", str(error), key, "a cell"))
            states.append(CellState(key, "a cell", "unreadable", False))
            continue
        if record is None:
            findings.append(Finding("completeness", "is not finished: it has no run.json", key, "a cell"))
            states.append(CellState(key, "a cell", "unfinished", False))
        else:
            records.append((folder, record))
    return records, states


def _measured(records: Iterable[tuple[CellFolder, RunRecord]]) -> dict[str, CellFolder]:
    """By measurement the first cell that has its items: cells that differ in their judge alone may share them."""
    found: dict[str, CellFolder] = {}
    for folder, record in records:
        if (folder.path / "items.jsonl").is_file():
            found.setdefault(record.measurement_key, folder)
    return found
