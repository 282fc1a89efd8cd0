"""One batch of questions to a server, in an event loop of its own: cache, workers, answers as they come."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal

from latentbench.errors import UserError
from latentbench.store import ResponseCache
from latentbench_judges._answer import Answer, Usage
from latentbench_judges._parse import read_reply
from latentbench_judges._question import Question, new_nonce
from latentbench_judges._transport import Failure, Reply, Transport

if TYPE_CHECKING:
    from latentbench_judges.openai_judge import OpenAIJudge

__all__ = ["Asking", "form_in_words"]

_GIVE_UP = 25
"""Questions in a row without a reply, after which the rest is not asked: the server is gone."""


class Asking:
    """See the module; lives as long as one call of `OpenAIJudge.answers`."""

    def __init__(
        self,
        judge: OpenAIJudge,
        questions: Iterable[Question],
        give: Callable[[Answer | BaseException | None], None],
    ) -> None:
        """Questions to a judge.

        Args:
            judge: whom to ask.
            questions: what to ask; taken as there is room for them.
            give: told each answer, then None, or the exception that ended it.
        """
        self.judge, self.give = judge, give
        self._questions = iter(questions)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._identity = judge.identity()
        self._silent = 0
        self._stopped = threading.Event()

    def main(self) -> None:
        """Ask everything; for a thread of its own."""
        try:
            asyncio.run(self._all())
        except asyncio.CancelledError:
            pass
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits for answers
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            self.give(error)
            return
        self.give(None)

    def stop(self) -> None:
        """Give up what is under way."""
        self._stopped.set()
        loop, task = self._loop, self._task
        if loop is not None and task is not None and not loop.is_closed():
            try:
                loop.call_soon_threadsafe(task.cancel)
            except RuntimeError:  # it closed in between: there is nothing left to give up
                return

    async def _all(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        judge = self.judge
        transport = Transport(judge.options, judge.key, judge.price, judge.spending)
        try:
            with ResponseCache(judge.cache) as cache, judge.ledger.open():
                async with asyncio.TaskGroup() as group:
                    for _ in range(judge.options.concurrency):
                        group.create_task(self._work(transport, cache))
        finally:
            await transport.close()

    async def _work(self, transport: Transport, cache: ResponseCache) -> None:
        for question in self._questions:
            if self._stopped.is_set():
                return
            self.give(await self._one(question, transport, cache))

    async def _one(self, question: Question, transport: Transport, cache: ResponseCache) -> Answer:
        stored = self._stored(question, cache)
        if stored is not None:
            return stored
        if self._silent >= _GIVE_UP:
            reason = f"not asked: {_GIVE_UP} questions in a row got no reply"
            return Answer(question.id, question.key, "transport_error", reason=reason)
        outcome = await transport.ask(self._body(question), self._noted(question))
        if isinstance(outcome, Failure):
            self._silent += not outcome.over_budget
            status: Literal["over_budget", "transport_error"] = (
                "over_budget" if outcome.over_budget else "transport_error"
            )
            return Answer(question.id, question.key, status, reason=outcome.reason)
        self._silent = 0
        options = self.judge.options
        if options.expect is not None and outcome.model != options.expect:
            raise UserError(
                f"{options.url} answers as {outcome.model!r}, and {options.expect!r} is expected (option expect): "
                "verdicts of two models must not be mixed"
            )
        answer = _answer(question, outcome)
        if answer.status == "ok":
            kept = {"raw": outcome.raw, "finish": outcome.finish, "model": outcome.model}
            cache.put_all(
                [
                    (self._request(question, None), {"model": outcome.model}),
                    (self._request(question, outcome.model), {**kept, "usage": outcome.usage._asdict()}),
                ]
            )
        return answer

    def _stored(self, question: Question, cache: ResponseCache) -> Answer | None:
        returned = self.judge.options.expect
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

    def _request(self, question: Question, returned: str | None) -> dict[str, Any]:
        """The key of a reply; without the model that gave it, of the note which model did."""
        # The question's key is a hash of messages, rubric, schema and repetition.
        return {"judge": self._identity, "model_returned": returned, "question": question.key}

    def _messages(self, question: Question, nonce: str | None) -> list[dict[str, str]]:
        messages = list(question.plain_messages if nonce is None else question.messages(nonce))
        if self.judge.options.schema_mode == "prompt":
            form = f"\n\n{form_in_words(question)}"
            messages[-1] = {**messages[-1], "content": messages[-1]["content"] + form}
        return messages

    def _body(self, question: Question) -> dict[str, Any]:
        o = self.judge.options
        body: dict[str, Any] = {"model": o.model, "messages": self._messages(question, new_nonce())}
        optional = {"temperature": o.temperature, "top_p": o.top_p, o.token_field: o.max_tokens}
        optional["seed"] = None if o.seed is None else o.seed + question.replicate
        body |= {name: value for name, value in optional.items() if value is not None}
        if o.schema_mode == "strict":
            schema = {"name": question.rubric.name, "strict": True, "schema": question.rubric.schema_}
            # As an extra: the client would walk through the schema at every call, a fifth of its time.
            body["extra_body"] = {"response_format": {"type": "json_schema", "json_schema": schema}}
        return body

    def _noted(self, question: Question) -> Any:
        def note(outcome: str, usage: Usage, cost: float) -> None:
            self.judge.ledger.add(
                {
                    "url": self.judge.options.url,
                    "model": self.judge.options.model,
                    "rubric": question.rubric.name,
                    "outcome": outcome,
                    **usage._asdict(),
                    "dollars": None if self.judge.price is None else round(cost, 8),
                }
            )

        return note


def form_in_words(question: Question) -> str:
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
