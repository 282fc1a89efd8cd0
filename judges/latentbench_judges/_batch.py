"""Questions asked in batches: cheaper, within a day, and collected by the same command if this one ends before.

The order of things makes that safe. Under a lock, questions that a batch holds already are left to it; the others are
written down with a token, then uploaded, then submitted with the token as metadata, then the server's id is written
down. A process killed in between leaves a batch without an id, and the next one asks the server for it by the token:
found, it is taken over; not found, its questions are sent again. What is left is a server that accepts a batch and
does not list it, for which we know no remedy.

Replies are stored before they are handed out, and forgotten after that. What a batch did not answer (an error, a
missing line, the part of an expired batch) becomes a status, and is asked again by the next run. Caps count every
question at its most when it is sent; what does not fit is over budget, whatever comes free later.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from latentbench.errors import UserError
from latentbench.store import ResponseCache
from latentbench_judges._answer import Answer, Status, Usage
from latentbench_judges._batch_lines import kept_line, read_line, request_line, spent_line
from latentbench_judges._batch_store import COLLECTED, Batch, BatchStore, Line, store_path
from latentbench_judges._batch_wire import ENDED, State, Wire
from latentbench_judges._exchange import Exchange
from latentbench_judges._faults import Passing
from latentbench_judges._question import Question
from latentbench_judges._spending import Bound
from latentbench_judges._transport import Reply, most_of

if TYPE_CHECKING:
    from latentbench_judges.openai_judge import OpenAIJudge

__all__ = ["batched"]

_LOG = logging.getLogger("latentbench.judges")
_SLOWER, _SLOWEST = 1.25, 5.0
"""Each pause between polls is so much longer than the one before, up to so many times the first."""
_GIVE_UP = 25
"""Polls in a row without an answer, after which the server is taken to be gone."""
_LATER = "the same command collects it"


class _Draft(NamedTuple):
    """A question about to be sent."""

    line: Line
    text: bytes


def batched(judge: OpenAIJudge, questions: Iterable[Question], held: dict[str, Bound]) -> Iterator[Answer]:
    """An answer to every question: those that are known first, the others as their batches come back.

    Args:
        judge: whom to ask.
        questions: what to ask.
        held: what the questions under way hold under the caps, by key; for all calls of one judge.

    Raises:
        UserError: the server refuses what no further try would mend.
        KeyboardInterrupt: with a message that says what goes on at the server.
    """
    options = judge.options
    with (
        ResponseCache(judge.cache) as cache,
        BatchStore(store_path(judge.cache)) as store,
        closing(Wire(options, judge.key)) as wire,
    ):
        run = _Run(judge, cache, store, wire, held)
        try:
            yield from run.answers(questions)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(run.left()) from None


class _Run:
    """One call of `batched`."""

    def __init__(
        self, judge: OpenAIJudge, cache: ResponseCache, store: BatchStore, wire: Wire, held: dict[str, Bound]
    ) -> None:
        self._judge, self._cache, self._store, self._wire, self._held = judge, cache, store, wire, held
        self._options, self._price, self._spending = judge.options, judge.price, judge.spending
        self._exchange = Exchange(judge.options, judge.identity(), judge.price)
        self._asked: dict[
            str, list[Question]
        ] = {}  # by key, what has no answer yet; equal questions share a key
        self._waiting: dict[str, list[str]] = {}  # by token of a batch its keys that were asked for
        self._sent: set[str] = set()  # tokens of the batches that this call made
        self._down: str | None = None  # why nothing more is sent
        self._silent = 0

    def answers(self, questions: Iterable[Question]) -> Iterator[Answer]:
        known = []
        for question in questions:
            answer = self._exchange.stored(question, self._cache)
            key = self._exchange.key(question)
            if answer is None:
                self._asked.setdefault(key, []).append(question)
            else:
                known.append(key)
                yield answer
        if self._store.batches():
            self._store.handed_out(known)  # left by a run that was killed between the two
        if not self._asked:
            return
        with self._store.lock():
            self._recover()
            refused = self._submit()
            for key, token in self._store.holders(list(self._asked)).items():
                self._waiting.setdefault(token, []).append(key)
        yield from refused
        yield from self._collect()

    def left(self) -> str:
        """What goes on at the server if we end now."""
        mine = set(self._store.holders(list(self._asked)).values())
        going = [one for one in self._store.batches() if one.token in mine]
        if not going:
            return ""
        names = ", ".join(one.id or "one not confirmed" for one in going[:3]) + ", ..." * (len(going) > 3)
        return (
            f"{len(going)} {'batch goes' if len(going) == 1 else 'batches go'} on at {self._options.url} ({names}); "
            "the same command collects what is asked there, `latentbench judge batches` shows it"
        )

    # Sending

    def _recover(self) -> None:
        """Find out about batches whose submission was cut off."""
        mine = set(self._store.holders(list(self._asked)).values())
        for batch in self._store.batches():
            if batch.token in mine and batch.id is None:
                try:
                    self._resolve(batch)
                except Passing as error:
                    self._down = str(error)

    def _resolve(self, batch: Batch) -> bool:
        """Take over a batch that the server has; forget one that it has not."""
        found = self._wire.find(batch)
        if found is None:
            self._store.forget(batch.token)
            return False
        self._store.submitted(batch.token, found.id, found.status)
        return True

    def _submit(self) -> list[Answer]:
        """Send what no batch holds; answers to what can't be sent."""
        holders = self._store.holders(list(self._asked))
        for token in set(holders.values()):
            for key, line in self._store.lines(token).items():
                if (
                    key in self._asked and key not in self._held
                ):  # sent by an earlier run, and counted in this one
                    self._held[key] = Bound(line.tokens, line.cost)
                    self._spending.take(self._held[key])
        answers: list[Answer] = []
        drafts: list[_Draft] = []
        size = 0
        for key in [key for key in self._asked if key not in holders]:
            draft = self._draft(key)
            if isinstance(draft, str):
                answers += self._without(key, "over_budget", draft)
                continue
            full = len(drafts) >= self._options.batch_requests
            if drafts and (full or size + len(draft.text) > self._options.batch_bytes):
                answers += self._send(drafts)
                drafts, size = [], 0
            drafts.append(draft)
            size += len(draft.text)
        return answers + (self._send(drafts) if drafts else [])

    def _draft(self, key: str) -> _Draft | str:
        """A question's line, with room for it under the caps; or why there is none."""
        question = self._asked[key][0]
        body = self._exchange.body(question)
        most = most_of(body, self._options, self._price)
        refused = self._spending.reserve(most)
        if refused is not None:
            return f"{refused}; questions of a batch are counted at their most until it is back"
        self._held[key] = most
        return _Draft(Line(key, question.rubric.name, *most), request_line(key, body))

    def _send(self, drafts: list[_Draft]) -> list[Answer]:
        """One batch; answers if it can't be sent. Whether it was is not always known: then it waits to be found."""
        keys = [one.line.key for one in drafts]
        if self._down is not None:
            return self._unsent(keys, f"not sent: {self._down}")
        token = secrets.token_hex(16)
        self._store.prepare(token, self._options.url, self._options.model, [one.line for one in drafts])
        try:
            file = self._wire.upload(f"latentbench-{token}.jsonl", b"".join(one.text for one in drafts))
            self._store.uploaded(token, file)
            state = self._wire.create(self._batch(token))
            self._store.submitted(token, state.id, state.status)
        except UserError:
            self._store.forget(token)
            self._release(keys)
            raise
        except Passing as error:
            self._down = str(error)
            if not self._is_there(token):
                return self._unsent(keys, f"not sent: {error} (tried up to {self._options.attempts} times)")
        self._sent.add(token)
        return []

    def _is_there(self, token: str) -> bool:
        """Whether the server has, or may have, a batch whose submission failed."""
        batch = self._batch(token)
        if batch.file is None:
            self._store.forget(token)
            return False
        try:
            return self._resolve(batch)
        except Passing:
            return True

    def _batch(self, token: str) -> Batch:
        return next(one for one in self._store.batches() if one.token == token)

    def _release(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._spending.settle(self._held.pop(key), Bound(0, 0.0))

    def _unsent(self, keys: list[str], reason: str) -> list[Answer]:
        self._release(keys)
        return [answer for key in keys for answer in self._without(key, "transport_error", reason)]

    def _without(self, key: str, status: Status, reason: str) -> list[Answer]:
        """Answers without a verdict to all questions of a key."""
        return [Answer(one.id, one.key, status, reason=reason) for one in self._asked.pop(key)]

    # Collecting

    def _collect(self) -> Iterator[Answer]:
        """Poll until every batch is back, or until nobody wants to wait any longer."""
        pause, started = self._options.batch_poll_s, time.monotonic()
        longest = pause * _SLOWEST
        self._announce()
        fresh = self._sent >= set(self._waiting)
        while self._waiting:
            if not fresh:
                yield from self._round()
            fresh = False
            left = pause
            if self._options.batch_wait_s is not None:
                left = self._options.batch_wait_s - (time.monotonic() - started)
            if self._silent >= _GIVE_UP:
                yield from self._leave("transport_error", f"no answer to {_GIVE_UP} polls")
            elif left <= 0:
                yield from self._leave("missing", "not back yet")
            elif self._waiting:
                time.sleep(min(pause, left))
                pause = min(pause * _SLOWER, longest)

    def _announce(self) -> None:
        for batch in self._store.batches():
            if batch.token in self._waiting and batch.id is not None:
                how = "sent" if batch.token in self._sent else f"sent at {batch.submitted}, goes on"
                _LOG.warning(
                    "batch %s: %s, %d questions at %s", batch.id, how, batch.questions, self._options.url
                )

    def _round(self) -> Iterator[Answer]:
        """Ask after every batch once, and hand out what came back."""
        stored = {one.token: one for one in self._store.batches()}
        for token in list(self._waiting):
            batch = stored.get(token)
            if batch is not None and batch.id is None:
                reason = (
                    f"whether the server has the batch is not known ({self._down}); {_LATER} or asks again"
                )
                for key in self._waiting.pop(token):
                    most = self._held.pop(key)
                    self._spending.settle(most, most)  # it may be charged
                    yield from self._without(key, "transport_error", reason)
            elif batch is None or batch.state == COLLECTED or self._polled(batch):
                yield from self._hand_out(token)

    def _leave(self, status: Status, reason: str) -> Iterator[Answer]:
        """Answers to what is still waited for."""
        stored = {one.token: one for one in self._store.batches()}
        for token, keys in self._waiting.items():
            batch = stored.get(token)
            said = f"batch {batch.id} ({batch.state})" if batch else "a batch"
            for key in keys:
                yield from self._without(key, status, f"{said}: {reason}; {_LATER}")
        self._waiting.clear()

    def _polled(self, batch: Batch) -> bool:
        """Ask after a batch; whether its replies are here now."""
        try:
            state = self._wire.state(batch)
            self._silent = 0
            if state.status not in ENDED:
                self._store.seen(batch.token, state.status)
                return False
            with self._store.lock():
                now = {one.token: one for one in self._store.batches()}.get(batch.token)
                if now is not None and now.state != COLLECTED:  # another process may have been quicker
                    self._keep(batch, state)
        except Passing:
            self._silent += 1
            return False
        return True

    def _keep(self, batch: Batch, state: State) -> None:
        """Store all replies of a batch that has ended, and write the ledger, whose lines a kill must not double."""
        lines = self._store.lines(batch.token)
        kept: dict[str, dict[str, Any]] = {}
        for key, found in self._wire.lines(batch, state):
            if key in lines and key not in kept:
                kept[key] = kept_line(found, self._judge.key)
        why = f": {state.reason}" if state.reason else ""
        missing = {"error": f"batch {batch.id} is {state.status}, and has no answer to this question{why}"}
        replies = {key: kept.get(key, missing) for key in lines}
        ledger = self._judge.ledger
        noted = {one.get("custom_id") for one in ledger.entries() if one.get("batch") == batch.id}
        with ledger.open():
            for key, line in lines.items():
                if key not in noted:
                    entry = self._entry(line, replies[key])
                    ledger.add({**entry, "batch": batch.id, "custom_id": key})
        self._store.collected(batch.token, {key: json.dumps(one) for key, one in replies.items()})

    def _entry(self, line: Line, kept: Mapping[str, Any]) -> dict[str, Any]:
        reply = read_line(kept)
        usage = reply.usage if isinstance(reply, Reply) else Usage()
        outcome = "answered" if isinstance(reply, Reply) else "failed"
        spent = spent_line(kept, Bound(line.tokens, line.cost), self._price)
        return self._exchange.entry(line.rubric, outcome, usage, spent.cost)

    def _hand_out(self, token: str) -> Iterator[Answer]:
        """Answers to the questions of a batch that was collected."""
        replies, done = self._store.replies(token), []
        wrong: UserError | None = None
        try:
            for key in self._waiting.pop(token):
                most = self._held.pop(key)
                if key not in replies:
                    self._spending.settle(most, most)
                    yield from self._elsewhere(key)
                    continue
                kept = json.loads(replies[key])
                self._spending.settle(most, spent_line(kept, most, self._price))
                reply = read_line(kept)
                if isinstance(reply, str):
                    yield from self._without(key, "transport_error", reply)
                elif (error := self._exchange.unexpected(reply)) is not None:
                    wrong = error
                else:
                    for number, question in enumerate(self._asked.pop(key)):
                        answer = self._exchange.answer(question, reply, self._cache)
                        yield answer if number == 0 else answer._replace(stored=True, usage=Usage())
                done.append(key)  # only now: whoever asked has come back for more, and so has stored it
        finally:
            self._store.handed_out(done)
        if wrong is not None:
            raise wrong

    def _elsewhere(self, key: str) -> Iterator[Answer]:
        """Answers to a question whose reply another process took, or whose batch was forgotten."""
        for question in self._asked.pop(key):
            reason = "another run took the reply, or its batch was forgotten: the same command asks again"
            lost = Answer(question.id, question.key, "transport_error", reason=reason)
            yield self._exchange.stored(question, self._cache) or lost
