"""Tasks about the contexts of latents: which latents are drawn, and in which contexts each is shown.

Live latents that are active in at least 20 documents each are drawn, whether or not the feature count keeps them.
Active means a positive activation on a measured token. For each latent:

* Positives are the contexts of its strongest tokens, each from another document. In the order of strength they are
  dealt in turn to a training and a test half, so both halves hold strong and weak ones.
* Negatives come from documents where the latent is nowhere active among the watched tokens, one for each positive:
  of the same family of sources while there is one left (otherwise the subject of a source alone would separate),
  of the same length, around a random token, and in the same half.

No document serves both halves. A judge sees contexts of the training half as examples and is scored on the test half.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from latentbench.adapters import Codes
from latentbench.data import TokenRow, sources
from latentbench.run import CellSetup, Item, Task, TaskConfig, WatchedBatch, Watcher
from latentbench.stats import generator
from latentbench_tasks._choose_latents import (
    Peak,
    drawing_order,
    matched_documents,
    peaks_by_latent,
    strongest,
)
from latentbench_tasks._contexts import (
    Window,
    centred_starts,
    excerpts_allowed,
    rows_by_id,
    shortened,
    text_and_context,
)

__all__ = ["LatentContextsConfig", "LatentContextsTask"]

_SHOWN_SHARE = 1.5
"""Latents, as a multiple of those to be drawn, whose activations around their peaks are kept. Where fewer than two
thirds of the latents are eligible, the last ones drawn are shown with their peaks alone; no score depends on it."""


class LatentContextsConfig(TaskConfig):
    """Which latents are drawn, and their contexts."""

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
    negatives: Literal["matched", "random"] = "matched"
    """"matched" takes documents of the positives' families of sources where there are any; "random" takes any, so
    that telling one source from another counts as interpretability."""


class LatentContextsTask(Task):
    """The part of such a task that measures; a subclass judges and summarises."""

    config: LatentContextsConfig

    def watcher(self, setup: CellSetup) -> Watcher:
        """See `Task.watcher`."""
        order = drawing_order(setup.dictionary.card.n_latents, setup.seed)
        return _PeakWatcher(self.config, order[: math.ceil(_SHOWN_SHARE * self.config.latents)])

    def measure(self, setup: CellSetup, items: list[Item]) -> Iterator[Item]:
        """The drawn latents with their contexts."""
        config = self.config
        rows = [item for item in items if item["kind"] == "row"]
        peaks = peaks_by_latent(rows)
        order = drawing_order(setup.dictionary.card.n_latents, setup.seed).tolist()
        eligible = [latent for latent in order if len(peaks.get(latent, ())) >= config.min_documents]
        drawn = sorted(eligible[: config.latents])
        yield {
            "kind": "drawn",
            "id": "drawn",
            "asked": config.latents,
            "eligible": len(eligible),
            "live": len(peaks),
            "drawn": drawn,
        }
        stream = _Stream.of(setup, rows, config)
        for latent in drawn:
            yield from self._latent(setup, latent, peaks[latent], stream)

    def _latent(
        self, setup: CellSetup, latent: int, found: dict[str, Peak], stream: _Stream
    ) -> Iterator[Item]:
        rng = generator(f"interpretability/contexts/{setup.seed}/{latent}")
        positives = strongest(found, 2 * self.config.contexts)
        silent = {document: family for document, family in stream.family.items() if document not in found}
        partners = matched_documents([stream.family[peak.document] for peak in positives], silent, rng)
        contexts: dict[str, list[dict[str, Any]]] = {"positives": [], "negatives": []}
        for place, (peak, partner) in enumerate(zip(positives, partners, strict=True)):
            split = "train" if place % 2 == 0 else "test"
            row = stream.rows[peak.row]
            window = _window(row, peak.column, self.config.context_tokens)
            text, context = text_and_context(
                setup.lm.tokenizer, row, window, peak.column, peak.around, latent, row.document in stream.free
            )
            yield text | {"unmeasured": _unmeasured(setup, window)}
            contexts["positives"].append(context | {"activation": peak.strength, "split": split})
            if partner is None:
                continue
            document, matched = partner
            row, column = _random_token(stream.of_document[document], window, setup.tokens.skip_first, rng)
            window = _window(row, column, window.end - window.start)
            text, context = text_and_context(
                setup.lm.tokenizer,
                row,
                window,
                column,
                {},
                latent,
                document in stream.free,
            )
            yield text | {"unmeasured": _unmeasured(setup, window)}
            contexts["negatives"].append(context | {"activation": 0.0, "split": split, "matched": matched})
        yield {"kind": "latent", "id": str(latent), "latent": latent, "n_documents": len(found), **contexts}

    def tokens(self) -> int:
        """See `Task.tokens`: the shared pass."""
        return self.config.budget_tokens


class _PeakWatcher(Watcher):
    """Emits for every row the peak of each active latent, and what some latents do around their peaks."""

    def __init__(self, config: LatentContextsConfig, shown: NDArray[np.int64]) -> None:
        self.budget_tokens = config.budget_tokens
        self._size = config.context_tokens
        self._shown = torch.from_numpy(np.sort(shown))

    def watch(self, batch: WatchedBatch, codes: Codes) -> list[Item]:
        """See `Watcher.watch`."""
        relative = batch.dictionary.relative_values(batch.flat_acts(), codes).double().cpu()
        token, column = codes.rows().cpu(), batch.token_columns().cpu()
        active = relative > 0
        strength = relative[active] * math.sqrt(2048)
        column = column[token[active]]
        key = batch.token_rows().cpu()[token[active]] * codes.n_latents + codes.latents.cpu()[active]
        cells = len(batch.rows) * codes.n_latents
        peak = strength.new_zeros(cells).scatter_reduce_(0, key, strength, "amax")
        top = strength == peak[key]
        at = column.new_full((cells,), torch.iinfo(column.dtype).max)
        at.scatter_reduce_(0, key[top], column[top], "amin")  # the first of equal ones
        found = peak.nonzero()[:, 0]
        near = self._near(batch, key, column, strength, at, codes.n_latents)
        edges = torch.searchsorted(found, torch.arange(len(batch.rows) + 1) * codes.n_latents).tolist()
        latents, columns = (found % codes.n_latents).tolist(), at[found].tolist()
        strengths = shortened(peak[found].numpy(), 4).tolist()
        measured = batch.measured.sum(dim=1).tolist()
        items = []
        for place in range(len(batch.rows)):
            inside = slice(edges[place], edges[place + 1])
            items.append(
                {
                    "kind": "row",
                    "row": place,
                    "tokens": measured[place],
                    "latents": latents[inside],
                    "at": columns[inside],
                    "strengths": strengths[inside],
                    **near[place],
                }
            )
        return items

    def _near(
        self,
        batch: WatchedBatch,
        key: torch.Tensor,
        column: torch.Tensor,
        strength: torch.Tensor,
        at: torch.Tensor,
        n_latents: int,
    ) -> list[dict[str, list[Any]]]:
        """For every row the activations of the shown latents within the contexts of their peaks."""
        shown = torch.isin(key % n_latents, self._shown)
        key, column, strength = key[shown], column[shown], strength[shown]
        first = torch.tensor([row.special for row in batch.rows])[key // n_latents]
        lengths = batch.tokens.lengths.cpu()[key // n_latents]
        start = torch.from_numpy(centred_starts(at[key].numpy(), first.numpy(), lengths.numpy(), self._size))
        inside = (column >= start) & (column < start + self._size)
        key, column, strength = key[inside], column[inside], strength[inside]
        order = torch.argsort(key * batch.tokens.ids.shape[1] + column)
        found, counts = torch.unique_consecutive(key[order], return_counts=True)
        ends = counts.cumsum(0)
        spans = list(zip((ends - counts).tolist(), ends.tolist(), strict=True))
        edges = torch.searchsorted(found, torch.arange(len(batch.rows) + 1) * n_latents).tolist()
        latents, columns = (found % n_latents).tolist(), column[order].tolist()
        strengths = shortened(strength[order].numpy(), 2).tolist()
        return [
            {
                "near_latents": latents[start:end],
                "near_columns": [columns[a:b] for a, b in spans[start:end]],
                "near_strengths": [strengths[a:b] for a, b in spans[start:end]],
            }
            for start, end in itertools.pairwise(edges)
        ]


class _Stream(NamedTuple):
    """The watched rows and documents."""

    rows: dict[str, TokenRow]
    """Row by id."""
    of_document: dict[str, list[TokenRow]]
    """Rows of each document, in order."""
    family: dict[str, str]
    """Family of sources of each document; empty for all where negatives are not to be matched."""
    free: set[str]
    """Documents whose excerpts may be published."""

    @classmethod
    def of(cls, setup: CellSetup, items: list[Item], config: LatentContextsConfig) -> _Stream:
        rows = rows_by_id(setup, config.budget_tokens)
        of_document: dict[str, list[TokenRow]] = defaultdict(list)
        for item in sorted(items, key=lambda item: (item["document"], item["start_token"])):
            of_document[item["document"]].append(rows[item["id"]])
        known, matched = sources(), config.negatives == "matched"
        family = {
            document: (known[row.source].family if row.source in known else row.source) if matched else ""
            for document, (row, *_) in of_document.items()
        }
        return cls(rows, of_document, family, excerpts_allowed(setup.corpus))


def _window(row: TokenRow, column: int, size: int) -> Window:
    start = int(centred_starts(column, row.special, len(row.ids), size))
    return Window(start, min(start + size, len(row.ids)))


def _unmeasured(setup: CellSetup, window: Window) -> int:
    """Tokens at the start of a context on which no latent is measured: there 0 does not mean that it is silent."""
    return max(0, setup.tokens.skip_first - window.start)


def _random_token(
    rows: list[TokenRow], like: Window, skip_first: int, rng: np.random.Generator
) -> tuple[TokenRow, int]:
    """A measured token of a document, in a row that is long enough for a window like another if there is one."""
    size = like.end - like.start
    longest = max(len(row.ids) - row.special for row in rows)
    fitting = [row for row in rows if len(row.ids) - row.special >= min(size, longest)]
    row = fitting[int(rng.integers(len(fitting)))]
    return row, int(rng.integers(skip_first, len(row.ids)))
