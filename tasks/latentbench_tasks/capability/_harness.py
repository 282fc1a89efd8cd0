"""lm-evaluation-harness at work: its tasks set up offline or by name, run under edits, and read as items.

`lm_eval.evaluator.evaluate` is called, not `simple_evaluate`: the latter reseeds the global generators of Python, NumPy
and torch, and spends seconds on listing installed packages at every call. Neither of lm-eval's caches is used.
Importing this module imports lm-eval.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import lm_eval.api.task
import yaml
from lm_eval.evaluator import evaluate
from lm_eval.tasks import TaskManager

from latentbench.errors import UserError, nearest
from latentbench.identity import sha256_json, sha256_text
from latentbench_tasks.capability._model import EditedLM
from latentbench_tasks.capability._sets import EMBEDDED, Row

__all__ = ["LmTask", "answers", "load_embedded", "load_public", "set_up"]

_FEWSHOT_SEED = 1234
"""lm-eval's own default."""
_SCORES = ("acc_norm", "acc", "exact_match")
"""Names of what lm-eval says of one item, 0 or 1; the first that a task has is taken."""


class LmTask(NamedTuple):
    """A task of lm-eval, ready to run."""

    name: str
    """Its name."""
    task: Any
    """lm-eval's object."""
    samples: tuple[int, ...]
    """Places of the chosen items in its data, ascending."""
    hashes: Mapping[int, str]
    """Hash of each of them, by place."""
    shots: int | None
    """Worked examples that it asks for itself; 0 forbids any."""


def set_up(rows: Mapping[str, tuple[Sequence[Row], Sequence[Row]]], folder: Path) -> Path:
    """Write the embedded tasks' data and configurations, unless they are there.

    Args:
        rows: items and shown items, by task.
        folder: where to; the name is made from the rows.

    Returns:
        A folder that lm-eval takes as `include_path`.
    """
    place = folder / sha256_json({name: [list(part) for part in parts] for name, parts in rows.items()})[:16]
    if place.is_dir():
        return place
    folder.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".set-up-", dir=folder))
    for name, (items, shown) in rows.items():
        files = {"test": items, **({"shown": shown} if shown else {})}
        text = resources.files(__package__).joinpath("lm_tasks", f"{name}.yaml").read_text(encoding="utf-8")
        config = yaml.safe_load(text)
        if not shown:
            config.pop("fewshot_split", None)
        for split, content in files.items():
            lines = "".join(json.dumps(row) + "\n" for row in content)
            (made / f"{name}.{split}.jsonl").write_text(lines, encoding="utf-8")
        config["dataset_kwargs"] = {
            "data_files": {split: str((place / f"{name}.{split}.jsonl").resolve()) for split in files},
            "cache_dir": str((place / "arrow").resolve()),
        }
        (made / f"{name}.yaml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    try:
        os.replace(made, place)
    except OSError:
        shutil.rmtree(made)
        if not place.is_dir():  # otherwise another run was quicker
            raise
    return place


def load_embedded(names: Sequence[str], folder: Path, *, limit: int, seed: int) -> list[LmTask]:
    """The embedded tasks of these names.

    Args:
        names: keys of `EMBEDDED`.
        folder: from `set_up`.
        limit: most items of a task.
        seed: of their choice.
    """
    with _quiet():
        manager = TaskManager(include_path=str(folder), include_defaults=False)
        return _chosen(manager.load(list(names)), limit, seed)


def load_public(names: Sequence[str], *, limit: int, seed: int) -> list[LmTask]:
    """lm-eval's own tasks of these names; groups give their members. Their data come from the hub or its cache.

    Raises:
        UserError: lm-eval has no such task, or its data can't be had.
    """
    if not names:
        return []
    with _quiet():
        manager = TaskManager()
        for name in names:
            if name not in manager.task_index:
                close = " or ".join(map(repr, nearest(name, manager.all_tasks)))
                hint = f"did you mean {close}? " if close else ""
                raise UserError(f"unknown lm-eval task {name!r}: {hint}Embedded ones: {', '.join(EMBEDDED)}")
        try:
            return _chosen(manager.load(list(names)), limit, seed)
        except OSError as error:
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise UserError(
                f"the data of {', '.join(names)} can't be had ({first}): lm-eval's own tasks need the network, or the "
                f"hub's cache. Without them use the embedded tasks {', '.join(EMBEDDED)}"
            ) from error


def answers(
    one: LmTask, model: EditedLM, condition: str, num_fewshot: int | None = None
) -> list[dict[str, Any]]:
    """One item of kind "answer" for every chosen item of a task; where the model broke, unscored with the `reason`.

    Args:
        one: the task.
        model: the model with its edits.
        condition: name of the edits.
        num_fewshot: worked examples; None takes the task's own number.

    Raises:
        UserError: the task scores items in none of the ways that are known here.
    """
    # As lm-eval has it, a task that insists on no examples gets none.
    wanted = one.shots or 0 if num_fewshot is None or one.shots == 0 else num_fewshot
    if wanted and one.task.fewshot_docs() is None:
        raise UserError(f"lm-eval task {one.name!r} has no texts to show {wanted} worked examples from")
    one.task.set_config(key="num_fewshot", value=wanted)
    one.task.set_fewshot_seed(seed=_FEWSHOT_SEED)
    with _quiet():
        found = evaluate(
            lm=model,
            task_dict={"tasks": {one.name: one.task}, "groups": {}, "group_map": {}},
            samples={one.name: list(one.samples)},
            cache_requests=False,
            bootstrap_iters=0,
            log_samples=True,
        )
    rows: dict[int, dict[str, Any]] = {}
    for sample in found["samples"][one.name]:  # once for every filter: the first that scores is taken
        if sample["doc_id"] not in rows or rows[sample["doc_id"]]["score"] is None:
            rows[sample["doc_id"]] = {"score": _score(sample), "sample": sample}
    return [
        _item(one, condition, place, why=_broken(rows[place]["sample"], model.broken), **rows[place])
        for place in sorted(rows)
    ]


def _broken(sample: Any, replies: Mapping[str, str]) -> str | None:
    """Why an item can't be scored: the edited model's logits were not finite; None for items that are sound."""
    for arguments, resps in zip(sample["arguments"], sample["resps"], strict=True):
        answer = resps[0]
        if isinstance(answer, str):
            if arguments[0] in replies:
                return replies[arguments[0]]
        elif not math.isfinite(answer[0] if isinstance(answer, tuple) else answer):
            return "log-likelihoods are not finite"
    return None


def _item(
    one: LmTask, condition: str, place: int, *, score: float | None, sample: Any, why: str | None
) -> dict[str, Any]:
    kind = one.task.OUTPUT_TYPE
    if score is None and not why and kind != "loglikelihood_rolling":
        raise UserError(
            f"lm-eval task {one.name!r} says {', '.join(sample['metrics'])} of an item; what is needed is one of "
            f"{', '.join(_SCORES)} as 0 or 1: leave the task out"
        )
    item = {
        "kind": "answer",
        "id": f"{condition}|{one.name}|{place}",
        "task": one.name,
        "doc": one.hashes[place],
        "doc_id": place,
        "condition": condition,
        "correct": score,
        "chance": None if score is None else 0.0,
        "margin": None,
        "loglik": None,
        "loss": None,
        "reply": None,
        "reason": why,
    }
    if why:
        return {**item, "correct": None, "chance": None}
    if kind == "multiple_choice":
        return {**item, **_margin(one, sample)}
    if kind == "generate_until":
        return {**item, "reply": sha256_text(str(sample["resps"][0][0]))[:16]}
    value = sample["resps"][0][0]
    loglik = float(value[0] if kind == "loglikelihood" else value)
    loss = -loglik / max(1, len(str(sample["target"]).encode())) if kind == "loglikelihood_rolling" else None
    return {**item, "loglik": _rounded(loglik), "loss": None if loss is None else _rounded(loss)}


def _margin(one: LmTask, sample: Any) -> dict[str, Any]:
    """Chance level, the right choice's log-likelihood, and how far it lies above the best wrong one, in nats."""
    choices = one.task.doc_to_choice(sample["doc"])
    values = [float(resps[0][0]) for resps in sample["resps"]][: len(choices)]
    right = one.task.doc_to_text(sample["doc"]) if one.task.multiple_input else sample["target"]
    several = right if isinstance(right, list) else [right]
    places = {choices.index(one) if isinstance(one, str) and one in choices else one for one in several}
    good = [value for place, value in enumerate(values) if place in places]
    bad = [value for place, value in enumerate(values) if place not in places]
    if not good or not bad:  # a label outside of the choices: lm-eval counts it as wrong
        return {"chance": len(good) / len(values)}
    return {
        "chance": len(good) / len(values),
        "loglik": _rounded(max(good)),
        "margin": _rounded(max(good) - max(bad)),
    }


def _score(sample: Any) -> float | None:
    for name in _SCORES:
        if name in sample["metrics"]:
            value = float(sample[name])
            return value if value in (0.0, 1.0) else None
    return None


def _rounded(value: float) -> float:
    return float(f"{value:.7g}")


def _chosen(loaded: Any, limit: int, seed: int) -> list[LmTask]:
    found = []
    for name, task in loaded["tasks"].items():
        hashes = {place: _hash(doc) for place, doc in enumerate(task.eval_docs)}
        order = sorted(hashes, key=lambda place: (sha256_text(f"{seed}:{hashes[place]}"), place))
        kept = tuple(sorted(order[:limit]))
        chosen = {place: hashes[place] for place in kept}
        found.append(LmTask(name, task, kept, chosen, task.get_config("num_fewshot")))
    return found


def _hash(doc: Any) -> str:
    return sha256_text(json.dumps(doc, sort_keys=True, default=str))[:16]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars of the two libraries, and no message to the hub that the JSON reader was used."""
    tqdm, told = lm_eval.api.task.tqdm, datasets.config.HF_UPDATE_DOWNLOAD_COUNTS
    hidden = datasets.are_progress_bars_disabled()
    lm_eval.api.task.tqdm = partial(tqdm, disable=True)
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        lm_eval.api.task.tqdm = tqdm
        datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = told
        if not hidden:
            datasets.enable_progress_bars()
