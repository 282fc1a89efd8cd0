"""The folder that a site is written to: there in full or not at all, and never somebody else's.

The site is written into a temporary folder beside its target and swapped in by renaming. `site.json` marks a
folder as ours and lists its files; a folder that lacks it, or holds files that it does not list, is left
alone.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from latentbench.errors import UserError

__all__ = ["MARKER", "Written", "check_target", "site_marker", "write_site"]

MARKER = "site.json"
_MADE_BY = "latentbench leaderboard build"


def check_target(target: Path, results: Path) -> None:
    """Refuse a target that must not be replaced.

    Raises:
        UserError: the target is a file, somebody else's folder, or overlaps the results folder.
    """
    ours, theirs = target.resolve(), results.resolve()
    if ours == theirs or ours in theirs.parents or theirs in ours.parents:
        raise UserError(
            f"the site can't be written to {target}: it and the results folder {results} lie inside of each "
            "other, and a build replaces its whole folder. Name a folder of its own."
        )
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise UserError(
            f"{target} is not a folder; name a folder that does not exist yet, or one with an older site"
        )
    if not target.exists() or not any(target.iterdir()):
        return
    listed = _listed(target)
    if listed is None:
        raise UserError(
            f"{target} exists and was not made by `{_MADE_BY}` (it holds no {MARKER} of ours), so it is not "
            "replaced. Name another folder, or delete this one yourself."
        )
    foreign = sorted(_files(target) - listed - {MARKER})
    if foreign:
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        raise UserError(
            f"{target} holds files that no build made ({', '.join(foreign[:3])}{more}); replacing the folder "
            "would delete them. Move them away first."
        )


class Written(NamedTuple):
    """What was written."""

    files: int
    """Number of files, the marker included."""
    bytes: int
    """Their size together."""


def write_site(target: Path, files: Iterable[tuple[str, bytes]], about: Mapping[str, Any]) -> Written:
    """Write the files as they come and the marker, then swap them in for what was there.

    Args:
        target: the folder; checked with `check_target` before.
        files: paths with forward slashes, and contents.
        about: what to say of the site in its marker.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    new, old = _beside(target, "new"), _beside(target, "old")
    sizes: dict[str, int] = {}
    try:
        for name, data in files:
            _write(new / name, data)
            sizes[name] = len(data)
        marker = {**about, "made_by": _MADE_BY, "files": sorted(sizes)}
        text = json.dumps(marker, indent=2, sort_keys=True, ensure_ascii=True) + "\n"
        _write(new / MARKER, text.encode("ascii"))
        _swap(target, new, old)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
    return Written(len(sizes) + 1, sum(sizes.values()) + len(text))


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _swap(target: Path, new: Path, old: Path) -> None:
    if target.exists():
        target.rename(old)
    try:
        new.rename(target)
    except OSError:
        if old.exists():
            old.rename(target)
        raise


def _beside(target: Path, what: str) -> Path:
    path = target.with_name(f".{target.name}.{what}-{os.getpid()}")
    if path.exists():  # the rest of a killed build whose process number was this one
        shutil.rmtree(path)
    return path


def site_marker(target: Path) -> dict[str, Any] | None:
    """What the marker of a site says of it; nothing if the folder is no site of ours."""
    try:
        marker = json.loads((target / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    ours = isinstance(marker, dict) and marker.get("made_by") == _MADE_BY
    return marker if ours else None


def _listed(target: Path) -> set[str] | None:
    marker = site_marker(target)
    if marker is None:
        return None
    files = marker.get("files")
    return {str(name) for name in files} if isinstance(files, list) else set()


def _files(target: Path) -> set[str]:
    return {path.relative_to(target).as_posix() for path in target.rglob("*") if not path.is_dir()}
