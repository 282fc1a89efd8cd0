"""Replies that cost money or time, kept by the hash of everything that was asked.

One SQLite file (write-ahead log, so that several processes may read and write it). The key of an entry is the
sha256 of the canonical JSON of the *whole* request: model, messages, sampling, schema, rubric, repeat. Values
are JSON, vectors are little-endian float32; nothing is ever pickled.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from latentbench.errors import StoreError
from latentbench.identity import canonical_json, sha256_json, sha256_text
from latentbench.store._why import Difference, differences

__all__ = ["NearMiss", "ResponseCache"]

_FORMAT = 1
_WAIT_SECONDS = 60.0
_KEYS_PER_QUERY = 500
_SCHEMA = """
CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, request TEXT NOT NULL, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS vectors (key TEXT PRIMARY KEY, value BLOB NOT NULL);
"""


class NearMiss(NamedTuple):
    """A stored request that is not the one asked for."""

    request: Any
    """What was asked then."""
    fields: list[Difference]
    """Where the two differ: the request asked for first, the stored one second."""


class ResponseCache:
    """A cache of JSON replies and of vectors, safe for threads and processes; use it as a context manager."""

    def __init__(self, path: Path | str) -> None:
        """Open the cache, made where there is none.

        Raises:
            StoreError: the file is not such a cache, is of a newer format, or can't be opened.
        """
        self.path = Path(path)
        """The SQLite file."""
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._connection = _connect(self.path)
        except sqlite3.Error as error:
            raise StoreError(f"{self.path} can't be opened as a response cache: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; every finished `put` is already stored."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def get(self, request: Any) -> Any:
        """The stored reply to exactly this request, or None."""
        with self._session() as connection:
            found = connection.execute(
                "SELECT value FROM replies WHERE key = ?", (sha256_json(request),)
            ).fetchone()
        return None if found is None else json.loads(found[0])

    def put(self, request: Any, value: Any) -> None:
        """Store the reply to a request. The first one stays: a rerun must not change a published number.

        Raises:
            StoreError: `value` is None (a failure is never cached) or is not JSON.
        """
        self.put_all([(request, value)])

    def put_all(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        """Store several replies at once, all or none; otherwise as `put`."""
        rows = []
        for request, value in pairs:
            if value is None:
                raise StoreError(
                    "a reply of None can't be cached: only successes are, so that failures are asked again"
                )
            try:
                text, asked = canonical_json(value), canonical_json(request)
            except (TypeError, ValueError) as error:
                raise StoreError(f"the request or its reply is not JSON: {error}") from error
            rows.append((sha256_text(asked), asked, text))
        with self._session() as connection, connection:
            connection.executemany("INSERT INTO replies VALUES (?, ?, ?) ON CONFLICT DO NOTHING", rows)

    def nearest(self, request: Any, among: int = 1000) -> NearMiss | None:
        """The stored request that differs from this one in the fewest fields, among the latest `among`."""
        with self._session() as connection:
            rows = connection.execute(
                "SELECT request FROM replies ORDER BY rowid DESC LIMIT ?", (among,)
            ).fetchall()
        stored = [json.loads(text) for (text,) in rows]
        misses = [NearMiss(other, differences(request, other)) for other in stored]
        return min(misses, key=lambda miss: len(miss.fields), default=None)

    def put_vectors(self, requests: Sequence[Any], vectors: ArrayLike) -> None:
        """Store one vector per request, Float[request, d], as float32; the first one stored for a key stays.

        Raises:
            StoreError: the numbers differ, or a vector holds NaN or an infinity.
        """
        table = np.asarray(vectors, dtype="<f4")
        if table.ndim != 2 or len(table) != len(requests):
            raise StoreError(
                f"{len(requests)} requests for vectors of shape {table.shape}; one row each is needed"
            )
        if not np.all(np.isfinite(table)):
            raise StoreError(
                "a vector to be cached holds NaN or an infinity; find out why the embedder made it"
            )
        rows = [
            (sha256_json(request), vector.tobytes()) for request, vector in zip(requests, table, strict=True)
        ]
        with self._session() as connection, connection:
            connection.executemany("INSERT INTO vectors VALUES (?, ?) ON CONFLICT DO NOTHING", rows)

    def get_vectors(self, requests: Sequence[Any]) -> list[NDArray[np.float32] | None]:
        """The stored vector Float[d] of each request, or None, in the order asked."""
        keys = [sha256_json(request) for request in requests]
        found: dict[str, bytes] = {}
        with self._session() as connection:
            for start in range(0, len(keys), _KEYS_PER_QUERY):
                part = keys[start : start + _KEYS_PER_QUERY]
                marks = ",".join("?" * len(part))
                found.update(
                    connection.execute(f"SELECT key, value FROM vectors WHERE key IN ({marks})", part)
                )
        return [np.frombuffer(found[key], dtype="<f4") if key in found else None for key in keys]

    def __len__(self) -> int:
        """Number of stored replies."""
        with self._session() as connection:
            return int(connection.execute("SELECT count(*) FROM replies").fetchone()[0])

    @contextmanager
    def _session(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            if self._connection is None:
                raise StoreError(f"the response cache {self.path} is closed")
            try:
                yield self._connection
            except sqlite3.Error as error:
                raise StoreError(f"the response cache {self.path} failed: {error}") from error


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_WAIT_SECONDS, check_same_thread=False)
    try:
        stored = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if stored > _FORMAT:
            raise StoreError(
                f"{path} has cache format {stored}, this latentbench knows {_FORMAT}; upgrade latentbench"
            )
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.executescript(_SCHEMA)
        connection.execute(f"PRAGMA user_version = {_FORMAT}")
        connection.commit()
    except (sqlite3.Error, StoreError):
        connection.close()
        raise
    return connection
