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
    assert f"<bdi>b</bdi>: {about['dictionaries']} dictionaries" in text
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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("models", 7),
        ("models", None),
        ("dictionaries", None),
        ("dictionaries", "many"),
        ("records", [1]),
        ("latents", 10**200),
        ("latents", -1),
        ("target_l0", 7),
        ("target_l0", ["x"]),
        ("target_l0", [None]),
        ("title", None),
    ],
)
def test_a_marker_of_another_form_is_named_or_harmless(folder: Path, name: str, value: object) -> None:
    marker = folder / "b" / "site.json"
    marker.write_text(json.dumps({**json.loads(marker.read_text()), name: value}))
    if name in ("models", "title") or value == 7:
        assert write_front(folder, "Our boards").sites
    else:
        with pytest.raises(UserError, match=f"has no number for {name}"):
            write_front(folder, "Our boards")


def test_names_of_folders_are_encoded_and_nothing_else_is_taken_for_a_page(folder: Path) -> None:
    (folder / "a").rename(folder / "a%20b #x?")
    text = write_front(folder, "Our boards").path.read_text()
    assert 'href="a%2520b%20%23x%3F/static/site.css"' in text
    assert 'href="a%2520b%20%23x%3F/index.html"' in text
    quoted = f"<html><head></head><body>{text}</body></html>"
    (folder / "index.html").write_text(quoted)
    with pytest.raises(UserError, match="was not made by this command"):
        write_front(folder, "Our boards")
    (folder / "index.html").unlink()
    (folder / "index.html").mkdir()
    with pytest.raises(UserError, match="was not made by this command"):
        write_front(folder, "Our boards")


def test_a_marker_that_is_too_deep_makes_no_site(folder: Path) -> None:
    (folder / "b" / "site.json").write_text("[" * 100_000)
    assert write_front(folder, "Our boards").sites == ["a"]


def test_a_name_that_no_address_holds_is_refused(folder: Path) -> None:
    (folder / "b").rename(folder / "b\n")
    with pytest.raises(UserError, match=r"'b\\n' has a name that no address holds"):
        write_front(folder, "Our boards")
