"""What was sent to a server in batches and is not handed out yet: one SQLite file beside the cache of replies.

A batch is written down before its questions are sent, with a token of ours that goes along as metadata; its id is
added when the server has given one. A batch without an id is thus one whose submission was cut off: the server is asked
whether it has it. A reply stays here until it was handed out; a batch without questions left is forgotten.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from filelock import FileLock

from latentbench.errors import StoreError
from latentbench.store import utc_now

__all__ = ["COLLECTED", "SUBMITTING", "Batch", "BatchStore", "Line", "store_path"]

SUBMITTING = "submitting"
"""State of a batch that the server has not confirmed."""
COLLECTED = "collected"
"""State of a batch whose replies are all here."""
_FORMAT = 1
_WAIT_SECONDS = 60.0
_KEYS_PER_QUERY = 500
_SCHEMA = """
CREATE TABLE IF NOT EXISTS batches (
    token TEXT PRIMARY KEY, id TEXT, file TEXT, url TEXT NOT NULL, model TEXT NOT NULL, state TEXT NOT NULL,
    questions INTEGER NOT NULL, submitted TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS lines (
    key TEXT PRIMARY KEY, token TEXT NOT NULL, rubric TEXT NOT NULL, tokens INTEGER NOT NULL, cost REAL NOT NULL,
    reply TEXT
);
CREATE INDEX IF NOT EXISTS lines_of_batch ON lines (token);
"""


class Line(NamedTuple):
    """One question of a batch."""

    key: str
    """Hash of what is asked, its custom id."""
    rubric: str
    """Name of the rubric, for the ledger."""
    tokens: int
    """Tokens that it takes at most."""
    cost: float
    """Dollars that it takes at most."""


class Batch(NamedTuple):
    """A batch."""

    token: str
    """Our name for it."""
    id: str | None
    """The server's; None until it has confirmed the batch."""
    file: str | None
    """The server's id of the uploaded questions."""
    url: str
    """Base URL of the server."""
    model: str
    """Model that was asked for."""
    state: str
    """`SUBMITTING`, then as the server said last, and `COLLECTED` at the end."""
    questions: int
    """Questions that were sent."""
    submitted: str
    """When, in UTC."""
    waiting: int
    """Questions whose answers were not handed out yet."""


def store_path(cache: Path) -> Path:
    """The file of batches that belongs to a file of replies."""
    return cache.with_name(f"{cache.stem}-batches.sqlite")


class BatchStore:
    """See the module. Every method is one transaction, on the disk when it returns."""

    def __init__(self, path: Path) -> None:
        """Open the file, made where there is none.

        Raises:
            StoreError: it is of a newer format, or can't be opened.
        """
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._connection = _connect(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def lock(self) -> FileLock:
        """What one process at a time holds while it submits or collects; a killed one gives it up."""
        return FileLock(self.path.with_suffix(".lock"))

    def prepare(self, token: str, url: str, model: str, lines: Sequence[Line]) -> None:
        """Write down a batch that is about to be sent."""
        with self._transaction() as connection:
            connection.execute(
                "INSERT INTO batches VALUES (?, NULL, NULL, ?, ?, ?, ?, ?)",
                (token, url, model, SUBMITTING, len(lines), utc_now()),
            )
            connection.executemany(
                "INSERT INTO lines VALUES (?, ?, ?, ?, ?, NULL)",
                [(one.key, token, one.rubric, one.tokens, one.cost) for one in lines],
            )

    def uploaded(self, token: str, file: str) -> None:
        """The server has the questions under this id."""
        with self._transaction() as connection:
            connection.execute("UPDATE batches SET file = ? WHERE token = ?", (file, token))

    def submitted(self, token: str, identifier: str, state: str) -> None:
        """The server has the batch, under this id and in this state."""
        with self._transaction() as connection:
            connection.execute(
                "UPDATE batches SET id = ?, state = ? WHERE token = ?", (identifier, state, token)
            )

    def seen(self, token: str, state: str) -> None:
        """The server says that the batch is in this state."""
        with self._transaction() as connection:
            connection.execute("UPDATE batches SET state = ? WHERE token = ?", (state, token))

    def collected(self, token: str, replies: Mapping[str, str]) -> None:
        """Keep the replies of a batch, by key, as JSON."""
        with self._transaction() as connection:
            connection.executemany(
                "UPDATE lines SET reply = ? WHERE key = ? AND token = ?",
                [(reply, key, token) for key, reply in replies.items()],
            )
            connection.execute("UPDATE batches SET state = ? WHERE token = ?", (COLLECTED, token))

    def handed_out(self, keys: Iterable[str]) -> None:
        """Forget questions whose answers are with whoever asked, and batches of which nothing is left."""
        with self._transaction() as connection:
            connection.executemany("DELETE FROM lines WHERE key = ?", [(key,) for key in keys])
            connection.execute("DELETE FROM batches WHERE token NOT IN (SELECT token FROM lines)")

    def forget(self, token: str) -> None:
        """Forget a batch and its questions."""
        with self._transaction() as connection:
            connection.execute("DELETE FROM lines WHERE token = ?", (token,))
            connection.execute("DELETE FROM batches WHERE token = ?", (token,))

    def holders(self, keys: Sequence[str]) -> dict[str, str]:
        """By key the token of the batch that holds it, for those that are in one."""
        found: dict[str, str] = {}
        with self._transaction() as connection:
            for start in range(0, len(keys), _KEYS_PER_QUERY):
                part = keys[start : start + _KEYS_PER_QUERY]
                marks = ",".join("?" * len(part))
                found.update(connection.execute(f"SELECT key, token FROM lines WHERE key IN ({marks})", part))
        return found

    def lines(self, token: str) -> dict[str, Line]:
        """Questions of a batch by key."""
        with self._transaction() as connection:
            rows = connection.execute("SELECT key, rubric, tokens, cost FROM lines WHERE token = ?", (token,))
            return {row[0]: Line(*row) for row in rows}

    def replies(self, token: str) -> dict[str, str]:
        """Replies of a batch by key, as JSON."""
        with self._transaction() as connection:
            rows = connection.execute(
                "SELECT key, reply FROM lines WHERE token = ? AND reply IS NOT NULL", (token,)
            )
            return dict(rows.fetchall())

    def batches(self) -> list[Batch]:
        """All batches, the oldest first."""
        with self._transaction() as connection:
            rows = connection.execute(
                "SELECT token, id, file, url, model, state, questions, submitted, "
                "(SELECT count(*) FROM lines WHERE lines.token = batches.token) FROM batches ORDER BY rowid"
            )
            return [Batch(*row) for row in rows]

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._connection:
                yield self._connection
        except sqlite3.Error as error:
            raise StoreError(f"the file of batches {self.path} failed: {error}") from error


def _connect(path: Path) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(path, timeout=_WAIT_SECONDS, check_same_thread=False)
    except sqlite3.Error as error:
        raise StoreError(f"{path} can't be opened as a file of batches: {error}") from error
    try:
        stored = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if stored > _FORMAT:
            raise StoreError(
                f"{path} has format {stored}, this latentbench knows {_FORMAT}: upgrade latentbench"
            )
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(
            "PRAGMA synchronous=FULL"
        )  # a batch forgotten in a power cut would be paid for twice
        connection.executescript(_SCHEMA)
        connection.execute(f"PRAGMA user_version = {_FORMAT}")
        connection.commit()
    except sqlite3.Error as error:
        connection.close()
        raise StoreError(f"{path} can't be opened as a file of batches: {error}") from error
    except StoreError:
        connection.close()
        raise
    return connection
