"""Random generators named by text, so that every resampled number can be recomputed by anybody."""

from __future__ import annotations

import hashlib

import numpy as np

__all__ = ["generator"]


def generator(key: str) -> np.random.Generator:
    """A PCG64 generator whose whole seed is the sha256 of `key`.

    The same key gives the same stream in every process and on every machine; two keys that differ in one
    character give unrelated streams. Use the cell's key followed by the metric's name.
    """
    seed = int.from_bytes(hashlib.sha256(key.encode("utf-8")).digest(), "big")
    return np.random.Generator(np.random.PCG64(seed))
