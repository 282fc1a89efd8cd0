"""One call to an OpenAI-compatible server: sent with the `openai` client, tried again in one place."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from latentbench.errors import UserError
from latentbench_judges._answer import Usage
from latentbench_judges._pace import Pace
from latentbench_judges._spending import Bound, Price, Spending, bound

if TYPE_CHECKING:
    from aiolimiter import AsyncLimiter
    from openai import AsyncOpenAI

    from latentbench_judges.openai_judge import OpenAIJudgeOptions

__all__ = ["Failure", "Reply", "Transport"]

_AGAIN = frozenset({408, 409, 425, 429})
_NO_MONEY = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
_KEY_LIKE = re.compile(r"\b(?:sk|key|pk|Bearer)[-_ ][A-Za-z0-9*_\-.]{6,}")
_LONGEST_WAIT = 30.0
_UNSENT = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout"})
"""Faults before anything was sent."""


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


class _Passing(Exception):
    """A fault that may be over at the next try."""

    def __init__(self, reason: str, retry_after: float | None = None, *, billed: bool = False) -> None:
        super().__init__(reason)
        self.retry_after = retry_after
        self.billed = billed  # whether the server may have worked, and charges for it


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

        form = {"content": json.dumps(body.get("extra_body", ""))}  # the server reads the schema, too
        most = bound([*body["messages"], form], self._options.max_tokens, self._price)
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(_Passing),
            stop=tenacity.stop_after_attempt(self._options.attempts)
            | tenacity.stop_before_delay(self._options.patience_seconds),
            wait=_wait,
            reraise=True,
        )
        try:
            async for attempt in retrying:
                with attempt:
                    return await self._once(body, most, note)
        except _Passing as error:
            return Failure(False, f"{error} (tried {retrying.statistics['attempt_number']} times)")
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
            except _Passing as error:
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
            completion = await self._client.chat.completions.create(**body)
        # "from None": a chained traceback would carry the server's words, and with them the key, into records.
        except openai.APITimeoutError:
            raise _Passing(
                f"no answer within {self._options.timeout_seconds:g} seconds", billed=True
            ) from None
        except openai.APIConnectionError as error:
            cause = type(error.__cause__).__name__ if error.__cause__ else "no reason given"
            raise _Passing(f"connection failed: {cause}", billed=cause not in _UNSENT) from None
        except openai.APIStatusError as error:
            raise self._judged(error) from None
        except (openai.APIError, ValueError) as error:
            raise _Passing(f"the reply is no chat completion: {type(error).__name__}", billed=True) from None
        try:
            return _reply(completion)
        except (TypeError, KeyError, AttributeError, IndexError) as error:
            reason = f"the reply is no chat completion: {type(error).__name__}"
            raise _Passing(reason, billed=True) from None

    def _judged(self, error: Any) -> Exception:
        """What a status means: try again, or tell the user."""
        status, body = int(error.status_code), error.body
        message = body.get("message") if isinstance(body, dict) else None
        said = self.without_key(str(message or error.message))
        if status == 429 and error.code in _NO_MONEY:
            return UserError(f"the judge's server says that the account has no money left: {said}")
        if status in _AGAIN or status >= 500:
            after = _retry_after(error.response.headers)
            if status == 429:
                self.pace.throttled(None if after is None else min(after, self._options.patience_seconds))
            return _Passing(f"status {status}: {said[:200]}", after)
        hints = {
            401: "check the key",
            403: "check the key and what it may do",
            404: "check the judge's URL and the model's name",
            400: "if it is about response_format, set the judge option schema_mode=prompt; if about max_tokens, "
            "token_field=max_completion_tokens; if about temperature, temperature=none",
        }
        return UserError(
            f"the judge's server at {self._options.url} refuses with status {status}: {said[:300]}; "
            f"{hints.get(status, 'see what it says')}"
        )

    def without_key(self, text: str) -> str:
        """A server's words, with the key and what looks like one struck out."""
        return _KEY_LIKE.sub("[key]", text.replace(self._key, "[key]") if self._key else text)


def _wait(state: Any) -> float:
    """Seconds before the next try: what the server asks for, else exponential with full jitter."""
    import tenacity

    error = state.outcome.exception()
    jitter = tenacity.wait_random_exponential(multiplier=0.5, max=_LONGEST_WAIT)(state)
    return max(error.retry_after, jitter * 0.1) if error.retry_after is not None else jitter


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds of a Retry-After header, or of OpenAI's in milliseconds; a date is read as no wish."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) * scale
        except (KeyError, ValueError):
            continue
        if 0 <= seconds <= 3600:
            return seconds
    return None


def _reply(completion: Any) -> Reply:
    """The parts of a chat completion; a server may leave any of them out."""
    choices = getattr(completion, "choices", None)
    if not choices or getattr(choices[0], "message", None) is None:
        raise _Passing("the reply is no chat completion: it has no choices")
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
