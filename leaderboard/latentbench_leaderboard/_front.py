"""The page before several sites: one link for each, with what its `site.json` says of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment

from latentbench.errors import UserError
from latentbench_leaderboard._format import listing
from latentbench_leaderboard._render import page, templates
from latentbench_leaderboard._target import MARKER, site_marker

__all__ = ["FrontReport", "write_front"]

_PAGE = "index.html"
_MARK = '<meta name="generator" content="latentbench leaderboard front">'
"""Stands in the page, so that it and no other `index.html` is replaced."""
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
    if target.exists() and _MARK not in target.read_text(encoding="utf-8", errors="replace"):
        raise UserError(
            f"{target} was not made by this command, so it is not replaced. Move it away, or name the folder "
            "that holds the sites."
        )
    environment: Environment = templates()
    values = {"title": title, "sites": sites, "mark": _MARK}
    data = page(environment, "front.html", f"{sites[0]['folder']}/", values)
    new = target.with_name(f".{_PAGE}.{os.getpid()}")
    new.write_bytes(data)
    new.replace(target)
    return FrontReport(target, [str(site["folder"]) for site in sites])


def _sites(folder: Path) -> list[dict[str, Any]]:
    """What each site's marker says, with the name of its folder."""
    found = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        marker = site_marker(path)
        if marker is None:
            continue
        lacks = sorted(_SHOWN - marker.keys())
        if lacks:
            raise UserError(
                f"{path / MARKER} lacks {listing(lacks)}: an older version built that site. Build it again."
            )
        found.append({**marker, "folder": path.name})
    return sorted(found, key=lambda site: (str(site["title"]).casefold(), site["folder"]))
