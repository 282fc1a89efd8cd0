"""Interpretability: can a judge who has seen some of a latent's contexts tell others from contexts without it?

100 live latents that are active in at least 20 documents each are drawn, whether or not the feature count keeps
them. For each, its strongest contexts come from distinct documents and are dealt in turn to a training and a test
half; as many contexts are drawn from documents where the latent is nowhere active among the watched tokens. No
document serves both halves. The offline judge embeds contexts; a latent's score is the AUROC with which similarity
to its training contexts separates its own test contexts from the others.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from latentbench.adapters import Codes
from latentbench.data import TokenRow
from latentbench.run import CellSetup, Item, Summary, Task, TaskConfig, WatchedBatch, Watcher
from latentbench.stats import generator
from latentbench_tasks._contexts import Window, excerpts_allowed, text_item
from latentbench_tasks.interpretability.metrics import score_latents, summarise

__all__ = ["InterpretabilityConfig", "InterpretabilityTask", "SimilarityJudge"]


class SimilarityJudge(Protocol):
    """A judge of the role "similarity"."""

    def embed(self, texts: list[str]) -> NDArray[np.float32]:
        """Unit vectors of texts, `Float[ndarray, "text dim"]`."""
        ...


class InterpretabilityConfig(TaskConfig):
    """Options of the interpretability task."""

    budget_tokens: int = Field(default=30_000, gt=0)
    """Measured tokens of the test split."""
    latents: int = Field(default=100, ge=2)
    """Latents drawn."""
    min_documents: int = Field(default=20, ge=4)
    """Distinct documents that a latent must be active in to be drawn."""
    contexts: int = Field(default=10, ge=2)
    """Contexts of each kind in each half."""
    context_tokens: int = Field(default=32, ge=4)
    """Tokens of a context, centred on the strongest token as far as the row allows."""


class InterpretabilityTask(Task):
    """See the module."""

    name: ClassVar[str] = "interpretability"
    version: ClassVar[str] = "1"
    Config: ClassVar[type[TaskConfig]] = InterpretabilityConfig
    judge_role: ClassVar[str | None] = "similarity"
    config: InterpretabilityConfig

    def watcher(self, setup: CellSetup) -> Watcher:
        """See `Task.watcher`."""
        return _PeakWatcher(self.config)

    def measure(self, setup: CellSetup, items: list[Item]) -> Iterator[Item]:
        """The drawn latents with their contexts."""
        config = self.config
        rows = sorted(
            (item for item in items if item["kind"] == "row"), key=lambda i: (i["document"], i["start_token"])
        )
        peaks = _peaks(rows)
        eligible = sorted(latent for latent, found in peaks.items() if len(found) >= config.min_documents)
        rng = generator(
            f"interpretability/{setup.seed}"
        )  # the same for all, so that dictionaries which share latents share the draw
        count = min(config.latents, len(eligible))
        drawn = sorted(rng.choice(np.asarray(eligible), size=count, replace=False).tolist()) if count else []
        yield {"kind": "drawn", "id": "drawn", "eligible": len(eligible), "live": len(peaks), "drawn": drawn}
        token_row = {f"{row.document}:{row.start_token}": row for row in setup.rows(config.budget_tokens)}
        by_document: dict[str, list[Item]] = defaultdict(list)
        for item in rows:
            by_document[item["document"]].append(item)
        free = excerpts_allowed(setup.corpus)
        for latent in drawn:
            yield from self._latent(setup, latent, peaks[latent], by_document, token_row, free, rng)

    def _latent(
        self,
        setup: CellSetup,
        latent: int,
        found: dict[str, tuple[float, Item, int]],
        by_document: dict[str, list[Item]],
        token_row: dict[str, TokenRow],
        free: set[str],
        rng: np.random.Generator,
    ) -> Iterator[Item]:
        """The latent's contexts: strongest first, dealt in turn; the others at random from documents without it."""
        wanted = 2 * self.config.contexts
        strongest = sorted(found.items(), key=lambda entry: (-entry[1][0], entry[0]))[:wanted]
        silent = sorted(set(by_document) - set(found))
        chosen = rng.permutation(len(silent))[:wanted]
        places = [(item, column, strength) for _, (strength, item, column) in strongest]
        for place in chosen.tolist():
            item = by_document[silent[place]][0]
            row = token_row[item["id"]]
            places.append((item, int(rng.integers(setup.tokens.skip_first, len(row.ids))), 0.0))
        contexts: dict[str, list[dict[str, Any]]] = {"positives": [], "negatives": []}
        for order, (item, column, strength) in enumerate(places):
            row = token_row[item["id"]]
            text = text_item(
                setup.lm.tokenizer, row, self._window(row, column), column, {column: strength}, latent
            )
            yield text
            positive = order < len(strongest)
            position = order if positive else order - len(strongest)
            shown = {key: text[key] for key in ("tokens", "activations", "activated")}
            contexts["positives" if positive else "negatives"].append(
                {
                    "text": text["id"],
                    "document": row.document,
                    "source": row.source,
                    "start": text["start"],
                    "end": text["end"],
                    "activated": text["activated"],
                    "activation": strength,
                    "split": "train" if position % 2 == 0 else "test",
                    "excerpt": shown if row.document in free else None,
                }
            )
        yield {"kind": "latent", "id": str(latent), "latent": latent, "n_documents": len(found), **contexts}

    def _window(self, row: TokenRow, column: int) -> Window:
        length = min(self.config.context_tokens, len(row.ids))
        start = min(max(0, column - length // 2), len(row.ids) - length)
        return Window(start, start + length)

    def judge(self, items: list[Item], judge: SimilarityJudge, rng: np.random.Generator) -> Iterator[Item]:
        """One judgement a latent: AUROC, balanced accuracy, and AUROC with another latent's training contexts."""
        texts = {item["id"]: "".join(item["tokens"]) for item in items if item["kind"] == "text"}
        latents = [item for item in items if item["kind"] == "latent"]
        used = sorted({c["text"] for item in latents for c in (*item["positives"], *item["negatives"])})
        missing = [name for name in used if name not in texts]
        if missing:
            yield from _unscored(latents, f"{len(missing)} context texts are not stored here: measure again")
            return
        distinct = sorted({texts[name] for name in used})
        vectors = dict(zip(distinct, judge.embed(distinct), strict=True)) if distinct else {}
        yield from score_latents(latents, {name: vectors[texts[name]] for name in used}, rng)

    def summarise(self, items: list[Item], judgements: list[Item], rng: np.random.Generator) -> Summary:
        """See `Task.summarise`."""
        return Summary(*summarise(items, judgements, rng))

    def tokens(self) -> int:
        """See `Task.tokens`: the shared pass."""
        return self.config.budget_tokens

    def judge_calls(self) -> int:
        """See `Task.judge_calls`: contexts to embed, at most."""
        return self.config.latents * 4 * self.config.contexts


class _PeakWatcher(Watcher):
    def __init__(self, config: InterpretabilityConfig) -> None:
        self.budget_tokens = config.budget_tokens

    def watch(self, batch: WatchedBatch, codes: Codes) -> list[Item]:
        """For every row its active latents, each with its strongest token."""
        strength = batch.dictionary.relative_values(batch.flat_acts(), codes).float().cpu() * math.sqrt(2048)
        token = codes.rows().cpu()
        key = batch.token_rows().cpu()[token] * codes.n_latents + codes.latents.cpu()
        column = batch.token_columns().cpu()[token]
        positive = strength > 0
        key, column, strength = key[positive], column[positive], strength[positive]
        order = torch.argsort(strength, descending=True, stable=True)
        order = order[torch.argsort(key[order], stable=True)]
        key, column, strength = key[order], column[order], strength[order]
        first = torch.ones_like(key, dtype=torch.bool)
        first[1:] = key[1:] != key[:-1]
        key, column, strength = key[first], column[first], strength[first]
        edges = torch.searchsorted(key, torch.arange(len(batch.rows) + 1) * codes.n_latents).tolist()
        measured = batch.measured.sum(dim=1).tolist()
        return [
            {
                "kind": "row",
                "row": place,
                "tokens": measured[place],
                "latents": (key[edges[place] : edges[place + 1]] - place * codes.n_latents).tolist(),
                "at": column[edges[place] : edges[place + 1]].tolist(),
                "strengths": [float(f"{s:.3g}") for s in strength[edges[place] : edges[place + 1]].tolist()],
            }
            for place in range(len(batch.rows))
        ]


def _peaks(rows: list[Item]) -> dict[int, dict[str, tuple[float, Item, int]]]:
    """By latent and document: strength, row item and column of the strongest token."""
    peaks: dict[int, dict[str, tuple[float, Item, int]]] = defaultdict(dict)
    for item in rows:
        document = item["document"]
        for latent, column, strength in zip(item["latents"], item["at"], item["strengths"], strict=True):
            before = peaks[latent].get(document)
            if before is None or strength > before[0]:
                peaks[latent][document] = (strength, item, column)
    return peaks


def _unscored(latents: list[Item], reason: str) -> Iterator[Item]:
    for item in latents:
        yield {
            "kind": "judgement",
            "id": item["id"],
            "latent": item["latent"],
            "status": "unscored",
            "reason": reason,
        }
