"""Opening a bundle of a stranger: into a temporary folder, file by file, with every name and size checked first."""

from __future__ import annotations

import os
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from latentbench.errors import UserError
from latentbench_leaderboard.bundles._layout import MANIFEST, place_of
from latentbench_leaderboard.bundles._strict import Refused, shown

__all__ = ["DEFAULT_LIMITS", "Limits", "Opened", "open_bundle"]

_BLOCK = 1 << 20
_SMALL = 1 << 20
"""Bytes up to which the ratio of an entry says nothing."""


class Limits(NamedTuple):
    """How large a bundle may be; whatever is over is refused unread."""

    files: int = 200_000
    """Entries."""
    file_bytes: int = 2 * 1024**3
    """Bytes of one unpacked file."""
    total_bytes: int = 8 * 1024**3
    """Bytes of all together."""
    ratio: float = 200.0
    """Unpacked bytes for each packed one, of entries over a megabyte. Items of this project have about 4 to 20."""


DEFAULT_LIMITS = Limits()


class Opened(NamedTuple):
    """An opened bundle."""

    path: Path
    """Folder laid out as a results folder; to be read only."""
    is_bundle: bool
    """Whether it must have a manifest, and nothing that is not in it; a results folder has none."""


@contextmanager
def open_bundle(path: Path, limits: Limits = DEFAULT_LIMITS) -> Iterator[Opened]:
    """A bundle as a folder for the body of a `with`.

    Args:
        path: a bundle, or a folder: an unpacked bundle or any results folder.
        limits: see `Limits`.

    Raises:
        UserError: there is no such file, or it is neither.
        Refused: the zip file holds a name, a size or a kind of entry that no bundle has.
    """
    if path.is_dir():
        if not (path / "runs").is_dir():
            raise UserError(
                f"{path} is neither a bundle nor a results folder: it has no folder `runs` inside"
            )
        _refuse_links(path)
        yield Opened(path, (path / MANIFEST).is_file())
        return
    if not path.is_file():
        raise UserError(f"there is no bundle {path}; `latentbench submit RESULTS --out {path}` makes one")
    if not zipfile.is_zipfile(path):
        raise UserError(f"{path} is not a bundle: it is no zip file (`latentbench submit` makes one)")
    with TemporaryDirectory(prefix="latentbench-bundle-") as folder:
        _unpack(path, Path(folder), limits)
        yield Opened(Path(folder), True)


def _unpack(path: Path, folder: Path, limits: Limits) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            _refuse_entries(entries, limits)
            left = limits.total_bytes
            for entry in entries:
                left -= _write(archive, entry, folder, min(left, limits.file_bytes))
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError) as error:
        raise Refused(f"is a damaged zip file: {shown(error, 120)}") from error


def _refuse_entries(entries: list[zipfile.ZipInfo], limits: Limits) -> None:
    """Refuse by the table of contents alone, before anything is unpacked.

    Raises:
        Refused: an entry is not a bundle's.
    """
    if len(entries) > limits.files:
        raise Refused(f"has {len(entries):,} entries; {limits.files:,} are allowed")
    names: set[str] = set()
    for entry in entries:
        name = entry.filename
        if place_of(name) is None or entry.orig_filename != name:
            raise Refused(f"has an entry called {shown(entry.orig_filename)}, which is no file of a bundle")
        if name in names:
            raise Refused(f"has two entries called {shown(name)}")
        names.add(name)
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if kind not in (0, stat.S_IFREG):
            what = "a link" if kind == stat.S_IFLNK else "no plain file"
            raise Refused(f"entry {shown(name)} is {what}")
        if entry.flag_bits & 0x1:
            raise Refused(f"entry {shown(name)} is encrypted")
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise Refused(
                f"entry {shown(name)} is packed by method {entry.compress_type}; deflate is allowed"
            )
        if entry.file_size > limits.file_bytes:
            raise Refused(
                f"entry {shown(name)} unpacks to {entry.file_size:,} bytes; {limits.file_bytes:,} are allowed"
            )
        if entry.file_size > _SMALL and entry.file_size > limits.ratio * max(1, entry.compress_size):
            ratio = entry.file_size / max(1, entry.compress_size)
            raise Refused(f"entry {shown(name)} unpacks to {ratio:,.0f} times its size: a zip bomb")
    total = sum(entry.file_size for entry in entries)
    if total > limits.total_bytes:
        raise Refused(f"unpacks to {total:,} bytes; {limits.total_bytes:,} are allowed")


def _write(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, folder: Path, most: int) -> int:
    """Unpack one entry; the table of contents may lie, so bytes are counted as they come."""
    target = folder / entry.filename
    target.parent.mkdir(parents=True, exist_ok=True)
    written = 0
    with archive.open(entry) as packed, target.open("xb") as plain:
        while block := packed.read(_BLOCK):
            written += len(block)
            if written > most:
                raise Refused(f"entry {shown(entry.filename)} unpacks to more than its table says")
            plain.write(block)
    return written


def _refuse_links(path: Path) -> None:
    """Refuse links in a folder's cells, cards and calibrations: what they point to is not part of it.

    Raises:
        Refused: there is one.
    """
    for part in ("runs", "cards", "calibration"):
        for place, folders, files in os.walk(path / part):
            for name in (*folders, *files):
                if (Path(place) / name).is_symlink():
                    raise Refused(f"{shown((Path(place) / name).relative_to(path))} is a link")
        if (path / part).is_symlink():
            raise Refused(f"{part} is a link")
