"""Feature count: RouteSAE's rule for how many latents of a dictionary are interpretable.

Source: arXiv 2503.08200v3, section 3.3, and GitHub swei2001/RouteSAEs, which adds constants that the text does not
have. An event is a token on which a latent's strength is above a threshold. Strength is the latent's contribution
relative to the token (`Dictionary.relative_values`) times sqrt(2048), so the paper's thresholds 10, 15 and 20 mean
the same at every width and for dictionaries on raw activations.

Presets of the constants: `paper` keeps latents with at least 4 contexts (the text); `code` with at least 5 and at
most 32 token classes (the code); `corrected`, the default, is `code` with at most one context per document and
class, because a document that repeats itself is no evidence that a latent fires elsewhere.

Items hold every token a latent is active on, in rows where it has an event, so contexts are shown with all their
activations and nothing is run again; and for every row which latents are active at all, one bit a latent. The first
`skip_first` tokens of a row are not encoded, so an attention sink or BOS token gives no events (the original counts
them).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, model_validator

from latentbench.adapters import Codes
from latentbench.run import CellSetup, Item, Summary, Task, TaskConfig, WatchedBatch, Watcher
from latentbench.selectors import promoted_tokens
from latentbench_tasks._contexts import (
    Vocabulary,
    excerpts_allowed,
    read_vocabulary,
    rows_by_id,
    sentence_window,
    shortened,
    text_and_context,
)
from latentbench_tasks.feature_count.metrics import (
    Rule,
    kept_latents,
    pack_latents,
    read_events,
    recompute,
    rule_of,
)

__all__ = ["FeatureCountConfig", "FeatureCountTask"]

_PROMOTED = 10
"""Tokens stored of those that a latent's direction promotes."""


class FeatureCountConfig(TaskConfig):
    """Options of the feature count."""

    budget_tokens: int = Field(default=30_000, gt=0)
    """Measured tokens of the test split. (The paper watched 10 million.)"""
    thresholds: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        default=(7.5, 10.0, 15.0, 20.0), min_length=1
    )
    """On the scale of d = 2,048. The paper uses 10, 15 and 20; small budgets need a lower one to tell dictionaries
    apart."""
    headline: float = 10.0
    """The threshold the board shows; one of `thresholds`. The paper's own is 15, at which 30,000 tokens keep next to
    no latents."""
    preset: Literal["paper", "code", "corrected"] = "corrected"
    """Constants of the rule; see the module."""
    min_contexts: int | None = Field(default=None, gt=0)
    """Contexts a kept latent needs; None takes the preset's."""
    max_classes: int | None = Field(default=None, gt=0)
    """Most token classes of a kept latent; None takes the preset's."""
    per_class: int = Field(default=2, gt=0)
    """Contexts of one token class that count."""
    longest_context: int = Field(default=64, ge=2)
    """Tokens of a sentence that is shown whole, at most; of a longer one, half as many on either side."""
    browsable: int = Field(default=200, ge=0)
    """Kept latents, the strongest first, whose contexts are stored for browsing."""
    browsable_contexts: int = Field(default=8, gt=0)
    """Contexts of each of them, the strongest first."""

    @model_validator(mode="after")
    def _known(self) -> FeatureCountConfig:
        if self.headline not in self.thresholds:
            raise ValueError(f"headline = {self.headline} is not among the thresholds {self.thresholds}")
        if len(set(self.thresholds)) < len(self.thresholds):
            raise ValueError(f"thresholds = {self.thresholds} names one twice")
        return self

    @property
    def rule(self) -> Rule:
        """The preset with the options laid over it."""
        return rule_of(self.model_dump(mode="json"))


class FeatureCountTask(Task):
    """See the module."""

    name: ClassVar[str] = "feature_count"
    version: ClassVar[str] = "2"
    Config: ClassVar[type[TaskConfig]] = FeatureCountConfig
    config: FeatureCountConfig

    def watcher(self, setup: CellSetup) -> Watcher:
        """See `Task.watcher`."""
        return _EventWatcher(_vocabulary(setup), self.config)

    def measure(self, setup: CellSetup, items: list[Item]) -> Iterator[Item]:
        """The kept latents with their contexts and the tokens they promote (logit lens), for browsing."""
        config, rows = self.config, [item for item in items if item["kind"] == "row"]
        if not rows or not config.browsable:
            return
        lowest = min(config.thresholds)
        events = read_events(rows, lowest)
        kept = {t: set(kept_latents(events, t, config.rule).tolist()) for t in config.thresholds}
        best = np.zeros(events.n_latents)
        np.maximum.at(best, events.latent, events.strength)
        somewhere = set[int]().union(*kept.values())
        chosen = sorted(somewhere, key=lambda latent: (-best[latent], latent))[: config.browsable]
        wanted = _strongest(rows, set(chosen), lowest, config.browsable_contexts, config.rule)
        token_row = rows_by_id(setup, config.budget_tokens)
        free, vocabulary = excerpts_allowed(setup.corpus), _vocabulary(setup)
        promoted = promoted_tokens(
            setup.lm, setup.dictionary, torch.tensor(chosen, dtype=torch.int64), _PROMOTED
        )
        for latent, promotes in zip(chosen, promoted.tolist(), strict=True):
            contexts = []
            for item, column, strengths in wanted[latent]:
                row = token_row[item["id"]]
                window = sentence_window(row.ids, column, vocabulary, config.longest_context, row.special)
                text, context = text_and_context(
                    setup.lm.tokenizer, row, window, column, strengths, latent, row.document in free
                )
                yield text
                word = text["tokens"][text["activated"]].strip().lower()
                contexts.append(
                    context
                    | {
                        "token_class": word if row.document in free else "",
                        "activation": strengths[column],
                    }
                )
            yield {
                "kind": "latent",
                "id": str(latent),
                "latent": latent,
                "events": int((events.latent == latent).sum()),
                "token_classes": int(np.unique(events.token_class[events.latent == latent]).size),
                "kept": {f"{threshold:g}": latent in kept[threshold] for threshold in config.thresholds},
                "contexts": contexts,
                "promotes": [setup.lm.tokenizer.decode([token]) for token in promotes],
            }

    def summarise(self, items: list[Item], judgements: list[Item], rng: np.random.Generator) -> Summary:
        """See `Task.summarise`."""
        return Summary(*recompute(items, judgements, self.config.model_dump(mode="json"), rng))

    def tokens(self) -> int:
        """See `Task.tokens`: the shared pass."""
        return self.config.budget_tokens


class _EventWatcher(Watcher):
    def __init__(self, vocabulary: Vocabulary, config: FeatureCountConfig) -> None:
        self.budget_tokens = config.budget_tokens
        self._classes = torch.tensor(vocabulary.classes)
        self._thresholds = config.thresholds

    def watch(self, batch: WatchedBatch, codes: Codes) -> list[Item]:
        """For every row the latents with an event, and all tokens they are active on."""
        relative = batch.dictionary.relative_values(batch.flat_acts(), codes).double().cpu()
        strength = relative * math.sqrt(2048)
        token = codes.rows().cpu()
        row, column = batch.token_rows().cpu()[token], batch.token_columns().cpu()[token]
        key = row * codes.n_latents + codes.latents.cpu()
        active = self._active(key[strength > 0], len(batch.rows), codes.n_latents)
        eventful = torch.unique(key[strength > min(self._thresholds)])
        keep = torch.isin(key, eventful) & (strength > 0)
        key, column, strength = key[keep], column[keep], strength[keep]
        order = torch.argsort(key * batch.tokens.ids.shape[1] + column)
        columns, strengths = column[order].tolist(), self._shortened(strength[order])
        ends = torch.bincount(torch.searchsorted(eventful, key), minlength=len(eventful)).cumsum(0).tolist()
        edges = torch.searchsorted(eventful, torch.arange(len(batch.rows) + 1) * codes.n_latents).tolist()
        spans = list(zip([0, *ends[:-1]], ends, strict=True)) if ends else []
        ids, lengths = batch.tokens.ids.cpu(), batch.tokens.lengths.tolist()
        measured = batch.measured.sum(dim=1).tolist()
        return [
            {
                "kind": "row",
                "row": place,
                "tokens": measured[place],
                "n_latents": codes.n_latents,
                "classes": self._classes[ids[place, : lengths[place]]].tolist(),
                "latents": (eventful[edges[place] : edges[place + 1]] - place * codes.n_latents).tolist(),
                "columns": [columns[a:b] for a, b in spans[edges[place] : edges[place + 1]]],
                "strengths": [strengths[a:b] for a, b in spans[edges[place] : edges[place + 1]]],
                "active": active[place],
            }
            for place in range(len(batch.rows))
        ]

    @staticmethod
    def _active(key: torch.Tensor, rows: int, n_latents: int) -> list[str]:
        """The latents of each row that are active on any of its tokens, packed."""
        found = torch.unique(key).numpy()
        edges = np.searchsorted(found, np.arange(rows + 1) * n_latents)
        return [
            pack_latents(found[edges[place] : edges[place + 1]] - place * n_latents, n_latents)
            for place in range(rows)
        ]

    def _shortened(self, strengths: torch.Tensor) -> list[float]:
        """Four digits for events, two for the tokens around them, which are only shown."""
        exact = strengths.numpy()
        event = exact > min(self._thresholds)
        four = shortened(exact, 4, self._thresholds)
        short: list[float] = np.where(event, four, shortened(exact, 2, self._thresholds)).tolist()
        return short


def _vocabulary(setup: CellSetup) -> Vocabulary:
    lm = setup.lm
    return setup.shared.once(f"vocabulary:{lm.name}", lambda: read_vocabulary(lm.tokenizer, lm.vocab_size))


def _strongest(
    rows: list[Item], chosen: set[int], threshold: float, limit: int, rule: Rule
) -> dict[int, list[tuple[Item, int, dict[int, float]]]]:
    """The strongest contexts of each chosen latent that the rule counts: (row item, column, strengths by column)."""
    found: dict[int, list[tuple[float, Item, int, dict[int, float]]]] = {latent: [] for latent in chosen}
    for item in sorted(rows, key=lambda item: (item["document"], item["start_token"])):
        for latent, columns, strengths in zip(
            item["latents"], item["columns"], item["strengths"], strict=True
        ):
            if latent in chosen:
                by_column = dict(zip(columns, strengths, strict=True))
                found[latent] += [
                    (strength, item, column, by_column)
                    for column, strength in by_column.items()
                    if strength > threshold
                ]
    result: dict[int, list[tuple[Item, int, dict[int, float]]]] = {}
    for latent, events in found.items():
        taken: list[tuple[Item, int, dict[int, float]]] = []
        per_class: dict[int, list[str]] = {}
        for _, item, column, by_column in sorted(events, key=lambda event: -event[0]):
            documents = per_class.setdefault(item["classes"][column], [])
            repeated = rule.one_per_document and item["document"] in documents
            if len(documents) < rule.per_class and not repeated and len(taken) < limit:
                documents.append(item["document"])
                taken.append((item, column, by_column))
        result[latent] = taken
    return result
