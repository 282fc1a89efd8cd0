"""Files that are either there in full or not at all, and JSON lines that survive a kill."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from latentbench.errors import StoreError
from latentbench.identity import sha256_file

__all__ = ["checksum_lines", "mend_lines", "read_lines", "remove", "verify_checksums", "write_atomic"]


def write_atomic(path: Path, text: str) -> None:
    """Write `text` so that a reader or a crash sees the old file or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            stream.write(text.encode("utf-8"))
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def remove(path: Path) -> None:
    """Delete `path` if it is there, durably."""
    path.unlink(missing_ok=True)
    _sync_folder(path.parent)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file, one per line; none when there is no file.

    A last line that is cut off (no newline, not JSON) is what a killed writer leaves, and is ignored.

    Raises:
        StoreError: any other line is not a JSON object; names the file and the line.
    """
    if not path.exists():
        return
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            item = _parse(line)
            if item is None:
                if not line.endswith(b"\n"):
                    return
                raise StoreError(
                    f"{path}:{number} is not a JSON object ({_excerpt(line)}). The file was changed after it "
                    "was written; restore it, or delete the cell's folder and run the cell again."
                )
            yield item


def mend_lines(path: Path) -> None:
    """Make the file end in a whole line, so that it can be appended to: complete or drop a torn last line."""
    if not path.exists():
        return
    start, last = 0, b""
    with path.open("r+b") as stream:
        for line in stream:
            start, last = start + len(last), line
        if not last or last.endswith(b"\n"):
            return
        if _parse(last) is None:
            stream.truncate(start)
        else:
            stream.seek(0, os.SEEK_END)
            stream.write(b"\n")


def checksum_lines(folder: Path, names: list[str]) -> str:
    """The text of SHA256SUMS for the files `names` of a folder, readable by `sha256sum -c`."""
    return "".join(f"{sha256_file(folder / name)}  {name}\n" for name in names)


def verify_checksums(folder: Path, sums: str, allowed: frozenset[str]) -> list[str]:
    """What is wrong with a folder's files according to the text of its SHA256SUMS.

    Args:
        folder: where the files are.
        sums: the text of SHA256SUMS.
        allowed: the only names that may appear: a foreign file must not make us read outside of the folder.
    """
    problems, listed = [], set()
    for number, line in enumerate(sums.splitlines(), start=1):
        digest, separator, name = line.partition("  ")
        if not separator or name not in allowed:
            problems.append(f"SHA256SUMS:{number} names {name!r}, which is not a file of a cell")
            continue
        listed.add(name)
        path = folder / name
        if path.is_symlink() or not path.is_file():
            problems.append(f"{name} is listed in SHA256SUMS but is not a file here")
        elif sha256_file(path) != digest:
            problems.append(f"{name} differs from its checksum")
    present = {name for name in allowed if (folder / name).exists()}
    problems += [f"{name} is not listed in SHA256SUMS" for name in sorted(present - listed)]
    return problems


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        item = json.loads(line, parse_constant=_refuse_constant)
    except ValueError:
        return None
    return item if isinstance(item, dict) else None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _excerpt(line: bytes) -> str:
    text = line[:60].decode("utf-8", errors="replace").strip()
    return repr(text + ("..." if len(line) > 60 else ""))


def _sync_folder(folder: Path) -> None:
    # A rename is durable only once its folder is; Windows has no way to ask for that.
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
