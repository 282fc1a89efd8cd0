"""Lines of a batch's files: what is asked, and what comes back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from latentbench_judges._answer import Usage
from latentbench_judges._faults import HINTS, Passing, without_key
from latentbench_judges._spending import Bound, Price
from latentbench_judges._transport import Reply, reply_of

__all__ = ["ENDPOINT", "kept_line", "read_line", "request_line", "spent_line"]

ENDPOINT = "/v1/chat/completions"
"""What every line is sent to."""


def request_line(key: str, body: Mapping[str, Any]) -> bytes:
    """A question as a line.

    Args:
        key: its custom id.
        body: arguments of the `openai` client for a live call.
    """
    plain = {name: value for name, value in body.items() if name != "extra_body"}
    plain |= body.get("extra_body", {})
    line = {"custom_id": key, "method": "POST", "url": ENDPOINT, "body": plain}
    return json.dumps(line).encode() + b"\n"


def kept_line(line: Mapping[str, Any], secret: str) -> dict[str, Any]:
    """What is worth keeping of a line that came back: the chat completion, or in words why there is none.

    Args:
        line: as the server wrote it.
        secret: the secret key, struck out of an error.
    """
    response, error = line.get("response"), line.get("error")
    body = response.get("body") if isinstance(response, dict) else None
    status = response.get("status_code") if isinstance(response, dict) else None
    if status == 200 and isinstance(body, dict):
        return {"body": {name: body.get(name) for name in ("choices", "model", "usage")}}
    if isinstance(body, dict) and isinstance(body.get("error"), dict):
        error = body["error"]
    said = error if isinstance(error, dict) else {}
    words = [f"status {status}" if status else said.get("code"), said.get("message")]
    reason = without_key(": ".join(str(one)[:200] for one in words if one), secret)
    hint = HINTS.get(status) if isinstance(status, int) else None
    return {"error": "; ".join(one for one in (reason or "a line without an answer", hint) if one)}


def read_line(kept: Mapping[str, Any]) -> Reply | str:
    """A line as it was kept: a reply, or in words why there is none."""
    from openai.types.chat import ChatCompletion

    if "error" in kept:
        return str(kept["error"])
    try:
        return reply_of(ChatCompletion.construct(**kept["body"]))
    except Passing as error:
        return str(error)


def spent_line(kept: Mapping[str, Any], most: Bound, price: Price | None) -> Bound:
    """What a line took; one that the server worked on and does not account for counts at its most."""
    if "error" in kept:
        return Bound(0, 0.0)
    reply = read_line(kept)
    if isinstance(reply, str) or reply.usage == Usage():
        return most
    usage = reply.usage
    return Bound(usage.prompt + usage.completion, 0.0 if price is None else price.cost(usage))
