"""Bundles: results as they are submitted, and what can be known of a stranger's."""

from __future__ import annotations

from latentbench_leaderboard.bundles._add import add_bundle
from latentbench_leaderboard.bundles._check import check_bundle, check_opened
from latentbench_leaderboard.bundles._findings import ALLOWABLE, CHECKS, CellState, CheckReport, Finding
from latentbench_leaderboard.bundles._layout import FORMAT, MANIFEST
from latentbench_leaderboard.bundles._publish import foreign_excerpts
from latentbench_leaderboard.bundles._recompute import CannotRecompute, Recompute, here, isolated
from latentbench_leaderboard.bundles._strict import Refused
from latentbench_leaderboard.bundles._tiers import (
    TIERS_FILE,
    Tier,
    lowest,
    read_tiers,
    tiers_of_check,
    tiers_path,
    write_tiers,
)
from latentbench_leaderboard.bundles._unpack import DEFAULT_LIMITS, Limits, Opened, open_bundle
from latentbench_leaderboard.bundles._write import BundleReport, write_bundle

__all__ = [
    "ALLOWABLE",
    "CHECKS",
    "DEFAULT_LIMITS",
    "FORMAT",
    "MANIFEST",
    "TIERS_FILE",
    "BundleReport",
    "CannotRecompute",
    "CellState",
    "CheckReport",
    "Finding",
    "Limits",
    "Opened",
    "Recompute",
    "Refused",
    "Tier",
    "add_bundle",
    "check_bundle",
    "check_opened",
    "foreign_excerpts",
    "here",
    "isolated",
    "lowest",
    "open_bundle",
    "read_tiers",
    "tiers_of_check",
    "tiers_path",
    "write_bundle",
    "write_tiers",
]
