"""The site as a reader meets it: opened from a file, with pointer and keyboard, in both themes and widths."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from browser_pages import CONTRAST, Opened, Site, focus_is_visible
from playwright.sync_api import Browser, Page, expect

from latentbench_leaderboard._front import write_front

pytestmark = pytest.mark.browser

ALL = (
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


def path_of(site: Site, page: str) -> Path | str:
    return page if page.endswith(".html") else site.file(page, "routesae")


def names(page: Page, rows: str = "table.scores tbody tr:not([hidden]) .name") -> list[str]:
    return [text.strip() for text in page.locator(f".board {rows}").all_inner_texts()]


def ranked_names(page: Page) -> list[str]:
    return names(page, "table.scores tbody.ranked tr .name")


@pytest.fixture
def board(site: Site) -> Opened:
    return site.open("index.html")


class TestEveryPage:
    @pytest.mark.parametrize("page", ALL)
    def test_no_network_no_complaint_nothing_run(self, site: Site, page: str) -> None:
        opened = site.open(path_of(site, page))
        opened.page.wait_for_load_state("networkidle")
        site.close(opened)

    @pytest.mark.parametrize("page", ALL)
    @pytest.mark.parametrize("width", [390, 1440])
    def test_no_page_scrolls_sideways(self, site: Site, page: str, width: int) -> None:
        opened = site.open(path_of(site, page), width)
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
        site.close(opened)

    @pytest.mark.parametrize("page", ALL)
    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_text_stands_out(self, site: Site, page: str, scheme: str) -> None:
        opened = site.open(path_of(site, page), scheme=scheme)
        opened.page.wait_for_load_state("networkidle")
        opened.page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
        faint = opened.page.evaluate(CONTRAST)
        assert faint["checked"] > 20
        assert faint["faint"] == []
        site.close(opened)

    @pytest.mark.parametrize("page", ALL)
    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_axe_finds_nothing_serious(self, site: Site, page: str, scheme: str) -> None:
        opened = site.open(path_of(site, page), 390 if scheme == "dark" else 1280, scheme)
        opened.page.wait_for_load_state("networkidle")
        opened.page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
        found = (
            Axe()
            .run(opened.page, options={"resultTypes": ["violations"], "preload": False})
            .response["violations"]
        )
        serious = [one for one in found if one["impact"] in ("serious", "critical")]
        assert [(one["id"], [node["html"][:120] for node in one["nodes"][:3]]) for one in serious] == []
        site.close(opened)

    def test_skip_link_comes_first(self, site: Site) -> None:
        opened = site.open("index.html")
        opened.page.keyboard.press("Tab")
        expect(opened.page.locator(":focus")).to_have_text("Skip to content")
        opened.page.keyboard.press("Enter")
        assert opened.page.evaluate("document.activeElement.id") == "main"
        site.close(opened)

    def test_theme_is_chosen_and_kept(self, site: Site) -> None:
        opened = site.open("index.html")
        page = opened.page
        paper = "getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(paper)
        page.click("#theme")
        page.click("#theme")
        expect(page.locator("#theme")).to_have_text("Theme: dark")
        assert page.evaluate(paper) != light
        page.click("nav >> text=Method")
        expect(page.locator("#theme")).to_have_text("Theme: dark")
        site.close(opened)


class TestBoard:
    def test_sorting_by_a_column(self, site: Site, board: Opened) -> None:
        page = board.page
        head = page.locator("th", has=page.get_by_role("button", name="Explained variance"))
        head.get_by_role("button").click()
        expect(head).to_have_attribute("aria-sort", "descending")
        best_first = ranked_names(page)
        assert best_first[0] == "RouteSAE"
        assert best_first[-1] == "Random routing"
        head.get_by_role("button").click()
        expect(head).to_have_attribute("aria-sort", "ascending")
        assert ranked_names(page) == best_first[::-1]
        assert page.locator("th[aria-sort]").count() == 1
        site.close(board)

    def test_rows_without_a_value_stay_last_both_ways(self, site: Site, board: Opened) -> None:
        page = board.page
        button = page.locator("th", has_text="Steering success").get_by_role("button")
        for _ in range(2):
            button.click()
            assert ranked_names(page)[-1] == "Random routing"
        site.close(board)

    def test_controls_stay_below_the_ranked_rows(self, site: Site, board: Opened) -> None:
        page = board.page
        controls = names(page, "tbody.controls .name")
        assert controls == [
            "identity resid_post.21",
            "TopK, random decoder",
        ]  # by feature count, as the ranked rows
        page.get_by_role("button", name="Dictionary").click()
        expect(page.locator("th[aria-sort]")).to_contain_text("Dictionary")
        ranked = ranked_names(page)
        assert ranked == sorted(ranked, key=str.lower)
        assert names(page, "tbody.controls .name") == sorted(controls, key=str.lower)
        site.close(board)

    def test_rows_off_target_stand_below_marked_and_unranked(self, site: Site, board: Opened) -> None:
        aside = board.page.locator("tbody.asides tr", has=board.page.locator(".name"))
        expect(aside).to_have_count(1)
        expect(aside).to_contain_text("measured L0 32, 50 % below the target")
        assert aside.locator(".value").count() > 2
        assert aside.locator(".rank").count() == 0
        site.close(board)

    def test_sorting_with_the_keyboard(self, site: Site, board: Opened) -> None:
        page = board.page
        page.get_by_role("button", name="CE recovered").focus()
        assert focus_is_visible(page.locator(":focus"))
        page.keyboard.press("Enter")
        expect(page.locator("th[aria-sort]")).to_contain_text("CE recovered")
        site.close(board)

    def test_find(self, site: Site, board: Opened) -> None:
        page = board.page
        page.fill("[name=find]", "topk 21")
        assert names(page) == ["TopK at resid_post.21", "TopK, random decoder", "TopK, k = 32"]
        expect(page.locator("#count")).to_have_text("3 of 7 shown")
        page.fill("[name=find]", "nosuchdictionary")
        expect(page.locator("#nothing")).to_be_visible()
        page.click("#clear")
        assert len(names(page)) == 7
        expect(page.locator("#nothing")).to_be_hidden()
        site.close(board)

    def test_every_choice_has_an_address_and_the_back_button_works(self, site: Site, board: Opened) -> None:
        page = board.page
        usual = names(page)
        page.select_option("[name=family]", "routesae")
        page.select_option("[name=rows]", "ranked")
        page.get_by_role("button", name="Dictionary").click()
        page.fill("[name=find]", "random")
        assert names(page) == ["Random routing"]
        address = page.url
        again = site.open("index.html", anchor="#" + address.partition("#")[2])
        assert names(again.page) == ["Random routing"]
        assert again.page.input_value("[name=family]") == "routesae"
        assert again.page.input_value("[name=find]") == "random"
        expect(again.page.locator("th[aria-sort]")).to_contain_text("Dictionary")
        site.close(again)
        page.go_back()  # all of what was typed is one step
        assert page.input_value("[name=find]") == ""
        assert names(page) == ["Random routing", "RouteSAE"]
        page.go_back()
        assert names(page) == ["RouteSAE", "Random routing"]
        page.go_back()
        page.go_back()
        assert names(page) == usual
        assert "#" not in page.url
        page.go_forward()
        assert len(names(page)) == 2
        site.close(board)

    def test_a_judge_keeps_its_own_columns_and_those_without_one(self, site: Site, board: Opened) -> None:
        page = board.page
        heads = page.locator("table.scores thead tr").nth(1).locator("th:visible")
        every = heads.count()
        page.select_option("[name=judge]", "embed (all-MiniLM-L6-v2)")
        expect(heads).to_have_count(every - 1)
        row = page.locator("tbody.ranked tr").first.locator("td:visible")
        expect(row).to_have_count(every - 1)
        expect(page.locator("th.group:visible", has_text="openai")).to_have_count(0)
        page.click("button[type=reset]")
        expect(heads).to_have_count(every)
        site.close(board)

    def test_an_address_with_nonsense_shows_the_whole_board(self, site: Site) -> None:
        opened = site.open("index.html", anchor="#family=<img src=x>&sort=nosuch&order=turned&judge=%00")
        assert len(names(opened.page)) == 7
        site.close(opened)

    def test_a_value_explains_itself_to_pointer_and_keyboard(self, site: Site, board: Opened) -> None:
        page = board.page
        value = page.locator("tbody.ranked tr", has_text="RouteSAE").locator("a.value").nth(-1)
        note = page.get_by_role("tooltip")
        value.hover()
        expect(note).to_contain_text("n = 120 documents")
        page.mouse.move(0, 0)
        expect(note).to_be_hidden()
        page.locator("a.value").first.focus()
        page.keyboard.press("Tab")
        expect(note).to_be_visible()
        assert page.evaluate("document.activeElement.getAttribute('aria-describedby')") == "note"
        page.keyboard.press("Escape")
        expect(note).to_be_hidden()
        site.close(board)

    def test_a_value_leads_to_its_metric(self, site: Site, board: Opened) -> None:
        page = board.page
        page.locator("tr", has_text="RouteSAE").locator("a.value").nth(-1).click()
        expect(page.locator("tr:target")).to_contain_text("CE recovered")
        site.close(board)

    def test_the_first_column_stays_in_sight_on_a_phone(self, site: Site) -> None:
        opened = site.open("index.html", width=390)
        region = opened.page.locator(".board .scroll").first
        region.evaluate("(e) => { e.scrollLeft = 600; }")
        box = opened.page.locator(".board .name").first.bounding_box()
        assert box is not None
        assert 0 <= box["x"] < 60
        site.close(opened)

    def test_hostile_text_is_text(self, site: Site, board: Opened) -> None:
        assert board.page.locator("img").count() == 0
        assert any("<script>window.hacked=1</script>" in name for name in names(board.page))
        site.close(board)

    def test_the_table_reads_without_scripts(self, folder: Path, site: Site) -> None:
        context = site._browser.new_context(java_script_enabled=False)
        page = context.new_page()
        page.goto((folder / "index.html").as_uri())
        assert len(names(page)) == 7
        assert "n = 120 documents" in (page.locator("a.value").last.get_attribute("title") or "")
        context.close()


class TestLatents:
    @pytest.fixture
    def latents(self, site: Site) -> Opened:
        opened = site.open(site.file("latents", "routesae"))
        opened.page.wait_for_selector("article.latent")
        return opened

    def test_contexts_are_highlighted(self, site: Site, latents: Opened) -> None:
        page = latents.page
        first = page.locator("article.latent").first
        marked = first.locator(".context .tok.at").first
        assert marked.inner_text().strip()
        background = "(e) => getComputedStyle(e).backgroundColor"
        assert marked.evaluate(background) != first.locator(".context").first.evaluate(background)
        assert "underline" in marked.evaluate("(e) => getComputedStyle(e).textDecorationLine")
        assert first.locator(".tok.h5").count() >= 1
        site.close(latents)

    def test_promoted_tokens_are_text(self, site: Site, latents: Opened) -> None:
        promoted = latents.page.locator("article.latent .promotes").first
        assert [word.strip() for word in promoted.locator("code").all_inner_texts()] == [
            "rain",
            "↵",
            "<script>window.hacked=1</script>",
            "\u2039U+202E\u203a!",
        ]
        site.close(latents)

    def test_only_the_shards_in_view_are_loaded(self, site: Site, latents: Opened) -> None:
        shards = [url for url in latents.requests if "/data/" in url]
        assert [url.rsplit("/", 1)[1] for url in shards] == ["index.js", "0.js"]
        site.close(latents)

    def test_find_by_number_and_by_token(self, site: Site, latents: Opened) -> None:
        page = latents.page
        number = page.locator("article.latent h2").nth(3).inner_text().split()[-1]
        page.fill("#latent-find", number)
        expect(page.locator("article.latent")).to_have_count(1)
        expect(page.locator("article.latent h2")).to_have_text(f"Latent {number}")
        word = page.locator(".tok.at").first.inner_text().strip()
        page.fill("#latent-find", word)
        expect(page.locator("article.latent h2", has_text=f"Latent {number}")).to_have_count(1)
        page.fill("#latent-find", "nosuchtoken")
        expect(page.locator("#latents")).to_have_text("No latent fits.")
        site.close(latents)

    def test_order_and_pages(self, site: Site, latents: Opened) -> None:
        page = latents.page
        page.select_option("#latent-order", "number")
        expect(page.locator("#latent-page")).to_have_text("page 1 of 5")
        numbers: list[int] = []
        for place in range(5):
            expect(page.locator("#latent-page")).to_have_text(f"page {place + 1} of 5")
            first = "Number(document.querySelector('article.latent h2').textContent.split(' ')[1])"
            page.wait_for_function(f"(last) => {first} > last", arg=numbers[-1] if numbers else -1)
            numbers += [int(text.split()[1]) for text in page.locator("article.latent h2").all_inner_texts()]
            if place < 4:
                page.click("#latent-next")
        assert len(numbers) == 45
        assert numbers == sorted(numbers)
        expect(page.locator("#latent-next")).to_be_disabled()
        site.close(latents)

    def test_scores_descend(self, site: Site, latents: Opened) -> None:
        shown = latents.page.locator("article.latent .verdict:first-child b").all_inner_texts()
        scores = [float(text) for text in shown]
        assert scores == sorted(scores, reverse=True)
        site.close(latents)

    def test_show_kept_latents_alone(self, site: Site, latents: Opened) -> None:
        page = latents.page
        page.select_option("#latent-show", "kept at 15")
        expect(page.locator("#latent-count")).not_to_have_text("45 of 45 latents")
        facts = page.locator("article.latent > p.sub:first-of-type")
        expect(facts.filter(has_not_text="kept at 15")).to_have_count(0)
        assert facts.count() > 0
        site.close(latents)

    def test_address_of_one_latent(self, site: Site, latents: Opened) -> None:
        number = latents.page.locator("article.latent h2").nth(2).inner_text().split()[-1]
        site.close(latents)
        opened = site.open(site.file("latents", "routesae"), anchor=f"#latent={number}")
        expect(opened.page.locator("article.latent")).to_have_count(1)
        expect(opened.page.locator("article.latent h2")).to_have_text(f"Latent {number}")
        site.close(opened)

    def test_density_and_its_order(self, site: Site, latents: Opened) -> None:
        page = latents.page
        facts = page.locator("article.latent > p.sub:first-of-type")
        before = facts.first.inner_text()
        page.select_option("#latent-order", "density, most active first")
        expect(facts.first).not_to_have_text(before)
        expect(facts.first).to_contain_text("of 50,000 tokens")
        shares = [float(text.split()[2]) for text in facts.all_inner_texts()]
        assert shares == sorted(shares, reverse=True)
        assert shares[0] > 0
        site.close(latents)

    def test_a_steered_latent_shows_what_it_wrote(self, site: Site, latents: Opened) -> None:
        page = latents.page
        page.select_option("#latent-show", "steered")
        expect(page.locator("article.latent")).to_have_count(2)
        steers = page.locator("article.latent").first.locator("details.steers")
        assert steers.locator("li").first.is_hidden()
        steers.locator("summary").click()
        sample = steers.locator("li").first
        expect(sample).to_contain_text("with 1 other, factor 1")
        expect(sample.locator(".sides .said")).to_have_count(2)
        expect(sample.locator(".sides .said").first).to_contain_text("my sister and her dog")
        sample.locator("a").click()
        expect(page.locator("section.concept:target")).to_be_visible()
        site.close(latents)

    def test_marks_that_turn_text_around_are_spelt_out(self, site: Site, latents: Opened) -> None:
        page = latents.page
        texts = page.locator(".context").all_inner_texts()
        assert any("\u2039U+202E\u203a" in text for text in texts)
        assert not any("\u202e" in text for text in texts)
        site.close(latents)


class TestSteering:
    def test_texts_stand_side_by_side_and_follow_the_factor(self, site: Site) -> None:
        opened = site.open(site.file("steering", "routesae"))
        page = opened.page
        rows = page.locator("section.concept").first.locator(".transcript tbody tr")
        expect(rows).to_have_count(8)
        first = rows.first.locator("td")
        assert "my sister and her dog" in first.nth(1).inner_text()
        before = rows.locator("td:nth-child(3)").all_inner_texts()
        page.locator("section.concept").first.get_by_label("Factor").select_option("0.5")
        assert rows.locator("td:nth-child(3)").all_inner_texts() != before
        site.close(opened)

    def test_every_method_has_its_texts_and_factors(self, site: Site) -> None:
        opened = site.open(site.file("steering", "routesae"))
        first = opened.page.locator("section.concept").first
        rows = first.locator(".transcript tbody tr")
        expect(rows).to_have_count(8)
        before = rows.locator("td:nth-child(2)").all_inner_texts()
        assert first.get_by_label("Factor").locator("option").all_inner_texts() == ["0.5", "1", "2"]
        first.get_by_label("Method").select_option("Prompt")
        expect(rows).to_have_count(8)
        expect(rows.first.locator("td").nth(2)).to_contain_text("told to")
        assert rows.locator("td:nth-child(2)").all_inner_texts() == before
        assert first.get_by_label("Factor").locator("option").all_inner_texts() == ["1"]
        rates = first.locator(".rates tbody th")
        assert rates.all_inner_texts()[2] == "Prompt: success, test prompts"
        expect(opened.page.locator("section.concept").nth(1).get_by_label("Method")).to_have_count(0)
        site.close(opened)

    def test_concepts_load_when_they_are_opened(self, site: Site) -> None:
        opened = site.open(site.file("steering", "routesae"), anchor="#c2")
        page = opened.page
        expect(page.locator("#c2 .transcript tbody tr")).to_have_count(8)
        assert [u.rsplit("/", 1)[1] for u in opened.requests if "/data/" in u] == ["steering-c2.js"]
        page.locator("#c3 summary").click()
        expect(page.locator("#c3 .transcript tbody tr")).to_have_count(8)
        site.close(opened)

    def test_tiles_lead_to_their_concept(self, site: Site) -> None:
        opened = site.open("steering.html")
        page = opened.page
        page.locator("tr", has_text="RouteSAE").locator("a.tiles").nth(1).click()
        expect(page.locator("section.concept:target .transcript tbody tr")).to_have_count(8)
        site.close(opened)


def test_a_missing_shard_is_said_and_not_a_blank_page(folder: Path, site: Site, tmp_path: Path) -> None:
    copy = tmp_path / "site"
    shutil.copytree(folder, copy)
    for path in (copy / "data").rglob("0.js"):
        path.unlink()
    (page_path,) = (copy / "latents").glob("routesae-*.html")
    opened = site.open(page_path)
    expect(opened.page.locator("#latents .error")).to_contain_text("can't be loaded")
    opened.page.context.close()


class TestCompare:
    def test_differences_and_verdicts(self, site: Site) -> None:
        opened = site.open("compare.html")
        page = opened.page
        page.wait_for_selector("table.compared")
        page.select_option("[name=a]", label="RouteSAE")
        page.select_option("[name=b]", label="Random routing")
        row = page.locator("table.compared tbody tr", has_text="Explained variance")
        expect(row.locator("td").nth(2)).to_contain_text("0.1125")  # 0.45 * (0.80 - 0.55)
        expect(row.locator("td").nth(2)).to_contain_text("0.0955 to 0.1295")  # 1.96 * sqrt(2) * 0.012 / 1.96
        expect(row.locator("td").nth(4)).to_contain_text("A better")
        failed = page.locator("table.compared tbody tr", has_text="Steering success")
        expect(failed).to_contain_text("failed: AdapterError")
        site.close(opened)

    def test_address_swap_and_back(self, site: Site) -> None:
        opened = site.open("compare.html")
        page = opened.page
        page.wait_for_selector("table.compared")
        first, second = page.input_value("[name=a]"), page.input_value("[name=b]")
        assert first != second
        page.click("#swap")
        assert page.input_value("[name=a]") == second
        page.check("[name=all]")
        expect(page.locator("table.compared tbody tr", has_text="Normalised MSE")).to_have_count(1)
        again = site.open("compare.html", anchor="#" + page.url.partition("#")[2])
        expect(again.page.locator("table.compared tbody tr", has_text="Normalised MSE")).to_have_count(1)
        assert again.page.input_value("[name=b]") == first
        site.close(again)
        page.go_back()
        expect(page.locator("[name=all]")).not_to_be_checked()
        page.go_back()
        expect(page.locator("[name=a]")).to_have_value(first)
        site.close(opened)

    def test_only_the_two_rows_are_loaded(self, site: Site) -> None:
        opened = site.open("compare.html")
        opened.page.wait_for_selector("table.compared")
        assert len([url for url in opened.requests if "/data/" in url]) == 3
        site.close(opened)

    def test_the_board_leads_here(self, site: Site, board: Opened) -> None:
        board.page.locator("tbody.ranked tr", has_text="Random routing").locator("text=compare").click()
        expect(board.page.locator("[name=a] option:checked")).to_have_text("Random routing")
        expect(board.page.locator("table.compared")).to_be_visible()
        site.close(board)


def test_the_page_before_several_sites(folder: Path, browser: Browser, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "first")
    shutil.copytree(folder, tmp_path / "second")
    write_front(tmp_path, "Boards")
    sites = Site(tmp_path, browser)
    for width, scheme in ((390, "dark"), (1440, "light")):
        opened = sites.open("index.html", width, scheme)
        page = opened.page
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        found = Axe().run(page, options={"preload": False}).response["violations"]
        assert [one["id"] for one in found if one["impact"] in ("serious", "critical")] == []
        assert page.evaluate(CONTRAST)["faint"] == []
        page.locator(".boards a").nth(1).click()
        expect(page).to_have_url((tmp_path / "second" / "index.html").as_uri())
        expect(page.locator("table.scores tbody.ranked tr").first).to_be_visible()
        sites.close(opened)
