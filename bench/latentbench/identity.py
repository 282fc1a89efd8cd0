"""Canonical JSON and content hashes: what makes two things the same thing.

Every cache key, cell key and checksum of the project comes from here, so that two parts of the code can
never disagree about what was hashed.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["canonical_json", "sha256_bytes", "sha256_file", "sha256_json", "sha256_text"]


def canonical_json(value: Any) -> str:
    """JSON with sorted keys, no spaces and no NaN: equal values give equal text.

    Raises:
        ValueError: the value holds NaN or an infinity, which have no canonical JSON form.
        TypeError: the value holds something that is not JSON (a set, a tensor, a path).
    """
    _refuse_non_finite(value, "value")
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def sha256_json(value: Any) -> str:
    """The sha256 of `canonical_json(value)`, as 64 hex digits."""
    return sha256_text(canonical_json(value))


def sha256_text(text: str) -> str:
    """The sha256 of the UTF-8 bytes of `text`, as 64 hex digits."""
    return sha256_bytes(text.encode("utf-8", errors="surrogatepass"))


def sha256_bytes(data: bytes) -> str:
    """The sha256 of `data`, as 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    """The sha256 of a file's bytes, as 64 hex digits, read in blocks."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _refuse_non_finite(value: Any, where: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where} is {value!r}: NaN and infinities have no canonical JSON form; use null")
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _refuse_non_finite(inner, f"{where}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for position, inner in enumerate(value):
            _refuse_non_finite(inner, f"{where}[{position}]")
