from __future__ import annotations

from pathlib import Path

import pytest
from bundle_cells import write_measured
from leaderboard_records import write_results

from latentbench_leaderboard import BuildOptions, build_site
from latentbench_leaderboard.bundles import write_bundle


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


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of two dictionaries that toy tasks really measured; not to be written to."""
    path = tmp_path_factory.mktemp("measured") / "results"
    write_measured(path)
    return path


@pytest.fixture(scope="session")
def bundle(measured: Path) -> Path:
    """A bundle of `measured`; not to be written to."""
    path = measured.parent / "toy.zip"
    write_bundle([measured], path)
    return path
