"""Cells that toy tasks really measured, and bundles with something changed in them."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import toy_plan

from latentbench.identity import sha256_json
from latentbench.judging import make_judge
from latentbench.run import Judge, Plan, Task, execute
from latentbench.run._plan import _cell, _Ground
from latentbench.store import RunRecord, pretty_json
from latentbench_leaderboard.bundles import MANIFEST, CheckReport, check_bundle, here
from latentbench_tasks.core.task import CoreConfig, CoreTask
from latentbench_tasks.feature_count.task import FeatureCountConfig, FeatureCountTask
from latentbench_tasks.monosemanticity.task import MonosemanticityConfig, MonosemanticityTask

Files = dict[str, bytes]
"""Contents of a bundle by path."""


def write_measured(path: Path) -> None:
    """Two dictionaries through three tasks, one of them judged, with the judge's calibration."""
    judge = make_judge("chance")
    tasks = (
        CoreTask(CoreConfig(budget_tokens=400, calibration_tokens=100)),
        FeatureCountTask(FeatureCountConfig(budget_tokens=700, thresholds=(5.0, 10.0), headline=5.0)),
        MonosemanticityTask(
            MonosemanticityConfig(
                budget_tokens=700, latents=6, min_documents=4, contexts=2, context_tokens=6, shown=2, mixed=2
            )
        ),
    )
    assert len(measure(path, tasks, judge, {"random SAE": 0, "random RouteSAE": 2})) == 6
    write_calibration(path, judge.identity(), tasks[2].rubrics())


def measure(
    path: Path, tasks: Sequence[Task], judge: Judge, dictionaries: Mapping[str, int]
) -> list[RunRecord]:
    """Real tasks on dictionaries of the toy plan: their names and their places in it."""
    base = toy_plan.toy_plan()
    ground = _Ground(base.suite, base.lm, base.corpus, base.policy)
    cells = [
        _cell(
            ground,
            base.suite.dictionaries[0].model_copy(update={"name": name}),
            base.cells[place].dictionary,
            task,
            judge if task.judge_role else None,
            0,
        )
        for name, place in dictionaries.items()
        for task in tasks
    ]
    records = execute(Plan(base.suite, base.lm, base.corpus, base.load_split, base.policy, cells), path)
    assert [record.status for record in records] == ["ok"] * len(cells)
    return records


def write_calibration(path: Path, judge: dict[str, Any], rubrics: Mapping[str, str]) -> Path:
    """A calibration of a judge on the rubrics it was asked, as far as boards read it."""
    made: list[Any] = [
        {"rubric": name, "rubric_sha256": sha, "kappa": 0.0, "kappa_interval": [-0.1, 0.1], "good": False}
        for name, sha in rubrics.items()
    ]
    file = path / "calibration" / f"{sha256_json(judge)}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(pretty_json({"judge": judge, "rubrics": made}), encoding="utf-8")
    return file


def read_zip(path: Path) -> Files:
    """The files of a bundle."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_zip(path: Path, files: Mapping[str, bytes]) -> Path:
    """A zip file with these files as they are."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def forged(bundle: Path, out: Path, change: Callable[[Files], None], *, seal: bool = True) -> Path:
    """A bundle with something changed; `seal` makes every checksum fit, as a forger would."""
    files = read_zip(bundle)
    change(files)
    return write_zip(out, sealed(files) if seal else files)


def sealed(files: Files) -> Files:
    """The files with checksums and manifest that fit."""
    files = dict(files)
    for folder in {name.rpartition("/")[0] for name in files if name.startswith("runs/")}:
        inside = sorted(n for n in files if n.startswith(f"{folder}/") and not n.endswith("SHA256SUMS"))
        sums = [f"{hashlib.sha256(files[n]).hexdigest()}  {n.rpartition('/')[2]}\n" for n in inside]
        files[f"{folder}/SHA256SUMS"] = "".join(sums).encode()
    manifest = json.loads(files[MANIFEST])
    manifest["files"] = {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in sorted(files.items())
        if name != MANIFEST
    }
    return {**files, MANIFEST: pretty_json(manifest).encode()}


def file_of(files: Files, task: str, name: str) -> str:
    """Path of a file of the first cell of a task."""
    for path in sorted(files):
        if path.endswith("/run.json") and json.loads(files[path])["cell"]["task"]["name"] == task:
            return path.removesuffix("run.json") + name
    raise AssertionError(f"no cell of {task}")


def edit_record(files: Files, task: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the record of the first cell of a task."""
    path = file_of(files, task, "run.json")
    record = json.loads(files[path])
    change(record)
    files[path] = pretty_json(record).encode()


def edit_lines(
    files: Files, task: str, change: Callable[[list[dict[str, Any]]], None], name: str = "items.jsonl"
) -> None:
    """Change the items of the first cell of a task."""
    path = file_of(files, task, name)
    lines = [json.loads(line) for line in files[path].splitlines()]
    change(lines)
    files[path] = "".join(json.dumps(line) + "\n" for line in lines).encode()


def failures(path: Path) -> dict[str, list[str]]:
    """Messages of a check's failures, by the name of the check."""
    found: dict[str, list[str]] = {}
    for finding in checked(path).findings:
        if finding.fails:
            found.setdefault(finding.check, []).append(finding.message)
    return found


def checked(path: Path) -> CheckReport:
    """The check of a bundle, computed in this process."""
    return check_bundle(path, here)
