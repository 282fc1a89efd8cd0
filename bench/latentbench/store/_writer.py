"""Writing one cell: append-only items, then a record."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal, Self

from latentbench.errors import StoreError
from latentbench.identity import sha256_text
from latentbench.store._files import checksum_lines, mend_lines, read_lines, remove, write_atomic
from latentbench.store._lock import exclusive
from latentbench.store._reading import read_identity, read_record
from latentbench.store._records import CellIdentity, RunRecord, pretty_json

__all__ = ["CHECKED_FILES", "CellWriter", "ItemFile"]

ItemFile = Literal["items", "judgements"]
"""The append-only files of a cell, without their `.jsonl`."""

CHECKED_FILES = frozenset({"cell.json", "items.jsonl", "judgements.jsonl", "run.json"})
"""The files that SHA256SUMS covers."""


class CellWriter:
    """The one writer of a cell's folder; use it as a context manager.

    Entering takes the cell's lock, writes `cell.json` if it is missing and mends a line torn by a kill.
    Leaving closes the files, synced to disk.
    """

    def __init__(self, path: Path, cell: CellIdentity, reopen: bool = False) -> None:
        self.path = path
        """The cell's folder."""
        self.cell = cell
        """What is measured."""
        self._reopen = reopen
        self._stack = ExitStack()
        self._streams: dict[str, BinaryIO] = {}
        self._ids: dict[str, set[tuple[str, str]]] = {}
        self._unfinished = False
        self._held = False

    def __enter__(self) -> Self:
        self.path.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            stack.enter_context(exclusive(self.path / ".lock"))
            for leftover in self.path.glob(".*.tmp"):
                leftover.unlink()
            self._refuse_finished()
            identity = self.path / "cell.json"
            if read_identity(identity, self.cell.key()) is None:
                write_atomic(identity, pretty_json(self.cell.model_dump(mode="json")))
            self._stack = stack.pop_all()
        self._held = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._close_streams()
        finally:
            self._ids.clear()
            self._held = self._unfinished = False
            self._stack.close()

    def ids(self, file: ItemFile = "items", kind: str | None = None) -> set[str]:
        """The ids already stored, of all kinds or of one: what need not be measured again."""
        return {item_id for item_kind, item_id in self._stored(file) if kind is None or item_kind == kind}

    def append(self, items: Iterable[Mapping[str, Any]], file: ItemFile = "items") -> int:
        """Append items as they come from the iterable, each flushed before the next one is asked for.

        Args:
            items: JSON objects with at least `kind` and `id`, both text; an id is unique within its kind.
            file: which of the two files.

        Returns:
            How many were appended.

        Raises:
            StoreError: an item lacks kind or id, repeats one, or is not JSON (NaN included).
        """
        written = 0
        for item in items:
            name = _name(item, self.path)
            stored = self._stored(file)
            if name in stored:
                raise StoreError(
                    f"item {name[1]!r} of kind {name[0]!r} is already in {self.path / file}.jsonl; items are "
                    "never overwritten. Skip the ids that `ids()` returns when resuming."
                )
            line = _line(item, name)
            stream = self._stream(file)
            stream.write(line)
            stream.flush()
            stored.add(name)
            written += 1
        return written

    def drop(self, file: ItemFile, unwanted: Callable[[Mapping[str, Any]], bool]) -> int:
        """Take out items that are to be made again; the file is replaced as a whole.

        Args:
            file: which of the two files.
            unwanted: whether an item goes.

        Returns:
            How many were taken out.
        """
        self._stored(file)  # mends the end of the file
        path = self.path / f"{file}.jsonl"
        lines = list(read_lines(path))
        kept = [item for item in lines if not unwanted(item)]
        if len(kept) == len(lines):
            return 0
        self._close_streams()
        self._unfinish()
        write_atomic(path, "".join(_line(item, _name(item, path)).decode("ascii") for item in kept))
        self._ids.pop(file)
        return len(lines) - len(kept)

    def finish(self, record: RunRecord) -> None:
        """Close the item files and publish the record: `run.json` appears last, by atomic rename.

        Raises:
            StoreError: the record is another cell's.
        """
        self._need_lock()
        if record.key != self.cell.key():
            raise StoreError(f"the record of cell {record.key} can't finish the cell in {self.path}")
        self._close_streams()
        self._unfinish()
        body = record.to_json()
        names = sorted(name for name in CHECKED_FILES - {"run.json"} if (self.path / name).exists())
        sums = checksum_lines(self.path, names) + f"{sha256_text(body)}  run.json\n"
        write_atomic(self.path / "SHA256SUMS", sums)
        write_atomic(self.path / "run.json", body)
        self._unfinished = False

    def _stored(self, file: ItemFile) -> set[tuple[str, str]]:
        """Kind and id of every stored item; the first look also mends the end of the file."""
        self._need_lock()
        if file not in self._ids:
            path = self.path / f"{file}.jsonl"
            mend_lines(path)
            self._ids[file] = {_name(item, path) for item in read_lines(path)}
        return self._ids[file]

    def _stream(self, file: ItemFile) -> BinaryIO:
        """The open file to append to; a record that does not describe what follows goes first."""
        if not self._unfinished:
            self._unfinish()
        if file not in self._streams:
            self._streams[file] = (self.path / f"{file}.jsonl").open("ab")
        return self._streams[file]

    def _need_lock(self) -> None:
        if not self._held:
            raise StoreError(
                f"{self.path} is not open for writing; use `with folder.writer(cell) as writer:`"
            )

    def _refuse_finished(self) -> None:
        record = None if self._reopen else read_record(self.path / "run.json", self.cell.key())
        if record is not None and record.status == "ok":
            raise StoreError(
                f"{self.path} holds a finished cell. Read its record, or open it with reopen=True to "
                "measure more."
            )

    def _unfinish(self) -> None:
        # run.json first: a folder with a record but without its checksums would look damaged, not unfinished.
        remove(self.path / "run.json")
        remove(self.path / "SHA256SUMS")
        self._unfinished = True

    def _close_streams(self) -> None:
        for stream in self._streams.values():
            with stream:
                stream.flush()
                os.fsync(stream.fileno())
        self._streams.clear()


def _name(item: Mapping[str, Any], where: Path) -> tuple[str, str]:
    kind, item_id = item.get("kind"), item.get("id")
    if not isinstance(kind, str) or not isinstance(item_id, str) or not kind or not item_id:
        raise StoreError(
            f"an item for {where} has kind {kind!r} and id {item_id!r}; both must be text, because a resumed "
            "run finds out by them what is already measured"
        )
    return kind, item_id


def _line(item: Mapping[str, Any], name: tuple[str, str]) -> bytes:
    # ASCII escapes keep one item on one line for every reader, and survive lone surrogates from cut tokens.
    try:
        text = json.dumps(dict(item), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise StoreError(
            f"item {name[1]!r} of kind {name[0]!r} can't be stored as JSON: {error}. Convert arrays with "
            ".tolist(), and give an undefined number as null with a reason."
        ) from error
    return text.encode("ascii") + b"\n"
