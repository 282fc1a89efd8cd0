"""Where downloaded and derived files are kept, and what state an asset is in there."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from latentbench.data._catalogue import AssetSpec, LockedFile, asset_spec
from latentbench.errors import AssetError
from latentbench.identity import sha256_file

__all__ = ["AssetStatus", "asset_folder", "asset_path", "cache_root", "read_manifest", "status", "verify"]

MANIFEST = "manifest.json"
"""Name of the file that lists an asset's files; written last."""
FILES = "files"
"""Folder of an asset's files, beside its manifest."""


@dataclass(frozen=True)
class AssetStatus:
    """State of one asset in the cache."""

    name: str
    """Canonical name."""
    state: Literal["missing", "present", "damaged"]
    """"missing": not pulled. "damaged": there, but not the files it should be."""
    path: Path
    """Folder of its files, whether it exists or not."""
    size: int
    """Bytes of the files that are there."""
    detail: str
    """What is wrong with a damaged one."""


def cache_root(cache_dir: Path | None = None) -> Path:
    """The cache: `cache_dir`, else `LATENTBENCH_CACHE`, else `latentbench` in the user's cache folder."""
    if cache_dir is not None:
        return cache_dir.expanduser()
    named = os.environ.get("LATENTBENCH_CACHE")
    if named:
        return Path(named).expanduser()
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "latentbench"


def asset_folder(spec: AssetSpec, cache_dir: Path | None = None) -> Path:
    """The folder that holds an asset's manifest and files; its name changes with the catalogue entry."""
    return cache_root(cache_dir) / "assets" / spec.name / spec.pin()


def asset_path(name: str, cache_dir: Path | None = None, extra: Path | None = None) -> Path:
    """Folder of an asset's files, checked by size.

    Args:
        name: name or alias.
        cache_dir: the cache; see `cache_root`.
        extra: a catalogue with more assets; see `catalogue`.

    Raises:
        UserError: no asset has that name.
        AssetError: it was not pulled yet or its files are damaged; the message names the command that helps.
    """
    found = status(name, cache_dir, extra)
    where = f" --cache-dir {cache_dir}" if cache_dir is not None else ""
    if found.state == "missing":
        raise AssetError(
            f"asset {found.name!r} is not in the cache ({cache_root(cache_dir)}): run "
            f"'latentbench assets pull {found.name}{where}'"
        )
    if found.state == "damaged":
        raise AssetError(
            f"asset {found.name!r} is damaged: {found.detail}. Run "
            f"'latentbench assets pull {found.name}{where}' to fetch it again"
        )
    return found.path


def status(name: str, cache_dir: Path | None = None, extra: Path | None = None) -> AssetStatus:
    """State of an asset by the sizes of its files, which takes no time."""
    return _check(asset_spec(name, extra), cache_dir, hashes=False)


def verify(name: str, cache_dir: Path | None = None, extra: Path | None = None) -> AssetStatus:
    """State of an asset by the checksums of its files, all of which are read."""
    return _check(asset_spec(name, extra), cache_dir, hashes=True)


def read_manifest(folder: Path) -> dict[str, LockedFile]:
    """The files an asset's manifest lists.

    Raises:
        AssetError: the manifest is not readable as one.
    """
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return {path: LockedFile(str(e["sha256"]), int(e["size"])) for path, e in manifest["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise AssetError(f"its manifest can't be read ({error})") from error


def _check(spec: AssetSpec, cache_dir: Path | None, *, hashes: bool) -> AssetStatus:
    folder = asset_folder(spec, cache_dir)
    path = folder / FILES
    if not folder.is_dir():
        return AssetStatus(spec.name, "missing", path, 0, "")
    try:
        wanted = spec.lock if spec.lock is not None else read_manifest(folder)
        if not (folder / MANIFEST).is_file():
            raise AssetError("its manifest is missing")
    except AssetError as error:
        return AssetStatus(spec.name, "damaged", path, 0, str(error))
    total = 0
    for name, file in sorted(wanted.items()):
        problem = _problem(path / name, file, hashes=hashes)
        if problem:
            return AssetStatus(spec.name, "damaged", path, total, f"{name} {problem}")
        total += file.size
    return AssetStatus(spec.name, "present", path, total, "")


def _problem(path: Path, wanted: LockedFile, *, hashes: bool) -> str:
    try:
        size = path.stat().st_size
        if size != wanted.size:
            return f"has {size:,} bytes instead of {wanted.size:,}"
        found = sha256_file(path) if hashes else wanted.sha256
    except OSError as error:
        return f"can't be read ({error.strerror})"
    return "" if found == wanted.sha256 else f"has sha256 {found} instead of {wanted.sha256}"
