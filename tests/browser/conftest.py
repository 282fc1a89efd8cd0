"""Chromium and a built site."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser_pages import Site
from playwright.sync_api import Browser, Error, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "leaderboard"))  # for the records that both use

from leaderboard_records import write_results

from latentbench_leaderboard import BuildOptions, build_site

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium: the system's, else the one that playwright installed."""
    path = next((found for name in _NAMES if (found := shutil.which(name))), None)
    with sync_playwright() as playwright:
        try:
            launched = playwright.chromium.launch(executable_path=path, args=_ARGUMENTS)
        except Error as error:
            pytest.fail(
                f"no Chromium could be started ({str(error).splitlines()[0]}); install one "
                "(apt-get install chromium, or playwright install chromium), or leave these tests "
                "out with -m 'not browser and not gpu'"
            )
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A built site."""
    place = tmp_path_factory.mktemp("browser")
    write_results(place / "results")
    build_site(place / "results", place / "site", BuildOptions())
    return place / "site"


@pytest.fixture
def site(folder: Path, browser: Browser) -> Site:
    """The site in the browser."""
    return Site(folder, browser)
