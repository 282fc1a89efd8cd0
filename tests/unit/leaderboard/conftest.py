from __future__ import annotations

from pathlib import Path

import pytest
from leaderboard_records import write_results

from latentbench_leaderboard import BuildOptions, build_site


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A realistic results folder; not to be written to."""
    path = tmp_path_factory.mktemp("leaderboard") / "results"
    write_results(path)
    return path


@pytest.fixture(scope="session")
def site(results: Path) -> Path:
    """The site of `results` as a local build makes it; not to be written to."""
    target = results.parent / "site"
    build_site(results, target, BuildOptions())
    return target


@pytest.fixture(scope="session")
def public_site(results: Path) -> Path:
    """The same as a public build makes it."""
    target = results.parent / "public"
    build_site(results, target, BuildOptions(local_texts=False))
    return target
