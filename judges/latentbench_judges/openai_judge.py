"""Judge `openai:MODEL`: any server with OpenAI's chat completions, hosted or local.

Questions are asked concurrently; answers come as they are there. What was answered is kept by everything that was
asked: server, model as asked and as the server names it, messages, schema, rubric, sampling, seed, repetition and
version of the parser. Only verdicts are kept, so whatever failed is asked again the next time.
"""

from __future__ import annotations

import os
import queue
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

from latentbench.data import cache_root
from latentbench.errors import UserError, nearest
from latentbench_judges._answer import Answer
from latentbench_judges._asking import Asking
from latentbench_judges._batch import batched
from latentbench_judges._batch_wire import Wire
from latentbench_judges._faults import Passing
from latentbench_judges._options import checked_options
from latentbench_judges._parse import PARSER_VERSION
from latentbench_judges._question import Question
from latentbench_judges._spending import Bound, Ledger, Price, Spending, estimate_tokens, load_prices

__all__ = ["OpenAIJudge", "OpenAIJudgeOptions"]

_KEY, _KEY_FILE, _OPENAI_KEY = "LATENTBENCH_JUDGE_KEY", "LATENTBENCH_JUDGE_KEY_FILE", "OPENAI_API_KEY"
_OPENAI = "https://api.openai.com/"
_LOCAL = ("http://localhost", "http://127.", "http://[::1]")


class OpenAIJudgeOptions(BaseModel):
    """Options of the judge; those up to `token_field` can change a verdict and are part of its identity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    model: str = Field(min_length=1)
    """Model, as the server knows it; better a dated snapshot than an alias."""
    url: str = "https://api.openai.com/v1"
    """Base URL."""

    @field_validator("url")
    @classmethod
    def _plain(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("a URL begins with http:// or https:// and names a host")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError(
                "a URL with a name, password or query may hold a secret, and URLs are published: leave it out"
            )
        return url

    expect: str | None = None
    """Name that the server must return for the model; another one stops the run."""
    temperature: float | None = Field(default=0.0, ge=0)
    """None leaves it to the server."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """None leaves it to the server."""
    seed: int | None = 0
    """Sent with the request; None leaves it out."""
    max_tokens: int = Field(default=1024, gt=0)
    """Tokens of a reply, at most."""
    schema_mode: Literal["strict", "prompt"] = "strict"
    """"strict": the server is asked to hold to the JSON schema. "prompt": the form is described in the question."""
    token_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """How the server calls the limit."""
    concurrency: int = Field(default=32, ge=1, le=1024)
    """Calls at once, at most."""
    requests_per_minute: float | None = Field(default=None, gt=0)
    """Calls a minute, at most."""
    tokens_per_minute: float | None = Field(default=None, gt=0)
    """Tokens a minute, at most, each call counted at its most."""
    timeout_seconds: float = Field(default=120.0, gt=0)
    """Of one try."""
    attempts: int = Field(default=6, ge=1)
    """Tries of a question."""
    patience_seconds: float = Field(default=300.0, gt=0)
    """Time for all tries of a question."""
    max_calls: int | None = Field(default=None, ge=0)
    """Cap on the calls of one run, tries included."""
    max_total_tokens: int | None = Field(default=None, ge=0)
    """Cap on the tokens of one run."""
    max_cost: float | None = Field(default=None, ge=0)
    """Cap on the dollars of one run; needs a price of the model."""
    prices: Path | None = None
    """Prices of models, see `prices.toml` in this package."""
    batch: bool = False
    """Ask in batches: at the price of batches, within a day. Cache and identity are those of live calls."""
    batch_poll_s: float = Field(default=60.0, gt=0)
    """Seconds between two looks at the batches under way; the pause grows to five times as much."""
    batch_wait_s: float | None = Field(default=None, ge=0)
    """Seconds to wait for batches. What is not back then is missing, and the same command collects it; 0 sends the
    questions and goes on with the next cell. None waits for all."""
    batch_requests: int = Field(default=50_000, ge=1, le=50_000)
    """Questions of a batch, at most."""
    batch_bytes: int = Field(default=100_000_000, ge=1, le=200_000_000)
    """Size of the file of a batch, at most; a single question that is larger goes alone."""
    cache: Path | None = None
    """SQLite file of replies; None takes one in the project's cache folder."""
    ledger: Path | None = None
    """File with a line for each call; None takes one in the project's cache folder."""


class OpenAIJudge:
    """See the module."""

    name = "openai"
    """Registered name."""
    role = "rubric"
    """What it can be asked."""

    def __init__(self, options: OpenAIJudgeOptions) -> None:
        """A judge; nothing is sent yet.

        Raises:
            UserError: there is no key, no package `openai`, or a cap in money without a price.
        """
        self.options = options
        try:
            import openai  # noqa: F401 - found out here, before anything is measured
        except ImportError as error:
            raise UserError(
                "the judge 'openai' needs more packages: pip install 'latentbench[judges]'"
            ) from error
        self.key = _key(options)
        """The secret key: never to be written or shown."""
        self.price = _price(options)
        """Dollars per token as they are asked for, live or in batches; None if not known."""
        if options.max_cost is not None and self.price is None:
            raise UserError(
                f"max_cost is set, and no price of {options.model!r} is known: put it in a file and name that as the "
                "judge option prices (see prices.toml in latentbench_judges)"
            )
        self.spending = Spending(options.max_calls, options.max_total_tokens, options.max_cost)
        self.ledger = Ledger(options.ledger or cache_root() / "judges" / "ledger.jsonl")
        self.cache = options.cache or cache_root() / "judges" / "replies.sqlite"
        """File of replies."""
        self._held: dict[str, Bound] = {}  # by key, what batches under way hold under the caps

    @classmethod
    def make(cls, argument: str, options: Mapping[str, Any]) -> OpenAIJudge:
        """The judge of "openai:MODEL".

        Args:
            argument: the model.
            options: see `OpenAIJudgeOptions`.

        Raises:
            UserError: an option is unknown or wrong; see also the class.
        """
        return cls(_options(argument, options))

    @classmethod
    def price_of(cls, argument: str, options: Mapping[str, Any]) -> Price | None:
        """What such a judge would cost a token; needs no key.

        Args:
            argument: the model.
            options: see `OpenAIJudgeOptions`.

        Raises:
            UserError: an option is unknown or wrong.
        """
        return _price(_options(argument, options))

    def identity(self) -> dict[str, Any]:
        """Everything that can change a verdict; rubrics are named by the task."""
        o = self.options
        return {
            "name": self.name,
            "model": o.model,
            "url": o.url,
            "expect": o.expect,
            "sampling": {
                "temperature": o.temperature,
                "top_p": o.top_p,
                "seed": o.seed,
                "max_tokens": o.max_tokens,
            },
            "schema_mode": o.schema_mode,
            "parser": PARSER_VERSION,
        }

    def preflight(self) -> None:
        """Ask the server for its models, and for its batches if it shall have any, before anything is measured.

        Costs nothing.

        Raises:
            UserError: the server can't be reached, refuses the key, does not know the model, or has no batches.
        """
        self._knows_model()
        if self.options.batch:
            self._has_batches()

    def _knows_model(self) -> None:
        import openai

        client = openai.OpenAI(api_key=self.key, base_url=self.options.url, max_retries=2, timeout=20)
        try:
            known = [str(one.id) for one in client.models.list()]
        except openai.APIConnectionError as error:
            raise UserError(
                f"no judge answers at {self.options.url}: {type(error.__cause__ or error).__name__}. Is the server up, "
                "and is this its base URL (it usually ends in /v1)?"
            ) from None
        except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
            raise UserError(f"{self.options.url} refuses the key (status {error.status_code})") from None
        except (openai.APIError, ValueError, TypeError):
            return  # a server without a list of models: the first question will tell
        finally:
            client.close()
        if known and self.options.model not in known:
            close = nearest(self.options.model, known) or sorted(known)[:5]
            raise UserError(
                f"{self.options.url} has no model {self.options.model!r}; it has {', '.join(close)}"
                + (", ..." if len(known) > len(close) else "")
            )

    def _has_batches(self) -> None:
        """Ask the server whether it has batches.

        Raises:
            UserError: it has none, or does not answer.
        """
        with closing(Wire(self.options, self.key)) as wire:
            try:
                wire.check()
            except Passing as error:
                raise UserError(f"{self.options.url} does not say whether it has batches: {error}") from None

    def tokens(self, question: Question) -> tuple[int, int]:
        """Tokens read and written for a question, roughly, for `plan`."""
        read = sum(estimate_tokens(one["content"]) + 8 for one in question.plain_messages)
        return read, estimate_tokens(str(question.rubric.example)) * 2

    def answers(self, questions: Iterable[Question]) -> Iterator[Answer]:
        """An answer to every question, in the order in which they are there.

        Stop taking them, and what is under way is given up; what was answered is stored. Batches go on: see
        `latentbench_judges._batch`.

        Raises:
            UserError: the server refuses what no further try would mend.
        """
        if self.options.batch:
            yield from batched(self, questions, self._held)
            return
        found: queue.SimpleQueue[Answer | BaseException | None] = queue.SimpleQueue()
        run = Asking(self, questions, found.put)
        thread = threading.Thread(target=run.main, name="judge", daemon=True)
        thread.start()
        try:
            while (one := found.get()) is not None:
                if isinstance(one, BaseException):
                    raise one
                yield one
        finally:
            run.stop()
            thread.join()


def _options(argument: str, options: Mapping[str, Any]) -> OpenAIJudgeOptions:
    if not argument:
        raise UserError(
            "the judge 'openai' needs a model: openai:MODEL, such as openai:gpt-4o-mini-2024-07-18"
        )
    if "model" in options:
        raise UserError(
            "the judge 'openai' takes its model from its name, openai:MODEL, and not as an option"
        )
    return checked_options(OpenAIJudgeOptions, {"model": argument, **options}, "openai")


def _price(options: OpenAIJudgeOptions) -> Price | None:
    known = load_prices(options.prices)
    # A dated snapshot costs what its model does, unless the file says otherwise.
    price = known.get(options.model) or known.get(re.sub(r"-\d{4}-\d{2}-\d{2}$", "", options.model))
    return price.in_batches() if price is not None and options.batch else price


def _key(options: OpenAIJudgeOptions) -> str:
    """The key, from the environment alone: a suite from elsewhere must not choose which file or key is sent where."""
    path = os.environ.get(_KEY_FILE)
    if path:
        try:
            key = Path(path).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise UserError(f"{_KEY_FILE} names {path!r}, which can't be read: {error.strerror}") from error
    else:
        key = os.environ.get(_KEY, "").strip()
    if not key and options.url.startswith(_OPENAI):
        key = os.environ.get(_OPENAI_KEY, "").strip()
    if key:
        return key
    if options.url.startswith(_LOCAL):
        return "none"  # a server on this machine: most ask for none, and the client must send something
    raise UserError(
        f"no key for {options.url}: set {_KEY}, or {_KEY_FILE} to the path of a file with it ({_OPENAI_KEY} is sent to "
        f"{_OPENAI} alone)"
    )
