"""The batch endpoints of a server.

Questions go up as a file, a batch is made of it, its state is asked for, and its replies come down as two files, of
answers and of errors, in any order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from latentbench.errors import UserError
from latentbench_judges._batch_lines import ENDPOINT
from latentbench_judges._faults import Passing, fault, retrying, without_key

if TYPE_CHECKING:
    from latentbench_judges._batch_store import Batch
    from latentbench_judges.openai_judge import OpenAIJudgeOptions

__all__ = ["ENDED", "State", "Wire"]

ENDED = frozenset({"completed", "failed", "expired", "cancelled"})
"""States in which nothing more will come; before them come validating, in_progress, finalizing and cancelling."""
_TOKEN = "latentbench"
"""Name of our token in the batch's metadata."""
_NO_SUCH_PAGE = frozenset({404, 405, 501})
_FILE_SECONDS = 600.0
"""Patience with a file, at least: it may have 100 MB."""
_CLOCKS = 86_400.0
"""Seconds by which the server's clock may be behind ours, generously."""
T = TypeVar("T")


class State(NamedTuple):
    """What the server says of a batch."""

    id: str
    """The server's id."""
    status: str
    """See `ENDED`."""
    output: str | None
    """Id of the file with the answers, if there is one."""
    errors: str | None
    """Id of the file with the errors, if there is one."""
    reason: str
    """What went wrong with the whole batch, in words without the key; empty if nothing did."""


class Wire:
    """A client of one server. A fault is `Passing`, or a `UserError` where no further try would mend it."""

    def __init__(self, options: OpenAIJudgeOptions, key: str) -> None:
        """A client; nothing is sent yet."""
        import openai

        self._options, self._key = options, key
        self._client: Any = openai.OpenAI(
            api_key=key, base_url=options.url, max_retries=0, timeout=options.timeout_seconds
        )
        self._files: Any = self._client.with_options(
            timeout=max(options.timeout_seconds, _FILE_SECONDS)
        ).files

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def check(self) -> None:
        """Find out whether the server has batches; costs nothing.

        Raises:
            UserError: it has none.
        """
        page = self._again(lambda: self._client.batches.list(limit=1), "GET /batches")
        if not isinstance(getattr(page, "data", None), list):
            raise self._none("GET /batches", "the reply is no list of batches")

    def upload(self, name: str, content: bytes) -> str:
        """The id of a new file of questions."""
        made = self._again(lambda: self._files.create(file=(name, content), purpose="batch"), "POST /files")
        return _identifier(made)

    def create(self, batch: Batch) -> State:
        """Make a batch of its uploaded file.

        The server may make it and its reply be lost, so that before each further try it is looked for.
        """
        import tenacity

        def make() -> Any:
            return self._client.batches.create(
                input_file_id=batch.file,
                endpoint=ENDPOINT,
                completion_window="24h",
                metadata={_TOKEN: batch.token},
            )

        for attempt in retrying(tenacity.Retrying, self._options):
            with attempt:
                found = self._find(batch) if attempt.retry_state.attempt_number > 1 else None
                return found or self._state(self._call(make, "POST /batches"))
        raise AssertionError("tenacity ends with a result or an exception")

    def find(self, batch: Batch) -> State | None:
        """The batch whose submission was cut off, if the server has it: by our token, or by its file."""
        return self._again(lambda: self._find(batch), "GET /batches")

    def state(self, batch: Batch) -> State:
        """How a batch is getting on. One try: whoever polls comes again."""
        return self._state(
            self._call(lambda: self._client.batches.retrieve(batch.id), "GET /batches/ID", batch)
        )

    def lines(self, batch: Batch, state: State) -> Iterator[tuple[str, dict[str, Any]]]:
        """Custom id and content of every line of a batch's files, answers before errors. One try, as `state`."""
        for file in (state.output, state.errors):
            if file is None:
                continue
            content = self._call(partial(self._content, file), "GET /files/ID/content", batch)
            for text in content.split(b"\n"):  # not splitlines: a reply may hold other ends of lines
                try:
                    line = json.loads(text)
                    yield str(line["custom_id"]), line
                except (ValueError, TypeError, KeyError, RecursionError):
                    continue  # no line of ours: whoever asked finds one missing

    def _content(self, file: str) -> bytes:
        found: bytes = self._files.content(file).content
        return found

    def _find(self, batch: Batch) -> State | None:
        oldest = datetime.fromisoformat(batch.submitted).timestamp() - _CLOCKS

        def look() -> Any:
            page = self._client.batches.list(limit=100)
            if not isinstance(getattr(page, "data", None), list):
                raise Passing("the reply is no list of batches")
            for one in page:  # the newest first, page by page
                token = (getattr(one, "metadata", None) or {}).get(_TOKEN)
                if token == batch.token or (batch.file and getattr(one, "input_file_id", None) == batch.file):
                    return one
                if isinstance(made := getattr(one, "created_at", None), int) and made < oldest:
                    return None
            return None

        found = self._call(look, "GET /batches")
        return None if found is None else self._state(found)

    def _state(self, batch: Any) -> State:
        errors = getattr(getattr(batch, "errors", None), "data", None) or ()
        said = [without_key(str(getattr(one, "message", None) or one), self._key)[:200] for one in errors[:3]]
        return State(
            id=_identifier(batch),
            status=str(getattr(batch, "status", "")).lower(),
            output=getattr(batch, "output_file_id", None) or None,
            errors=getattr(batch, "error_file_id", None) or None,
            reason="; ".join(said),
        )

    def _again(self, call: Callable[[], T], what: str) -> T:
        """A call that does no harm if it is done twice."""
        import tenacity

        for attempt in retrying(tenacity.Retrying, self._options):
            with attempt:
                return self._call(call, what)
        raise AssertionError("tenacity ends with a result or an exception")

    def _call(self, call: Callable[[], T], what: str, batch: Batch | None = None) -> T:
        """One call; `batch` if the server owes us what is asked for."""
        import openai

        try:
            return call()
        except openai.APIStatusError as error:
            if error.status_code not in _NO_SUCH_PAGE:
                raise fault(error, self._options, self._key) from None
            if batch is not None:
                raise UserError(
                    f"{self._options.url} does not know the batch {batch.id} of {batch.submitted}, or its file, any "
                    f"more ({what}: status {error.status_code}): is the key of the account that sent it? If it is "
                    f"gone, `latentbench judge batches --forget {batch.id}` has its questions asked again"
                ) from None
            raise self._none(what, f"status {error.status_code}") from None
        except (openai.APIError, ValueError) as error:
            raise fault(error, self._options, self._key, f"answer to {what}") from None

    def _none(self, what: str, found: str) -> UserError:
        return UserError(
            f"{self._options.url} has no batches ({what}: {found}): leave out the judge option batch=true"
        )


def _identifier(made: Any) -> str:
    found = getattr(made, "id", None)
    if not isinstance(found, str) or not found:
        raise Passing("the server's reply names no id")
    return found
