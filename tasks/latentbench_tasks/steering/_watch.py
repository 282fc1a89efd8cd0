"""The watcher: per-document sums of activations on the concepts' labelled texts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from latentbench.run import CellSetup, Watcher
from latentbench_tasks.steering._labelled import ConceptTexts

if TYPE_CHECKING:
    from latentbench.adapters import Codes
    from latentbench.data import TokenRow
    from latentbench.run import WatchedBatch

__all__ = ["ContrastWatcher", "labelled_rows", "latent_sums"]

_CHARACTERS_PER_TOKEN = 12
"""More than any usual text has, so that cutting a text before tokenising it does not shorten its row."""


def labelled_rows(setup: CellSetup, texts: Sequence[ConceptTexts], context: int) -> list[TokenRow]:
    """One row for every document of every concept, each document once, cut to `context` tokens."""
    from latentbench.data import token_rows

    documents = {
        document.sha256: replace(document, text=document.text[: context * _CHARACTERS_PER_TOKEN])
        for drawn in texts
        for document in (*drawn.positives, *drawn.negatives)
    }
    bos: Any = setup.tokens.bos  # a plain string in the policy, one of three in the call
    cut = list(documents.values())
    rows = token_rows(cut, setup.lm, context=context, skip_first=setup.tokens.skip_first, bos=bos)
    return [row for row in rows if row.start_token == 0]


class ContrastWatcher(Watcher):
    """Sums each latent's activation over the tokens of each labelled document."""

    def __init__(self, rows: Sequence[TokenRow], texts: Sequence[ConceptTexts], stream: str) -> None:
        """A watcher of these rows.

        Args:
            rows: from `labelled_rows`.
            texts: what the rows' documents are to each concept.
            stream: name of the stream; it must change with the rows.
        """
        self._rows = list(rows)
        self._stream = stream
        self._sides: dict[str, dict[str, int]] = {}
        for drawn in texts:
            for documents, side in ((drawn.positives, 1), (drawn.negatives, -1)):
                for document in documents:
                    self._sides.setdefault(document.sha256, {})[drawn.concept.id] = side
        self.budget_tokens = sum(len(row.ids) for row in self._rows)

    def rows(self) -> Sequence[TokenRow]:
        """See `Watcher.rows`."""
        return self._rows

    def stream(self) -> str:
        """See `Watcher.stream`."""
        return self._stream

    def watch(self, batch: WatchedBatch, codes: Codes) -> list[dict[str, Any]]:
        """One item per row; see `latent_sums` for its lists. `concepts` holds 1 or -1 by concept id."""
        token_rows = batch.token_rows()
        tokens = torch.bincount(token_rows, minlength=len(batch.rows)).tolist()
        sums = latent_sums(codes, token_rows, len(batch.rows))
        return [
            {
                "kind": "contrast",
                "batch": batch.index,
                "row": index,
                "document": row.document,
                "source": row.source,
                "concepts": self._sides[row.document],
                "tokens": tokens[index],
                **sums[index],
            }
            for index, row in enumerate(batch.rows)
        ]


def latent_sums(codes: Codes, token_rows: Tensor, n_rows: int) -> list[dict[str, list[Any]]]:
    """What each row's tokens say of each latent that is active on one of them.

    Args:
        codes: codes of the tokens.
        token_rows: `Int64[Tensor, "token"]`, row of each token.
        n_rows: number of rows.

    Returns:
        For every row: `latents`, and for each of them the `sums` of its activation, on how many tokens it is
        `active`, and its `peaks` (largest activation). Numbers have four significant digits.
    """
    entry_rows = token_rows.to(codes.latents.device)[codes.rows()]
    keys, index = torch.unique(entry_rows * codes.n_latents + codes.latents, return_inverse=True)
    values = codes.values.detach().float()
    sums = values.new_zeros(len(keys)).index_add_(0, index, values)
    active = torch.bincount(index, minlength=len(keys))
    peaks = values.new_full((len(keys),), -torch.inf).scatter_reduce_(0, index, values, "amax")
    bounds = torch.searchsorted(keys, torch.arange(n_rows + 1, device=keys.device) * codes.n_latents).tolist()
    latents = (keys % codes.n_latents).tolist()
    columns = {
        "latents": latents,
        "sums": _rounded(sums),
        "active": active.tolist(),
        "peaks": _rounded(peaks),
    }
    return [
        {name: column[start:end] for name, column in columns.items()}
        for start, end in itertools.pairwise(bounds)
    ]


def _rounded(values: Tensor) -> list[float]:
    return [float(f"{value:.4g}") for value in values.tolist()]
