"""The parsed and de-duplicated probing texts, kept in the cache: one compressed file a split.

Reading and de-duplicating the wheel's 155 tables takes many seconds; reading one split of the index does not.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import zstandard
from filelock import FileLock

from latentbench.data._cache import asset_path, cache_root
from latentbench.data._catalogue import asset_spec
from latentbench.errors import AssetError

__all__ = [
    "SPLITS",
    "IndexedText",
    "group_key",
    "index_key",
    "normalise",
    "read_index",
    "split_of",
    "text_key",
]

INDEX_VERSION = 1
"""Raised whenever a change here can change what is indexed, or its split."""

SPLITS = {
    "train": 0.70,
    "calibrate": 0.03,
    "select": 0.05,
    "classifier": 0.08,
    "test": 0.12,
    "capability": 0.02,
}
"""Share of the groups of documents in each split. One split serves everything: training, calibrating
sparsity, selecting latents and factors, fitting classifiers, measuring, and checks of what steering
breaks."""

GROUP_CHARACTERS = 200
"""Texts that share this many first characters (after whitespace is normalised) are one group: reading
passages with another question each, files under one licence header. A group lies in one split as a whole."""


class IndexedText(NamedTuple):
    """One distinct text."""

    sha256: str
    """Checksum of the text with whitespace normalised; names the document."""
    group: str
    """First 16 hex digits of its group's key."""
    sets: tuple[str, ...]
    """Probing sets it is in, by number."""
    labels: dict[str, str]
    """Target by set; a set that gives this text two different targets is left out."""
    text: str
    """As in the first set it is in."""


@dataclass
class _Gathered:
    text: str
    targets: dict[str, set[str]] = field(default_factory=dict)


def normalise(text: str) -> str:
    """The text with every run of whitespace made one space, and none at its ends."""
    return " ".join(text.split())


def text_key(text: str) -> str:
    """The sha256 that names a document: of its text, whitespace normalised."""
    return hashlib.sha256(normalise(text).encode("utf-8", errors="surrogatepass")).hexdigest()


def group_key(text: str) -> str:
    """The key of a text's group: `text_key` of its first characters, shortened."""
    return text_key(normalise(text)[:GROUP_CHARACTERS])[:16]


def split_of(group: str) -> str:
    """The split that a group of documents belongs to, from its key alone."""
    place = int(group[:12], 16) / 16**12
    for name, share in SPLITS.items():
        if place < share:
            return name
        place -= share
    return next(reversed(SPLITS))  # rounding of the shares' sum


def index_key(asset: str) -> str:
    """What an index depends on: the asset's content and how it is indexed."""
    return f"{asset_spec(asset).pin()}-v{INDEX_VERSION}"


def read_index(asset: str, split: str, cache_dir: Path | None = None) -> Iterator[IndexedText]:
    """The distinct texts of one split; makes the index first if the cache has none.

    Raises:
        AssetError: the asset was not pulled.
    """
    folder = cache_root(cache_dir) / "corpora" / asset / index_key(asset)
    if not folder.is_dir():
        texts = asset_path(asset, cache_dir) / "texts"
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.parent / f".{folder.name}.lock"):
            if not folder.is_dir():  # else another process was quicker
                _build(texts, folder)
    try:
        with (folder / f"{split}.json.zst").open("rb") as packed:
            rows = json.loads(zstandard.ZstdDecompressor().stream_reader(packed).read())
    except (OSError, ValueError, zstandard.ZstdError) as error:
        raise AssetError(f"the index in {folder} can't be read ({error}): delete that folder") from error
    for sha256, group, sets, labels, text in rows:
        yield IndexedText(sha256, group, tuple(sets), labels, text)


def _build(texts: Path, folder: Path) -> None:
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        lines: dict[str, list[bytes]] = {split: [] for split in SPLITS}
        for entry in _gather(texts):
            row = json.dumps(
                entry, ensure_ascii=True, separators=(",", ":")
            )  # ascii survives lone surrogates
            lines[split_of(entry.group)].append(row.encode("ascii"))
        for split, rows in lines.items():
            with (work / f"{split}.json.zst").open("wb") as stream:
                stream.write(zstandard.ZstdCompressor(level=3).compress(b"[" + b",\n".join(rows) + b"]"))
                stream.flush()
                os.fsync(stream.fileno())
        os.replace(work, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _gather(texts: Path) -> Iterator[IndexedText]:
    """Every distinct text once, in the order of its first set's number and row."""
    found: dict[str, _Gathered] = {}
    paths = sorted(texts.glob("*.csv.zst"), key=lambda path: (int(path.name.split("_")[0]), path.name))
    for path in paths:
        set_id = path.name.removesuffix(".csv.zst")
        for row in _rows(path):
            key = normalise(row["prompt"])
            if key:
                entry = found.setdefault(key, _Gathered(row["prompt"]))
                entry.targets.setdefault(set_id, set()).add(row["target"])
    for key, entry in found.items():
        labels = {set_id: min(values) for set_id, values in entry.targets.items() if len(values) == 1}
        yield IndexedText(text_key(key), group_key(key), tuple(entry.targets), labels, entry.text)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    try:
        with path.open("rb") as packed:
            content = zstandard.ZstdDecompressor().stream_reader(packed).read().decode("utf-8")
    except (zstandard.ZstdError, UnicodeDecodeError) as error:
        raise AssetError(
            f"{path} can't be read ({error}): run 'latentbench assets verify probe-texts'"
        ) from error
    yield from csv.DictReader(io.StringIO(content, newline=""))
