"""What comes back from a judge: a status, a verdict where there is one, and how it was reached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from latentbench.judging import STATUSES, Status

__all__ = ["STATUSES", "Answer", "Path", "Status", "Usage"]

Path = Literal["strict", "embedded", "anchored", "constrained", "computed", "rated", "merged"]
"""How a verdict was read: the reply is JSON of the schema; JSON was found in it; a line names the verdict; it was drawn
from the menu by log-probabilities; it was computed; a person gave it; several judges' verdicts were merged."""


class Usage(NamedTuple):
    """Tokens of a call, as the server counts them."""

    prompt: int = 0
    """Tokens read."""
    completion: int = 0
    """Tokens written, reasoning included."""
    cached: int = 0
    """Of those read, tokens that the server had cached."""
    reasoning: int = 0
    """Of those written, hidden reasoning."""


class Answer(NamedTuple):
    """A judge's answer to one question."""

    id: str
    """The question's id."""
    key: str
    """The question's key."""
    status: Status
    """See `Status`."""
    fields: dict[str, Any] | None = None
    """The answer by property of the rubric's schema; None unless the status is "ok"."""
    verdict: Any = None
    """The verdict: a value of the menu, a list of them, or words."""
    path: Path | None = None
    """How the verdict was read."""
    reason: str | None = None
    """Why there is no verdict."""
    raw: str = ""
    """The reply as it came."""
    weights: list[float] | None = None
    """What the judge gives each value of the menu, sum 1; for flags, the chance of the last value for each item; for
    ratings, the mean of the menu by chance for each item. None where it does not say."""
    model: str = ""
    """The model that answered, as the server names it."""
    usage: Usage = Usage()
    """What it cost; all zero where the answer was stored already."""
    stored: bool = False
    """Whether it came from the cache."""

    def as_item(self, kind: str) -> dict[str, Any]:
        """As a judgement of a cell."""
        return {
            "kind": kind,
            "id": self.id,
            "question": self.key,
            "status": self.status,
            "fields": self.fields,
            "verdict": self.verdict,
            "path": self.path,
            "reason": self.reason,
            "raw": self.raw,
            "weights": self.weights,
            "model": self.model,
        }

    @classmethod
    def from_item(cls, item: Mapping[str, Any]) -> Answer:
        """From a judgement of a cell."""
        return cls(
            id=item["id"],
            key=item["question"],
            status=item["status"],
            fields=item.get("fields"),
            verdict=item.get("verdict"),
            path=item.get("path"),
            reason=item.get("reason"),
            raw=item.get("raw") or "",
            weights=item.get("weights"),
            model=item.get("model") or "",
            stored=True,
        )
