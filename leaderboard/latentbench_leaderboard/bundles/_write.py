"""Writing a bundle: the finished cells of results folders, as far as they may be published."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from latentbench import __version__
from latentbench.errors import StoreError, UserError
from latentbench.identity import sha256_bytes, sha256_json
from latentbench.store import CellFolder, ResultsFolder, RunRecord, pretty_json
from latentbench_leaderboard.bundles._layout import FORMAT, MANIFEST
from latentbench_leaderboard.bundles._publish import Published, publish

__all__ = ["BundleReport", "write_bundle"]

_TIME = (1980, 1, 1, 0, 0, 0)
"""The earliest time of a zip entry, so that equal results give equal files."""


class BundleReport(NamedTuple):
    """What was written."""

    path: Path
    """The bundle."""
    id: str
    """sha256 of its `bundle.json`."""
    cells: int
    """Cells in it."""
    failed: int
    """Failed ones among them."""
    unfinished: list[str]
    """Keys of cells without a record, which were left out."""
    without_items: list[str]
    """Keys of cells whose items are not there, so that nobody can compute their numbers again."""
    excerpts_removed: int
    """Excerpts left out for their source's terms."""
    replies_removed: int
    """Judgements that lost the judge's words, which may quote such texts."""
    bytes: int
    """Size of the file."""


class _Cell(NamedTuple):
    folder: CellFolder
    record: RunRecord


def write_bundle(runs: Sequence[Path], out: Path) -> BundleReport:
    """Write a bundle of results folders, or of single cells in them.

    Args:
        runs: results folders, or folders of cells (`runs/<two digits>/<key>`).
        out: the file to write, `.zip`.

    Raises:
        UserError: there is nothing to submit, a cell is damaged, two folders hold different records of one cell, or
            `out` is there already.
    """
    if out.suffix != ".zip":
        raise UserError(f"a bundle is one zip file, and {out.name!r} does not end in .zip: name it so")
    if out.exists():
        raise UserError(f"{out} is there already; a bundle is never overwritten: name another, or delete it")
    cells, unfinished = _cells(runs)
    if not cells:
        raise UserError(
            f"there is no finished cell in {', '.join(map(str, runs))}: run a suite into it first "
            "(`latentbench run SUITE --out RESULTS`)"
        )
    about: dict[str, dict[str, Any]] = {}
    with _Archive(out) as archive:
        side = _cards(cell.record for cell in cells) | _calibrations(runs)
        for name in sorted(side):
            archive.add(name, side[name])
        measured = {cell.record.measurement_key: cell.folder for cell in cells if _has_items(cell.folder)}
        for cell in cells:
            key = cell.record.key
            files, about[key] = _cell_files(cell, measured.get(cell.record.measurement_key, cell.folder))
            for name in sorted(files):
                archive.add(f"runs/{key[:2]}/{key}/{name}", files[name])
        manifest = _manifest(cells, archive.files, about)
        archive.add(MANIFEST, manifest)
    return BundleReport(
        path=out,
        id=sha256_bytes(manifest),
        cells=len(cells),
        failed=sum(cell.record.status == "failed" for cell in cells),
        unfinished=unfinished,
        without_items=[key for key, one in about.items() if not one["has_items"]],
        excerpts_removed=sum(one["excerpts_removed"] for one in about.values()),
        replies_removed=sum(one["replies_removed"] for one in about.values()),
        bytes=out.stat().st_size,
    )


class _Archive:
    """The zip file while it is written: there in full when the `with` ends without an error, or not at all."""

    def __init__(self, out: Path) -> None:
        self.files: dict[str, dict[str, Any]] = {}
        """Size and sha256 of every file added."""
        self._out = out
        self._temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
        out.parent.mkdir(parents=True, exist_ok=True)
        self._zip = zipfile.ZipFile(self._temporary, "x", zipfile.ZIP_DEFLATED, compresslevel=6)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._zip.close()
            if error is None:
                self._temporary.replace(self._out)
        finally:
            self._temporary.unlink(missing_ok=True)

    def add(self, name: str, data: bytes) -> None:
        entry = zipfile.ZipInfo(name, _TIME)
        entry.create_system = 3  # Unix, wherever it is written
        entry.external_attr = 0o100644 << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        self._zip.writestr(entry, data)
        self.files[name] = {"bytes": len(data), "sha256": sha256_bytes(data)}


def _cells(runs: Sequence[Path]) -> tuple[list[_Cell], list[str]]:
    """The finished cells by key, and the keys of unfinished ones."""
    found: dict[str, _Cell] = {}
    unfinished: set[str] = set()
    try:
        for folder in (folder for run in runs for folder in _folders(run)):
            record = folder.record()
            if record is None:
                unfinished.add(folder.key)
                continue
            problems = folder.verify()
            if problems:
                raise UserError(
                    f"cell {folder.key[:10]} can't be submitted: {problems[0].message}. Restore its folder, or "
                    "delete it and run the cell again."
                )
            known = found.setdefault(folder.key, _Cell(folder, record))
            if known.record != record:
                raise UserError(
                    f"cell {folder.key[:10]} has two records that differ, in {known.folder.path} and {folder.path}: "
                    "submit one of them"
                )
    except StoreError as error:
        raise UserError(str(error)) from error
    return [found[key] for key in sorted(found)], sorted(unfinished - set(found))


def _folders(run: Path) -> list[CellFolder]:
    if (run / "cell.json").is_file() or (run / "run.json").is_file():
        return [CellFolder(run, run.resolve().name)]
    return ResultsFolder(run).cells()


def _has_items(folder: CellFolder) -> bool:
    return (folder.path / "items.jsonl").is_file()


def _cell_files(cell: _Cell, measured: CellFolder) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The files of a cell by name, with new checksums, and what the manifest says of it.

    Args:
        cell: the cell.
        measured: the cell whose items it shares, if it has none of its own.
    """
    path = cell.folder.path
    task = cell.record.cell.task
    items, judgements = list(cell.folder.items()), list(cell.folder.items("judgements"))
    seen = items if _has_items(cell.folder) else measured.items()
    published = publish(str(task.get("name")), _config(task), items, judgements, seen)
    files = {"cell.json": (path / "cell.json").read_bytes(), "run.json": _record(cell.record)}
    for name, before, after in (
        ("items.jsonl", items, published.items),
        ("judgements.jsonl", judgements, published.judgements),
    ):
        if (path / name).is_file():
            files[name] = (path / name).read_bytes() if before == after else _lines(after)
    sums = "".join(f"{sha256_bytes(files[name])}  {name}\n" for name in sorted(files))
    return files | {"SHA256SUMS": sums.encode("ascii")}, _about(cell.record, published)


def _config(task: Mapping[str, Any]) -> dict[str, Any]:
    config = task.get("config")
    return config if isinstance(config, dict) else {}


def _record(record: RunRecord) -> bytes:
    """The record, its labels without this machine's paths."""
    return record.model_copy(update={"labels": _without_paths(record.labels)}).to_json().encode("utf-8")


def _without_paths(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_paths(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_paths(inner) for inner in value]
    if isinstance(value, str) and value.startswith(("/", "~/", "./", "../")):
        return Path(value).name
    return value


def _lines(items: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(
        json.dumps(item, ensure_ascii=True, allow_nan=False, separators=(",", ":")) + "\n" for item in items
    ).encode("ascii")


def _about(record: RunRecord, published: Published) -> dict[str, Any]:
    return {
        "task": record.cell.task.get("name"),
        "dictionary": record.labels.get("dictionary"),
        "status": record.status,
        "has_items": bool(published.items) or record.status == "failed",
        "items_reduced": published.reduced,
        "excerpts_removed": published.excerpts_removed,
        "replies_removed": published.replies_removed,
    }


def _cards(records: Iterable[RunRecord]) -> dict[str, bytes]:
    """What the dictionaries say of themselves, by the sha256 of what is measured of them."""
    cards: dict[str, bytes] = {}
    for record in records:
        card = record.labels.get("card")
        body = {**record.cell.dictionary, **(_without_paths(card) if isinstance(card, dict) else {})}
        name = f"cards/{sha256_json(record.cell.dictionary)}.json"
        cards.setdefault(name, pretty_json(body).encode("utf-8"))
    return cards


def _calibrations(runs: Sequence[Path]) -> dict[str, bytes]:
    return {
        f"calibration/{path.name}": path.read_bytes()
        for run in runs
        for path in sorted((run / "calibration").glob("*.json"))
    }


def _manifest(cells: Sequence[_Cell], files: Mapping[str, Any], about: Mapping[str, dict[str, Any]]) -> bytes:
    environments = {sha256_json(one): one for one in (_environment(cell.record) for cell in cells)}
    body: dict[str, Any] = {
        "format": FORMAT,
        "made_by": {"name": "latentbench", "version": __version__},
        "cells": dict(about),
        "environments": [environments[name] for name in sorted(environments)],
        "files": dict(files),
    }
    return pretty_json(body).encode("utf-8")


def _environment(record: RunRecord) -> dict[str, Any]:
    return {name: value for name, value in record.provenance.items() if name != "argv"}
