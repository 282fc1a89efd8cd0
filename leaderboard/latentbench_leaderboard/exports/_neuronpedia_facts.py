"""What the items of one dictionary say of each latent, for the export to Neuronpedia.

* How often a latent is active: items of the task `core`, of the cell that watched most tokens.
* Its largest strength: contexts, and the peaks that tasks with contexts store for every row.
* Contexts with the strength on every token: `contexts` and `positives` of `latent` items. A context without a text that
  may be shown, or without the strength of every token, is counted and left out. Tokens at the start of a row, on which
  nothing is measured, are cut off where their 0 would pass for a measurement.
* Explanations: judgements of the task `autointerp`, with the balanced accuracy of the answers given by each.

Strength is `Dictionary.relative_values` times sqrt(2048): what the tasks store in place of raw codes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from latentbench.errors import StoreError, UserError
from latentbench_leaderboard._activity import activity_of
from latentbench_leaderboard._subjects import Entry, Subject, items_of_kind, judge_label
from latentbench_leaderboard._texts import Texts, read_texts, text_of
from latentbench_leaderboard._values import as_list, real, whole
from latentbench_leaderboard.bundles import foreign_excerpts

__all__ = ["Context", "Explanation", "Facts", "LatentFacts", "Score", "facts_of"]

_SCORES = ("detection", "fuzzing")
"""Kinds of judgements of `autointerp` in which flags are given by a latent's explanation."""


class Context(NamedTuple):
    """A text with the strength of a latent on each of its tokens."""

    document: str
    """sha256 of the document."""
    source: str
    """The set that the document is from."""
    start: int
    """Offset of the first token in the document, in tokens."""
    tokens: tuple[str, ...]
    """Texts of the tokens."""
    values: tuple[float, ...]
    """Strength on each token; 0 where the latent was measured and silent."""
    activated: int
    """Place of the token that the context was chosen for."""


class Score(NamedTuple):
    """How well an explanation did."""

    kind: str
    """"detection" or "fuzzing"."""
    value: float
    """Balanced accuracy, chance 0.5."""
    texts: int
    """Texts that it rests on."""
    unscored: int
    """Questions about this latent that got no verdict."""


class Explanation(NamedTuple):
    """What a judge says of a latent."""

    cell: str
    """Key of the cell."""
    version: str
    """Version of the task."""
    model: str
    """The judge's model, or its name where it has none."""
    text: str
    """The explanation."""
    scores: tuple[Score, ...]
    """Its scores; empty where nothing was scored."""


@dataclass
class LatentFacts:
    """What was measured of one latent."""

    number: int
    """Its index."""
    active: int = 0
    """Tokens of `core` on which it was active; 0 says only that none was seen."""
    peak: float | None = None
    """Largest strength; None if none was stored."""
    contexts: dict[tuple[str, int], Context] = field(default_factory=dict)
    """Contexts by document and offset of the activated token."""
    explanations: list[Explanation] = field(default_factory=list)
    """Explanations, one of each judge."""


@dataclass
class Facts:
    """What was measured of a dictionary."""

    latents: dict[int, LatentFacts] = field(default_factory=dict)
    """Latents of which anything was measured, by number."""
    tokens: int | None = None
    """Tokens that `LatentFacts.active` was counted on; None if nothing was counted."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Contexts that are not there, by reason."""


def facts_of(subject: Subject, local_texts: bool = False) -> Facts:
    """Read the items of a dictionary's cells.

    Args:
        subject: the dictionary.
        local_texts: whether to take texts from `texts.jsonl`, whatever their terms.

    Raises:
        UserError: an item file is damaged.
    """
    collector = _Collector(whole(subject.card.get("n_latents")), local_texts)
    try:
        _count(subject, collector)
        seen: set[Path] = set()
        for entry in _ok(subject):
            if entry.measured.path not in seen:
                seen.add(entry.measured.path)
                collector.measured(entry)
            if entry.task == "autointerp":
                collector.judged(entry)
    except StoreError as error:
        raise UserError(str(error)) from error
    return collector.facts


class _Collector:
    def __init__(self, width: int | None, local_texts: bool) -> None:
        self.facts = Facts()
        self._width = width
        self._local_texts = local_texts

    def latent(self, number: object) -> LatentFacts | None:
        """The facts of a latent; None if the dictionary has none of this number."""
        found = whole(number)
        if found is None or found < 0 or (self._width is not None and found >= self._width):
            return None
        return self.facts.latents.setdefault(found, LatentFacts(found))

    def measured(self, entry: Entry) -> None:
        """Peaks and contexts of a cell."""
        rows = items_of_kind(entry.measured, "row")
        for row in rows:
            for number, strengths in zip(
                as_list(row.get("latents")), as_list(row.get("strengths")), strict=False
            ):
                self._peak(number, strengths if isinstance(strengths, list) else [strengths])
        items = items_of_kind(entry.measured, "latent")
        texts = read_texts(entry.measured.path) if self._local_texts and items else {}
        skipped = entry.record.cell.token_policy.get("skip_first")
        edges = _Edges(rows, skipped if isinstance(skipped, int) else 0)
        for item in items:
            contexts = [one for name in ("contexts", "positives") for one in as_list(item.get(name))]
            for context in contexts:
                if isinstance(context, dict):
                    self._peak(item.get("latent"), [context.get("activation")])
                    self._context(item.get("latent"), context, texts, edges)

    def _peak(self, number: object, strengths: Iterable[object]) -> None:
        found = [value for one in strengths if (value := real(one)) is not None and value > 0]
        latent = self.latent(number) if found else None
        if latent is not None:
            latent.peak = max(found) if latent.peak is None else max(latent.peak, *found)

    def _context(self, number: object, context: dict[str, Any], texts: Texts, edges: _Edges) -> None:
        excerpt = None if foreign_excerpts(context) else context.get("excerpt")
        found = _read(context, excerpt or text_of(texts, context))
        if isinstance(found, str):
            self.facts.left_out[found] += 1
            return
        latent = self.latent(number)
        if latent is None:
            return
        key = (found.document, found.start + found.activated)
        known = latent.contexts.get(key)
        if known is None or len(known.tokens) < len(found.tokens):
            latent.contexts[key] = edges.cut(found)

    def judged(self, entry: Entry) -> None:
        """Explanations of a cell and their scores."""
        judgements = list(entry.folder.items("judgements"))
        flags: dict[tuple[str, object], list[dict[str, Any]]] = {}
        for one in judgements:
            if one.get("kind") in _SCORES:
                flags.setdefault((str(one["kind"]), one.get("latent")), []).append(one)
        for one in judgements:
            text = one.get("verdict")
            if one.get("kind") != "explanation" or one.get("status") != "ok" or not isinstance(text, str):
                continue
            latent = self.latent(one.get("latent")) if text.strip() else None
            if latent is None:
                continue
            scores = [_score(kind, flags.get((kind, latent.number), [])) for kind in _SCORES]
            latent.explanations.append(
                Explanation(
                    cell=entry.record.key,
                    version=str(entry.record.cell.task.get("version", "")),
                    model=str(one.get("model") or judge_label(entry.record.cell.judge) or "unknown"),
                    text=text.strip(),
                    scores=tuple(score for score in scores if score is not None),
                )
            )


class _Edges:
    """Where rows begin, and how many of their first tokens are not measured."""

    def __init__(self, rows: Iterable[Mapping[str, Any]], skipped: int) -> None:
        self._skipped = skipped
        self._starts: dict[str, list[int]] = {}
        for row in rows:
            if isinstance(row.get("start_token"), int):
                self._starts.setdefault(str(row.get("document", "")), []).append(row["start_token"])
        for starts in self._starts.values():
            starts.sort()

    def cut(self, context: Context) -> Context:
        """The context without leading tokens on which nothing is measured, or may be where rows are not known."""
        starts = self._starts.get(context.document, [])
        place = bisect_right(starts, context.start)
        row = starts[place - 1] if place else context.start
        unmeasured = min(self._skipped - (context.start - row), context.activated)
        first = 0
        while first < unmeasured and context.values[first] == 0:
            first += 1
        return context._replace(
            start=context.start + first,
            tokens=context.tokens[first:],
            values=context.values[first:],
            activated=context.activated - first,
        )


def _ok(subject: Subject) -> Iterator[Entry]:
    return (entry for entry in subject.entries if entry.record.status == "ok")


def _count(subject: Subject, collector: _Collector) -> None:
    activity = activity_of(subject)
    if activity is None:
        return
    collector.facts.tokens = activity.tokens
    for number, active in activity.active.items():
        latent = collector.latent(number)
        if latent is not None:
            latent.active = active


def _read(context: Mapping[str, Any], excerpt: object) -> Context | str:
    """A context with its text; or why it is left out."""
    start = context.get("start")
    if not isinstance(excerpt, dict) or not isinstance(start, int):
        return "without a text that may be shown"
    tokens, strengths = as_list(excerpt.get("tokens")), as_list(excerpt.get("activations"))
    values = [value for one in strengths if (value := real(one)) is not None]
    if not tokens or len(values) != len(strengths) or len(values) != len(tokens):
        return "without the strength of every token"
    activated = excerpt.get("activated", context.get("activated"))
    if not isinstance(activated, int) or not 0 <= activated < len(tokens):
        activated = values.index(max(values))
    return Context(
        document=str(context.get("document", "")),
        source=str(context.get("source", "")),
        start=start,
        tokens=tuple(map(str, tokens)),
        values=tuple(values),
        activated=activated,
    )


def _score(kind: str, judgements: Sequence[Mapping[str, Any]]) -> Score | None:
    """Mean of the shares of ones and of zeros that are answered right, as the task counts; None without both."""
    hits: dict[int, list[bool]] = {1: [], 0: []}
    answered = 0
    for one in judgements:
        truth, answers = as_list(one.get("truth")), as_list(one.get("verdict"))
        if one.get("status") != "ok" or len(truth) != len(answers):
            continue
        answered += 1
        for true, answer in zip(truth, answers, strict=True):
            if true in (0, 1):
                hits[int(true)].append(answer == true)
    if not hits[0] or not hits[1]:
        return None
    value = sum(sum(half) / len(half) for half in hits.values()) / 2
    return Score(kind, value, len(hits[0]) + len(hits[1]), len(judgements) - answered)
