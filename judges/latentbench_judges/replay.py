"""Judge `replay:PATH`: the stored replies of an earlier judge, read again with the present parser. Asks nobody.

PATH is a `judgements.jsonl`, or a folder in which all such files are taken. What a reply is not stored of is "missing".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from latentbench.errors import UserError
from latentbench.identity import sha256_json
from latentbench.store import read_lines
from latentbench_judges._answer import Answer
from latentbench_judges._options import checked_options
from latentbench_judges._parse import PARSER_VERSION, parse
from latentbench_judges._question import Question

__all__ = ["ReplayJudge", "ReplayOptions"]


class ReplayOptions(BaseModel):
    """Options of the judge."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    replies: Path
    """A `judgements.jsonl` or a folder with such files."""


class ReplayJudge:
    """See the module."""

    name = "replay"
    """Registered name."""
    role = "rubric"
    """What it can be asked."""

    def __init__(self, options: ReplayOptions) -> None:
        """A judge from stored replies.

        Raises:
            UserError: there are none.
        """
        path = options.replies
        files = sorted(path.rglob("judgements.jsonl")) if path.is_dir() else [path] if path.is_file() else []
        items = (item for file in files for item in read_lines(file))
        self._kept: dict[str, dict[str, Any]] = {}
        for item in items:
            if not item.get("question") or not (item.get("raw") or item.get("status") == "ok"):
                continue
            before = self._kept.setdefault(item["question"], item)
            if (before.get("raw"), before.get("verdict")) != (item.get("raw"), item.get("verdict")):
                raise UserError(
                    f"{str(path)!r} holds two replies to one question: name the file of one judge"
                )
        if not self._kept:
            raise UserError(
                f"{str(path)!r} holds no replies to questions: name a judgements.jsonl of a rubric's judge"
            )

    @classmethod
    def make(cls, argument: str, options: Mapping[str, Any]) -> ReplayJudge:
        """The judge of "replay:PATH"; errors as in the class."""
        replies = {"replies": argument} if argument else {}
        return cls(checked_options(ReplayOptions, {**replies, **options}, "replay"))

    def identity(self) -> dict[str, Any]:
        """Everything that can change a verdict."""
        kept = {key: [item.get("raw"), item.get("verdict")] for key, item in self._kept.items()}
        return {"name": self.name, "replies_sha256": sha256_json(kept), "parser": PARSER_VERSION}

    def answers(self, questions: Iterable[Question]) -> Iterator[Answer]:
        """The stored answers; a verdict that was read out of a reply is read again."""
        for question in questions:
            item = self._kept.get(question.key)
            if item is None:
                yield Answer(question.id, question.key, "missing", reason="no reply to this is stored")
                continue
            stored = Answer.from_item({**item, "id": question.id})
            if item.get("path") not in ("strict", "embedded", "anchored", None):
                yield stored
                continue
            found = parse(question, item["raw"])
            verdict = None if found.fields is None else found.fields[question.rubric.verdict]
            yield stored._replace(
                status=found.status,
                fields=found.fields,
                verdict=verdict,
                path=found.path,
                reason=found.reason,
            )
