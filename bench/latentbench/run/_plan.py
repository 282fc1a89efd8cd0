"""From a suite to cells: what is loaded once, what is measured, what is stored already, what it will cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import ValidationError
from torch import Tensor

from latentbench.adapters import Calibration, Dictionary, calibrate, load_dictionary, with_k
from latentbench.data import Corpus, load_corpus
from latentbench.errors import UserError, nearest
from latentbench.judging import make_judge, unanswered
from latentbench.lm import LM, Site, load_lm
from latentbench.registry import JUDGES, TASKS
from latentbench.run._rows import stream_acts
from latentbench.run._suite import DictionarySpec, Suite, TaskSpec
from latentbench.run._task import Judge, Task, TokenPolicy
from latentbench.store import CellIdentity, ResultsFolder

__all__ = ["Cell", "Cost", "Plan", "chosen_judges", "cost_of", "made_task", "make_plan"]


@dataclass(frozen=True, eq=False)
class Cell:
    """One thing to run: a dictionary through a task, with a seed."""

    identity: CellIdentity
    """Everything that can change its numbers."""
    key: str
    """Hash of the identity."""
    dictionary: Dictionary
    """Shared by the cells of one dictionary."""
    task: Task
    """The configured task."""
    judge: Any | None
    """The judge, if the task needs one."""
    seed: int
    """The cell's seed."""
    labels: dict[str, Any]
    """Display name, card and suite; shown, not hashed."""

    @property
    def title(self) -> str:
        """What progress and error lines call it."""
        return f"{self.task.name} of {self.labels['dictionary']}" + (
            f", seed {self.seed}" if self.seed else ""
        )


class Cost(NamedTuple):
    """What a cell takes, roughly."""

    tokens: int
    """Tokens through the model, generation included."""
    judge_calls: int
    """Calls to the judge."""
    judge_tokens: int
    """Tokens that a judge which is a language model reads and writes."""
    dollars: float | None
    """What that costs; None for a judge without a known price."""
    texts: int = 0
    """Texts that the model writes."""


@dataclass(frozen=True, eq=False)
class Plan:
    """A suite made ready to run."""

    suite: Suite
    """What was asked for."""
    lm: LM
    """The loaded model."""
    corpus: Corpus
    """The test split."""
    load_split: Callable[[str], Corpus]
    """Other splits, each read once."""
    policy: TokenPolicy
    """The token policy."""
    cells: list[Cell]
    """In the order of the suite: by seed, dictionary, task."""

    def finished(self, results: Path) -> set[str]:
        """Keys of the cells that the results folder holds an ok record of, with no judgement left to ask for."""
        if not (results / "runs").is_dir():
            return set()
        folder = ResultsFolder(results)
        done = set()
        for cell in self.cells:
            record = folder.cell(cell.key).record()
            if record is not None and record.status == "ok" and not unanswered(record.counts):
                done.add(cell.key)
        return done

    def cost(self, cell: Cell) -> Cost:
        """What a cell takes, roughly; the shared clean pass is counted at every cell that watches it."""
        return cost_of(cell.task, getattr(cell.judge, "price", None))

    def speed(self) -> float:
        """Tokens a second through the model, measured now on one batch; texts are written two to four times slower."""
        rows = [[(7 * place + row) % self.lm.vocab_size for place in range(64)] for row in range(4)]
        batch = self.lm.batch(rows)
        self.lm.forward(batch, last_logits=1)
        start = time.perf_counter()
        logits = self.lm.forward(batch, last_logits=1).logits
        assert logits is not None
        logits.sum().item()  # an accelerator has only been told to begin
        return sum(map(len, rows)) / (time.perf_counter() - start)


def cost_of(task: Task, price: Any) -> Cost:
    """What a task takes for one dictionary and seed, roughly.

    Args:
        task: the task with its options.
        price: dollars per million tokens that its judge reads (`input`) and writes (`output`); None if not known.
    """
    read, written = task.judge_tokens()
    dollars = None if price is None else (read * price.input + written * price.output) / 1e6
    return Cost(task.tokens(), task.judge_calls(), read + written, dollars, task.texts())


def make_plan(suite: Suite, *, device: str = "cpu", dictionary_device: str | None = None) -> Plan:
    """Load what a suite names and work out its cells.

    Args:
        suite: what to run.
        device: where the language model goes.
        dictionary_device: where the dictionaries go; None takes `device`.

    Raises:
        UserError: something the suite names is unknown, does not load or does not fit.
    """
    tasks = [
        made_task(spec) for spec in suite.tasks
    ]  # checked first: a misspelt option must not cost a download
    judges = _judges(suite, tasks)
    splits: dict[str, Corpus] = {}

    def load_split(split: str) -> Corpus:
        if split not in splits:
            splits[split] = load_corpus(suite.corpus, split=split)
        return splits[split]

    corpus = load_split("test")
    if not corpus.documents:
        raise UserError(
            f"corpus {suite.corpus!r} holds no documents in its test split: there is nothing to watch"
        )
    lm = load_lm(suite.lm, device=device, dtype=suite.dtype)
    policy = TokenPolicy(**suite.tokens.model_dump())
    place = dictionary_device or device
    loaded = [(spec, _dictionary(spec, suite, lm, load_split, policy, place)) for spec in suite.dictionaries]
    ground = _Ground(suite, lm, corpus, policy)
    cells = [
        _cell(ground, spec, dictionary, task, judges[task.name], seed)
        for seed in suite.seeds
        for spec, dictionary in loaded
        for task in tasks
    ]
    _refuse_twins(cells)
    return Plan(suite, lm, corpus, load_split, policy, cells)


def made_task(spec: TaskSpec) -> Task:
    """A task with its options.

    Raises:
        UserError: the task is unknown, or an option of it is.
    """
    made: type[Task] = TASKS.load(spec.name)
    try:
        return made(made.Config.model_validate(spec.options))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "options"
        close = nearest(where, made.Config.model_fields) if first["type"] == "extra_forbidden" else []
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise UserError(f"task {spec.name!r}, option {where}: {first['msg']}{hint}") from error


def chosen_judges(suite: Suite, tasks: Sequence[Task]) -> dict[str, str]:
    """The suite's judges by role: the first one of each role that a task needs.

    Raises:
        UserError: no judge of the suite has a role that a task needs.
    """
    named = {spec: JUDGES.load(spec.partition(":")[0]).role for spec in suite.judges}
    found: dict[str, str] = {}
    for task in tasks:
        if task.judge_role is None or task.judge_role in found:
            continue
        spec = next((spec for spec, role in named.items() if role == task.judge_role), None)
        if spec is None:
            given = ", ".join(f"{one!r} ({role})" for one, role in named.items()) or "none"
            raise UserError(
                f"task {task.name!r} needs a judge of the role {task.judge_role!r}, but the suite names {given}: name "
                "another judge, too"
            )
        found[task.judge_role] = spec
    return found


def _judges(suite: Suite, tasks: Sequence[Task]) -> dict[str, Judge | None]:
    """By task the judge of the role that it needs; tasks share it, and with it its caps.

    A judge that no task needs is not made: it may want a key or an asset.
    """
    made = {
        role: make_judge(spec, suite.judge_options.get(spec.partition(":")[0]))
        for role, spec in chosen_judges(suite, tasks).items()
    }
    return {task.name: None if task.judge_role is None else made[task.judge_role] for task in tasks}


def _dictionary(
    spec: DictionarySpec,
    suite: Suite,
    lm: LM,
    load_split: Callable[[str], Corpus],
    policy: TokenPolicy,
    device: str,
) -> Dictionary:
    def acts(sites: Sequence[Site]) -> Iterable[Mapping[Site, Tensor]]:
        return stream_acts(load_split("calibrate"), lm, policy, sites, suite.calibration_tokens)

    def ground() -> dict[str, Any]:
        return {
            "lm": lm.identity(),
            "corpus": load_split("calibrate").sha256,
            "tokens": suite.calibration_tokens,
            "policy": policy.identity(),
        }

    found = load_dictionary(
        spec.source,
        mode=spec.mode,
        device=device,
        dtype=suite.dtype,
        lm=lm,
        calibration=Calibration(acts, ground),
    )
    if spec.sparsity == "topk":
        if suite.target_l0 != int(suite.target_l0):
            raise UserError(
                f"sparsity 'topk' keeps a whole number of latents; target_l0 is {suite.target_l0}"
            )
        return with_k(found, int(suite.target_l0))
    if spec.sparsity == "calibrated":
        return calibrate(found, acts(found.reads), suite.target_l0)
    return found


class _Ground(NamedTuple):
    suite: Suite
    lm: LM
    corpus: Corpus
    policy: TokenPolicy


def _cell(
    ground: _Ground,
    spec: DictionarySpec,
    dictionary: Dictionary,
    task: Task,
    judge: Any | None,
    seed: int,
) -> Cell:
    suite, lm, corpus, policy = ground
    card = dictionary.card
    dtype = str(dictionary.dtype).removeprefix("torch.")
    identity = CellIdentity(
        lm={**lm.identity()},
        dictionary={**card.identity(), "dtype": dtype},
        task={"name": task.name, "version": task.version, "config": task.config.model_dump(mode="json")},
        judge=None if judge is None else _judge_identity(judge, task),
        corpus={"name": corpus.name, "split": corpus.split, "sha256": corpus.sha256},
        token_policy=policy.identity(),
        sparsity={"mode": spec.sparsity, "target_l0": suite.target_l0},
        seed=seed,
    )
    labels = {
        "suite": suite.name,
        "dictionary": spec.name or card.name,
        "card": card.model_dump(mode="json"),
        "torch": torch.__version__,
    }
    return Cell(identity, identity.key(), dictionary, task, judge, seed, labels)


def _judge_identity(judge: Judge, task: Task) -> dict[str, Any]:
    rubrics = task.rubrics()
    return judge.identity() | ({"rubrics": rubrics} if rubrics else {})


def _refuse_twins(cells: list[Cell]) -> None:
    seen: dict[str, Cell] = {}
    for cell in cells:
        if cell.key in seen:
            raise UserError(
                f"the suite names one dictionary twice: {seen[cell.key].labels['dictionary']!r} and "
                f"{cell.labels['dictionary']!r} have the same weights and settings"
            )
        seen[cell.key] = cell
