"""One batch of questions to a server, in an event loop of its own: cache, workers, answers as they come."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal

from latentbench.store import ResponseCache
from latentbench_judges._answer import Answer, Usage
from latentbench_judges._exchange import Exchange
from latentbench_judges._question import Question
from latentbench_judges._transport import Failure, Transport

if TYPE_CHECKING:
    from latentbench_judges.openai_judge import OpenAIJudge

__all__ = ["Asking"]

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
        self._exchange = Exchange(judge.options, judge.identity(), judge.price)
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
        stored = self._exchange.stored(question, cache)
        if stored is not None:
            return stored
        if self._silent >= _GIVE_UP:
            reason = f"not asked: {_GIVE_UP} questions in a row got no reply"
            return Answer(question.id, question.key, "transport_error", reason=reason)
        outcome = await transport.ask(self._exchange.body(question), self._noted(question))
        if isinstance(outcome, Failure):
            self._silent += not outcome.over_budget
            status: Literal["over_budget", "transport_error"] = (
                "over_budget" if outcome.over_budget else "transport_error"
            )
            return Answer(question.id, question.key, status, reason=outcome.reason)
        self._silent = 0
        if (error := self._exchange.unexpected(outcome)) is not None:
            raise error
        return self._exchange.answer(question, outcome, cache)

    def _noted(self, question: Question) -> Callable[[str, Usage, float], None]:
        def note(outcome: str, usage: Usage, cost: float) -> None:
            self.judge.ledger.add(self._exchange.entry(question.rubric.name, outcome, usage, cost))

        return note
