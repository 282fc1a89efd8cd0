"""The page before several sites: what it links, what it replaces, what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from leaderboard_records import LM

from latentbench.errors import UserError
from latentbench_leaderboard._front import write_front
from latentbench_leaderboard.cli import leaderboard


@pytest.fixture
def folder(site: Path, tmp_path: Path) -> Path:
    """Two sites, a folder that is none, and a file."""
    for name, title in (("b", "A study"), ("a", "<script>window.hacked = 1</script>")):
        shutil.copytree(site, tmp_path / "sites" / name)
        retitle(tmp_path / "sites" / name, title=title)
    (tmp_path / "sites" / "notes").mkdir()
    (tmp_path / "sites" / "robots.txt").write_text("")
    return tmp_path / "sites"


def retitle(site: Path, **values: str) -> None:
    marker = site / "site.json"
    marker.write_text(json.dumps({**json.loads(marker.read_text()), **values}))


def test_it_links_every_site_and_says_what_it_holds(folder: Path) -> None:
    report = write_front(folder, "Our boards")
    text = report.path.read_text()
    about = json.loads((folder / "b" / "site.json").read_text())
    assert report.sites == ["a", "b"]
    assert "<h1><bdi>Our boards</bdi></h1>" in text
    assert text.index('href="a/index.html"') < text.index('href="b/index.html"')
    assert "&lt;script&gt;window.hacked" in text
    assert "<script>window" not in text
    assert f"{about['dictionaries']} dictionaries" in text
    assert f"{about['records']} run records, the newest of {about['newest_record'][:10]}" in text
    assert LM["name"] in text
    assert 'href="a/static/site.css"' in text
    assert not list(folder.glob(".*"))


def test_it_replaces_itself_and_nothing_else(folder: Path) -> None:
    first = write_front(folder, "Our boards").path.read_bytes()
    assert write_front(folder, "Our boards").path.read_bytes() == first
    shutil.rmtree(folder / "a")
    assert write_front(folder, "Our boards").sites == ["b"]
    (folder / "index.html").write_text("<p>Mine.")
    with pytest.raises(UserError, match="was not made by this command"):
        write_front(folder, "Our boards")
    assert (folder / "index.html").read_text() == "<p>Mine."


def test_a_site_itself_is_no_folder_of_sites(site: Path) -> None:
    with pytest.raises(UserError, match="is a site"):
        write_front(site, "Our boards")


def test_a_site_of_an_older_version_is_named(folder: Path) -> None:
    marker = folder / "b" / "site.json"
    old = json.loads(marker.read_text())
    del old["models"]
    marker.write_text(json.dumps(old))
    with pytest.raises(UserError, match=r"lacks models: an older version built that site"):
        write_front(folder, "Our boards")
    assert not (folder / "index.html").exists()


def test_command(folder: Path) -> None:
    ran = CliRunner().invoke(leaderboard, ["front", str(folder), "--title", "Ours", "--json"])
    assert json.loads(ran.output) == {"path": str(folder / "index.html"), "sites": ["a", "b"]}
    ran = CliRunner().invoke(leaderboard, ["front", str(folder)])
    assert "2 sites: a, b" in ran.output
