"""Texts under steering, row by row: what each row adds, its batch, and a cache of what was written before."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

import latentbench
from latentbench.adapters import steering_edits
from latentbench.identity import sha256_json
from latentbench.interventions import BoundIntervention, dictionary_sha256, intervention_edits
from latentbench.lm import BOTH_PHASES, Edit, generation_batches
from latentbench.run import CellSetup
from latentbench.store import ResponseCache
from latentbench_tasks.steering._generate import (
    Decoding,
    GridRow,
    distinct_2,
    divergences,
    log_probabilities,
    seed_of,
)

__all__ = ["Batch", "Row", "Steer", "Writer"]

_VERSION = 1
"""Raised when the same row would be written or scored differently."""


@dataclass(frozen=True, eq=False)
class Steer:
    """What one method does for one concept."""

    bound: Callable[[float], BoundIntervention] | None = None
    """The intervention at a factor."""
    space: Tensor | None = None
    """In place of it: `Float[Tensor, "d"]` that factor 1 adds in the dictionary's space, where it writes."""
    prompts: dict[str, list[int]] | None = None
    """In place of both: token ids that are read instead of the plain prompt, by prompt id."""
    lens: frozenset[int] | None = None
    """Tokens that the latent's direction promotes most; None without a latent."""

    def identity(self, factor: float, dictionary: str, phases: str) -> str:
        """sha256 of what is done to the model; "" if nothing is."""
        if self.bound is not None:
            return self.bound(factor).intervention.sha256
        if self.space is not None:
            numbers = [f"{value:.6g}" for value in (factor * self.space).tolist()]
            return sha256_json({"space": numbers, "dictionary": dictionary, "phases": phases})
        return ""


class Row(NamedTuple):
    """A text to write."""

    about: GridRow
    """Its place in the grid."""
    steer: Steer
    """What is done."""
    prompt: list[int]
    """Token ids of the plain prompt."""

    @property
    def read(self) -> list[int]:
        """Token ids that are continued."""
        prompts = self.steer.prompts
        return self.prompt if prompts is None else prompts[self.about.prompt.id]


class Batch(NamedTuple):
    """What one batch gave."""

    name: str
    """Hash of its rows' ids."""
    rows: list[Row]
    """The rows."""
    texts: list[dict[str, Any]]
    """Per row `text`, `tokens`, `fluency` and `distinct_2` (both None for an empty text), `status`, `intervention` (see
    `Steer.identity`), and where they were asked for `kl` and `lens`."""
    forward_tokens: int
    """Token positions that went through the model, scoring included; 0 for texts from the cache."""
    shadow_tokens: int
    """Token positions of the shadow pass that routed dictionaries need."""


class Writer:
    """Writes the rows of one cell; what was written before, for any method or dictionary, is not written again."""

    def __init__(self, setup: CellSetup, decoding: Decoding, batch_rows: int, *, kl: bool) -> None:
        """A writer.

        Args:
            setup: the cell.
            decoding: how to decode.
            batch_rows: most rows of a batch.
            kl: measure the divergence of texts of the test half.
        """
        self._setup = setup
        self._decoding = decoding
        self._batch_rows = batch_rows
        self._kl = kl
        self._dictionary = dictionary_sha256(setup.dictionary)

    def write(self, rows: Sequence[Row], done: Collection[str]) -> Iterator[Batch]:
        """Write rows in the batches of `generation_batches`.

        Args:
            rows: the rows.
            done: ids of rows that are stored; a batch of nothing else is passed over.
        """
        kinds: dict[tuple[bool, bool], list[Row]] = {}
        for row in rows:
            kinds.setdefault((row.steer.space is not None, row.about.prompt.half == "test"), []).append(row)
        cut = [
            [group[index] for index in batch]
            for group in kinds.values()
            for batch in generation_batches([row.read for row in group], self._batch_rows)
        ]
        with ResponseCache(self._setup.cache / "steered-texts.sqlite") as cache:
            for index, batch in enumerate(cut):
                self._setup.progress("steered texts", index, len(cut))
                if not all(row.about.id in done for row in batch):
                    yield self._written(batch, cache)

    def _written(self, batch: list[Row], cache: ResponseCache) -> Batch:
        asked = [self._request(row) for row in batch]
        known = {sha256_json(request): cache.get(request) for request in asked}
        fresh: dict[str, Row] = {}
        for request, row in zip(asked, batch, strict=True):
            key = sha256_json(request)
            if not self._setup.lm.fits(row.read, self._decoding.max_new_tokens):
                known[key] = _too_long(row, self._setup.lm.window)
            elif known[key] is None:
                fresh.setdefault(key, row)
        forward = shadow = 0
        if fresh:
            found, forward, shadow = self._generated(list(fresh.values()))
            requests = {sha256_json(request): request for request in asked}
            cache.put_all([(requests[key], text) for key, text in zip(fresh, found, strict=True)])
            known.update(zip(fresh, found, strict=True))
        texts = [
            self._text(row, known[sha256_json(request)]) for row, request in zip(batch, asked, strict=True)
        ]
        name = sha256_json([row.about.id for row in batch])[:16]
        return Batch(name, batch, texts, forward, shadow)

    def _request(self, row: Row) -> dict[str, Any]:
        decoding = self._decoding
        return {
            "what": "steered text",
            "version": [_VERSION, latentbench.__version__],
            "lm": self._setup.lm.identity(),
            "prompt": row.prompt,
            "read": row.read,
            "steered": self._identity(row),
            "decoding": [decoding.max_new_tokens, decoding.temperature, decoding.skip_first],
            "seed": seed_of(decoding, row.about) if decoding.temperature else None,
            "kl": self._measures_kl(row),
        }

    def _identity(self, row: Row) -> str:
        return row.steer.identity(row.about.factor, self._dictionary, self._decoding.phases)

    def _measures_kl(self, row: Row) -> bool:
        return self._kl and row.about.prompt.half == "test" and row.about.method != "none"

    def _text(self, row: Row, stored: dict[str, Any]) -> dict[str, Any]:
        """What an item holds of a stored text; the ids stay in the cache."""
        ids, lens = stored["ids"], row.steer.lens
        found = {name: stored[name] for name in ("text", "tokens", "fluency", "distinct_2", "status")}
        found["intervention"] = self._identity(row)
        if "kl" in stored:
            found["kl"] = stored["kl"]
        if lens is not None:
            found["lens"] = sum(token in lens for token in ids)
        return found

    def _edits(self, rows: Sequence[Row]) -> list[Edit]:
        decoding = self._decoding
        if rows[0].steer.space is not None:
            vectors = [row.about.factor * row.steer.space for row in rows if row.steer.space is not None]
            phases = frozenset({decoding.phases}) if decoding.phases != "both" else BOTH_PHASES
            return steering_edits(self._setup.dictionary, torch.stack(vectors), phases, decoding.skip_first)  # type: ignore[arg-type]
        bound = [[row.steer.bound(row.about.factor)] if row.steer.bound else [] for row in rows]
        return list(intervention_edits(bound, skip_first=decoding.skip_first)) if any(bound) else []

    def _generated(self, rows: Sequence[Row]) -> tuple[list[dict[str, Any]], int, int]:
        lm, decoding = self._setup.lm, self._decoding
        out = lm.generate(
            [row.read for row in rows],
            max_new_tokens=decoding.max_new_tokens,
            edits=self._edits(rows),
            temperature=decoding.temperature,
            seeds=[seed_of(decoding, row.about) for row in rows],
        )
        said = [[] if why else tokens for tokens, why in zip(out.tokens, out.broken, strict=True)]
        prompts = [row.prompt for row in rows]
        fluency = log_probabilities(lm, prompts, said)
        texts: list[dict[str, Any]] = []
        for tokens, why, score in zip(said, out.broken, fluency, strict=True):
            texts.append(
                {
                    "ids": tokens,
                    "text": lm.tokenizer.decode(tokens, skip_special_tokens=True),
                    "tokens": len(tokens),
                    "fluency": score,
                    "distinct_2": distinct_2(tokens) if score is not None else None,
                    "status": f"broken: {why}" if why else "ok" if tokens else "empty",
                }
            )
        passes = 1
        if any(self._measures_kl(row) for row in rows):
            kept = [index for index, tokens in enumerate(said) if tokens]
            some = [rows[index] for index in kept]
            found = (
                divergences(
                    lm,
                    [row.prompt for row in some],
                    [row.read for row in some],
                    [said[index] for index in kept],
                    self._edits(some),
                )
                if some
                else []
            )
            for text in texts:
                text["kl"] = None
            for index, value in zip(kept, found, strict=True):
                texts[index]["kl"] = value
            passes = 3
        scored = passes * sum(
            len(row.read) + len(tokens) for row, tokens in zip(rows, said, strict=True) if tokens
        )
        return texts, out.forward_tokens + scored, out.shadow_tokens


def _too_long(row: Row, window: int | None) -> dict[str, Any]:
    """In place of a text that can't be written."""
    return {
        "ids": [],
        "text": "",
        "tokens": 0,
        "fluency": None,
        "distinct_2": None,
        "status": f"broken: a prompt of {len(row.read)} tokens leaves no room in the window of {window}",
    }
