"""Pages of a built site, opened from files, with every request and every message of the console recorded."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, Locator, Page


@dataclass
class Opened:
    """A page and what it did."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


class Site:
    """Pages of the built site in one browser."""

    def __init__(self, folder: Path, browser: Browser) -> None:
        self.folder = folder
        self._browser = browser

    def file(self, kind: str, name: str) -> Path:
        """The page of a dictionary, by the start of its file name."""
        (path,) = (self.folder / kind).glob(f"{name}-*.html")
        return path

    def open(self, path: Path | str, width: int = 1280, scheme: str = "light", anchor: str = "") -> Opened:
        """Open a page in a context of its own."""
        dark = scheme == "dark"
        context = self._browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
        )
        opened = Opened(context.new_page())
        opened.page.set_default_timeout(30_000)
        opened.page.on("request", lambda request: opened.requests.append(request.url))
        opened.page.on("console", lambda message: opened.complaints.append(f"{message.type}: {message.text}"))
        opened.page.on("pageerror", lambda error: opened.complaints.append(f"error: {error}"))
        opened.page.on("requestfailed", lambda request: opened.complaints.append(f"failed: {request.url}"))
        opened.page.goto((self.folder / path).as_uri() + anchor)
        return opened

    def close(self, opened: Opened) -> None:
        """Close a page after checking that it asked for nothing but files and complained of nothing."""
        hacked = opened.page.evaluate("window.hacked")
        opened.page.context.close()
        assert hacked is None, "text from the data was run"
        assert opened.complaints == []
        assert opened.requests
        assert all(url.startswith("file://") for url in opened.requests)


def reload(page: Page) -> None:
    """Load a page again once it is there in full: what a reload cuts off would count as failed."""
    page.wait_for_load_state("networkidle")
    page.reload()


def focus_is_visible(element: Locator) -> bool:
    """Whether an element that has the focus shows it."""
    style = element.evaluate("(e) => [getComputedStyle(e).outlineStyle, getComputedStyle(e).outlineWidth]")
    return style[0] != "none" and style[1] not in ("0px", "")


CONTRAST = """
() => {
  const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = (rgb) => {
    const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = rgb.slice(0, 3).map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const rgba = parse(getComputedStyle(e).backgroundColor);
      if (rgba.length === 3 || rgba[3] > 0.99) return rgba;
    }
    return [255, 255, 255];
  };
  const faint = [];
  let checked = 0;
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    const left_out = ".sr, title, option, noscript, :disabled";
    if (!own || !element.getClientRects().length || element.closest(left_out)) continue;
    const style = getComputedStyle(element);
    const ink = parse(element.namespaceURI.endsWith("svg") ? style.fill : style.color);
    const [a, b] = [light(ink), light(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    checked += 1;
    if (ratio < 4.5) faint.push([element.outerHTML.slice(0, 60), ratio.toFixed(2)]);
  }
  return { checked, faint: faint.slice(0, 10) };
}
"""
"""Script: how many elements with text there are, and those with a contrast below 4.5 (WCAG 2.2, 1.4.3)."""
