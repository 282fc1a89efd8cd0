"""A small wheel served to the real pip from a folder, and catalogues that name it."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

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
    write_wheel: Callable[[dict[str, bytes]], None]
    """Writes the wheel again, with further entries."""
    files: dict[str, bytes]
    """What an asset pulled from it holds."""


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


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    folder = tmp_path / "index"
    folder.mkdir()
    wheel = folder / "tiny_asset-1.0-py3-none-any.whl"
    write_wheel(wheel)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    monkeypatch.delenv("LATENTBENCH_CATALOGUE", raising=False)

    def catalogue(**changes: str) -> Path:
        entry = {
            "title": "A tiny asset",
            "licence": "CC0-1.0",
            "kind": "wheel",
            "project": "tiny-asset",
            "version": "1.0",
            "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        }
        entry |= changes
        lines = ["[asset.tiny]", *(f'{key} = "{value}"' for key, value in entry.items())]
        lines += ["[asset.tiny.members]", *(f'"{name}" = "{target}"' for name, target in MEMBERS.items())]
        path = tmp_path / "catalogue.toml"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    files = {"data/weights.bin": CONTENT, "LICENSE": LICENCE}
    return Index(wheel, tmp_path / "cache", catalogue, partial(write_wheel, wheel), files)
