"""Running the shared pass: one forward pass per batch of rows feeds every watcher of a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from latentbench.adapters import Codes, Dictionary
from latentbench.data import TokenRow
from latentbench.lm import LM, Site
from latentbench.run._task import Item, TokenPolicy, Watcher
from latentbench.run._watch import WatchedBatch

__all__ = ["Fed", "run_pass"]


@dataclass(eq=False)
class Fed:
    """One watcher in a shared pass."""

    dictionary: Dictionary
    """Encodes for it; watchers of one dictionary share the codes."""
    watcher: Watcher
    """Gets the batches."""
    rows: Sequence[TokenRow]
    """Its rows: the first ones of the stream, up to its budget."""
    done: set[str]
    """Ids of rows whose items are stored already; a batch of such rows only is not fed again."""
    take: Callable[[list[Item]], None]
    """Stores the items of a batch; each carries an `id` by now."""
    fail: Callable[[Exception], None]
    """Called when the watcher raises or its items can't be stored; it is fed no more."""
    failed: bool = field(default=False)
    """Whether it did."""

    def wants(self, batch: _Batch) -> bool:
        """Whether the batch is within its rows and not stored yet."""
        inside = batch.end <= len(self.rows)
        return inside and not self.failed and not all(row_id(row) in self.done for row in batch.rows)


class _Batch(NamedTuple):
    rows: list[TokenRow]
    """Longest first within a segment, to waste little on padding."""
    end: int
    """Place in the stream behind the batch's segment."""


def row_id(row: TokenRow) -> str:
    """Names a row within its stream, whatever the batching."""
    return f"{row.document}:{row.start_token}"


def run_pass(
    lm: LM,
    policy: TokenPolicy,
    fed: Sequence[Fed],
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> None:
    """Feed watchers until their rows are used up.

    The set of rows a watcher sees depends on its own budget only, so its numbers do not depend on which other
    watchers share the pass.

    Args:
        lm: the model; run once per batch, to the end only while somebody needs logits.
        policy: token policy of the suite.
        fed: watchers of one stream; the rows of each are a prefix of the longest.
        progress: called as progress(tokens done, tokens in all).
    """
    rows = max((one.rows for one in fed), key=len)
    total = sum(len(row.ids) for row in rows)
    seen = 0
    for index, batch in enumerate(_batches(rows, {len(one.rows) for one in fed}, policy.batch_rows)):
        active = [one for one in fed if one.wants(batch)]
        if active:
            _feed(lm, policy, index, batch.rows, active)
        seen += sum(len(row.ids) for row in batch.rows)
        progress(seen, total)


def _batches(rows: Sequence[TokenRow], budgets: set[int], size: int) -> Iterator[_Batch]:
    """Batches that cross no watcher's budget; rows are sorted by length between two budgets, in windows."""
    window = 32 * size
    edges = sorted({*budgets, *range(window, len(rows), window), len(rows)} - {0})
    start = 0
    for edge in edges:
        segment = sorted(rows[start:edge], key=lambda row: len(row.ids), reverse=True)
        for first in range(0, len(segment), size):
            yield _Batch(list(segment[first : first + size]), edge)
        start = edge


def _feed(lm: LM, policy: TokenPolicy, index: int, rows: list[TokenRow], active: Sequence[Fed]) -> None:
    tokens = lm.batch([row.ids for row in rows])
    measured = tokens.measured(policy.skip_first)
    sites: set[Site] = {site for one in active for site in (*one.dictionary.reads, *one.dictionary.writes)}
    logits = any(one.watcher.needs_logits for one in active)
    clean = lm.forward(tokens, capture=sites, logits=logits)
    memo: dict[str, object] = {}
    codes: dict[int, Codes] = {}
    for one in active:
        batch = WatchedBatch(
            lm=lm,
            dictionary=one.dictionary,
            index=index,
            rows=rows,
            tokens=tokens,
            measured=measured,
            acts=clean.acts,
            logits=clean.logits,
            memo=memo,
        )
        try:
            if id(one.dictionary) not in codes:
                flat = {site: batch.flat(site) for site in one.dictionary.reads}
                codes[id(one.dictionary)] = one.dictionary.encode(flat)
            items = one.watcher.watch(batch, codes[id(one.dictionary)])
            one.take([_named(item, rows) for item in items])  # within: an item with NaN can't be stored
        except Exception as error:  # noqa: BLE001 - a failing cell is recorded, and the others go on
            one.failed = True
            one.fail(error)


def _named(item: Item, rows: Sequence[TokenRow]) -> Item:
    """The item with its row's name in place of its place in the batch, which says nothing about the data."""
    named = {key: value for key, value in item.items() if key not in ("row", "batch")}
    if "row" in item:
        row = rows[item["row"]]
        named |= {
            "id": row_id(row),
            "document": row.document,
            "source": row.source,
            "start_token": row.start_token,
        }
    return named
