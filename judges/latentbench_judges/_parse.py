"""From a reply to a verdict: strict JSON, then JSON within the reply, then a line that names the verdict.

A reply in which two different verdicts are found is no verdict: a judge that quotes a text which rates itself must not
be read the wrong way (AxBench takes the last match, and is hijacked so). Nothing off the menu is accepted.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from jsonschema.exceptions import best_match

from latentbench_judges._answer import Path, Status
from latentbench_judges._question import Question
from latentbench_judges.rubric import RATING

__all__ = ["PARSER_VERSION", "Parsed", "parse", "read_reply"]

PARSER_VERSION = "1"
"""Raised whenever a reply may be read differently; part of every cache key."""
_REFUSAL = re.compile(
    r"\s*(i(['\u2019]m| am) (sorry|unable)|sorry,|i can['\u2019]?t|i cannot|i can not|i won['\u2019]?t)",
    re.IGNORECASE,
)
_LABELS = ("score", "rating", "grade", "verdict", "answer")
_STEPS = 200
"""Opening braces that are tried, at most."""


class Parsed(NamedTuple):
    """What a reply says."""

    status: Status
    """"ok", "parse_failed", "refused", "truncated" or "filtered"."""
    fields: dict[str, Any] | None = None
    """The answer by property; only the verdict where a line named it. Of ratings the values alone, in order."""
    path: Path | None = None
    """How it was read."""
    reason: str | None = None
    """Why there is no verdict."""


def read_reply(question: Question, raw: str, finish: str | None, refusal: str | None) -> Parsed:
    """A server's reply.

    Args:
        question: what was asked.
        raw: the text.
        finish: why the server stopped ("stop", "length", "content_filter"); None if it does not say.
        refusal: what the model says in place of an answer.
    """
    if finish == "content_filter":
        return Parsed("filtered", reason="the server's content filter stopped the reply")
    if refusal:
        return Parsed("refused", reason=f"refused: {refusal[:200]}")
    found = parse(question, raw)
    if found.status == "ok" and not (finish == "length" and found.path != "strict"):
        return found
    if finish == "length":
        return Parsed("truncated", reason="the reply was cut at the token limit: raise max_tokens")
    if _REFUSAL.match(raw):
        return Parsed("refused", reason=f"refused: {raw.strip()[:200]}")
    return found


def parse(question: Question, raw: str) -> Parsed:
    """The verdict in a reply."""
    whole = _json(raw.strip())
    if isinstance(whole, dict):
        wrong = _wrong(question, whole)
        return (
            Parsed("ok", _plain(question, whole), "strict")
            if wrong is None
            else Parsed("parse_failed", reason=f"JSON of another form: {wrong}")
        )
    name = question.rubric.verdict
    embedded = [found for found in _objects(raw) if name in found]
    anchored = _anchored(question, raw)
    # One of another form counts, too, and one that is cut off: it may be the judge's own, the others what it quotes.
    verdicts = {json.dumps(found[name], sort_keys=True) for found in (*embedded, *anchored)}
    mentioned = len(re.findall(rf'"{re.escape(name)}"\s*:', raw))
    if len(verdicts) > 1 or (verdicts and mentioned > len(embedded)):
        return Parsed(
            "parse_failed", reason=f"{max(len(verdicts), mentioned)} different verdicts in one reply"
        )
    sound = [found for found in embedded if _wrong(question, found) is None]
    if sound or anchored:
        if sound:
            return Parsed("ok", _plain(question, sound[-1]), "embedded")
        return Parsed("ok", anchored[-1], "anchored")
    return Parsed("parse_failed", reason="no verdict of the asked form" if raw.strip() else "an empty reply")


def _wrong(question: Question, answer: dict[str, Any]) -> str | None:
    error = best_match(question.rubric.validator.iter_errors(answer))
    if error is not None:
        return str(error.message)[:200]
    verdict = answer[question.rubric.verdict]
    if question.count is not None and len(verdict) != question.count:
        return f"{len(verdict)} verdicts for {question.count} items"
    if question.rubric.kind == "ratings":
        number, value = RATING
        for place, one in enumerate(verdict, start=1):
            if type(one[number]) is not int or one[number] != place:
                return f"item {place} is numbered {one[number]!r}"
        verdict = [one[value] for one in verdict]
    # JSON schema takes true for 1 and 1.0 for 1; the menu's own value is what counts.
    answers = verdict if question.rubric.lists else [verdict]
    if question.rubric.menu and any(
        not any(one == known and type(one) is type(known) for known in question.rubric.menu)
        for one in answers
    ):
        return f"{verdict!r} is not on the menu {list(question.rubric.menu)}"
    return None


def _plain(question: Question, answer: dict[str, Any]) -> dict[str, Any]:
    """An answer of the right form, ratings without their numbers."""
    rubric = question.rubric
    if rubric.kind != "ratings":
        return answer
    return {**answer, rubric.verdict: [one[RATING[1]] for one in answer[rubric.verdict]]}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys are all different: of two verdicts under one key, Python would take the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key comes twice")
    return found


def _json(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        return None


def _objects(raw: str) -> list[dict[str, Any]]:
    """The JSON objects within a reply, as far as it is looked through."""
    decoder, place = json.JSONDecoder(object_pairs_hook=_unique), 0
    found: list[dict[str, Any]] = []
    for _ in range(_STEPS):
        place = raw.find("{", place)
        if place < 0:
            break
        try:
            one, place = decoder.raw_decode(raw, place)
        except (ValueError, RecursionError):
            place += 1
            continue
        found.append(one)
    return found


def _anchored(question: Question, raw: str) -> list[dict[str, Any]]:
    """Every line that is nothing but a label and a value of the menu: "Rating: [[2]]", "**Score:** 4.", "score = 1"."""
    rubric = question.rubric
    if rubric.kind != "choice":
        return []
    highest = f"(?:\\s*(?:/|out of)\\s*{rubric.scale[1]:g})?" if rubric.scale else ""
    values = "|".join(re.escape(str(one)) for one in sorted(rubric.menu, key=lambda one: -len(str(one))))
    labels = "|".join(map(re.escape, dict.fromkeys([rubric.verdict, *_LABELS])))
    line = re.compile(
        rf"[\s*#\-]*(?:final\s+|overall\s+)?(?:{labels})[\s*\"']*[:=][\s*\"'\[(]*({values})[\s*\"'\])]*{highest}[\s*.\"'\])]*",
        re.IGNORECASE,
    )
    known = {str(one).lower(): one for one in rubric.menu}
    matches = (line.fullmatch(text) for text in raw.splitlines())
    return [{rubric.verdict: known[match.group(1).lower()]} for match in matches if match]
