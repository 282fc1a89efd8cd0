"""Capability: what the model loses in accuracy and likelihood when a dictionary is spliced in or steers it.

Tasks of lm-evaluation-harness (arXiv 2405.14782) are answered on the same items in these conditions:

* `plain`: the model as it is; measured once for all dictionaries of a run;
* `identity`: an edit that adds nothing. It must give the plain answers to rounding, or the cell fails;
* `spliced`: the dictionary's reconstruction in place of the activations, without its error;
* `steered@FACTOR:CONCEPT`: a factor times the unit of the concept's latent is added at every token but the first.
  Latents are chosen as in the steering task, by contrast of mean activations on labelled texts.

Losses are differences to `plain` on the same items. The embedded tasks need no network (`_sets.py`); any other name is
a task or a group of lm-eval's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import metadata
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from latentbench.errors import UserError
from latentbench.identity import sha256_json
from latentbench.run import CellSetup, Item, Summary, Task, TaskConfig, Watcher
from latentbench_tasks.capability._config import CapabilityConfig
from latentbench_tasks.capability._sets import EMBEDDED, embedded_rows, shown_rows
from latentbench_tasks.capability.metrics import summarise
from latentbench_tasks.steering._choose import choose_latents
from latentbench_tasks.steering._concepts import background_sets, concepts
from latentbench_tasks.steering._generate import decoder_norms
from latentbench_tasks.steering._labelled import ConceptTexts, draw_texts
from latentbench_tasks.steering._watch import ContrastWatcher, labelled_rows

if TYPE_CHECKING:
    from latentbench_tasks.capability._harness import LmTask
    from latentbench_tasks.capability._model import EditedLM, EditsFor

__all__ = ["CapabilityConfig", "CapabilityTask"]

_PUBLIC_TOKENS = 400
"""Tokens of an item of a task that is not embedded: four choices behind a hundred tokens. For estimates only."""


class CapabilityTask(Task):
    """See the module."""

    name: ClassVar[str] = "capability"
    version: ClassVar[str] = "1"
    Config: ClassVar[type[TaskConfig]] = CapabilityConfig
    config: CapabilityConfig

    def preflight(self) -> None:
        """Look for lm-eval, and fetch the data of tasks that are not embedded.

        Raises:
            UserError: lm-eval is not installed, a task or concept is unknown, or a task's data can't be had.
        """
        concepts(self.config.concepts)
        _need_lm_eval()
        public = self._public()
        if public:
            from latentbench_tasks.capability._harness import load_public

            load_public(public, limit=self.config.limit, seed=0)

    def watcher(self, setup: CellSetup) -> Watcher | None:
        """Sums of activations on the concepts' labelled texts of the `select` split; None without concepts."""
        config = self.config
        if not config.concepts:
            return None
        wanted = concepts(config.concepts)
        what = {
            "concepts": [concept.model_dump(mode="json") for concept in wanted],
            "background": background_sets(),
            "documents": config.select_documents,
            "context": config.select_context,
            "seed": setup.seed,
        }

        def draw() -> tuple[list[Any], list[ConceptTexts]]:
            corpus = setup.load_split("select")
            texts = draw_texts(corpus, wanted, background_sets(), config.select_documents, setup.seed)
            return labelled_rows(setup, texts, config.select_context), texts

        stream = f"capability-select-{sha256_json(what)[:12]}"
        rows, texts = setup.shared.once(f"{stream}:{sha256_json(setup.lm.identity())}", draw)
        return ContrastWatcher(rows, texts, stream) if rows else None

    def measure(self, setup: CellSetup, items: list[Item]) -> Iterator[Item]:
        """The chosen latents, and the answers of every lm-eval task in every condition that is not complete yet."""
        _need_lm_eval()
        from latentbench_tasks.capability._edits import check_identity, conditions, no_edits

        config = self.config
        yield {"kind": "harness", "id": "lm-eval", "version": metadata.version("lm_eval")}
        choices = choose_latents(items, config.concepts, decoder_norms(setup.dictionary), config.choice())
        yield from ({**choice, "id": choice["concept"]} for choice in choices)
        edits = conditions(setup.dictionary, choices, config.factors, setup.tokens.skip_first)
        done = {item["id"] for item in items if item["kind"] == "done"}
        tasks = self._tasks(setup)
        steps = len(tasks) * (1 + len(edits))
        for index, one in enumerate(tasks):
            answered: dict[str, list[Item]] = {}
            for place, condition in enumerate(("plain", *edits)):
                name = f"{condition}|{one.name}"
                if name in done:
                    answered[condition] = _stored(items, condition, one.name)
                    continue
                setup.progress(f"{one.name}, {condition}", index * (1 + len(edits)) + place, steps)
                if condition == "plain":
                    answered[condition] = self._plain(setup, one, no_edits)
                else:
                    answered[condition] = self._answers(setup, one, condition, edits[condition])
                if condition == "identity":
                    check_identity(answered["plain"], answered["identity"])
                yield from answered[condition]
                yield {"kind": "done", "id": name, "answers": len(answered[condition])}

    def summarise(self, items: list[Item], judgements: list[Item], rng: np.random.Generator) -> Summary:
        """See `metrics.summarise`."""
        return Summary(*summarise(items, rng))

    def tokens(self) -> int:
        """See `Task.tokens`: every item in every condition, and the labelled texts."""
        config = self.config
        items = sum(config.limit * EMBEDDED.get(name, _PUBLIC_TOKENS) for name in config.tasks)
        watched = len(config.concepts) * 2 * config.select_documents * config.select_context
        return items * self._conditions() + watched

    def texts(self) -> int:
        """See `Task.texts`: replies of the embedded task that asks for some, in every condition."""
        return self.config.limit * self._conditions() * ("lb_fact_sheets" in self.config.tasks)

    def _conditions(self) -> int:
        return 3 + len(self.config.concepts) * len(self.config.factors)

    def _public(self) -> list[str]:
        return [name for name in self.config.tasks if name not in EMBEDDED]

    def _tasks(self, setup: CellSetup) -> list[LmTask]:
        """lm-eval's tasks with the chosen items, loaded once per run."""
        config = self.config
        embedded = [name for name in config.tasks if name in EMBEDDED]

        def load() -> list[LmTask]:
            from latentbench_tasks.capability._harness import load_embedded, load_public, set_up

            found: list[LmTask] = []
            if embedded:
                rows = {
                    name: (
                        embedded_rows(name, setup.load_split("capability")),
                        shown_rows(name, setup.load_split("calibrate")),
                    )
                    for name in embedded
                }
                empty = [name for name, (own, _) in rows.items() if not own]
                if empty:
                    raise UserError(
                        f"the corpus has no texts for {', '.join(empty)} in its capability split: name other tasks"
                    )
                folder = set_up(rows, setup.cache / "capability")
                found += load_embedded(embedded, folder, limit=config.limit, seed=setup.seed)
            return found + load_public(self._public(), limit=config.limit, seed=setup.seed)

        return setup.shared.once(f"capability-tasks:{self._data_key(setup)}", load)

    def _data_key(self, setup: CellSetup) -> str:
        return sha256_json([self.config.tasks, self.config.limit, setup.seed, setup.corpus.sha256])

    def _plain(self, setup: CellSetup, one: LmTask, edits: EditsFor) -> list[Item]:
        """Answers without edits, once for all cells of a run."""
        key = {
            "lm": setup.lm.identity(),
            "data": self._data_key(setup),
            "task": one.name,
            "shots": self.config.num_fewshot,
            "bos": setup.tokens.bos,
        }
        return setup.shared.once(
            f"capability-plain:{sha256_json(key)}", lambda: self._answers(setup, one, "plain", edits)
        )

    def _answers(self, setup: CellSetup, one: LmTask, condition: str, edits: EditsFor) -> list[Item]:
        from latentbench_tasks.capability._harness import answers

        return answers(one, self._model(setup, edits), condition, self.config.num_fewshot)

    def _model(self, setup: CellSetup, edits: EditsFor) -> EditedLM:
        from latentbench_tasks.capability._model import EditedLM

        tokens = setup.tokens
        return EditedLM(setup.lm, edits, bos=tokens.bos, batch_rows=tokens.batch_rows, seed=setup.seed)


def _stored(items: Sequence[Item], condition: str, task: str) -> list[Item]:
    """A complete set of answers from the items of an earlier run, in the order of its data."""
    found = [
        item
        for item in items
        if item["kind"] == "answer" and item["condition"] == condition and item["task"] == task
    ]
    return sorted(found, key=lambda item: item["doc_id"])


def _need_lm_eval() -> None:
    if find_spec("lm_eval") is None:
        raise UserError(
            "the capability task needs lm-evaluation-harness, which is not installed: "
            "pip install 'latentbench[capability]'"
        )
