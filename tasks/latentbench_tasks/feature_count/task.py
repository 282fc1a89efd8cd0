"""Feature count: RouteSAE's rule for how many latents of a dictionary are interpretable.

Source: arXiv 2503.08200v3, section 3.3, and GitHub swei2001/RouteSAEs, which adds constants that the text does not
have. An event is a token on which a latent's strength is above a threshold. Strength is the latent's contribution
relative to the token (`Dictionary.relative_values`) times sqrt(2048), so the paper's thresholds 10, 15 and 20 mean
the same at every width and for dictionaries on raw activations.

The presets: `paper` keeps latents with at least 4 contexts (the text); `code` with at least 5 and at most 32 token
classes (the code); `corrected` is `code` with at most one context per document and class, because a document that
repeats itself is no evidence that a latent fires elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, model_validator

from latentbench.adapters import Codes
from latentbench.data import TokenRow
from latentbench.run import CellSetup, Item, Summary, Task, TaskConfig, WatchedBatch, Watcher
from latentbench_tasks._contexts import (
    Vocabulary,
    excerpts_allowed,
    read_vocabulary,
    sentence_window,
    text_item,
)
from latentbench_tasks.feature_count.metrics import Rule, kept_latents, read_events, summarise

__all__ = ["FeatureCountConfig", "FeatureCountTask"]

_PRESETS = {
    "paper": Rule(min_contexts=4, max_classes=None, per_class=2, one_per_document=False),
    "code": Rule(min_contexts=5, max_classes=32, per_class=2, one_per_document=False),
    "corrected": Rule(min_contexts=5, max_classes=32, per_class=2, one_per_document=True),
}


class FeatureCountConfig(TaskConfig):
    """Options of the feature count."""

    budget_tokens: int = Field(default=30_000, gt=0)
    """Measured tokens of the test split. (The paper watched 10 million.)"""
    thresholds: tuple[float, ...] = (7.5, 10.0, 15.0, 20.0)
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
    """Tokens of a context, at most."""
    browsable: int = Field(default=200, ge=0)
    """Kept latents, the strongest first, whose contexts are stored for browsing."""
    browsable_contexts: int = Field(default=8, gt=0)
    """Contexts of each of them, the strongest first."""

    @model_validator(mode="after")
    def _known(self) -> FeatureCountConfig:
        if self.headline not in self.thresholds:
            raise ValueError(f"headline = {self.headline} is not among the thresholds {self.thresholds}")
        return self

    @property
    def rule(self) -> Rule:
        """The preset with the options laid over it."""
        rule = _PRESETS[self.preset]._replace(per_class=self.per_class)
        if self.min_contexts is not None:
            rule = rule._replace(min_contexts=self.min_contexts)
        return rule if self.max_classes is None else rule._replace(max_classes=self.max_classes)


class FeatureCountTask(Task):
    """See the module."""

    name: ClassVar[str] = "feature_count"
    version: ClassVar[str] = "1"
    Config: ClassVar[type[TaskConfig]] = FeatureCountConfig
    config: FeatureCountConfig

    def watcher(self, setup: CellSetup) -> Watcher:
        """See `Task.watcher`."""
        return _EventWatcher(_vocabulary(setup), self.config)

    def measure(self, setup: CellSetup, items: list[Item]) -> Iterator[Item]:
        """The kept latents with their contexts, for browsing."""
        config, rows = self.config, [item for item in items if item["kind"] == "row"]
        if not rows or not config.browsable:
            return
        events = read_events(rows)
        kept = {t: set(kept_latents(events, t, config.rule).tolist()) for t in config.thresholds}
        lowest = sorted(kept[min(config.thresholds)])
        best = np.zeros(events.n_latents)
        np.maximum.at(best, events.latent, events.strength)
        chosen = sorted(lowest, key=lambda latent: (-best[latent], latent))[: config.browsable]
        wanted = _strongest(rows, set(chosen), config.browsable_contexts, config.rule)
        token_row = {f"{row.document}:{row.start_token}": row for row in setup.rows(config.budget_tokens)}
        free, vocabulary = excerpts_allowed(setup.corpus), _vocabulary(setup)
        for latent in chosen:
            contexts = []
            for item, column, strengths in wanted[latent]:
                row = token_row[item["id"]]
                window = sentence_window(row.ids, column, vocabulary.ends, config.longest_context)
                text = text_item(setup.lm.tokenizer, row, window, column, strengths, latent)
                yield text
                contexts.append(_context(text, row, column, strengths[column], setup, row.document in free))
            yield {
                "kind": "latent",
                "id": str(latent),
                "latent": latent,
                "events": int((events.latent == latent).sum()),
                "token_classes": int(np.unique(events.token_class[events.latent == latent]).size),
                "kept": {f"{threshold:g}": latent in kept[threshold] for threshold in config.thresholds},
                "contexts": contexts,
            }

    def summarise(self, items: list[Item], judgements: list[Item], rng: np.random.Generator) -> Summary:
        """See `Task.summarise`."""
        rows = [item for item in items if item["kind"] == "row"]
        return Summary(*summarise(rows, self.config.thresholds, self.config.headline, self.config.rule, rng))

    def tokens(self) -> int:
        """See `Task.tokens`: the shared pass."""
        return self.config.budget_tokens


class _EventWatcher(Watcher):
    def __init__(self, vocabulary: Vocabulary, config: FeatureCountConfig) -> None:
        self.budget_tokens = config.budget_tokens
        self._classes = torch.tensor(vocabulary.classes)
        self._lowest = min(config.thresholds)

    def watch(self, batch: WatchedBatch, codes: Codes) -> list[Item]:
        """For every row the latents with an event, and all tokens they are active on."""
        relative = batch.dictionary.relative_values(batch.flat_acts(), codes).float().cpu()
        strength = relative * math.sqrt(2048)
        token = codes.rows().cpu()
        row, column = batch.token_rows().cpu()[token], batch.token_columns().cpu()[token]
        key = row * codes.n_latents + codes.latents.cpu()
        eventful = torch.unique(key[strength > self._lowest])
        keep = torch.isin(key, eventful) & (strength > 0)
        key, column, strength = key[keep], column[keep], strength[keep]
        order = torch.argsort(key * batch.tokens.ids.shape[1] + column)
        columns, strengths = column[order].tolist(), _rounded(strength[order])
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
            }
            for place in range(len(batch.rows))
        ]


def _rounded(values: torch.Tensor) -> list[float]:
    """Four significant digits, as Python floats: enough for a threshold, a quarter of the file."""
    return [float(f"{value:.4g}") for value in values.tolist()]


def _vocabulary(setup: CellSetup) -> Vocabulary:
    lm = setup.lm
    return setup.shared.once(f"vocabulary:{lm.name}", lambda: read_vocabulary(lm.tokenizer, lm.vocab_size))


def _strongest(
    rows: list[Item], chosen: set[int], limit: int, rule: Rule
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
                    (strength, item, column, by_column) for column, strength in by_column.items()
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


def _context(
    text: dict[str, Any], row: TokenRow, column: int, strength: float, setup: CellSetup, free: bool
) -> dict[str, Any]:
    shown = {key: text[key] for key in ("tokens", "activations", "activated")}
    return {
        "document": row.document,
        "source": row.source,
        "start": text["start"],
        "end": text["end"],
        "activated": text["activated"],
        "token_class": setup.lm.tokenizer.decode([row.ids[column]]).strip().lower() if free else "",
        "activation": strength,
        "excerpt": shown if free else None,
    }
