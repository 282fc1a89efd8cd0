"""No page scrolls sideways, however long a word in it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser_pages import Site
from leaderboard_records import (
    BUDGET,
    CONCEPTS,
    LM,
    RUBRIC,
    Made,
    _feature_count,
    _generations,
    _interpretability,
    _latents,
    cell_of,
    finish,
    metric,
    record_of,
)
from playwright.sync_api import Browser, Page, expect

from latentbench.stats import generator
from latentbench.store import Curve, CurvePoint, ResultsFolder
from latentbench_leaderboard import BuildOptions, build_site
from latentbench_leaderboard._front import write_front

pytestmark = pytest.mark.browser

LONG, LONGER = 150, 300
MADE = (
    Made("routesae" + "n" * LONG, "routesae" + "f" * LONG, ["resid_post.21"], 64.0, 0.8),
    Made("topk" + "n" * LONG, "topk", ["resid_post.21"], 64.0, 0.6),
)
PAGES = (
    "../index.html",
    "index.html",
    "compare.html",
    "curves.html",
    "steering.html",
    "metrics.html",
    "judges.html",
    "method.html",
    "errata.html",
    "dictionaries",
    "latents",
    "steering",
)
EVERYTHING_OPEN = "document.querySelectorAll('details').forEach((d) => (d.open = true))"
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def core(results: ResultsFolder, made: Made) -> None:
    """A cell whose titles, units and notes are one word each."""
    name = "m" * LONG
    metrics = [
        metric("l0", made.l0, 0.5, "latents/token", "none"),
        metric(name, made.quality, 0.01, "u" * LONG).model_copy(update={"note": "d" * LONGER}),
    ]
    points = [CurvePoint(x=BUDGET * share, value=share) for share in (0.5, 1.0)]
    curve = Curve(
        name=name, x_name="tokens watched", x_unit="tokens", unit="u" * LONG, points=points, note=""
    )
    finish(results, record_of(made, cell_of(made, "core", {"budget_tokens": BUDGET}), metrics, [curve]), [])


def steering(results: ResultsFolder, made: Made, steered: list[int]) -> None:
    """Texts of one word each."""
    words = {"prompt": "p" * LONGER, "text": "a" * LONGER, "baseline_text": "b" * LONGER}
    texts = [{**text, **words} for text in _generations(made, generator(made.name), steered)]
    for text in texts:
        text["concept"] = "c" * LONG if text["concept"] == CONCEPTS[0] else text["concept"]
    scored = [metric("success", 0.5, 0.1, n=len(CONCEPTS), of="concept")]
    finish(results, record_of(made, cell_of(made, "steering", {"methods": ["contrast"]}), scored), texts)


@pytest.fixture(scope="module")
def long_words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a page before one site; every name in the site is one long word."""
    place = tmp_path_factory.mktemp("words")
    results = ResultsFolder.create(place / "results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(LM, "name", "l" * LONG)
        for made in MADE:
            rng = generator(made.name)
            stored = _latents(made, rng, 12)
            core(results, made)
            _feature_count(results, made, rng, stored)
            _interpretability(results, made, rng, stored, {**RUBRIC, "model": "j" * LONG})
            steering(results, made, [item["latent"] for item in stored[:2]])
    erratum = f'[[erratum]]\ndate = 2026-01-02\ntitle = "{"e" * LONG}"\ntext = "{"e" * LONGER}"\n'
    (place / "results" / "errata.toml").write_text(erratum, encoding="utf-8")
    build_site(place / "results", place / "sites" / "one", BuildOptions(title="t" * LONG))
    write_front(place / "sites", "s" * LONG)
    return place / "sites" / "one"


def columns(page: Page, selector: str) -> int:
    """How many parts of the first such element stand side by side."""
    parts = page.locator(selector).first.locator(":scope > *")
    return len({box["x"] for box in (parts.nth(i).bounding_box() for i in range(parts.count())) if box})


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("page", PAGES)
def test_no_long_word_makes_a_page_scroll_sideways(
    long_words: Path, browser: Browser, page: str, width: int
) -> None:
    site = Site(long_words, browser)
    opened = site.open(page if page.endswith(".html") else site.file(page, "routesae*"), width)
    opened.page.wait_for_load_state("networkidle")
    opened.page.evaluate(EVERYTHING_OPEN)
    opened.page.wait_for_load_state("networkidle")
    if page == "compare.html":
        expect(opened.page.locator(".pair a")).to_have_count(2)
    if page == "latents":
        expect(opened.page.locator(".steers .said").nth(1)).to_contain_text("a" * LONGER)
    if page == "steering":
        expect(opened.page.locator(".transcript")).to_have_count(len(CONCEPTS))
    assert opened.page.evaluate(TOO_WIDE) <= 0
    site.close(opened)


@pytest.mark.parametrize(("width", "side_by_side"), [(390, 1), (1280, 2)])
def test_samples_stand_side_by_side_where_there_is_room(
    long_words: Path, browser: Browser, width: int, side_by_side: int
) -> None:
    site = Site(long_words, browser)
    opened = site.open(site.file("latents", "routesae*"), width)
    opened.page.wait_for_selector("article.latent")
    opened.page.evaluate(EVERYTHING_OPEN)
    assert columns(opened.page, ".steers .sides") == side_by_side
    site.close(opened)


def test_the_two_that_are_compared_keep_a_width_to_read(site: Site) -> None:
    opened = site.open("compare.html", 650)
    opened.page.wait_for_selector("table.compared")
    assert columns(opened.page, ".pair") == 1  # two columns need 300 pixels each and a gap
    site.close(opened)
