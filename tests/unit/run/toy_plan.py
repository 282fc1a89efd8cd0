"""A plan over a toy model and corpus, for tests that run cells; a script too, to be killed on its way."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from latentbench.adapters import Codes, InputTransform
from latentbench.data import Corpus, Document
from latentbench.identity import sha256_text
from latentbench.run import (
    CellSetup,
    DictionarySpec,
    Event,
    Item,
    Plan,
    Suite,
    Summary,
    Task,
    TaskConfig,
    TaskSpec,
    TokenPolicy,
    WatchedBatch,
    Watcher,
    execute,
)
from latentbench.run._plan import _cell, _Ground
from latentbench.testing import random_routesae, random_sae, toy_lm, toy_tokenizer
from latentbench_tasks.core.task import CoreConfig, CoreTask
from latentbench_tasks.feature_count.task import FeatureCountConfig, FeatureCountTask

POLICY = TokenPolicy(context=24, batch_rows=2)


class FailingTask(Task):
    """Raises in the step it is told to."""

    name: ClassVar[str] = "failing"
    version: ClassVar[str] = "1"

    def __init__(self, step: str) -> None:
        super().__init__(TaskConfig())
        self.step = step

    def watcher(self, setup: CellSetup) -> Watcher | None:
        self._raise("watcher")
        return _FailingWatcher() if self.step == "watch" else None

    def measure(self, setup: CellSetup, items: list[Item]) -> Iterator[Item]:
        yield {"kind": "note", "id": "before", "seed": setup.seed}
        self._raise("measure")

    def summarise(self, items: list[Item], judgements: list[Item], rng: np.random.Generator) -> Summary:
        self._raise("summarise")
        return Summary([], [], {"items": len(items)})

    def _raise(self, step: str) -> None:
        if self.step == step:
            raise RuntimeError(f"broken in {step}")


class _FailingWatcher(Watcher):
    budget_tokens = 100

    def watch(self, batch: WatchedBatch, codes: Codes) -> list[Item]:
        raise RuntimeError("broken in watch")


def toy_corpus(split: str) -> Corpus:
    rng = np.random.default_rng(len(split))
    words = ["red", "blue", "green", "dog", "cat", "sun."]
    texts = [" ".join(rng.choice(words, size=int(n))) for n in rng.integers(4, 14, size=30)]
    documents = [
        Document(sha256=sha256_text(text), text=text, source="toy", labels={}, excerpts=place % 2 == 0)
        for place, text in enumerate(texts)
    ]
    return Corpus(name="toy", sha256="0" * 64, split=split, documents=documents, pool=documents)


def toy_plan(tasks: list[Task] | None = None) -> Plan:
    torch.set_num_threads(1)
    lm = toy_lm(tokenizer=toy_tokenizer())
    suite = Suite(
        name="toy",
        lm="toy",
        target_l0=4,
        dictionaries=(DictionarySpec(source="a"), DictionarySpec(source="b")),
        tasks=(TaskSpec(name="core"),),
    )
    made = tasks or [
        CoreTask(CoreConfig(budget_tokens=400, calibration_tokens=100)),
        FeatureCountTask(FeatureCountConfig(budget_tokens=700, thresholds=(5.0, 10.0), headline=5.0)),
    ]
    ground = _Ground(suite, lm, toy_corpus("test"), POLICY)
    dictionaries = [
        random_sae(transform=InputTransform("standardise")),
        random_routesae(["resid_post.0", "resid_post.1", "resid_post.2"]),
    ]
    cells = [
        _cell(ground, DictionarySpec(source="x", name=f"dictionary {place}"), dictionary, task, None, 0)
        for place, dictionary in enumerate(dictionaries)
        for task in made
    ]
    return Plan(suite, lm, ground.corpus, toy_corpus, POLICY, cells)


def _main(out: str, kill_after: str) -> None:
    """Run the toy plan and kill this process, as `kill -9` does, at the given number of progress events."""
    seen = 0

    def listener(event: Event) -> None:
        nonlocal seen
        seen += event.kind == "progress"
        if seen == int(kill_after):
            os.kill(os.getpid(), signal.SIGKILL)

    execute(toy_plan(), Path(out), listener)


if __name__ == "__main__":
    arguments: list[Any] = sys.argv[1:3]
    _main(*arguments)
