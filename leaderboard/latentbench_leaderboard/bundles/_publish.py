"""What may be published of a cell: no text of sources whose terms are unknown or not free.

* `texts.jsonl`, which holds the texts that judges and local pages are shown, never leaves the machine.
* An excerpt stays if `latentbench.data.sources` allows excerpts of its source; others become null. (A corpus that is
  not in that table has none that are allowed.)
* Items from which text can be read back, or that hold much which no number follows from, are put through their task's
  entry point of `latentbench.published`.
* What a judge wrote about texts of other sources may quote them: its reply as it came and longer fields go, verdicts
  stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from latentbench.data import sources
from latentbench.registry import PUBLISHED
from latentbench_leaderboard._values import as_list

__all__ = [
    "Published",
    "foreign_excerpts",
    "guarded_latents",
    "publish",
    "published_items",
    "published_judgement",
]

_LONGEST_FIELD = 40
"""Characters of a judge's field that is a category, not a sentence."""
_NESTED = frozenset({dict, list})


class Published(NamedTuple):
    """A cell's items as they may be published."""

    items: list[dict[str, Any]]
    """The items."""
    judgements: list[dict[str, Any]]
    """The judgements."""
    excerpts_removed: int
    """Excerpts of sources that are not on the list."""
    replies_removed: int
    """Judgements that lost the judge's words."""
    reduced: bool
    """Whether the task put other items in the place of its own."""

    @property
    def changed(self) -> bool:
        """Whether anything differs from what is stored."""
        return self.reduced or self.excerpts_removed > 0 or self.replies_removed > 0


def publish(
    task: str,
    config: Mapping[str, Any],
    items: list[dict[str, Any]],
    judgements: list[dict[str, Any]],
    seen: Iterable[dict[str, Any]] | None = None,
) -> Published:
    """What may be published of a cell; the arguments are not changed.

    Args:
        task: name of its task.
        config: the task's options.
        items: its items.
        judgements: its judgements.
        seen: the items that its judge saw, where they are another cell's.
    """
    reduced = published_items(task, config, items)
    removed = 0
    kept = []
    for item in reduced:
        clean, n = _without_excerpts(item)
        kept.append(clean)
        removed += n
    guarded = guarded_latents(items if seen is None else seen)
    cleared = [published_judgement(one, guarded) for one in judgements]
    lost = sum(one is not other for one, other in zip(cleared, judgements, strict=True))
    return Published(kept, cleared, removed, lost, reduced != items)


def published_items(
    task: str, config: Mapping[str, Any], items: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The items as their task publishes them; most tasks publish them as they are."""
    if task not in PUBLISHED.names():
        return items
    made: list[dict[str, Any]] = PUBLISHED.load(task)(items, config)
    return made


def foreign_excerpts(item: Any) -> set[str]:
    """Sources of the excerpts in an item that may not be published."""
    found: set[str] = set()
    if isinstance(item, dict):
        if item.get("excerpt") is not None and not _free(item.get("source")):
            found.add(str(item.get("source")))
        for inner in item.values():
            found |= foreign_excerpts(inner)
    elif isinstance(item, list) and not _NESTED.isdisjoint(map(type, item)):
        for inner in item:
            found |= foreign_excerpts(inner)
    return found


def _free(source: object) -> bool:
    known = sources().get(source) if isinstance(source, str) else None
    return known is not None and known.excerpts


def _without_excerpts(item: dict[str, Any]) -> tuple[dict[str, Any], int]:
    if not foreign_excerpts(item):
        return item, 0
    made, removed = _walk(item)
    assert isinstance(made, dict)
    return made, removed


def _walk(value: Any) -> tuple[Any, int]:
    if isinstance(value, dict):
        foreign = value.get("excerpt") is not None and not _free(value.get("source"))
        parts = {
            key: (None, 1) if foreign and key == "excerpt" else _walk(inner) for key, inner in value.items()
        }
        return {key: inner for key, (inner, _) in parts.items()}, sum(n for _, n in parts.values())
    if isinstance(value, list):
        walked = [_walk(inner) for inner in value]
        return [inner for inner, _ in walked], sum(n for _, n in walked)
    return value, 0


def guarded_latents(items: Iterable[dict[str, Any]]) -> set[str]:
    """Latents with a context of a source that is not on the list; "" where items with contexts name no latent."""
    found = set()
    for item in items:
        contexts = [
            one for name in ("contexts", "positives", "negatives") for one in as_list(item.get(name))
        ]  # other items have counts under these names
        if any(isinstance(one, dict) and not _free(one.get("source")) for one in contexts):
            found.add(str(item.get("latent", "")))
    return found


def published_judgement(judgement: dict[str, Any], guarded: set[str]) -> dict[str, Any]:
    """The judgement without the judge's words, where it may quote texts; itself if there is nothing to leave out.

    Args:
        judgement: one.
        guarded: see `guarded_latents`.
    """
    return _without_words(judgement) if _may_quote(judgement, guarded) else judgement


def _may_quote(judgement: Mapping[str, Any], guarded: set[str]) -> bool:
    """Whether the judge saw a text of another source: one on a mixed set, which names no latent, may have."""
    return bool(guarded) and ("" in guarded or str(judgement.get("latent", "")) in {"", *guarded})


def _without_words(judgement: dict[str, Any]) -> dict[str, Any]:
    made = _without_raw(judgement)
    fields = made.get("fields")
    if isinstance(fields, dict):
        made["fields"] = {
            name: None if _is_sentence(value) and value != made.get("verdict") else value
            for name, value in fields.items()
        }
    if "raw" in made and _is_sentence(made.get("reason")):
        made["reason"] = (
            None  # why a model's reply has no verdict: a refusal stands there in the model's words
        )
    return judgement if made == judgement else made


def _is_sentence(value: object) -> bool:
    return isinstance(value, str) and len(value) > _LONGEST_FIELD


def _without_raw(value: Any) -> Any:
    """The same with every reply as it came emptied, those of a panel's members included."""
    if isinstance(value, dict):
        return {key: "" if key == "raw" and inner else _without_raw(inner) for key, inner in value.items()}
    return value
