"""The task protocol: what a benchmark task declares, and in which steps it is run.

A cell goes through four steps, each re-runnable from what the one before stored:

1. watch: the shared pass over a token stream feeds the cell's watcher, which emits per-document items;
2. measure: whatever else the task needs the language model for (generation), given the items so far;
3. judge: verdicts on items, from a judge;
4. summarise: metrics with intervals from items and judgements alone, without torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict

from latentbench.run._rows import TokenPolicy, stream_rows
from latentbench.store import Curve, Metric

if TYPE_CHECKING:
    from latentbench.adapters import Codes, Dictionary
    from latentbench.data import Corpus, TokenRow
    from latentbench.lm import LM
    from latentbench.run._watch import WatchedBatch

__all__ = ["CellSetup", "Item", "Judge", "Shared", "Summary", "Task", "TaskConfig", "TokenPolicy", "Watcher"]

Item = dict[str, Any]
"""One raw thing a task measured: a JSON object with a `kind`."""
T = TypeVar("T")


class TaskConfig(BaseModel):
    """Base of task configurations: frozen, and a misspelt key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Summary(NamedTuple):
    """What a cell is worth."""

    metrics: list[Metric]
    """Every number with its interval."""
    curves: list[Curve]
    """Numbers along an axis, such as a feature count over tokens watched."""
    counts: dict[str, int]
    """How much was measured: documents, tokens, latents, unscored items."""


class Shared:
    """Things computed once and used by several cells of one run, by content key (unsteered texts, classifiers)."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def once(self, key: str, make: Callable[[], T]) -> T:
        """The value under `key`, made at the first call."""
        if key not in self._made:
            self._made[key] = make()
        value: T = self._made[key]
        return value


@dataclass(frozen=True)
class CellSetup:
    """Everything a task may use while it measures one cell."""

    lm: LM
    """The language model."""
    dictionary: Dictionary
    """The dictionary, on its device."""
    corpus: Corpus
    """The corpus of the suite, test split."""
    load_split: Callable[[str], Corpus]
    """Another split of the same corpus: "calibrate", "select", "classifier", ..."""
    tokens: TokenPolicy
    """The suite's token policy."""
    seed: int
    """The cell's seed; derive generators from it and a name, never use global randomness."""
    cache: Path
    """Folder for things that are dear to make again and keyed by content."""
    shared: Shared = field(default_factory=Shared)
    """Results that cells of this run share."""
    progress: Callable[[str, int, int], None] = lambda _what, _done, _total: None
    """Called as progress(what, done, total) during long steps."""

    def rows(self, budget_tokens: int) -> list[TokenRow]:
        """The rows of the test split that a watcher with this budget is fed (see `stream_rows`)."""
        return self.shared.once(
            f"run:rows:{budget_tokens}", lambda: stream_rows(self.corpus, self.lm, self.tokens, budget_tokens)
        )


class Watcher(ABC):
    """The part of a cell that only watches tokens go by. Keeps no state between batches: it emits items.

    So a pass can be resumed after any batch, and every summary can be recomputed from the items.
    """

    budget_tokens: int
    """Measured tokens to watch, at most; the stream may hold fewer."""
    needs_logits: bool = False
    """Whether the clean pass must run to the end for this watcher."""

    def rows(self) -> Sequence[TokenRow] | None:
        """The token rows to watch; None takes the test stream that all such watchers share."""
        return None

    def stream(self) -> str:
        """Name of the stream: watchers of one name share one pass, so they must ask for the same rows."""
        return "test"

    @abstractmethod
    def watch(self, batch: WatchedBatch, codes: Codes) -> list[Item]:
        """Items of one batch, at least one per document row.

        Args:
            batch: tokens, activations and (if needed) logits of the clean pass.
            codes: the dictionary's codes of the batch's measured tokens, row-major.
        """


class Judge(Protocol):
    """What a task may ask of a judge; each judge role has its own protocol in `latentbench_judges`."""

    role: str
    """What it can be asked ("similarity"); a task names the role it needs."""

    def identity(self) -> dict[str, Any]:
        """Everything that can change its verdicts, as JSON for cache keys."""
        ...


class Task(ABC):
    """A benchmark task. A new one is a folder with `card.toml`, `task.py` (this class) and `metrics.py`."""

    name: ClassVar[str]
    """Registered name."""
    version: ClassVar[str]
    """Raised whenever a change can move its numbers; part of every key."""
    Config: ClassVar[type[TaskConfig]] = TaskConfig
    """Its options."""
    judge_role: ClassVar[str | None] = None
    """Role of the judge it needs ("similarity"), or None."""

    def __init__(self, config: TaskConfig) -> None:
        """A task with validated options."""
        self.config = config

    def preflight(self) -> None:  # noqa: B027 - most tasks need nothing
        """Whatever can be seen to be missing before anything is measured: a package, data that must be fetched.

        Raises:
            UserError: something is missing; nothing was measured.
        """

    def watcher(self, setup: CellSetup) -> Watcher | None:
        """The cell's watcher, or None if the task watches no tokens."""
        return None

    def measure(self, setup: CellSetup, items: list[Item]) -> Iterator[Item]:
        """Further items, given those stored so far.

        After a crash the step is run again with the items it had already stored, so it must skip what it finds
        done. Items appear in the file as they are yielded.
        """
        return iter(())

    def rubrics(self) -> dict[str, str]:
        """sha256 by name of the rubrics that its judge is asked by; part of a judged cell's key."""
        return {}

    def judge(self, items: list[Item], judge: Any, rng: np.random.Generator) -> Iterator[Item]:
        """Judgements of the items; each with a `status` ("ok" or why there is no score).

        Args:
            items: what was measured, texts included, and the judgements of an earlier run that stand.
            judge: of the task's role.
            rng: source of draws; the same at every run of a cell.
        """
        return iter(())

    @abstractmethod
    def summarise(self, items: list[Item], judgements: list[Item], rng: np.random.Generator) -> Summary:
        """Metrics, curves and counts from stored items alone; delegates to the task's torch-free `metrics.py`."""

    def tokens(self) -> int:
        """Tokens that go through the model for one cell, roughly, generation included; for `plan`."""
        return 0

    def texts(self) -> int:
        """Texts that the model writes for one cell, roughly; for `plan`."""
        return 0

    def judge_calls(self) -> int:
        """Calls to the judge for one cell, roughly; for `plan`."""
        return 0

    def judge_tokens(self) -> tuple[int, int]:
        """Tokens that a language model as the judge reads and writes for one cell, roughly; for `plan`."""
        return 0, 0
