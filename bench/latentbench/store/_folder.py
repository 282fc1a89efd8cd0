"""A folder of results: one folder per cell, append-only items, records that appear by atomic rename.

`runs/<first two digits of the key>/<key>/` holds

* `cell.json`: the cell's identity, written first;
* `items.jsonl`, `judgements.jsonl`: what was measured and judged, appended and flushed line by line;
* `run.json`: the finished record, there in full or not at all;
* `SHA256SUMS`: checksums of the four, for `sha256sum -c`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from latentbench.errors import StoreError
from latentbench.store._files import read_lines, verify_checksums
from latentbench.store._reading import read_identity, read_record
from latentbench.store._records import CellIdentity, RunRecord
from latentbench.store._writer import CHECKED_FILES, CellWriter, ItemFile

__all__ = ["CellFolder", "Problem", "ResultsFolder", "load_records"]

_KEY_DIGITS = 64


class Problem(NamedTuple):
    """Something wrong with a stored cell."""

    path: Path
    """The cell's folder."""
    message: str
    """What is wrong."""


class CellFolder:
    """The folder of one cell; may not exist yet."""

    def __init__(self, path: Path, key: str) -> None:
        self.path = path
        """Where the cell is stored."""
        self.key = key
        """The cell's key, which is the folder's name."""

    @property
    def finished(self) -> bool:
        """Whether there is a record, ok or failed."""
        return (self.path / "run.json").exists()

    def writer(self, cell: CellIdentity, *, reopen: bool = False) -> CellWriter:
        """The cell's only writer, as a context manager; makes the folder and resumes what is in it.

        Args:
            cell: what is measured; its key must be this folder's.
            reopen: let a cell with an ok record be written again. (A failed one always can be.) The record
                goes with the first appended item, so that it never stands beside items it does not describe.

        Raises:
            StoreError: the cell is another one; on entering: it is finished, or has a writer already.
        """
        if cell.key() != self.key:
            raise StoreError(
                f"cell {cell.key()} can't be written to {self.path}: that folder is another cell's"
            )
        return CellWriter(self.path, cell, reopen)

    def items(self, file: ItemFile = "items", kind: str | None = None) -> Iterator[dict[str, Any]]:
        """The stored items in the order of writing, all or those of one kind; see `read_lines` for errors."""
        for item in read_lines(self.path / f"{file}.jsonl"):
            if kind is None or item.get("kind") == kind:
                yield item

    def item_ids(self, file: ItemFile = "items", kind: str | None = None) -> set[str]:
        """The ids of the stored items: what a resumed run need not measure again."""
        return {item["id"] for item in self.items(file, kind) if isinstance(item.get("id"), str)}

    def identity(self) -> CellIdentity | None:
        """What `cell.json` says the cell is, or None when it is not there yet.

        Raises:
            StoreError: the file can't be read or is another cell's.
        """
        return read_identity(self.path / "cell.json", self.key)

    def record(self) -> RunRecord | None:
        """The finished record, or None.

        Raises:
            StoreError: it can't be read, is of a newer format or of another cell.
        """
        return read_record(self.path / "run.json", self.key)

    def verify_files(self) -> list[str]:
        """What is wrong with the files of a finished cell according to its SHA256SUMS."""
        sums = self.path / "SHA256SUMS"
        if not sums.is_file():
            return ["SHA256SUMS is missing"]
        text = sums.read_text(encoding="utf-8", errors="replace")
        return verify_checksums(self.path, text, CHECKED_FILES)

    def verify(self) -> list[Problem]:
        """Everything wrong with a finished cell: checksums, identity, record, items."""
        if not self.finished:
            return []
        messages = self.verify_files()
        try:
            if self.identity() is None:
                messages.append("cell.json is missing")
            self.record()
            self.item_ids("items")
            self.item_ids("judgements")
        except StoreError as error:
            messages.append(str(error))
        return [Problem(self.path, message) for message in messages]


class ResultsFolder:
    """A folder of cells."""

    def __init__(self, path: Path | str) -> None:
        """Open an existing results folder.

        Raises:
            StoreError: there is no such folder, or it is not a results folder.
        """
        self.path = Path(path)
        """The folder that holds `runs/`."""
        if not self.path.is_dir():
            raise StoreError(
                f"there is no folder {self.path}; `latentbench run SUITE --out {self.path}` makes one"
            )
        if not (self.path / "runs").is_dir():
            raise StoreError(f"{self.path} is not a results folder: it has no folder `runs` inside")

    @classmethod
    def create(cls, path: Path | str) -> ResultsFolder:
        """Open a results folder, made first where there is none.

        Raises:
            StoreError: `path` is a file.
        """
        try:
            (Path(path) / "runs").mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise StoreError(
                f"{path} can't be a results folder: a file is in the way ({error.filename})"
            ) from error
        return cls(path)

    def cell(self, key: str) -> CellFolder:
        """The folder of the cell with that key, stored or not yet."""
        if len(key) != _KEY_DIGITS or not set(key) <= set("0123456789abcdef"):
            raise StoreError(f"{key!r} is not a cell's key, which is 64 hex digits")
        return CellFolder(self.path / "runs" / key[:2] / key, key)

    def cells(self) -> list[CellFolder]:
        """Every stored cell, finished or not, by key."""
        folders = (path for path in (self.path / "runs").glob("[0-9a-f][0-9a-f]/*") if path.is_dir())
        return [CellFolder(path, path.name) for path in sorted(folders, key=lambda path: path.name)]

    def measured(self, measurement_key: str) -> list[CellFolder]:
        """The stored cells that share a measurement, whatever their judge, by key."""
        return [
            cell
            for cell in self.cells()
            if (identity := cell.identity()) is not None and identity.measurement_key() == measurement_key
        ]

    def records(self) -> list[RunRecord]:
        """The records of all finished cells, ok and failed, by key; errors as in `CellFolder.record`."""
        found = (cell.record() for cell in self.cells())
        return [record for record in found if record is not None]

    def verify(self) -> list[Problem]:
        """The problems of every finished cell, by key."""
        return [problem for cell in self.cells() for problem in cell.verify()]


def load_records(path: Path | str) -> list[RunRecord]:
    """The records of all finished cells of a results folder, sorted by key.

    Raises:
        StoreError: the folder is missing or not a results folder, or a record is damaged or too new.
    """
    return ResultsFolder(path).records()
