"""A board of many rows: the page holds the first ones, scripts draw the rest from shards."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser_pages import Site
from leaderboard_records import Made, _core
from playwright.sync_api import Browser, expect

from latentbench.stats import generator
from latentbench.store import ResultsFolder
from latentbench_leaderboard import BuildOptions, build_site

pytestmark = pytest.mark.browser

ROWS, PAGE = 450, 60
MOST_BYTES = 1_000_000
"""What the first view may load."""


@pytest.fixture(scope="module")
def long_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("long")
    results = ResultsFolder.create(place / "results")
    for number in range(ROWS):
        family = ("topk", "routesae", "jumprelu")[number % 3]
        quality = 0.3 + 0.6 * ((number * 37) % ROWS) / ROWS
        made = Made(f"{family} run {number}", family, ["resid_post.21"], 64.0, quality)
        _core(results, made, generator(made.name))
    build_site(place / "results", place / "site", BuildOptions())
    return place / "site"


def test_rows_come_from_shards_when_they_are_asked_for(long_folder: Path, browser: Browser) -> None:
    site = Site(long_folder, browser)
    opened = site.open("index.html")
    page = opened.page
    rows = page.locator("table.scores tbody.ranked tr .name")
    expect(rows).to_have_count(PAGE)
    page.wait_for_load_state("networkidle")
    assert not [url for url in opened.requests if "/data/" in url]
    loaded = {Path(url.removeprefix("file://").partition("#")[0]) for url in opened.requests}
    assert sum(path.stat().st_size for path in loaded) < MOST_BYTES
    page.click("#more")
    expect(rows).to_have_count(2 * PAGE)
    first_names = rows.all_inner_texts()
    assert len(set(first_names)) == 2 * PAGE

    page.get_by_role("button", name="Dictionary").click()
    expect(rows.first).to_have_text("jumprelu run 101")  # a row that the page itself may not hold
    page.fill("[name=find]", "routesae 4")
    expect(page.locator("#count")).to_contain_text(f"of {ROWS} shown")
    found = rows.all_inner_texts()
    assert found
    assert all(name.startswith("routesae run") and "4" in name for name in found)
    site.close(opened)


def test_an_address_reaches_rows_behind_the_first_page(long_folder: Path, browser: Browser) -> None:
    site = Site(long_folder, browser)
    last = max(range(100, ROWS), key=lambda number: -((number * 37) % ROWS))  # next to the end of the order
    opened = site.open("index.html", anchor=f"#find={last}")
    link = opened.page.locator("tbody.ranked tr .name")
    expect(link).to_have_count(1)
    expect(link).to_contain_text(f"run {last}")
    link.click()
    expect(opened.page.locator("h1")).to_contain_text(f"run {last}")
    site.close(opened)
