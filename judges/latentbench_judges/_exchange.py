"""How a question becomes a request and a reply an answer: the same for live calls and for batches, with one cache."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from latentbench.errors import UserError
from latentbench.identity import sha256_json
from latentbench.store import ResponseCache
from latentbench_judges._answer import Answer, Usage
from latentbench_judges._parse import read_reply
from latentbench_judges._question import Question, new_nonce
from latentbench_judges._spending import Price
from latentbench_judges._transport import Reply

if TYPE_CHECKING:
    from latentbench_judges.openai_judge import OpenAIJudgeOptions

__all__ = ["Exchange"]


class Exchange:
    """Requests and answers of one judge."""

    def __init__(self, options: OpenAIJudgeOptions, identity: Mapping[str, Any], price: Price | None) -> None:
        """Those of a judge.

        Args:
            options: see `OpenAIJudgeOptions`.
            identity: the judge's, part of every key.
            price: dollars per token, if known.
        """
        self._options, self._identity, self._price = options, dict(identity), price

    def key(self, question: Question) -> str:
        """Hash of everything that is asked, 64 characters: under which the cache notes that it was answered."""
        return sha256_json(self._request(question, None))

    def body(self, question: Question) -> dict[str, Any]:
        """Arguments of the `openai` client for a chat completion, with a nonce of its own."""
        o = self._options
        body: dict[str, Any] = {"model": o.model, "messages": self._messages(question)}
        optional = {"temperature": o.temperature, "top_p": o.top_p, o.token_field: o.max_tokens}
        optional["seed"] = None if o.seed is None else o.seed + question.replicate
        body |= {name: value for name, value in optional.items() if value is not None}
        if o.schema_mode == "strict":
            schema = {"name": question.rubric.name, "strict": True, "schema": question.rubric.schema_}
            # As an extra: the client would walk through the schema at every call, a fifth of its time.
            body["extra_body"] = {"response_format": {"type": "json_schema", "json_schema": schema}}
        return body

    def stored(self, question: Question, cache: ResponseCache) -> Answer | None:
        """The answer that the cache holds."""
        returned = self._options.expect
        if returned is None:
            known = cache.get(self._request(question, None))
            if known is None:
                return None
            returned = known["model"]
        kept = cache.get(self._request(question, returned))
        if kept is None:
            return None
        reply = Reply(kept["raw"], kept["finish"], None, kept["model"], Usage())
        answer = _answer(question, reply)._replace(stored=True)
        return answer if answer.status == "ok" else None

    def answer(self, question: Question, reply: Reply, cache: ResponseCache) -> Answer:
        """The answer that a reply holds; kept if it has a verdict."""
        answer = _answer(question, reply)
        if answer.status == "ok":
            kept = {"raw": reply.raw, "finish": reply.finish, "model": reply.model}
            cache.put_all(
                [
                    (self._request(question, None), {"model": reply.model}),
                    (self._request(question, reply.model), {**kept, "usage": reply.usage._asdict()}),
                ]
            )
        return answer

    def unexpected(self, reply: Reply) -> UserError | None:
        """The error if another model answered than the user expects."""
        options = self._options
        if options.expect is None or reply.model == options.expect:
            return None
        return UserError(
            f"{options.url} answers as {reply.model!r}, and {options.expect!r} is expected (option expect): "
            "verdicts of two models must not be mixed"
        )

    def entry(self, rubric: str, outcome: str, usage: Usage, cost: float) -> dict[str, Any]:
        """A call's line of the ledger.

        Args:
            rubric: name of the rubric.
            outcome: "answered", "failed", "refused" or "given up".
            usage: tokens.
            cost: dollars; written if the model has a price.
        """
        return {
            "url": self._options.url,
            "model": self._options.model,
            "rubric": rubric,
            "outcome": outcome,
            **usage._asdict(),
            "dollars": None if self._price is None else round(cost, 8),
        }

    def _request(self, question: Question, returned: str | None) -> dict[str, Any]:
        """The key of a reply; without the model that gave it, of the note which model did."""
        # The question's key is a hash of messages, rubric, schema and repetition.
        return {"judge": self._identity, "model_returned": returned, "question": question.key}

    def _messages(self, question: Question) -> list[dict[str, str]]:
        messages = question.messages(new_nonce())
        if self._options.schema_mode == "prompt":
            form = f"\n\n{_form_in_words(question)}"
            messages[-1] = {**messages[-1], "content": messages[-1]["content"] + form}
        return messages


def _form_in_words(question: Question) -> str:
    """The form of the answer, for a judge that is given no schema."""
    rubric = question.rubric
    return (
        f"Answer with one JSON object of this JSON schema and nothing else:\n{json.dumps(rubric.schema_)}\n"
        f"For example (not about these texts): {json.dumps(rubric.example)}"
    )


def _answer(question: Question, reply: Reply) -> Answer:
    found = read_reply(question, reply.raw, reply.finish, reply.refusal)
    return Answer(
        id=question.id,
        key=question.key,
        status=found.status,
        fields=found.fields,
        verdict=None if found.fields is None else found.fields[question.rubric.verdict],
        path=found.path,
        reason=found.reason,
        raw=reply.raw,
        model=reply.model,
        usage=reply.usage,
    )
