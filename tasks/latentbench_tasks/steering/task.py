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

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from latentbench.identity import sha256_json
from latentbench.run import CellSetup, Item, Summary, Task, TaskConfig, Watcher
from latentbench_tasks.steering import _generate as gen
from latentbench_tasks.steering._axbench import axbench_concepts
from latentbench_tasks.steering._concepts import Concept, background_sets, concepts, neutral_prompts, prompts
from latentbench_tasks.steering._config import SteeringConfig
from latentbench_tasks.steering._judged import (
    Book,
    Rules,
    choose_factors,
    fluency_floor,
    judge_text,
    read_items,
)
from latentbench_tasks.steering._labelled import ConceptTexts, draw_texts
from latentbench_tasks.steering._methods import METHODS
from latentbench_tasks.steering._scorer import ScorerOptions, TextScorer, fit_scorer
from latentbench_tasks.steering._steers import Chooser, steers
from latentbench_tasks.steering._watch import ContrastWatcher, labelled_rows
from latentbench_tasks.steering._write import Row, Steer, Writer
from latentbench_tasks.steering.metrics import recompute

if TYPE_CHECKING:
    from latentbench.data import TokenRow

__all__ = ["SteeringConfig", "SteeringTask"]

_PROMPT_TOKENS = 7
"""Tokens of an average prompt; for cost estimates only."""
_FLAT = 1e-9


class SteeringTask(Task):
    """Steering success at a factor chosen on other prompts, with what it costs in fluency."""

    name: ClassVar[str] = "steering"
    version: ClassVar[str] = "2"
    Config: ClassVar[type[TaskConfig]] = SteeringConfig
    config: SteeringConfig

    def preflight(self) -> None:
        """See `Task.preflight`: there have to be the concepts, and so many prompts."""
        self._concepts()
        prompts(self.config.prompts)

    def watcher(self, setup: CellSetup) -> Watcher:
        """Sums of activations on the concepts' labelled texts of the `select` split."""
        rows, texts, stream = self._labelled(setup)
        return ContrastWatcher(rows, texts, stream)

    def _labelled(self, setup: CellSetup) -> tuple[list[TokenRow], list[ConceptTexts], str]:
        """Tokens of the labelled documents, what they are to each concept, and the name of their stream."""
        config = self.config
        what = {
            "concepts": [concept.model_dump(mode="json") for concept in self._concepts()],
            "background": background_sets(),
            "documents": config.select_documents,
            "context": config.select_context,
            "seed": setup.seed,
        }

        def draw() -> tuple[list[TokenRow], list[ConceptTexts]]:
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
        return rows, texts, stream

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
        passes = sum(METHODS[method].kind in ("rank", "direction") for method in config.methods)
        each = _PROMPT_TOKENS + config.max_new_tokens
        scored = (3 if config.kl else 2) * each
        return watched * (1 + min(passes, 2)) + self.texts() * scored

    def texts(self) -> int:
        """Texts of all methods without those of longer grids; texts that two methods share are counted twice."""
        config = self.config
        chosen = 2 if config.test_factors == "chosen" else len(config.factors)
        halves = config.prompts // 2 * config.samples
        prompted = sum(METHODS[method].kind == "prompt" for method in config.methods)
        factors = (len(config.methods) - prompted) * (len(config.factors) + chosen) + 2 * prompted
        return halves * (len(self._concepts()) * factors + 2)

    def _concepts(self) -> list[Concept]:
        file = self.config.concepts_file
        among = axbench_concepts(Path(file), self.config.concepts_sha256) if file else None
        return concepts(self.config.concepts, among)

    def _measured(self, setup: CellSetup, known: list[Item]) -> Iterator[Item]:
        """Every item of the step in order; texts that `known` holds are not generated again."""
        config = self.config
        scorers = self._scorers(setup)
        yield from (scorer.item for scorer in scorers)
        usable = {scorer.concept.id: scorer for scorer in scorers if scorer.item["kept"]}
        wanted = [scorer.concept for scorer in usable.values()]
        choices: list[Item] = []
        for choice in Chooser(setup, config, self._labelled(setup)[0], known).choices(wanted):
            choices.append(choice)
            yield choice
        unsteered = self._unsteered(setup, usable)
        yield from unsteered
        yield from self._degenerate(setup, usable, unsteered)
        steering = _Steering(self, setup, usable, choices, unsteered)
        halves = ("select", "test") if config.test_factors == "all" else ("select",)
        yield from steering.texts(dict.fromkeys(steering.steers, config.factors), halves, known)
        # What is stored decides, so that a run which goes on makes the grid no longer than one that never stopped.
        while longer := self._longer(read_items(known, self._rules()), list(steering.steers)):
            yield from steering.texts(longer, ("select",), known)
        book = read_items(known, self._rules())
        yield from steering.texts(self._tested(book, list(steering.steers)), ("test",), known)

    def _longer(
        self, book: Book, steered: Sequence[tuple[str, str]]
    ) -> dict[tuple[str, str], tuple[float, ...]]:
        """One more factor for each method and concept whose best one lies at an end, unless none made a difference."""
        found: dict[tuple[str, str], tuple[float, ...]] = {}
        for method, concept in steered:
            factors = book.factors(method, concept, "select")
            at_end = choose_factors(book, method, [concept]).at_end.get(concept, 0)
            curve = [book.mean(method, concept, f, "select", self.config.choose_by) for f in factors]
            if METHODS[method].kind == "prompt" or not at_end or max(curve) - min(curve) < _FLAT:
                continue
            more = 2 * factors[-1] if at_end > 0 else factors[0] / 2
            most = 2.0**self.config.extensions
            if not self.config.factors[0] / most <= more <= self.config.factors[-1] * most:
                continue
            if not any((method, concept, more, "select") in known for known in (book.steered, book.broken)):
                found[method, concept] = (more,)
        return found

    def _tested(
        self, book: Book, steered: Sequence[tuple[str, str]]
    ) -> dict[tuple[str, str], tuple[float, ...]]:
        """The factors that the test half still needs: each one's chosen factor, and the one for all."""
        found: dict[tuple[str, str], tuple[float, ...]] = {}
        for method in self.config.methods:
            names = [concept for one, concept in steered if one == method]
            choice = choose_factors(book, method, names)
            for name, factor in choice.by_concept.items():
                found[method, name] = tuple(sorted({factor} | ({choice.fixed} if choice.fixed else set())))
        return found

    def _rules(self) -> Rules:
        return Rules.of(self.config.model_dump(mode="json"))

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
            config.lexicon,
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
            grid = gen.grid([""], "none", {"": [0.0]}, chosen, config.samples)
            writer = Writer(setup, decoding, config.batch_rows, kl=False)
            texts = {
                row.about.id: text
                for batch in writer.write([Row(row, Steer(), ids[row.prompt.id]) for row in grid], ())
                for row, text in zip(batch.rows, batch.texts, strict=True)
            }
            return [{"kind": "unsteered", **_about(row), **texts[row.id]} for row in grid]

        texts = setup.shared.once(f"steering-unsteered:{sha256_json(key)}", make)
        return _scored(texts, usable)

    def _degenerate(
        self, setup: CellSetup, usable: dict[str, TextScorer], unsteered: Sequence[Item]
    ) -> list[Item]:
        """Unsteered texts of the test half made senseless: what the scorers let pass shows what they are worth."""
        ids = gen.prompt_ids(setup.lm, prompts(self.config.prompts), self.config.prompting, setup.tokens.bos)
        found: list[Item] = []
        for item in unsteered:
            if item["split"] != "test" or item["fluency"] is None:
                continue
            for form in ("shuffled", "loop"):
                text = gen.spoiled(item["text"], form, f"{setup.seed}:{item['id']}")
                prompt, most = ids[item["prompt_id"]], self.config.max_new_tokens * 2
                room = most if setup.lm.window is None else min(most, setup.lm.window - len(prompt))
                tokens = setup.lm.tokenize([text], room, bos="never")[0]
                score = gen.log_probabilities(setup.lm, [prompt], [tokens])[0]
                found.append(
                    {
                        "kind": "degenerate",
                        "id": f"{item['id']}|{form}",
                        "form": form,
                        "text": text,
                        "fluency": score,
                        "distinct_2": gen.distinct_2(tokens) if score is not None else None,
                    }
                )
        return _scored(found, usable)


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
        config = task.config
        self.config = config
        self.scorers = scorers
        self.choices = {(choice["method"], choice["concept"]): choice for choice in choices}
        self.steers = steers(setup, config, choices, [scorer.concept for scorer in scorers.values()])
        self.baselines = {(item["prompt_id"], item["sample"]): item["text"] for item in unsteered}
        self.rules = Rules.of(config.model_dump(mode="json"))
        self.floor = fluency_floor(unsteered, self.rules.fluency_margin)
        self.ids = gen.prompt_ids(setup.lm, prompts(config.prompts), config.prompting, setup.tokens.bos)
        self.writer = Writer(setup, task.decoding(setup), config.batch_rows, kl=config.kl)

    def texts(
        self,
        factors: Mapping[tuple[str, str], Sequence[float]],
        halves: Sequence[str],
        known: Sequence[Item],
    ) -> Iterator[Item]:
        """Items of every row that is not known yet, and one item of costs per batch before them.

        Args:
            factors: by (method, concept).
            halves: of the prompts.
            known: what is stored.
        """
        done = {item["id"] for item in known if item["kind"] == "generation"}
        chosen = [prompt for prompt in prompts(self.config.prompts) if prompt.half in halves]
        rows: list[Row] = []
        for (method, concept), amounts in factors.items():
            several = (1.0,) if METHODS[method].kind == "prompt" else amounts
            rows += [
                Row(about, self.steers[method, concept], self.ids[about.prompt.id])
                for about in gen.grid([concept], method, {concept: several}, chosen, self.config.samples)
            ]
        for batch in self.writer.write(rows, done):
            cost = {"forward_tokens": batch.forward_tokens, "shadow_tokens": batch.shadow_tokens}
            yield {"kind": "cost", "id": batch.name, **cost}
            for row, text in zip(batch.rows, batch.texts, strict=True):
                yield self._item(row.about, text)

    def _item(self, row: gen.GridRow, text: dict[str, Any]) -> Item:
        scorer = self.scorers[row.concept]
        said = text["fluency"] is not None
        probability = scorer.probabilities([text["text"]])[0] if said else None
        hits = scorer.concept.lexicon_hits(text["text"])
        judged = judge_text(text, probability, hits, float(scorer.item["threshold"]), self.floor, self.rules)
        choice = self.choices[row.method, row.concept]
        item = {
            "kind": "generation",
            **_about(row),
            "concept": row.concept,
            "method": row.method,
            "dictionary_latents": choice["latents"],
            "factor": row.factor,
            "unit": choice.get("units", []),
            **text,
            "baseline_text": self.baselines[(row.prompt.id, row.sample)],
            "concept_score": probability,
            "lexicon_hits": hits,
            "success": judged.success,
        }
        if said and row.prompt.half == "test" and row.method == self.config.methods[0]:
            item["other_scores"] = {
                name: float(f"{other.probabilities([text['text']])[0]:.4g}")
                for name, other in self.scorers.items()
                if name != row.concept
            }
        return item


def _scored(texts: Sequence[Item], usable: Mapping[str, TextScorer]) -> list[Item]:
    """Texts with the probability and the words of every concept."""
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
    if item["kind"] == "choice":
        return item["kind"], f"{item['method']}|{item['concept']}"
    names = {"contrast": "document", "scorer": "concept"}
    return item["kind"], str(item[names.get(item["kind"], "id")])
