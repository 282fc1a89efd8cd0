"""Steering transcripts: shards per dictionary and concept, and success per concept and factor.

The board's steering score chooses a factor per concept on half of the prompts; that choice is the task's.
Here every factor is shown, on the prompts that choose and on those that score.

Shard: {prompts: [{id, half, prompt, plain}], rows: [[prompt position, factor position, text, concept score,
fluency, success, status]]}.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from latentbench.errors import StoreError, UserError
from latentbench.stats import wilson
from latentbench_leaderboard._format import DASH, clip, humanise, plain
from latentbench_leaderboard._subjects import Entry, Subject, items_of_kind

__all__ = ["Concept", "Rate", "SteeringBook", "steering_book"]

_TEXT = 4000


@dataclass(frozen=True)
class Rate:
    """A share of texts with its Wilson interval."""

    hits: int
    """Successes."""
    n: int
    """Texts."""
    prompts: int
    """Prompts that the texts continue."""

    @property
    def text(self) -> str:
        """Successes among texts, "5/8"."""
        return f"{self.hits}/{self.n}" if self.n else "—"

    @property
    def interval(self) -> str:
        """Wilson interval in per cent; empty where several texts share a prompt."""
        estimate = wilson(self.hits, self.n) if self.n and self.n == self.prompts else None
        if estimate is None or estimate.low is None or estimate.high is None:
            return ""
        return f"{100 * estimate.low:.0f}{DASH}{100 * estimate.high:.0f} %"

    @property
    def step(self) -> int:
        """Share in fifths, rounded up, for the shade of a tile."""
        return -(-5 * self.hits // self.n) if self.n else 0


@dataclass(frozen=True)
class Concept:
    """One concept of one dictionary."""

    id: str
    """Number of the concept on the page; names may hold anything."""
    name: str
    """Display name."""
    latents: tuple[int, ...]
    """Latents that were steered."""
    factors: tuple[str, ...]
    """Factors as text, ascending."""
    test: tuple[Rate, ...]
    """Success on the scoring prompts, by factor."""
    select: tuple[Rate, ...]
    """Success on the choosing prompts, by factor."""
    shard: dict[str, Any]
    """Transcripts."""


@dataclass(frozen=True)
class SteeringBook:
    """The steering page of a dictionary."""

    concepts: tuple[Concept, ...]
    """In order of their names."""
    unscored: tuple[tuple[str, str], ...]
    """Concepts without transcripts and why."""

    @property
    def total(self) -> int:
        """Number of transcripts."""
        return sum(len(concept.shard["rows"]) for concept in self.concepts)


def steering_book(subject: Subject) -> SteeringBook | None:
    """The transcripts of a dictionary from the first ok cell that stored any, else None.

    Raises:
        UserError: an item file is damaged.
    """
    for entry in subject.entries:
        if entry.record.status == "ok":
            try:
                book = _book(entry)
            except StoreError as error:
                raise UserError(str(error)) from error
            if book.concepts:
                return book
    return None


def _book(entry: Entry) -> SteeringBook:
    by_concept: dict[str, dict[str, Mapping[str, Any]]] = {}
    unscored: dict[str, str] = {}
    config: Any = entry.record.cell.task.get("config") or {}
    first = (config.get("methods") or ["contrast"])[0]
    for number, item in enumerate(items_of_kind(entry.measured, "generation")):
        if item.get("method", first) == first:
            by_concept.setdefault(str(item.get("concept", "")), {})[str(item.get("id", number))] = item
    for item in items_of_kind(entry.measured, "scorer"):
        if item.get("kept") is False:
            weak = f"text classifier too weak (held-out AUROC {_number(item.get('auroc'))})"
            unscored[str(item.get("concept", ""))] = weak
    for item in items_of_kind(entry.measured, "choice"):
        if item.get("method", first) == first and not item.get("latents"):
            unscored[str(item.get("concept", ""))] = clip(str(item.get("reason") or "no latent chosen"), 200)
    concepts = [
        _concept(i, name, list(by_concept[name].values())) for i, name in enumerate(sorted(by_concept))
    ]
    left = sorted((humanise(name), why) for name, why in unscored.items() if name not in by_concept)
    return SteeringBook(tuple(concepts), tuple(left))


def _concept(number: int, name: str, items: list[Mapping[str, Any]]) -> Concept:
    factors = sorted(
        {float(item["factor"]) for item in items if isinstance(item.get("factor"), (int, float))}
    )
    prompts: dict[str, dict[str, Any]] = {}
    for item in items:
        prompts.setdefault(_prompt_key(item), _prompt(item))
    order = sorted(prompts, key=lambda key: (prompts[key]["half"] != "test", key))
    rows = [
        [order.index(_prompt_key(item)), factors.index(float(item["factor"])), *_scores(item)]
        for item in items
        if isinstance(item.get("factor"), (int, float))
    ]
    latents = items[0].get("dictionary_latents")
    return Concept(
        id=f"c{number}",
        name=humanise(name) or "unnamed concept",
        latents=tuple(n for n in latents if isinstance(n, int)) if isinstance(latents, list) else (),
        factors=tuple(plain(factor) for factor in factors),
        test=tuple(_rate(items, factor, "test") for factor in factors),
        select=tuple(_rate(items, factor, "select") for factor in factors),
        shard={
            "prompts": [prompts[key] for key in order],
            "rows": sorted(rows, key=lambda row: (row[0], row[1], row[2])),
        },
    )


def _prompt_key(item: Mapping[str, Any]) -> str:
    number = item.get("prompt_id")
    place = f"{number:06d}" if isinstance(number, int) else str(number)
    return f"{place}/{item.get('sample', 0)}"


def _prompt(item: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "half": clip(str(item.get("split", "")), 20),
        "prompt": str(item.get("prompt", ""))[:_TEXT],
        "plain": str(item.get("baseline_text") or "")[:_TEXT],
    }


def _scores(item: Mapping[str, Any]) -> list[Any]:
    return [
        str(item.get("text") or "")[:_TEXT],
        _round(item.get("concept_score")),
        _round(item.get("fluency")),
        item.get("success") is True,
        clip(str(item.get("status", "ok")), 40),
    ]


def _rate(items: list[Mapping[str, Any]], factor: float, half: str) -> Rate:
    found = [item for item in items if item.get("factor") == factor and item.get("split") == half]
    hits = sum(item.get("success") is True for item in found)
    return Rate(hits, len(found), len({str(item.get("prompt_id")) for item in found}))


def _round(value: Any) -> float | None:
    return float(f"{value:.3g}") if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _number(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, (int, float)) else "unknown"
