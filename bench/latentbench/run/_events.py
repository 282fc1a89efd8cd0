"""What a run tells while it goes on: small frozen events, shown by whoever listens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["Event", "Listener", "silent"]


@dataclass(frozen=True)
class Event:
    """One thing that happened."""

    kind: Literal["plan", "progress", "cell_done", "cell_failed", "cell_cached", "finished"]
    """What happened."""
    what: str
    """The stream, step or cell it is about."""
    done: int = 0
    """Units done ("progress": tokens or steps; "finished": cells)."""
    total: int = 0
    """Units in all."""
    message: str = ""
    """More, in words: an error, a headline number."""

    def to_json(self) -> dict[str, Any]:
        """The event as JSON."""
        return asdict(self)


Listener = Callable[[Event], None]


def silent(_event: Event) -> None:
    """Listens to nothing."""
