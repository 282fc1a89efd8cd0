"""The steering task.

1. Watch: sums of every latent's activation on labelled texts of the `select` split, in one pass for all
   dictionaries.
2. Measure: fit a text classifier per concept on the `classifier` split; choose each concept's latents by
   contrast of mean activations; generate unsteered texts; generate steered texts for every concept, factor
   and prompt.
3. Summarise: choose factors on the `select` prompts, score on the `test` prompts (`metrics.py`).

Steering adds factor x unit x decoder row at every token but the first, in the dictionary's own space: a
dictionary on standardised activations adds that times the token's standard deviation, and RouteSAE adds it at
each token's routed layer. The unit is an activation of the latent itself, so one factor means the same for
all dictionaries.

Prompts are continued as plain text by default, because a chat template would put most of the prompt's tokens,
and so most of what is steered, into the template. `prompting = "chat"` is there for models that need one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from latentbench.identity import sha256_json
from latentbench.run import CellSetup, Item, Summary, Task, TaskConfig, Watcher
from latentbench_tasks.steering import _generate as gen
from latentbench_tasks.steering._choose import ChoiceOptions, choose_latents
from latentbench_tasks.steering._concepts import Concept, background_sets, concepts, neutral_prompts, prompts
from latentbench_tasks.steering._config import SteeringConfig
from latentbench_tasks.steering._judged import Rules, choose_factors, fluency_floor, judge_text, read_items
from latentbench_tasks.steering._labelled import ConceptTexts, draw_texts
from latentbench_tasks.steering._scorer import ScorerOptions, TextScorer, fit_scorer
from latentbench_tasks.steering._watch import ContrastWatcher, labelled_rows
from latentbench_tasks.steering.metrics import recompute

__all__ = ["SteeringConfig", "SteeringTask"]

_PROMPT_TOKENS = 7
"""Tokens of an average prompt; for cost estimates only."""


class SteeringTask(Task):
    """Steering success at a factor chosen on other prompts, with what it costs in fluency."""

    name: ClassVar[str] = "steering"
    version: ClassVar[str] = "1"
    Config: ClassVar[type[TaskConfig]] = SteeringConfig
    config: SteeringConfig

    def watcher(self, setup: CellSetup) -> Watcher:
        """Sums of activations on the concepts' labelled texts of the `select` split."""
        config = self.config
        what = {
            "concepts": [concept.model_dump(mode="json") for concept in self._concepts()],
            "background": background_sets(),
            "documents": config.select_documents,
            "context": config.select_context,
            "seed": setup.seed,
        }

        def draw() -> tuple[list[Any], list[ConceptTexts]]:
            texts = draw_texts(
                setup.load_split("select"),
                self._concepts(),
                background_sets(),
                config.select_documents,
                setup.seed,
            )
            return labelled_rows(setup, texts, config.select_context), texts

        stream = f"steering-select-{sha256_json(what)[:12]}"
        rows, texts = setup.shared.once(f"{stream}:{sha256_json(setup.lm.identity())}", draw)
        return ContrastWatcher(rows, texts, stream)

    def measure(self, setup: CellSetup, items: list[Item]) -> Iterator[Item]:
        """Classifiers, choices of latents, unsteered texts, steered texts; what it finds done it skips."""
        done = {_identity(item) for item in items}
        known = list(items)
        for item in self._measured(setup, known):
            known.append(item)
            if _identity(item) not in done:
                yield item

    def summarise(self, items: list[Item], judgements: list[Item], rng: np.random.Generator) -> Summary:
        """See `Task.summarise`."""
        return Summary(*recompute(items, judgements, self.config.model_dump(mode="json"), rng))

    def tokens(self) -> int:
        """Tokens through the model for one cell: labelled texts, generation and scoring."""
        config, n = self.config, len(self._concepts())
        watched = n * 2 * config.select_documents * config.select_context
        texts = (
            n * len(config.factors) * config.prompts * config.samples * (2 if config.random_direction else 1)
        )
        return watched + (texts + config.prompts * config.samples) * 2 * (
            _PROMPT_TOKENS + config.max_new_tokens
        )

    def _concepts(self) -> list[Concept]:
        return concepts(self.config.concepts)

    def _measured(self, setup: CellSetup, known: list[Item]) -> Iterator[Item]:
        """Every item of the step in order; texts that `known` holds are not generated again."""
        config = self.config
        scorers = self._scorers(setup)
        yield from (scorer.item for scorer in scorers)
        usable = {scorer.concept.id: scorer for scorer in scorers if scorer.item["kept"]}
        options = ChoiceOptions(config.contrast, config.unit, config.n_latents, config.max_density)
        choices = choose_latents(known, list(usable), gen.decoder_norms(setup.dictionary), options)
        yield from choices
        unsteered = self._unsteered(setup, usable)
        yield from unsteered
        steering = _Steering(self, setup, usable, choices, unsteered)
        halves = ("select", "test") if config.test_factors == "all" else ("select",)
        every = {choice["concept"]: config.factors for choice in choices if choice["latents"]}
        rows = [row for direction in self._directions() for row in self._grid(direction, every, halves)]
        yield from steering.texts(rows, known)
        if config.test_factors == "chosen":
            book = read_items(known, self._rules())
            rows = []
            for direction in self._directions():
                choice = choose_factors(book, direction, list(every))
                wanted = {
                    name: sorted({config.factors[index], config.factors[choice.fixed or 0]})
                    for name, index in choice.by_concept.items()
                }
                rows += self._grid(direction, wanted, ("test",))
            yield from steering.texts(rows, known)

    def _rules(self) -> Rules:
        return Rules.of(self.config.model_dump(mode="json"))

    def _directions(self) -> tuple[Literal["latent", "random"], ...]:
        return ("latent", "random") if self.config.random_direction else ("latent",)

    def _grid(
        self, direction: gen.Direction, factors: dict[str, Any], halves: Sequence[str]
    ) -> list[gen.GridRow]:
        chosen = [prompt for prompt in prompts(self.config.prompts) if prompt.half in halves]
        return gen.grid(list(factors), direction, factors, chosen, self.config.samples)

    def decoding(self, setup: CellSetup) -> gen.Decoding:
        """How this task decodes."""
        config = self.config
        return gen.Decoding(
            config.max_new_tokens, config.temperature, config.phases, setup.tokens.skip_first, setup.seed
        )

    def _scorers(self, setup: CellSetup) -> list[TextScorer]:
        """The concepts' classifiers, fitted once per run."""
        config = self.config
        words = config.window_words or (max(1, config.max_new_tokens // 2), max(1, config.max_new_tokens))
        options = ScorerOptions(
            words,
            config.scorer_windows,
            config.min_auroc,
            config.concept_threshold,
            config.concept_false_positives,
        )
        wanted = self._concepts()
        key = {
            "lm": setup.lm.identity(),
            "neutral": [config.neutral_texts, config.prompting, config.max_new_tokens, setup.tokens.bos],
            "concepts": [concept.model_dump(mode="json") for concept in wanted],
            "background": background_sets(),
            "corpus": setup.corpus.sha256,
            "options": list(options),
            "documents": config.scorer_documents,
            "seed": setup.seed,
        }

        def fit() -> list[TextScorer]:
            corpus = setup.load_split("classifier")
            drawn = draw_texts(corpus, wanted, background_sets(), config.scorer_documents, setup.seed)
            neutral = self._neutral(setup)
            found = []
            for index, texts in enumerate(drawn):
                setup.progress("text classifiers", index, len(drawn))
                found.append(fit_scorer(texts, neutral, options, setup.seed))
            return found

        return setup.shared.once(f"steering-scorers:{sha256_json(key)}", fit)

    def _neutral(self, setup: CellSetup) -> list[str]:
        if not self.config.neutral_texts:
            return []
        ids = gen.prompt_ids(setup.lm, neutral_prompts(), self.config.prompting, setup.tokens.bos)
        return gen.neutral_texts(setup.lm, ids, self.config.neutral_texts, self.decoding(setup))

    def _unsteered(self, setup: CellSetup, usable: dict[str, TextScorer]) -> list[Item]:
        """Unsteered texts with their scores for every concept, generated once per run."""
        config, decoding = self.config, self.decoding(setup)
        chosen = prompts(config.prompts)
        key = {
            "lm": setup.lm.identity(),
            "prompts": [prompt.model_dump(mode="json") for prompt in chosen],
            "options": [config.prompting, setup.tokens.bos, config.samples, config.batch_rows, *decoding],
        }

        def make() -> list[Item]:
            ids = gen.prompt_ids(setup.lm, chosen, config.prompting, setup.tokens.bos)
            rows = gen.grid([""], "none", {"": [0.0]}, chosen, config.samples)
            found: list[Item] = []
            for _, batch in gen.batches(rows, config.batch_rows):
                texts = gen.generate_batch(setup.lm, None, batch, None, ids, decoding).texts
                found += [
                    {"kind": "unsteered", **_about(row), **text}
                    for row, text in zip(batch, texts, strict=True)
                ]
            return found

        texts = setup.shared.once(f"steering-unsteered:{sha256_json(key)}", make)
        said = [item["text"] for item in texts if item["fluency"] is not None]
        scores = {name: iter(scorer.probabilities(said)) for name, scorer in usable.items()}
        return [
            {
                **item,
                "concept_scores": {
                    name: None if item["fluency"] is None else next(found) for name, found in scores.items()
                },
                "lexicon_hits": {
                    name: scorer.concept.lexicon_hits(item["text"]) for name, scorer in usable.items()
                },
            }
            for item in texts
        ]


class _Steering:
    """Generates and scores the steered texts of one cell."""

    def __init__(
        self,
        task: SteeringTask,
        setup: CellSetup,
        scorers: dict[str, TextScorer],
        choices: Sequence[Item],
        unsteered: Sequence[Item],
    ) -> None:
        self.task = task
        self.setup = setup
        self.scorers = scorers
        self.choices = {choice["concept"]: choice for choice in choices}
        self.vectors = gen.directions(setup.dictionary, choices)
        self.baselines = {(item["prompt_id"], item["sample"]): item["text"] for item in unsteered}
        self.rules = Rules.of(task.config.model_dump(mode="json"))
        self.floor = fluency_floor(unsteered, self.rules.fluency_margin)
        self.ids = gen.prompt_ids(
            setup.lm, prompts(task.config.prompts), task.config.prompting, setup.tokens.bos
        )

    def texts(self, rows: Sequence[gen.GridRow], known: Sequence[Item]) -> Iterator[Item]:
        """Items of every row that is not known yet, and one item of costs per batch before them.

        A batch with a missing row is generated whole, so that its sampling noise is what it would have been.
        """
        done = {item["id"] for item in known if item["kind"] == "generation"}
        named = list(gen.batches(rows, self.task.config.batch_rows))
        for index, (name, batch) in enumerate(named):
            self.setup.progress("steered texts", index * self.task.config.batch_rows, len(rows))
            if all(row.id in done for row in batch):
                continue
            vectors = [self._vector(row) for row in batch]
            decoding = self.task.decoding(self.setup)
            out = gen.generate_batch(self.setup.lm, self.setup.dictionary, batch, vectors, self.ids, decoding)
            cost = {"forward_tokens": out.forward_tokens, "shadow_tokens": out.shadow_tokens}
            yield {"kind": "cost", "id": name, **cost}
            for row, text in zip(batch, out.texts, strict=True):
                yield self._item(row, text)

    def _vector(self, row: gen.GridRow) -> Any:
        unit = self.vectors[row.concept]
        if row.direction == "random":
            unit = gen.random_direction(unit, self.setup.seed, row.concept)
        return row.factor * unit

    def _item(self, row: gen.GridRow, text: dict[str, Any]) -> Item:
        scorer = self.scorers[row.concept]
        said = text["fluency"] is not None
        probability = scorer.probabilities([text["text"]])[0] if said else None
        hits = scorer.concept.lexicon_hits(text["text"])
        judged = judge_text(text, probability, hits, float(scorer.item["threshold"]), self.floor, self.rules)
        choice = self.choices[row.concept]
        return {
            "kind": "generation",
            **_about(row),
            "concept": row.concept,
            "direction": row.direction,
            "dictionary_latents": choice["latents"],
            "factor": row.factor,
            "unit": choice["units"],
            **text,
            "status": "ok" if said else "empty",
            "baseline_text": self.baselines[(row.prompt.id, row.sample)],
            "concept_score": probability,
            "lexicon_hits": hits,
            "success": judged.success,
        }


def _about(row: gen.GridRow) -> Item:
    return {
        "id": row.id,
        "split": row.prompt.half,
        "prompt_id": row.prompt.id,
        "prompt": row.prompt.text,
        "sample": row.sample,
    }


def _identity(item: Item) -> tuple[str, str]:
    """What makes two items of this task the same one."""
    names = {"contrast": "document", "scorer": "concept", "choice": "concept"}
    return item["kind"], str(item[names.get(item["kind"], "id")])
