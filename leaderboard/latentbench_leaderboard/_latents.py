"""The latents of one dictionary with their contexts and verdicts, as shards for the latents page.

Contexts hold document hash and offsets; text comes from the item's own `excerpt` (sources that allow it) or,
in a local build, from `texts.jsonl` beside the items: lines of {"document", "start", "end", "tokens",
"activations", "activated"}. A context without text is listed by hash and offsets.

Index shard: columns over all latents in the order of the shards. Latent shard: `_PER_SHARD` latents, each {n:
number, e: events, t: token classes, y: tokens on which it is active, k: thresholds kept at, g: tokens that its
direction promotes, v: verdicts, p: contexts, m: how many there are, q: contexts without the latent, z: steering
samples, see `samples_by_latent`}. Context: {d: document, o: source, s, f:
offsets, a: activation, c: token class, w: tokens, h: activation of each token in fifths of the latent's
largest, i: position of the activated token}.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from latentbench.errors import StoreError, UserError
from latentbench_leaderboard._activity import Activity, activity_of
from latentbench_leaderboard._columns import tokens_watched
from latentbench_leaderboard._format import clip
from latentbench_leaderboard._steering import SteeringBook, samples_by_latent
from latentbench_leaderboard._subjects import Entry, Subject, items_of_kind
from latentbench_leaderboard._texts import Place, Texts, read_texts, text_of
from latentbench_leaderboard._values import as_list, real, whole

__all__ = ["CONTEXTS_SHOWN", "LatentBook", "latent_book"]

CONTEXTS_SHOWN = 8
"""Strongest contexts of a latent that the page holds; the items hold the rest."""
_NEGATIVES_SHOWN = 4
_PER_SHARD = 20
_TOKENS_SHOWN = 96
_TOKEN_CHARS = 80
_STEPS = 5
_PROMOTED = 10


@dataclass(frozen=True)
class LatentBook:
    """What the latents page of a dictionary shows."""

    index: dict[str, Any]
    """The index shard."""
    shards: list[list[dict[str, Any]]]
    """Latents, `_PER_SHARD` each."""
    total: int
    """Number of latents."""
    with_text: int
    """Contexts shown with their text."""
    withheld: int
    """Contexts shown without."""


@dataclass
class _Latent:
    number: int
    events: int | None = None
    classes: int | None = None
    kept: dict[str, bool] = field(default_factory=dict)
    promotes: list[str] = field(default_factory=list)
    contexts: dict[Place, dict[str, Any]] = field(default_factory=dict)
    negatives: dict[Place, dict[str, Any]] = field(default_factory=dict)
    verdicts: dict[str, dict[str, Any]] = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)


def latent_book(
    subject: Subject, local_texts: bool, steering: SteeringBook | None = None
) -> LatentBook | None:
    """The latents of a dictionary from the items of its cells, None if no cell stored any.

    Args:
        subject: the dictionary.
        local_texts: whether to show texts from `texts.jsonl`.
        steering: the dictionary's transcripts; latents that they steer have a place too.

    Raises:
        UserError: an item file is damaged.
    """
    latents: dict[int, _Latent] = {}
    try:
        for entry in _entries(subject):
            _add_items(latents, entry, local_texts)
        activity = activity_of(subject)
    except StoreError as error:
        raise UserError(str(error)) from error
    for number, samples in samples_by_latent(steering).items():
        latents.setdefault(number, _Latent(number)).samples = samples
    if not latents:
        return None
    judges = sorted({judge for latent in latents.values() for judge in latent.verdicts})
    ordered = sorted(latents.values(), key=lambda latent: _order(latent, judges))
    shown = [_shown(latent, activity) for latent in ordered]
    contexts = [context for one in shown for context in (*one["p"], *one["q"])]
    with_text = sum(context["w"] is not None for context in contexts)
    return LatentBook(
        index=_index(ordered, shown, judges, activity),
        shards=[shown[start : start + _PER_SHARD] for start in range(0, len(shown), _PER_SHARD)],
        total=len(ordered),
        with_text=with_text,
        withheld=len(contexts) - with_text,
    )


def _entries(subject: Subject) -> list[Entry]:
    """The cells to read: of every task and judge the ok one that watched most tokens."""
    best: dict[tuple[str, str | None], Entry] = {}
    for entry in subject.entries:
        if entry.record.status == "ok":
            known = best.get((entry.task, entry.judge))
            if known is None or (tokens_watched(entry) or 0) > (tokens_watched(known) or 0):
                best[(entry.task, entry.judge)] = entry
    return list(best.values())


def _add_items(latents: dict[int, _Latent], entry: Entry, local_texts: bool) -> None:
    items = items_of_kind(entry.measured, "latent")
    texts = read_texts(entry.measured.path) if local_texts and items else {}
    for item in items:
        number = whole(item.get("latent"))
        if number is None:
            continue
        latent = latents.setdefault(number, _Latent(number))
        latent.events = latent.events if item.get("events") is None else whole(item["events"])
        latent.classes = latent.classes if item.get("token_classes") is None else whole(item["token_classes"])
        kept = item.get("kept")
        latent.kept |= (
            {str(k): v for k, v in kept.items() if isinstance(v, bool)} if isinstance(kept, dict) else {}
        )
        latent.promotes = [str(token) for token in as_list(item.get("promotes"))] or latent.promotes
        latent.contexts |= _contexts((item.get("contexts"), item.get("positives")), texts)
        latent.negatives |= _contexts((item.get("negatives"),), texts)
    for verdict in entry.folder.items("judgements", "judgement"):
        number = whole(verdict.get("latent"))
        if number is not None and entry.judge is not None:
            latents.setdefault(number, _Latent(number)).verdicts[entry.judge] = verdict


def _contexts(lists: Iterable[Any], texts: Texts) -> dict[Place, dict[str, Any]]:
    found = {}
    for context in _objects(lists):
        place = (str(context.get("document", "")), whole(context.get("start")), whole(context.get("end")))
        found[place] = {**context, "excerpt": context.get("excerpt") or text_of(texts, context)}
    return found


def _objects(lists: Iterable[Any]) -> Iterator[dict[str, Any]]:
    for values in lists:
        yield from (value for value in as_list(values) if isinstance(value, dict))


def _order(latent: _Latent, judges: list[str]) -> tuple[float, float, int]:
    """Best judged first, then the most active."""
    scores = [score for judge in judges[:1] if (score := _score(latent, judge)) is not None]
    return (-max(scores, default=float("-inf")), -(latent.events or 0), latent.number)


def _score(latent: _Latent, judge: str) -> float | None:
    return real(latent.verdicts.get(judge, {}).get("score"))


def _shown(latent: _Latent, activity: Activity | None) -> dict[str, Any]:
    strongest = sorted(
        latent.contexts.items(), key=lambda pair: (-(real(pair[1].get("activation")) or 0.0), str(pair[0]))
    )
    shown = [context for _, context in strongest[:CONTEXTS_SHOWN]]
    negatives = [context for _, context in sorted(latent.negatives.items(), key=lambda pair: str(pair[0]))]
    strengths = [real(context.get("activation")) or 0.0 for context in shown]
    peak = max([0.0, *strengths, *(a for context in shown for a in _activations(context))])
    return {
        "n": latent.number,
        "e": latent.events,
        "t": latent.classes,
        "y": None if activity is None else activity.active.get(latent.number, 0),
        "k": sorted((k for k, kept in latent.kept.items() if kept), key=_threshold, reverse=True),
        "g": [token[:_TOKEN_CHARS] for token in latent.promotes[:_PROMOTED]],
        "v": [_verdict(judge, verdict) for judge, verdict in sorted(latent.verdicts.items())],
        "p": [_context(context, peak) for context in shown],
        "m": len(latent.contexts),
        "q": [_context(context, peak) for context in negatives[:_NEGATIVES_SHOWN]],
        "z": latent.samples,
    }


def _verdict(judge: str, verdict: Mapping[str, Any]) -> dict[str, Any]:
    score = real(verdict.get("score"))
    return {
        "j": judge,
        "s": None if score is None else _round(score),
        "x": clip(str(verdict.get("status", "")), 60),
        "r": clip(str(verdict.get("reason") or ""), 600),
    }


def _context(context: Mapping[str, Any], peak: float) -> dict[str, Any]:
    activation = real(context.get("activation"))
    shown: dict[str, Any] = {
        "d": clip(str(context.get("document", "")), 64),
        "o": clip(str(context.get("source", "")), 60),
        "s": whole(context.get("start")),
        "f": whole(context.get("end")),
        "a": None if activation is None else _round(activation),
        "c": clip(str(context.get("token_class") or ""), 40),
        "w": None,
    }
    excerpt = context.get("excerpt")
    if isinstance(excerpt, dict) and isinstance(excerpt.get("tokens"), list):
        shown |= _highlighted(excerpt, _activations(context), peak)
    return shown


def _highlighted(excerpt: Mapping[str, Any], activations: list[float], peak: float) -> dict[str, Any]:
    tokens = [str(token)[:_TOKEN_CHARS] for token in excerpt["tokens"]]
    middle = whole(excerpt.get("activated"))
    first = max(0, min((middle or 0) - _TOKENS_SHOWN // 2, len(tokens) - _TOKENS_SHOWN))
    steps = [
        0 if peak <= 0 or a <= 0 else min(_STEPS, 1 + int(_STEPS * (a / peak) - 1e-9)) for a in activations
    ]
    return {
        "w": tokens[first : first + _TOKENS_SHOWN],
        "h": steps[first : first + _TOKENS_SHOWN],
        "i": None if middle is None else middle - first,
    }


def _activations(context: Mapping[str, Any]) -> list[float]:
    excerpt = context.get("excerpt")
    values = excerpt.get("activations") if isinstance(excerpt, dict) else None
    if not isinstance(values, list):
        return []
    return [real(value) or 0.0 for value in values]


def _index(
    ordered: list[_Latent], shown: list[dict[str, Any]], judges: list[str], activity: Activity | None
) -> dict[str, Any]:
    scores = {judge: [_score(latent, judge) for latent in ordered] for judge in judges}
    return {
        "perShard": _PER_SHARD,
        "latent": [latent.number for latent in ordered],
        "events": [latent.events for latent in ordered],
        "tokens": None if activity is None else activity.tokens,
        "active": [one["y"] for one in shown],
        "steered": [len(latent.samples) for latent in ordered],
        "kept": [one["k"] for one in shown],
        "word": [next((c["c"] for c in one["p"] if c["c"]), "") for one in shown],
        "texts": [sum(context["w"] is not None for context in (*one["p"], *one["q"])) for one in shown],
        "judges": judges,
        "scores": [[None if score is None else _round(score) for score in scores[judge]] for judge in judges],
    }


def _threshold(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _round(value: float) -> float:
    return float(f"{value:.4g}")
