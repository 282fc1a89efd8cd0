"""One call to an OpenAI-compatible server: sent with the `openai` client, tried again in one place."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from latentbench.errors import UserError
from latentbench_judges._answer import Usage
from latentbench_judges._faults import Passing, fault, retrying
from latentbench_judges._pace import Pace
from latentbench_judges._spending import Bound, Price, Spending, bound

if TYPE_CHECKING:
    from aiolimiter import AsyncLimiter
    from openai import AsyncOpenAI

    from latentbench_judges.openai_judge import OpenAIJudgeOptions

__all__ = ["Failure", "Reply", "Transport", "most_of", "reply_of"]


class Reply(NamedTuple):
    """What the server said."""

    raw: str
    """The text."""
    finish: str | None
    """Why it stopped."""
    refusal: str | None
    """What the model says in place of an answer."""
    model: str
    """The model, as the server names it."""
    usage: Usage
    """Tokens."""


class Failure(NamedTuple):
    """Why there is no reply."""

    over_budget: bool
    """Whether a cap forbade the call; the server was at fault otherwise."""
    reason: str
    """In words."""


class _OverBudget(Exception):
    """A cap forbids the next try."""


class Transport:
    """Calls with retries, within a pace and caps. Lives in one event loop."""

    def __init__(
        self, options: OpenAIJudgeOptions, key: str, price: Price | None, spending: Spending
    ) -> None:
        """A client for one run.

        Args:
            options: see `OpenAIJudgeOptions`.
            key: the secret key; it is in no message of this class.
            price: dollars per token, if known.
            spending: caps, shared by all runs of a judge.
        """
        from aiolimiter import AsyncLimiter
        from openai import AsyncOpenAI

        self.pace = Pace(options.concurrency)
        self._options, self._key, self._price, self._spending = options, key, price, spending
        self._client: AsyncOpenAI = AsyncOpenAI(
            api_key=key, base_url=options.url, max_retries=0, timeout=options.timeout_seconds
        )
        self._settled = asyncio.Event()
        self._limiters: list[tuple[AsyncLimiter, float | None]] = []
        if options.requests_per_minute:
            self._limiters.append((AsyncLimiter(options.requests_per_minute, 60), 1.0))
        if options.tokens_per_minute:
            self._limiters.append((AsyncLimiter(options.tokens_per_minute, 60), None))

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def ask(
        self, body: Mapping[str, Any], note: Callable[[str, Usage, float], None]
    ) -> Reply | Failure:
        """Send one chat completion, several times if need be.

        Args:
            body: the request.
            note: told the outcome, usage and dollars of each try.

        Raises:
            UserError: the server refuses what no further try would mend: key, model, form of the request.
        """
        import tenacity

        most = most_of(body, self._options, self._price)
        tries = retrying(tenacity.AsyncRetrying, self._options)
        try:
            async for attempt in tries:
                with attempt:
                    return await self._once(body, most, note)
        except Passing as error:
            return Failure(False, f"{error} (tried {tries.statistics['attempt_number']} times)")
        except _OverBudget as error:
            return Failure(True, str(error))
        raise AssertionError("tenacity ends with a result or an exception")

    async def _once(
        self, body: Mapping[str, Any], most: Bound, note: Callable[[str, Usage, float], None]
    ) -> Reply:
        for limiter, amount in self._limiters:
            await limiter.acquire(min(most.tokens, limiter.max_rate) if amount is None else amount)
        async with self.pace.slot():
            await self._room(most)
            spent, usage, outcome = most, Usage(), "given up"  # what is cancelled may be charged in full
            try:
                reply = await self._sent(body)
                usage, outcome = reply.usage, "answered"
                if usage != Usage():  # a server that does not say is counted at the call's most
                    cost = 0.0 if self._price is None else self._price.cost(usage)
                    spent = Bound(usage.prompt + usage.completion, cost)
            except Passing as error:
                outcome = "failed"
                spent = most if error.billed else Bound(0, 0.0)
                raise
            except UserError:
                outcome, spent = "refused", Bound(0, 0.0)
                raise
            finally:
                self._spending.settle(most, spent)
                note(outcome, usage, spent.cost)
                self._settled.set()
        await self.pace.succeeded()
        return reply

    async def _room(self, most: Bound) -> None:
        """Wait until the caps have room for a call at its most: those under way will take less than theirs."""
        while (refused := self._spending.reserve(most)) is not None:
            if not self._spending.under_way:
                raise _OverBudget(refused)
            self._settled.clear()
            await self._settled.wait()

    async def _sent(self, body: Mapping[str, Any]) -> Reply:
        import openai

        try:
            return reply_of(await self._client.chat.completions.create(**body))
        except (openai.APIError, ValueError) as error:
            found = fault(error, self._options, self._key)
            if isinstance(found, Passing) and found.throttled:
                after = found.retry_after
                self.pace.throttled(None if after is None else min(after, self._options.patience_seconds))
            raise found from None


def most_of(body: Mapping[str, Any], options: OpenAIJudgeOptions, price: Price | None) -> Bound:
    """The most that a request can take."""
    form = {"content": json.dumps(body.get("extra_body", ""))}  # the server reads the schema, too
    return bound([*body["messages"], form], options.max_tokens, price)


def reply_of(completion: Any) -> Reply:
    """The parts of a chat completion; a server may leave any of them out.

    Raises:
        Passing: it is none, whatever the server calls it.
    """
    try:
        return _reply(completion)
    except (TypeError, KeyError, AttributeError, IndexError) as error:
        reason = f"the reply is no chat completion: {type(error).__name__}"
        raise Passing(reason, billed=True) from None


def _reply(completion: Any) -> Reply:
    """The parts of a chat completion; a server may leave any of them out."""
    choices = getattr(completion, "choices", None)
    if not choices or getattr(choices[0], "message", None) is None:
        raise Passing("the reply is no chat completion: it has no choices")
    message, usage = choices[0].message, getattr(completion, "usage", None)
    read = getattr(usage, "prompt_tokens_details", None)
    written = getattr(usage, "completion_tokens_details", None)
    prompt = _count(usage, "prompt_tokens")
    return Reply(
        raw=_storable(message.content) if isinstance(message.content, str) else "",
        finish=choices[0].finish_reason,
        refusal=_storable(str(getattr(message, "refusal", None) or "")) or None,
        model=_storable(str(getattr(completion, "model", "") or "")),
        usage=Usage(
            prompt,
            _count(usage, "completion_tokens"),
            min(prompt, _count(read, "cached_tokens")),
            _count(written, "reasoning_tokens"),
        ),
    )


def _storable(text: str) -> str:
    """Text without lone surrogates, which no file in UTF-8 can hold."""
    return text.encode("utf-8", errors="backslashreplace").decode("utf-8")


def _count(holder: Any, name: str) -> int:
    value = getattr(holder, name, None)
    return value if isinstance(value, int) and value >= 0 else 0
