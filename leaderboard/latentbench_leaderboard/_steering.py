"""Steering transcripts: shards per dictionary and concept, and success per concept, method and factor.

The board's steering score chooses a factor per concept on half of the prompts; that choice is the task's.
Here every factor is shown, on the prompts that choose and on those that score.

Shard: {methods, factors: as text, prompts: [{half, prompt, plain}], rows: [[prompt position, method position,
factor position, text, concept score, fluency, success, status]]}.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from latentbench.errors import StoreError, UserError
from latentbench.stats import wilson
from latentbench_leaderboard._format import DASH, clip, humanise, plain
from latentbench_leaderboard._subjects import Entry, Subject, items_of_kind
from latentbench_leaderboard._values import as_list, real, whole

__all__ = ["Concept", "Rate", "Steered", "SteeringBook", "samples_by_latent", "steering_book"]

SAMPLES_PER_LATENT = 6
"""Samples that a latent's place shows; the steering page has all."""
_TEXT = 4000
_SAMPLE_TEXT = 600


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
class Steered:
    """What one method did for a concept."""

    method: str
    """Display name of the method."""
    latents: tuple[int, ...]
    """Latents that were steered; empty for a method that steers otherwise."""
    test: tuple[Rate, ...]
    """Success on the scoring prompts, by factor of the concept; without texts where the method has not the factor."""
    select: tuple[Rate, ...]
    """Success on the choosing prompts, by factor of the concept."""


@dataclass(frozen=True)
class Concept:
    """One concept of one dictionary."""

    id: str
    """Number of the concept on the page; names may hold anything."""
    name: str
    """Display name."""
    factors: tuple[str, ...]
    """Factors as text, ascending."""
    methods: tuple[Steered, ...]
    """By method, in the order of the suite; at least one."""
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


def samples_by_latent(book: SteeringBook | None) -> dict[int, list[dict[str, Any]]]:
    """What each latent did when it was steered: one text for every concept, at most `SAMPLES_PER_LATENT`.

    The method is the first that steers the latent for the concept, the factor the middle one, the prompt the first
    that scores: nothing is picked for what it says.

    Returns:
        By latent: {c: concept, a: id of the concept on the steering page, m: method, l: latents steered together,
        f: factor, h: prompt, b: text without steering, w: text with, s: whether it is a success}.
    """
    found: dict[int, list[dict[str, Any]]] = {}
    for concept in book.concepts if book is not None else ():
        seen: set[int] = set()
        for place, method in enumerate(concept.methods):
            sample = _sample(concept, place) if method.latents else None
            for latent in dict.fromkeys(method.latents):
                samples = found.setdefault(latent, [])
                if sample is not None and latent not in seen and len(samples) < SAMPLES_PER_LATENT:
                    samples.append(sample)
                seen.add(latent)
    return found


def _sample(concept: Concept, place: int) -> dict[str, Any] | None:
    prompts, rows = concept.shard["prompts"], [row for row in concept.shard["rows"] if row[1] == place]
    factors = sorted({row[2] for row in rows})
    middle = factors[(len(factors) - 1) // 2]
    test = [row for row in rows if row[2] == middle and prompts[row[0]]["half"] == "test"]
    if not test:
        return None
    first = test[0]
    return {
        "c": concept.name,
        "a": concept.id,
        "m": concept.methods[place].method,
        "l": len(concept.methods[place].latents),
        "f": concept.factors[middle],
        "h": _cut(prompts[first[0]]["prompt"]),
        "b": _cut(prompts[first[0]]["plain"]),
        "w": _cut(first[3]),
        "s": first[6],
    }


def _cut(text: str) -> str:
    return text if len(text) <= _SAMPLE_TEXT else text[: _SAMPLE_TEXT - 1] + "…"


def _book(entry: Entry) -> SteeringBook:
    config: Any = entry.record.cell.task.get("config") or {}
    methods = [str(name) for name in as_list(config.get("methods"))] or ["contrast"]
    texts: dict[str, dict[str, dict[str, Mapping[str, Any]]]] = {}
    for number, item in enumerate(items_of_kind(entry.measured, "generation")):
        concept, method = str(item.get("concept", "")), str(item.get("method", methods[0]))
        if real(item.get("factor")) is not None:
            of_method = texts.setdefault(concept, {}).setdefault(method, {})
            of_method[str(item.get("id", number))] = item
    concepts = []
    for i, name in enumerate(sorted(texts)):
        order = sorted(texts[name], key=lambda m: (methods.index(m) if m in methods else len(methods), m))
        concepts.append(_concept(i, name, {m: list(texts[name][m].values()) for m in order}))
    pairs = {(name, method) for name, by_method in texts.items() for method in by_method}
    return SteeringBook(tuple(concepts), tuple(_unscored(entry, methods, pairs)))


def _unscored(entry: Entry, methods: list[str], pairs: set[tuple[str, str]]) -> list[tuple[str, str]]:
    """Concepts, or methods for a concept, without texts."""
    weak = {
        str(
            item.get("concept", "")
        ): f"text classifier too weak (held-out AUROC {_number(item.get('auroc'))})"
        for item in items_of_kind(entry.measured, "scorer")
        if item.get("kept") is False
    }
    found = [(humanise(concept), why) for concept, why in weak.items()]
    for item in items_of_kind(entry.measured, "choice"):
        concept, method = str(item.get("concept", "")), str(item.get("method", methods[0]))
        if concept not in weak and (concept, method) not in pairs and not item.get("latents"):
            name = humanise(concept) if len(methods) == 1 else f"{humanise(concept)}, {humanise(method)}"
            found.append((name, clip(str(item.get("reason") or "no latent chosen"), 200)))
    return sorted(found)


def _concept(number: int, name: str, by_method: Mapping[str, list[Mapping[str, Any]]]) -> Concept:
    everything = [item for items in by_method.values() for item in items]
    factors = sorted({float(item["factor"]) for item in everything})
    prompts: dict[str, dict[str, Any]] = {}
    for item in everything:
        prompts.setdefault(_prompt_key(item), _prompt(item))
    order = sorted(prompts, key=lambda key: (prompts[key]["half"] != "test", key))
    rows = [
        [order.index(_prompt_key(item)), place, factors.index(float(item["factor"])), *_scores(item)]
        for place, items in enumerate(by_method.values())
        for item in items
    ]
    methods = tuple(_steered(method, items, factors) for method, items in by_method.items())
    return Concept(
        id=f"c{number}",
        name=humanise(name) or "unnamed concept",
        factors=tuple(plain(factor) for factor in factors),
        methods=methods,
        shard={
            "methods": [one.method for one in methods],
            "factors": [plain(factor) for factor in factors],
            "prompts": [prompts[key] for key in order],
            "rows": sorted(rows, key=lambda row: row[:4]),
        },
    )


def _steered(method: str, items: list[Mapping[str, Any]], factors: list[float]) -> Steered:
    latents = [whole(latent) for latent in as_list(items[0].get("dictionary_latents"))]
    return Steered(
        method=humanise(method) or "unnamed method",
        latents=tuple(latent for latent in latents if latent is not None),
        test=tuple(_rate(items, factor, "test") for factor in factors),
        select=tuple(_rate(items, factor, "select") for factor in factors),
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
    number = real(value)
    return None if number is None else float(f"{number:.3g}")


def _number(value: Any) -> str:
    number = real(value)
    return "unknown" if number is None else f"{number:.2f}"
