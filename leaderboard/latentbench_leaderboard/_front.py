"""The page before several sites: one link for each, with what its `site.json` says of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from jinja2 import Environment

from latentbench.errors import UserError
from latentbench_leaderboard._format import clip, listing
from latentbench_leaderboard._render import page, templates
from latentbench_leaderboard._target import MARKER, site_marker
from latentbench_leaderboard._values import as_list, real, whole

__all__ = ["FrontReport", "write_front"]

_PAGE = "index.html"
_MARK = '<meta name="generator" content="latentbench leaderboard front">'
"""Stands in the page, so that it and no other `index.html` is replaced."""
_MOST = 10**15
_SHOWN = frozenset({"title", "models", "dictionaries", "latents", "records", "newest_record", "target_l0"})
"""What the page shows of a site's marker."""


class FrontReport(NamedTuple):
    """What was written."""

    path: Path
    """The page."""
    sites: list[str]
    """Folders of the sites it links, in its order."""


def write_front(folder: Path, title: str) -> FrontReport:
    """Write `index.html` into a folder whose subfolders are sites; nothing else is touched.

    Sites stand in the order of their titles. Style and script come from the first of them, so the folder is
    published as a whole.

    Args:
        folder: the folder; its subfolders without a site are left out.
        title: title of the page.

    Raises:
        UserError: no subfolder is a site, or `index.html` is there and no such page.
    """
    sites = _sites(folder)
    if not sites:
        raise UserError(
            f"no folder in {folder} is a site (a folder with the {MARKER} that `latentbench leaderboard "
            f"build` writes), so there is nothing to link. Build one: latentbench leaderboard build RESULTS "
            f"--out {folder / 'NAME'} --public"
        )
    target = folder / _PAGE
    if target.exists() and not _ours(target):
        raise UserError(
            f"{target} was not made by this command, so it is not replaced. Move it away, or name the folder "
            "that holds the sites."
        )
    environment: Environment = templates()
    values = {"title": title, "sites": sites, "mark": _MARK}
    data = page(environment, "front.html", f"{quote(sites[0]['folder'])}/", values)
    new = target.with_name(f".{_PAGE}.{os.getpid()}")
    new.write_bytes(data)
    new.replace(target)
    return FrontReport(target, [str(site["folder"]) for site in sites])


def _ours(path: Path) -> bool:
    """Whether a page is one of ours: the mark stands in its head, on a line of its own."""
    if path.is_symlink() or not path.is_file():
        return False
    head, _, _ = path.read_text(encoding="utf-8", errors="replace").partition("</head>")
    return _MARK in head.splitlines()


def _sites(folder: Path) -> list[dict[str, Any]]:
    """What each site's marker says, with the name of its folder."""
    found = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        marker = site_marker(path)
        if marker is None:
            continue
        if not path.name.isprintable():
            raise UserError(f"the site in {path.name!a} has a name that no address holds; rename the folder")
        found.append({**_checked(path, marker), "folder": path.name})
    return sorted(found, key=lambda site: (site["title"].casefold(), site["folder"]))


def _checked(path: Path, marker: dict[str, Any]) -> dict[str, Any]:
    """What the page shows of a marker.

    Raises:
        UserError: it lacks something, or something is of another kind.
    """
    lacks = sorted(_SHOWN - marker.keys())
    if lacks:
        raise UserError(
            f"{path / MARKER} lacks {listing(lacks)}: an older version built that site. Build it again."
        )
    shown: dict[str, Any] = {name: clip(str(marker[name])) for name in ("title", "newest_record")}
    shown |= {name: _count(marker[name]) for name in ("dictionaries", "latents", "records")}
    shown["models"] = [clip(str(name)) for name in as_list(marker["models"])]
    shown["target_l0"] = [real(l0) for l0 in as_list(marker["target_l0"])]
    wrong = sorted(name for name, value in shown.items() if value is None)
    if wrong or None in shown["target_l0"]:
        raise UserError(
            f"{path / MARKER} has no number for {listing(wrong or ['target_l0'])}: build that site again."
        )
    return shown


def _count(value: object) -> int | None:
    """A number of things; None for anything else."""
    number = whole(value)
    return number if number is not None and 0 <= number < _MOST else None
