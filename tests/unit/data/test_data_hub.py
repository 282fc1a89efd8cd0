"""Assets from a Hugging Face repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from latentbench.data import assets
from latentbench.errors import AssetError, UserError

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ENTRY = f"""
[asset.tiny-lm]
title = "A tiny model"
kind = "hub"
repository = "nobody/tiny-lm"
revision = "{COMMIT}"
patterns = ["config.json", "*.safetensors"]
"""


@pytest.fixture
def extra(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(ENTRY)
    return path


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Stands in for the hub's client and records how it is called."""
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    (snapshot / "blobs").mkdir()
    (snapshot / "blobs/1").write_bytes(b"tensor bytes")
    (snapshot / "model.safetensors").symlink_to(snapshot / "blobs/1")  # as in the hub's cache
    (snapshot / "config.json").write_text("{}")
    (snapshot / "notes.txt").write_text("from an earlier download, not asked for")
    calls: list[dict[str, Any]] = []

    def download(repository: str, **options: Any) -> str:
        calls.append({"repository": repository, **options})
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return calls


def test_pull_takes_commit_and_patterns(tmp_path: Path, extra: Path, hub: list[dict[str, Any]]) -> None:
    path = assets.pull("tiny-lm", cache_dir=tmp_path / "cache", extra=extra)
    assert hub == [
        {
            "repository": "nobody/tiny-lm",
            "repo_type": "model",
            "revision": COMMIT,
            "allow_patterns": ["config.json", "*.safetensors"],
        }
    ]
    files = {file.name: file.read_bytes() for file in path.iterdir()}
    assert files == {"model.safetensors": b"tensor bytes", "config.json": b"{}"}
    assert not (path / "model.safetensors").is_symlink()
    assert assets.verify("tiny-lm", tmp_path / "cache", extra).state == "present"
    (path / "config.json").write_text("[]")
    assert assets.verify("tiny-lm", tmp_path / "cache", extra).state == "damaged"


def test_offline_without_the_files(tmp_path: Path, extra: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real client, told to stay offline."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(AssetError, match="HF_HUB_OFFLINE is set"):
        assets.pull("tiny-lm", cache_dir=tmp_path / "cache", extra=extra)
    assert assets.status("tiny-lm", tmp_path / "cache", extra).state == "missing"


def test_failed_download_says_why(tmp_path: Path, extra: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> str:
        raise OSError("Couldn't connect to the Hub\nmore lines")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    with pytest.raises(AssetError, match=r"at 0123456789ab can't be had: Couldn't connect to the Hub\."):
        assets.pull("tiny-lm", cache_dir=tmp_path / "cache", extra=extra)


def test_a_branch_is_no_revision(tmp_path: Path, extra: Path) -> None:
    extra.write_text(ENTRY.replace(COMMIT, "main"))
    with pytest.raises(UserError, match="'revision' is 'main'"):
        assets.catalogue(extra)
