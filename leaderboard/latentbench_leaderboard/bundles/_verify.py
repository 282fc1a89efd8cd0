"""Measuring a sample of a bundle's cells again, and saying whether the numbers agree within their intervals.

The cells are drawn by the bundle's id and a seed, so that a submitter can't know them and anybody can draw them again.
They are run by `latentbench run` in a process of its own, from a suite that says what the record says: this package
needs no torch. A run whose key is another one measured something else, and proves nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple, Protocol

from latentbench.stats import generator
from latentbench.store import RunRecord, differences, load_records
from latentbench_leaderboard.bundles._findings import title_of
from latentbench_leaderboard.bundles._strict import shown
from latentbench_leaderboard.diffs import diff_records

__all__ = ["NotRun", "Outcome", "Rerun", "by_command", "sample", "suite_of", "suite_text", "verify_cells"]

_LOCAL_JUDGES = ("chance", "embed", "offline")
"""Judges that are fixed by their name."""


class NotRun(Exception):
    """Why a cell could not be measured again."""


class Outcome(NamedTuple):
    """What came of measuring a cell again."""

    key: str
    """Key of the cell."""
    about: str
    """What to call it."""
    result: Literal["agrees", "differs", "not run"]
    """Whether all of its numbers agree within their intervals."""
    lines: list[str]
    """What differs, or why it was not run."""


class Rerun(Protocol):
    """How a cell is measured again."""

    def __call__(self, suite: Mapping[str, Any]) -> list[RunRecord]:
        """The records of a suite with one cell.

        Raises:
            NotRun: it could not be run.
        """
        ...


def sample(records: Sequence[RunRecord], cells: int, name: str) -> list[RunRecord]:
    """Some ok records, by key.

    Args:
        records: all of them, in any order.
        cells: how many; all, if there are fewer.
        name: seeds the draw: the bundle's id and the verifier's seed.
    """
    ok = sorted((record for record in records if record.status == "ok"), key=lambda record: record.key)
    chosen = generator(f"verify/{name}").permutation(len(ok))[:cells]
    return [ok[place] for place in sorted(chosen.tolist())]


def verify_cells(
    records: Sequence[RunRecord],
    rerun: Rerun,
    dictionaries: Mapping[str, str],
    judge: str | None,
) -> list[Outcome]:
    """Measure cells again and compare.

    Args:
        records: of the cells.
        rerun: how.
        dictionaries: where dictionaries are, by the name that the records give them, as `--dict` of `latentbench run`
            takes them. Those of the zoo need not be named.
        judge: the judge of judged cells, as `--judge` takes it; None takes the record's, if its name alone fixes it.
    """
    return [_verified(record, rerun, dictionaries, judge) for record in records]


def _verified(record: RunRecord, rerun: Rerun, dictionaries: Mapping[str, str], judge: str | None) -> Outcome:
    about = title_of(record)
    try:
        found = rerun(suite_of(record, dictionaries, judge))
    except NotRun as error:
        return Outcome(record.key, about, "not run", [str(error)])
    again = next((one for one in found if one.key == record.key), None)
    if again is None:
        fields = [one.field for other in found for one in differences(record.cell, other.cell)]
        names = ", ".join(shown(field, 60)[1:-1] for field in fields[:5]) or "everything"
        return Outcome(record.key, about, "not run", [f"what is here is another cell, by {names}"])
    moved = [change.message for change in diff_records([record], [again]).changes if change.beyond]
    return Outcome(record.key, about, "differs" if moved else "agrees", moved)


def suite_of(record: RunRecord, dictionaries: Mapping[str, str], judge: str | None) -> dict[str, Any]:
    """The suite that measures a record's cell again.

    Raises:
        NotRun: the record does not say where its dictionary is, or which judge it had, in a way that can be trusted.
    """
    cell = record.cell
    name = str(record.labels.get("dictionary"))
    task = {"name": str(cell.task.get("name")), "options": _given(cell.task.get("config"))}
    policy = cell.token_policy
    return {
        "name": "verify",
        "lm": str(cell.lm.get("name")),
        "dtype": str(cell.lm.get("dtype", "float32")),
        "corpus": str(cell.corpus.get("name")),
        "target_l0": cell.sparsity.get("target_l0"),
        "seeds": [cell.seed],
        "judge": _judge(record, judge),
        "tokens": {key: policy[key] for key in ("context", "skip_first", "bos") if key in policy},
        "dictionaries": [
            {"source": _source(record, dictionaries), "name": name, "sparsity": cell.sparsity.get("mode")}
        ],
        "tasks": [task],
    }


def _given(config: Any) -> dict[str, Any]:
    """The options of a task; TOML has no null, which is the default wherever it is allowed."""
    return (
        {key: value for key, value in config.items() if value is not None} if isinstance(config, dict) else {}
    )


def _source(record: RunRecord, dictionaries: Mapping[str, str]) -> str:
    name = str(record.labels.get("dictionary"))
    if name in dictionaries:
        return dictionaries[name]
    card = record.labels.get("card")
    source = str(card.get("source")) if isinstance(card, dict) else ""
    if source.startswith("zoo:"):
        return source
    # A path or a repository that a stranger names is not opened unasked.
    raise NotRun(
        f"say where its dictionary is: --dict {shown(f'{name}=SOURCE')} (its card says {shown(source)})"
    )


def _judge(record: RunRecord, judge: str | None) -> str | None:
    if record.cell.judge is None:
        return None
    name = record.cell.judge.get("name")
    if judge is not None:
        return judge
    if isinstance(name, str) and name in _LOCAL_JUDGES:
        return name
    raise NotRun(f"name its judge with --judge (the record says {shown(name)})")


def suite_text(suite: Mapping[str, Any]) -> str:
    """A suite as TOML."""
    return "".join(f"{_key(key)} = {_value(value)}\n" for key, value in suite.items() if value is not None)


def _key(key: str) -> str:
    return json.dumps(key)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(str(key))} = {_value(one)}" for key, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    # What is left is written alike in JSON and TOML, but for a letter that only JSON leaves as it is.
    return json.dumps(value).replace("\x7f", "\\u007f")


def by_command(device: str) -> Rerun:
    """A `Rerun` through `latentbench run` in a process of its own."""

    def rerun(suite: Mapping[str, Any]) -> list[RunRecord]:
        with TemporaryDirectory(prefix="latentbench-verify-") as folder:
            file, out = Path(folder) / "verify.toml", Path(folder) / "results"
            file.write_text(suite_text(suite), encoding="utf-8")
            command = [sys.executable, "-m", "latentbench.cli", "run", str(file), "--out", str(out), "--json"]
            done = subprocess.run([*command, "--device", device], capture_output=True, text=True, check=False)
            if done.returncode == 2 or not (out / "runs").is_dir():
                last = (done.stderr.strip().splitlines() or ["no message"])[-1]
                raise NotRun(f"`latentbench run` refused it: {shown(last, 300)[1:-1]}")
            return load_records(out)

    return rerun
