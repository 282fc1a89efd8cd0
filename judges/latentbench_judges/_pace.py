"""How many calls are under way at once: a slow start, and less after the server says that it is too much."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

__all__ = ["Pace"]

_START = 4.0
_CUT = 0.7
"""What is left of the limit after a server's 429 (inspect_ai takes 0.8)."""
_COOL_DOWN = 2.0
"""Seconds in which several 429s count as one: they answer calls that were under way together."""


class Pace:
    """A limit on concurrent calls: doubles with every round of successes until the first 429, then creeps."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        """A limit that starts low.

        Args:
            most: calls at once, at most.
            clock: seconds, for tests.
        """
        self.limit = min(_START, float(most))
        """Calls at once, at present."""
        self._most, self._clock = float(most), clock
        self._running, self._steep = 0, True
        self._cut_at, self._resume_at = -1e9, 0.0
        self._room = asyncio.Condition()

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for room, and for the end of a pause that the server asked for; who waits takes up no room."""
        while True:
            while (wait := self._resume_at - self._clock()) > 0:
                await asyncio.sleep(wait)
            async with self._room:
                await self._room.wait_for(lambda: self._running < max(1, int(self.limit)))
                if self._resume_at <= self._clock():  # a pause may have begun while this one waited for room
                    self._running += 1
                    break
        try:
            yield
        finally:
            async with self._room:
                self._running -= 1
                self._room.notify()

    async def succeeded(self) -> None:
        """A call was answered: there may be room for more."""
        async with self._room:
            before = int(self.limit)
            self.limit = min(self._most, self.limit + (1.0 if self._steep else 1.0 / self.limit))
            self._room.notify(1 + int(self.limit) - before)

    def throttled(self, retry_after: float | None) -> None:
        """The server answered 429.

        Args:
            retry_after: seconds that it asks for; nothing new is sent before they are over.
        """
        now = self._clock()
        self._steep = False
        if now - self._cut_at >= _COOL_DOWN:
            self.limit, self._cut_at = max(1.0, self.limit * _CUT), now
        if retry_after is not None:
            self._resume_at = max(self._resume_at, now + retry_after)
