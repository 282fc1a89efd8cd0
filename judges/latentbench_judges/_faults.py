"""What goes wrong with an OpenAI-compatible server: what may be over at the next try, and what the user must mend."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from latentbench.errors import UserError

if TYPE_CHECKING:
    from tenacity import AsyncRetrying, Retrying

    from latentbench_judges.openai_judge import OpenAIJudgeOptions

__all__ = ["HINTS", "Passing", "fault", "retrying", "without_key"]

_AGAIN = frozenset({408, 409, 425, 429})
_NO_MONEY = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
_KEY_LIKE = re.compile(r"\b(?:sk|key|pk|Bearer)[-_ ][A-Za-z0-9*_\-.]{6,}")
_LONGEST_WAIT = 30.0
_UNSENT = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout"})
"""Faults before anything was sent."""
HINTS: Mapping[int, str] = {
    401: "check the key",
    403: "check the key and what it may do",
    404: "check the judge's URL and the model's name",
    400: "if it is about response_format, set the judge option schema_mode=prompt; if about max_tokens, "
    "token_field=max_completion_tokens; if about temperature, temperature=none",
}
"""What to do about a status that no further try mends."""


class Passing(Exception):
    """A fault that may be over at the next try."""

    def __init__(
        self,
        reason: str,
        retry_after: float | None = None,
        *,
        billed: bool = False,
        throttled: bool = False,
    ) -> None:
        """A fault.

        Args:
            reason: in words, without the key.
            retry_after: seconds that the server asks to wait.
            billed: whether the server may have worked, and charges for it.
            throttled: whether the server says that it is asked too much.
        """
        super().__init__(reason)
        self.retry_after, self.billed, self.throttled = retry_after, billed, throttled


def fault(
    error: Exception, options: OpenAIJudgeOptions, key: str, wanted: str = "chat completion"
) -> Passing | UserError:
    """What an exception of the `openai` client means: try again, or tell the user.

    Raise it `from None`: a chained traceback would carry the server's words, and with them the key, into records.

    Args:
        error: an `openai.APIError`, or a `ValueError` of a reply that is no JSON.
        options: whose server it is.
        key: the secret key, struck out.
        wanted: what the reply should have been.
    """
    import openai

    if isinstance(error, openai.APITimeoutError):
        return Passing(f"no answer within {options.timeout_seconds:g} seconds", billed=True)
    if isinstance(error, openai.APIConnectionError):
        cause = type(error.__cause__).__name__ if error.__cause__ else "no reason given"
        return Passing(f"connection failed: {cause}", billed=cause not in _UNSENT)
    if isinstance(error, openai.APIStatusError):
        return _status(error, options, key)
    return Passing(f"the reply is no {wanted}: {type(error).__name__}", billed=True)


def _status(error: Any, options: OpenAIJudgeOptions, key: str) -> Passing | UserError:
    status, body = int(error.status_code), error.body
    message = body.get("message") if isinstance(body, dict) else None
    said = without_key(str(message or error.message), key)
    if status == 429 and error.code in _NO_MONEY:
        return UserError(f"the judge's server says that the account has no money left: {said}")
    if status in _AGAIN or status >= 500:
        after = _retry_after(error.response.headers)
        return Passing(f"status {status}: {said[:200]}", after, throttled=status == 429)
    return UserError(
        f"the judge's server at {options.url} refuses with status {status}: {said[:300]}; "
        f"{HINTS.get(status, 'see what it says')}"
    )


def without_key(text: str, key: str) -> str:
    """A server's words, with the key and what looks like one struck out."""
    return _KEY_LIKE.sub("[key]", text.replace(key, "[key]") if key else text)


def retrying(kind: type[Retrying] | type[AsyncRetrying], options: OpenAIJudgeOptions) -> Any:
    """Tries of `kind`, as many and as long as the options say: after a `Passing` fault alone, the last is raised."""
    import tenacity

    return kind(
        retry=tenacity.retry_if_exception_type(Passing),
        stop=tenacity.stop_after_attempt(options.attempts)
        | tenacity.stop_before_delay(options.patience_seconds),
        wait=_wait,
        reraise=True,
    )


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
