"""One writer per cell."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from latentbench.errors import StoreError

if sys.platform != "win32":
    import fcntl

__all__ = ["exclusive"]


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold an exclusive `flock` on `path` for the body; the kernel frees it when the process dies.

    Raises:
        StoreError: another writer holds it (its process id is named), or the system has no such locks.
    """
    if sys.platform == "win32":
        raise StoreError(
            "writing results needs POSIX file locks, which Windows has not; run under WSL "
            "(reading works anywhere)"
        )
    with path.open("a+", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            stream.seek(0)
            holder = stream.read().strip() or "unknown"
            raise StoreError(
                f"another writer (process {holder}) is working on {path.parent}. Two writers would mix "
                "their items; wait for it, or end it if it hangs."
            ) from error
        stream.seek(0)
        stream.truncate()
        stream.write(str(os.getpid()))
        stream.flush()
        yield
