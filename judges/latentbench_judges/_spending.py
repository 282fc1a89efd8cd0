"""What judging costs: prices, hard caps, and the ledger of every call."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from latentbench.errors import UserError
from latentbench.store import utc_now
from latentbench_judges._answer import Usage

__all__ = ["Bound", "Ledger", "Price", "Spending", "bound", "estimate_tokens", "load_prices"]

_OVERHEAD = 16
"""Tokens that a chat format adds to a message, generously."""


class Price(BaseModel):
    """US dollars per million tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    input: float = Field(ge=0)
    """Tokens read."""
    output: float = Field(ge=0)
    """Tokens written, hidden reasoning included."""
    cached: float | None = Field(default=None, ge=0)
    """Tokens read that the server had cached; None: as those read."""
    batch: float | None = Field(default=None, gt=0, le=1)
    """What a question in a batch costs, as a share of these prices; None: not known, and counted in full."""
    batch_source: str | None = None
    """Where that is said."""

    def cost(self, usage: Usage) -> float:
        """Dollars."""
        cached = self.input if self.cached is None else self.cached
        fresh = usage.prompt - usage.cached
        return (fresh * self.input + usage.cached * cached + usage.completion * self.output) / 1e6

    def in_batches(self) -> Price:
        """The price of questions in batches; what the server had cached is counted as read, to be safe."""
        share = 1.0 if self.batch is None else self.batch
        return Price(input=self.input * share, output=self.output * share)


class _Prices(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    models: dict[str, Price]


def load_prices(path: Path | None = None) -> dict[str, Price]:
    """Prices by model: the shipped ones, with a file of the same form laid over them.

    Raises:
        UserError: the file is missing or of another form.
    """
    found: dict[str, Price] = {}
    for file in (Path(__file__).with_name("prices.toml"), path):
        if file is None:
            continue
        try:
            found |= _Prices.model_validate(tomllib.loads(file.read_text(encoding="utf-8"))).models
        except OSError as error:
            raise UserError(f"prices {str(file)!r} can't be read: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, ValidationError) as error:
            raise UserError(f"prices {file.name}: {str(error).splitlines()[0]}") from error
    return found


def estimate_tokens(text: str) -> int:
    """Tokens of a text, roughly: four characters each."""
    return len(text) // 4 + 1


class Bound(NamedTuple):
    """What one call can't exceed."""

    tokens: int
    """Read and written."""
    cost: float
    """Dollars; 0 without a price."""


def bound(messages: Sequence[Mapping[str, str]], max_tokens: int, price: Price | None) -> Bound:
    """The most that a call can take: a token is a byte at least."""
    prompt = sum(len(one["content"].encode("utf-8", "replace")) + _OVERHEAD for one in messages)
    cost = 0.0 if price is None else price.cost(Usage(prompt, max_tokens))
    return Bound(prompt + max_tokens, cost)


class Spending:
    """Hard caps: a call starts only if it can't take the sum over a cap, those under way counted at their most."""

    def __init__(self, max_calls: int | None, max_tokens: int | None, max_cost: float | None) -> None:
        """Caps for one run; None is no cap."""
        self._caps = (max_calls, max_tokens, max_cost)
        self.calls, self.tokens, self.cost = 0, 0, 0.0
        """Spent so far."""
        self._held_tokens, self._held_cost = 0, 0.0

    @property
    def under_way(self) -> bool:
        """Whether room is held that may come free."""
        return self._held_tokens > 0

    def reserve(self, most: Bound) -> str | None:
        """Take room for one call; or say which cap it would break, if those under way took their most."""
        calls, tokens, cost = self._caps
        if calls is not None and self.calls + 1 > calls:
            return f"the cap of {calls:,} calls is reached"
        if tokens is not None and self.tokens + self._held_tokens + most.tokens > tokens:
            return f"the cap of {tokens:,} tokens is reached ({self.tokens:,} spent)"
        if cost is not None and self.cost + self._held_cost + most.cost > cost:
            return f"the cap of {cost:g} dollars is reached ({self.cost:.4f} spent)"
        self.take(most)
        return None

    def take(self, most: Bound) -> None:
        """Take room for a call that is made already, whatever the caps."""
        self.calls += 1
        self._held_tokens += most.tokens
        self._held_cost += most.cost

    def settle(self, most: Bound, spent: Bound) -> None:
        """A call is over: what it took is spent, the rest of what was held for it is free."""
        self._held_tokens -= most.tokens
        self._held_cost -= most.cost
        self.tokens += spent.tokens
        self.cost += spent.cost


class Ledger:
    """An append-only file with a line for every call. Holds no key, no question and no reply."""

    def __init__(self, path: Path) -> None:
        """The ledger of a file, made with its first line."""
        self.path = path
        self._stream: TextIO | None = None

    @contextmanager
    def open(self) -> Iterator[None]:
        """Keep the file open for many calls."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as stream:
            self._stream = stream
            try:
                yield
            finally:
                self._stream = None

    def add(self, entry: Mapping[str, Any]) -> None:
        """Append a call, with the time, to the file that is open."""
        assert self._stream is not None, "see `open`"
        self._stream.write(json.dumps({"time": utc_now(), **entry}) + "\n")
        self._stream.flush()

    def entries(self) -> list[dict[str, Any]]:
        """All calls; a line torn by a kill is left out."""
        if not self.path.is_file():
            return []
        found = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found
