"""What the pages of latents and transcripts show, in their addresses: reload, back button, links, skip link."""

from __future__ import annotations

import pytest
from browser_pages import Opened, Site, reload
from playwright.sync_api import Locator, Page, expect

pytestmark = pytest.mark.browser

EVERY_SHARD = """() => {
  const { name, root } = document.getElementById("latents").dataset;
  return Promise.all([0, 1, 2].map((n) => latentbench.load(root, `${name}/${n}`))).then(() => null);
}"""
"""Script: load every latent, so that what is chosen afterwards is shown at once."""


def hash_of(page: Page) -> str:
    return page.url.partition("#")[2]


class TestLatents:
    @pytest.fixture
    def latents(self, site: Site) -> Opened:
        return self.open(site, "")

    def open(self, site: Site, anchor: str) -> Opened:
        opened = site.open(site.file("latents", "routesae"), anchor=anchor)
        opened.page.wait_for_selector("article.latent")
        opened.page.evaluate(EVERY_SHARD)
        return opened

    def heads(self, page: Page) -> Locator:
        return page.locator("article.latent h2")

    def shown(self, page: Page) -> list[str]:
        return self.heads(page).all_inner_texts()

    @pytest.mark.parametrize("field", ["order", "show"])
    def test_every_choice_outlives_reload_and_the_back_button_undoes_it(
        self, site: Site, latents: Opened, field: str
    ) -> None:
        page, picker = latents.page, f"#latent-{field}"
        usual = self.shown(page)
        labels = page.locator(f"{picker} option").all_inner_texts()[1:]
        assert {"order": "number", "show": "kept at 10"}[field] in labels
        for label in labels:
            page.select_option(picker, label=label)
            found, count = self.shown(page), page.locator("#latent-count").inner_text()
            reload(page)
            expect(self.heads(page)).to_have_text(found)
            expect(page.locator(f"{picker} option:checked")).to_have_text(label)
            expect(page.locator("#latent-count")).to_have_text(count)
            page.go_back()
            expect(self.heads(page)).to_have_text(usual)
            assert hash_of(page) == ""
            page.evaluate(EVERY_SHARD)
        site.close(latents)

    def test_a_word_is_found_again_and_is_one_step(self, site: Site, latents: Opened) -> None:
        page = latents.page
        usual = self.shown(page)
        page.locator("#latent-find").press_sequentially("the")
        found = self.shown(page)
        assert found != usual
        reload(page)
        expect(self.heads(page)).to_have_text(found)
        expect(page.locator("#latent-find")).to_have_value("the")
        page.go_back()
        expect(self.heads(page)).to_have_text(usual)
        expect(page.locator("#latent-find")).to_have_value("")
        site.close(latents)

    def test_pages_have_addresses(self, site: Site, latents: Opened) -> None:
        page = latents.page
        page.click("#latent-next")
        second = self.shown(page)
        page.click("#latent-next")
        third = self.shown(page)
        reload(page)
        expect(page.locator("#latent-page")).to_have_text("page 3 of 5")
        expect(self.heads(page)).to_have_text(third)
        page.go_back()
        expect(self.heads(page)).to_have_text(second)
        page.select_option("#latent-order", "number")
        expect(page.locator("#latent-page")).to_have_text("page 1 of 5")
        assert hash_of(page) == "order=number"
        site.close(latents)

    def test_a_copied_address_shows_the_same(self, site: Site, latents: Opened) -> None:
        page = latents.page
        page.select_option("#latent-order", "density, least active first")
        page.select_option("#latent-show", "judged")
        page.fill("#latent-find", "e")
        page.click("#latent-next")
        copied = self.open(site, f"#{hash_of(page)}")
        assert self.shown(copied.page) == self.shown(page)
        assert copied.page.locator("#latent-count").inner_text() == page.locator("#latent-count").inner_text()
        site.close(copied)
        site.close(latents)

    def test_values_that_the_page_does_not_have_are_ignored(self, site: Site) -> None:
        opened = self.open(site, "#order=number&show=<img src=x>&page=-1&nosuch=1")
        page = opened.page
        expect(page.locator("#latent-count")).to_have_text("45 of 45 latents")
        expect(page.locator("#latent-order option:checked")).to_have_text("number")
        expect(page.locator("#latent-page")).to_have_text("page 1 of 5")
        site.close(opened)

    def test_one_latent_and_everything_again(self, site: Site, latents: Opened) -> None:
        page = latents.page
        page.select_option("#latent-show", "steered")
        expect(self.heads(page)).to_have_count(2)
        page.evaluate("location.hash = '#latent=' + document.querySelector('h2 a').hash.split('=')[1]")
        expect(self.heads(page)).to_have_count(1)
        expect(page.locator("#latent-show option:checked")).to_have_text("all")
        page.evaluate("location.hash = ''")
        expect(page.locator("#latent-count")).to_have_text("45 of 45 latents")
        expect(page.locator("#latent-find")).to_have_value("")
        page.go_back()
        expect(self.heads(page)).to_have_count(1)
        page.go_back()
        expect(page.locator("#latent-show option:checked")).to_have_text("steered")
        site.close(latents)

    def test_the_link_of_a_latent_that_the_address_named_already(self, site: Site, latents: Opened) -> None:
        head = self.shown(latents.page)[2]
        site.close(latents)
        opened = self.open(site, f"#latent={head.split()[-1]}")
        page = opened.page
        expect(self.heads(page)).to_have_text([head])
        page.fill("#latent-find", "")
        expect(self.heads(page)).to_have_count(10)
        page.get_by_role("link", name=head, exact=True).click()
        expect(self.heads(page)).to_have_text([head])
        site.close(opened)


class TestTranscripts:
    def open(self, site: Site, anchor: str) -> Opened:
        return site.open(site.file("steering", "routesae"), anchor=anchor)

    def picked(self, page: Page, concept: str, label: str) -> Locator:
        return page.locator(f"#{concept}").get_by_label(label).locator("option:checked")

    def test_method(self, site: Site) -> None:
        opened = self.open(site, "#c0")
        page = opened.page
        page.locator("#c0").get_by_label("Method").select_option("Prompt")
        reload(page)
        expect(self.picked(page, "c0", "Method")).to_have_text("Prompt")
        expect(page.locator("#c0 .transcript tbody tr").first).to_contain_text("told to")
        page.go_back()
        expect(self.picked(page, "c0", "Method")).to_have_text("Contrast")
        expect(page.locator("#c0 .transcript tbody tr").first).not_to_contain_text("told to")
        page.go_forward()
        expect(self.picked(page, "c0", "Method")).to_have_text("Prompt")
        site.close(opened)

    @pytest.mark.parametrize("factor", ["0.5", "2"])
    @pytest.mark.parametrize("concept", ["c0", "c3"])
    def test_factor(self, site: Site, concept: str, factor: str) -> None:
        opened = self.open(site, f"#{concept}")
        page = opened.page
        texts = page.locator(f"#{concept} .transcript tbody td:nth-child(3)")
        expect(texts).to_have_count(8)
        usual = texts.all_inner_texts()
        page.locator(f"#{concept}").get_by_label("Factor").select_option(factor)
        found = texts.all_inner_texts()
        assert found != usual
        reload(page)
        expect(texts).to_have_count(8)
        assert texts.all_inner_texts() == found
        expect(self.picked(page, concept, "Factor")).to_have_text(factor)
        page.go_back()
        expect(self.picked(page, concept, "Factor")).to_have_text("1")
        assert texts.all_inner_texts() == usual
        assert hash_of(page) == concept
        site.close(opened)

    def test_the_address_goes_with_the_concept_that_is_read(self, site: Site) -> None:
        opened = self.open(site, "")
        page = opened.page
        expect(page.locator("#c0 .transcript")).to_be_visible()
        assert hash_of(page) == ""
        page.locator("#c3 summary").click()
        expect(page.locator("#c3 .transcript tbody tr")).to_have_count(8)
        reload(page)
        expect(page.locator("#c3 .transcript tbody tr")).to_have_count(8)
        expect(page.locator("#c0 .transcript")).to_have_count(0)
        site.close(opened)

    def test_an_address_with_a_choice_is_scrolled_to(self, site: Site) -> None:
        opened = self.open(site, "#concept=c2&method=nosuch&factor=2")
        page = opened.page
        expect(self.picked(page, "c2", "Factor")).to_have_text("2")
        expect(self.picked(page, "c2", "Method")).to_have_count(0)  # this concept has one method
        expect(page.locator("#c2-title")).to_be_in_viewport()
        page.evaluate("location.hash = '#concept=c0&factor=0.5'")
        expect(self.picked(page, "c0", "Factor")).to_have_text("0.5")
        expect(page.locator("#c0-title")).to_be_in_viewport()
        expect(self.picked(page, "c2", "Factor")).to_have_text("1")
        page.evaluate("location.hash = '#c2'")
        expect(page.locator("#c2-title")).to_be_in_viewport()
        site.close(opened)


@pytest.mark.parametrize(
    ("kind", "anchor", "count"),
    [
        ("board", "#family=routesae", "2 of 7 shown"),
        ("latents", "#show=steered", "2 of 45 latents"),
    ],
)
def test_the_skip_link_leaves_the_address(site: Site, kind: str, anchor: str, count: str) -> None:
    opened = site.open("index.html" if kind == "board" else site.file(kind, "routesae"), anchor=anchor)
    page = opened.page
    status = page.locator(".count")
    expect(status).to_have_text(count)
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    assert hash_of(page) == anchor[1:]
    expect(status).to_have_text(count)
    site.close(opened)
