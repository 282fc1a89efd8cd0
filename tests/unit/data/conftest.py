"""A small wheel served to the real pip from a folder."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from tiny_wheel import MEMBERS, Index, write_wheel


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

    return Index(wheel, tmp_path / "cache", catalogue)
