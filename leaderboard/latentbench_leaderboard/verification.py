"""A bundle checked, a sample of it measured again, and its tiers written beside it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latentbench.identity import sha256_json
from latentbench.store import load_records
from latentbench_leaderboard.bundles import (
    CheckReport,
    Finding,
    Refused,
    Tier,
    check_opened,
    isolated,
    open_bundle,
    tiers_of_check,
    tiers_path,
    write_tiers,
)
from latentbench_leaderboard.bundles._verify import Outcome, Rerun, sample, verify_cells

__all__ = ["Verification", "verify_bundle"]


@dataclass(frozen=True)
class Verification:
    """What came of verifying a bundle."""

    report: CheckReport
    """Its check."""
    outcomes: tuple[Outcome, ...]
    """Of the sample; empty if the check failed."""
    tiers: dict[str, Tier]
    """By key of the cell."""

    @property
    def ok(self) -> bool:
        """Whether the check holds and the whole sample agrees."""
        return self.report.ok and all(one.result == "agrees" for one in self.outcomes)

    def as_json(self) -> dict[str, Any]:
        """As JSON."""
        outcomes = [one._asdict() for one in self.outcomes]
        return {"ok": self.ok, "check": self.report.as_json(), "outcomes": outcomes, "tiers": self.tiers}


def verify_bundle(
    bundle: Path,
    cells: int,
    seed: int,
    rerun: Rerun,
    *,
    dictionaries: Mapping[str, str],
    judge: str | None,
    allow: Collection[str] = (),
) -> Verification:
    """Check a bundle, measure a sample of its cells again, and write its tiers.

    Args:
        bundle: a bundle, or a results folder.
        cells: how many cells to measure again.
        seed: draws them, together with the bundle's id.
        rerun: how a cell is measured again.
        dictionaries: where dictionaries are, by name; see `verify_cells`.
        judge: see `verify_cells`.
        allow: checks that may fail.
    """
    try:
        with open_bundle(bundle) as opened, isolated() as recompute:
            report = check_opened(opened, recompute).allowing(allow)
            records = load_records(opened.path) if report.ok else []
    except Refused as error:
        report = CheckReport(None, (), (Finding("container", f"the bundle {error}"),))
        return Verification(report, (), {})
    # A folder has no manifest: what it holds names the draw.
    name = report.id or sha256_json(sorted(cell.key for cell in report.cells))
    outcomes = verify_cells(sample(records, cells, f"{name}/{seed}"), rerun, dictionaries, judge)
    tiers = tiers_of_check(report)
    for one in outcomes:
        if one.result == "agrees":
            tiers[one.key] = "reproduced"
        elif one.result == "differs":
            tiers[one.key] = "self-reported"
    about = {"last": report.id, "seed": seed, "sample": {one.key: one.result for one in outcomes}}
    write_tiers(tiers_path(bundle), tiers, about)
    return Verification(report, tuple(outcomes), tiers)
