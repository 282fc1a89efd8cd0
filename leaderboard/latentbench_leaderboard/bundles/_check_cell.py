"""Checking one cell of a bundle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from latentbench.errors import StoreError
from latentbench.registry import PUBLISHED
from latentbench.store import CellFolder, RunRecord
from latentbench_leaderboard._cards import task_card
from latentbench_leaderboard.bundles._compare import mismatches, reworded
from latentbench_leaderboard.bundles._findings import CellState, Finding, title_of
from latentbench_leaderboard.bundles._publish import (
    foreign_excerpts,
    guarded_latents,
    published_items,
    published_judgement,
)
from latentbench_leaderboard.bundles._recompute import CannotRecompute, Recompute, WrongVersion
from latentbench_leaderboard.bundles._strict import Refused, parse, read_bounded, read_items, shown

__all__ = ["Checked", "check_cell", "read_cell"]

_SUMS_BYTES = 64 * 1024
_MOST_LINES = 5
"""Lines of one check of one cell."""


class Checked(NamedTuple):
    """A cell after its check."""

    state: CellState
    """What is known of it."""
    findings: list[Finding]
    """What was found."""


def read_cell(folder: CellFolder) -> RunRecord | None:
    """The record of a stranger's cell; None if it is not finished.

    Raises:
        Refused: a file is out of bounds, or not of the cell.
    """
    for name in ("cell.json", "run.json"):
        path = folder.path / name
        if path.exists():
            try:
                parse(read_bounded(path))
            except Refused as error:
                raise Refused(f"{name} {error}") from error
    try:
        identity, record = folder.identity(), folder.record()
    except StoreError as error:
        raise Refused(_without_folder(error, folder)) from error
    if identity is None:
        raise Refused("cell.json is missing")
    return record


def check_cell(
    folder: CellFolder, record: RunRecord, measured: CellFolder | None, published: bool, recompute: Recompute
) -> Checked:
    """Check a finished cell whose record could be read.

    Args:
        folder: the cell.
        record: its record.
        measured: the cell of the same measurement whose items it shares; None if there are none.
        published: whether its items must be fit for publication.
        recompute: how summaries are computed again.
    """
    about = title_of(record)

    def found(check: str, message: str, fails: bool = True) -> Finding:
        return Finding(check, message, record.key, about, fails)

    findings = [found("checksum", message) for message in _checksums(folder)]
    problems = [*_item_problems(folder, published, record, found)]
    if published and measured is not None and not problems:
        problems = [*_quotes(folder, measured, found)]
    findings += problems
    recomputed = False
    if record.error is not None:
        text = f"failed with {shown(record.error.type)}: {shown(record.error.message)}"
        findings.append(found("summary", text, fails=False))
    elif measured is None:
        findings.append(
            found("missing-items", "its items were left out, so its numbers can't be computed again")
        )
    elif not problems:
        summary = _summary(record, measured, folder, recompute, found)
        recomputed = not any(finding.fails for finding in summary)
        findings += summary
    return Checked(CellState(record.key, about, record.status, recomputed), findings)


def _checksums(folder: CellFolder) -> Iterator[str]:
    path = folder.path / "SHA256SUMS"
    try:
        if path.exists():
            read_bounded(path, _SUMS_BYTES)
    except Refused as error:
        yield f"SHA256SUMS {error}"
        return
    yield from (shown(message, 200)[1:-1] for message in folder.verify_files()[:_MOST_LINES])


def _item_problems(
    folder: CellFolder, published: bool, record: RunRecord, found: Callable[[str, str], Finding]
) -> Iterator[Finding]:
    """What is wrong with the items of a cell, first thing of each file."""
    task = record.cell.task
    for name in ("items.jsonl", "judgements.jsonl"):
        reduced = published and name == "items.jsonl" and task.get("name") in PUBLISHED.names()
        kept: list[dict[str, Any]] = []
        sources: set[str] = set()
        kinds: set[str] = set()
        try:
            for item in read_items(folder.path / name):
                kinds.add(str(item.get("kind")))
                if published:
                    sources |= foreign_excerpts(item)
                if reduced:
                    kept.append(item)
        except Refused as error:
            yield found("items", f"{name} {error}")
            continue
        for kind in _foreign_kinds(record, kinds)[:_MOST_LINES] if name == "items.jsonl" else ():
            yield found("items", f"{name} has items of the kind {shown(kind)}, which this task does not make")
        for source in sorted(sources)[:_MOST_LINES]:
            yield found(
                "texts", f"{name} has excerpts of {shown(source)}, whose texts are not free to publish"
            )
        if reduced:
            yield from _readable(task, kept, found)


def _quotes(
    folder: CellFolder, measured: CellFolder, found: Callable[[str, str], Finding]
) -> Iterator[Finding]:
    """Judgements with the judge's words on texts that are not free to publish."""
    try:
        guarded = guarded_latents(read_items(measured.path / "items.jsonl"))
        told = sum(
            published_judgement(one, guarded) is not one
            for one in read_items(folder.path / "judgements.jsonl")
        )
    except Refused as error:
        yield found("items", f"items.jsonl {error}")
        return
    if told:
        yield found(
            "texts",
            f"{told} judgements hold the judge's words on texts that are not free to publish; `latentbench submit` "
            "leaves them out",
        )


def _foreign_kinds(record: RunRecord, kinds: set[str]) -> list[str]:
    """Kinds of items that the task does not make, where its card says which it does."""
    made = task_card(str(record.cell.task.get("name"))).items
    return sorted(kinds - set(made)) if made else []


def _readable(
    task: Mapping[str, Any], items: list[dict[str, Any]], found: Callable[[str, str], Finding]
) -> Iterator[Finding]:
    config = task.get("config")
    try:
        same = published_items(str(task["name"]), config if isinstance(config, dict) else {}, items) == items
    except Exception as error:  # noqa: BLE001 - items of a stranger, read by any installed task
        yield found("items", f"items.jsonl is not of this task: {type(error).__name__}: {shown(error)}")
        return
    if not same:
        yield found(
            "texts",
            "items.jsonl holds what this task does not publish, texts that can be read back perhaps; "
            "`latentbench submit` leaves it out",
        )


def _summary(
    record: RunRecord,
    measured: CellFolder,
    folder: CellFolder,
    recompute: Recompute,
    found: Callable[..., Finding],
) -> list[Finding]:
    try:
        again = recompute(record, measured.path / "items.jsonl", folder.path / "judgements.jsonl")
    except WrongVersion as error:
        return [found("version", f"its numbers can't be computed again: {error}")]
    except CannotRecompute as error:
        return [found("summary", str(error))]
    wrong = mismatches(record, again)
    findings = [found("summary", message) for message in wrong[:_MOST_LINES]]
    if len(wrong) > _MOST_LINES:
        findings.append(found("summary", f"and {len(wrong) - _MOST_LINES} more such differences"))
    names = reworded(record, again)
    if names:
        text = f"the definition of {shown(names[0])} and of {len(names) - 1} more is worded otherwise here"
        findings.append(found("summary", text, fails=False))
    return findings


def _without_folder(error: Exception, folder: CellFolder) -> str:
    """The message of an error without the name of the temporary folder."""
    return shown(str(error).replace(f"{folder.path}/", ""), 300)[1:-1]
