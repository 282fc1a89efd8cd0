"""Hugging Face repositories as assets, at a fixed commit."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

from latentbench.data._catalogue import AssetSpec, HubSource
from latentbench.errors import AssetError

__all__ = ["fetch_hub"]


def fetch_hub(
    spec: AssetSpec, source: HubSource, out: Path, progress: Callable[[str, int, int], None]
) -> None:
    """Put the listed files of a repository at a commit into `out`.

    They come through the hub's own cache, so files that are in it already are not fetched again, and with
    `HF_HUB_OFFLINE=1` only that cache is read.

    Raises:
        AssetError: the repository, commit or network can't be reached.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    total = spec.size() or 0
    progress("download", 0, total)
    try:
        snapshot = Path(
            snapshot_download(
                source.repository,
                repo_type=source.repository_type,
                revision=source.revision,
                allow_patterns=list(source.patterns),
            )
        )
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise _explain(spec, source, error) from error
    for path in sorted(snapshot.rglob("*")):
        relative = path.relative_to(snapshot)
        if path.is_file() and any(fnmatch(relative.as_posix(), pattern) for pattern in source.patterns):
            target = out / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)  # copied, not linked: clearing the hub's cache must not break ours
    progress("download", total, total)


def _explain(spec: AssetSpec, source: HubSource, error: Exception) -> AssetError:
    label = f"asset {spec.name!r}: {source.describe()} can't be had"
    if os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0"):
        return AssetError(
            f"{label}, because HF_HUB_OFFLINE is set and the hub's own cache lacks it: unset it, or download "
            "on a machine with network and copy the cache folder here"
        )
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return AssetError(
        f"{label}: {first}. Check the network, and 'hf auth login' if the repository asks for consent"
    )
