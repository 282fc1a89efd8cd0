"""Checking a bundle as a whole: its manifest, what is missing, measured L0, calibrated judges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from latentbench.errors import UserError
from latentbench.identity import sha256_file, sha256_json
from latentbench.store import Metric, RunRecord
from latentbench_leaderboard._calibration import calibration_text, load_calibrations
from latentbench_leaderboard.bundles._findings import Finding, title_of
from latentbench_leaderboard.bundles._layout import FORMAT, MANIFEST, place_of
from latentbench_leaderboard.bundles._strict import Refused, parse, read_bounded, shown

__all__ = ["TOLERANCE", "check_manifest", "check_side_files", "check_subjects"]

TOLERANCE = 0.05
"""Largest distance of a measured L0 from its target, as a share of it; that of the board."""
_MOST_LINES = 5


def check_manifest(folder: Path) -> Iterator[Finding]:
    """What is wrong with the manifest, and with files that it does not describe."""
    try:
        body = parse(read_bounded(folder / MANIFEST))
    except FileNotFoundError:
        yield Finding("manifest", f"{MANIFEST} is missing; `latentbench submit` writes it")
        return
    except Refused as error:
        yield Finding("manifest", f"{MANIFEST} {error}")
        return
    files = body.get("files") if isinstance(body, dict) else None
    version = body.get("format") if isinstance(body, dict) else None
    if not isinstance(files, dict) or not isinstance(version, int) or isinstance(version, bool):
        yield Finding("manifest", f"{MANIFEST} is not a manifest: it has no format and no files")
        return
    if version != FORMAT:
        yield Finding(
            "manifest",
            f"{MANIFEST} has format {version}, this latentbench reads {FORMAT}: upgrade the older one",
        )
        return
    yield from _files(folder, files)


def _files(folder: Path, listed: Mapping[str, Any]) -> Iterator[Finding]:
    present = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    wrong = [f"{shown(name)} is not listed" for name in sorted(present - set(listed) - {MANIFEST})]
    for name in sorted(listed):
        entry = listed[name]
        if place_of(name) is None or name not in present:
            wrong.append(f"{shown(name)} is listed and not there")
        elif not isinstance(entry, dict) or sha256_file(folder / name) != entry.get("sha256"):
            wrong.append(f"{shown(name)} has not the sha256 that is listed")
        elif (folder / name).stat().st_size != entry.get("bytes"):
            wrong.append(f"{shown(name)} has not the size that is listed")
    for message in wrong[:_MOST_LINES]:
        yield Finding("manifest", message)
    if len(wrong) > _MOST_LINES:
        yield Finding("manifest", f"and {len(wrong) - _MOST_LINES} more such files")


def check_side_files(folder: Path, records: Sequence[RunRecord], is_bundle: bool) -> Iterator[Finding]:
    """What is wrong with cards and calibrations; in bundles cards are named by what they describe."""
    known = {sha256_json(record.cell.dictionary) for record in records}
    for path in sorted(folder.glob("cards/*.json")):
        try:
            card = parse(read_bounded(path))
        except Refused as error:
            yield Finding("json", f"{_shown(path)} {error}")
            continue
        if not isinstance(card, dict) or (is_bundle and path.stem not in known):
            yield Finding("schema", f"{_shown(path)} is not the card of a dictionary in the bundle")
    for path in sorted(folder.glob("calibration/*.json")):
        try:
            calibration = parse(read_bounded(path))
        except Refused as error:
            yield Finding("json", f"{_shown(path)} {error}")
            continue
        judge = calibration.get("judge") if isinstance(calibration, dict) else None
        if not isinstance(judge, dict) or sha256_json(judge) != path.stem:
            yield Finding("schema", f"{_shown(path)} is not named by the hash of the judge in it")


def _shown(path: Path) -> str:
    return f"{path.parent.name}/{path.stem[:10]}….json"


def check_subjects(records: Sequence[RunRecord], folder: Path) -> Iterator[Finding]:
    """What is missing, off target or not calibrated among the records of a bundle."""
    subjects: dict[str, list[RunRecord]] = {}
    for record in records:
        cell = record.cell
        parts = {"lm": cell.lm, "dictionary": cell.dictionary, "sparsity": cell.sparsity}
        subjects.setdefault(sha256_json(parts), []).append(record)
    compared = [group for group in subjects.values() if not _is_control(group)]
    yield from _completeness(compared)
    for group in compared:
        yield from _l0(group)
    yield from _judges(records, folder)


def _is_control(group: Sequence[RunRecord]) -> bool:
    def says(record: RunRecord) -> bool:
        card = record.labels.get("card")
        return record.labels.get("control") is True or (
            isinstance(card, dict) and card.get("control") is True
        )

    return any(says(record) for record in group)


def _name(group: Sequence[RunRecord]) -> str:
    return title_of(group[0]).partition(" of ")[2]


def _completeness(groups: Sequence[Sequence[RunRecord]]) -> Iterator[Finding]:
    """Dictionaries of one model that lack what others of it went through."""
    by_lm: dict[str, list[Sequence[RunRecord]]] = {}
    for group in groups:
        by_lm.setdefault(sha256_json(group[0].cell.lm), []).append(group)
    for members in by_lm.values():
        wanted = {what: name for group in members for what, name in _measured(group).items()}
        for group in members:
            own = set(_measured(group).values())
            lacking = sorted(
                f"{name} under other options" if (name := wanted[what]) in own else name
                for what in set(wanted) - set(_measured(group))
            )
            lacking = list(dict.fromkeys(lacking))
            if lacking:
                text = (
                    f"has no cell of {', '.join(lacking[:_MOST_LINES])}, which other dictionaries here have"
                )
                yield Finding("completeness", text, about=_name(group))


def _measured(group: Sequence[RunRecord]) -> dict[str, str]:
    """What a dictionary went through, and what to call it."""
    found = {}
    for record in group:
        cell = record.cell
        parts = {"task": cell.task, "judge": cell.judge, "seed": cell.seed}
        seed = f" with seed {cell.seed}" if cell.seed else ""
        found[sha256_json(parts)] = title_of(record).partition(" of ")[0] + seed
    return found


def _l0(group: Sequence[RunRecord]) -> Iterator[Finding]:
    name, sparsity = _name(group), group[0].cell.sparsity
    target, mode = sparsity.get("target_l0"), sparsity.get("mode")
    metric = _measured_l0(group)
    if metric is None or metric.value is None:
        yield Finding("l0", "has no measured L0: the core task was not run on it, or failed", about=name)
    elif not isinstance(target, (int, float)) or isinstance(target, bool) or target <= 0:
        yield Finding("l0", f"has the target L0 {shown(target)}, which is no number of latents", about=name)
    elif abs(metric.value - target) > TOLERANCE * target * (1 + 1e-9):
        off = 100 * (metric.value - target) / target
        text = f"measured L0 {metric.value:.4g} is {off:+.0f} % off the target {target:g}"
        if mode in ("topk", "calibrated"):
            yield Finding("l0", f"{text}, to which mode {mode!r} claims to have brought it", about=name)
        else:
            yield Finding("l0", f"{text}: on the curves, not in the table", about=name, fails=False)


def _measured_l0(group: Sequence[RunRecord]) -> Metric | None:
    found = [record.metric("l0") for record in group if record.cell.task.get("name") == "core"]
    return next((metric for metric in found if metric is not None), None)


def _judges(records: Sequence[RunRecord], folder: Path) -> Iterator[Finding]:
    """Judges that were asked by rubrics and are not calibrated on them; others have nothing to be calibrated on."""
    asked = [record for record in records if record.cell.judge and record.cell.judge.get("rubrics")]
    if not asked:
        return
    try:
        known = load_calibrations(folder)
    except UserError as error:
        yield Finding("calibration", shown(error, 200)[1:-1])
        return
    seen = set()
    for record in asked:
        text = str(calibration_text(record.cell.judge, known))
        judge = sha256_json(record.cell.judge)
        if not text.startswith("calibrated") and judge not in seen:
            seen.add(judge)
            yield Finding(
                "calibration",
                f"its judge is {shown(text)[1:-1]}; `latentbench judge calibrate JUDGE --out RESULTS` does it",
                record.key,
                title_of(record),
            )
