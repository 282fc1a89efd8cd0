"""The token policy, and the token rows and activations of a split under it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from latentbench.data import Corpus, TokenRow, token_rows
from latentbench.lm import LM, Site

__all__ = ["TokenPolicy", "stream_acts", "stream_rows"]


@dataclass(frozen=True)
class TokenPolicy:
    """How texts become tokens; one policy for all dictionaries of a suite."""

    context: int = 128
    """Tokens in a row; longer documents are cut into several rows."""
    skip_first: int = 1
    """Tokens at the start of every row left out of encoding, metrics and edits (attention sink)."""
    bos: Literal["tokenizer", "always", "never"] = "tokenizer"
    """"tokenizer", "always" or "never": whether rows begin with a BOS token."""
    batch_rows: int = 8
    """Rows in one forward pass. Does not change numbers beyond rounding."""

    def identity(self) -> dict[str, Any]:
        """What can change numbers, as JSON for cache keys."""
        return {"context": self.context, "skip_first": self.skip_first, "bos": self.bos}


def stream_rows(corpus: Corpus, lm: LM, policy: TokenPolicy, budget_tokens: int) -> list[TokenRow]:
    """The first whole rows of a split, as many as the budget holds, and at least one if there is any.

    A smaller budget always gives a prefix of a larger one's rows, so watchers with different budgets can share a
    pass. (`token_rows` itself cuts the last row to meet the budget exactly, which would not be a prefix.)

    Args:
        corpus: the split.
        lm: the model whose tokenizer is used.
        policy: context, skipped tokens and BOS.
        budget_tokens: most measured tokens.
    """
    rows = token_rows(
        corpus,
        lm,
        context=policy.context,
        skip_first=policy.skip_first,
        budget_tokens=budget_tokens + policy.context,
        bos=policy.bos,
    )
    measured = 0
    for place, row in enumerate(rows):
        measured += len(row.ids) - policy.skip_first
        if measured > budget_tokens:
            return rows[: max(1, place)]
    return rows


def stream_acts(
    corpus: Corpus, lm: LM, policy: TokenPolicy, sites: Sequence[Site], budget_tokens: int
) -> Iterator[dict[Site, Tensor]]:
    """Activations of the measured tokens, `Float[Tensor, "token d"]` at each site, batch by batch."""
    rows = stream_rows(corpus, lm, policy, budget_tokens)
    for start in range(0, len(rows), policy.batch_rows):
        tokens = lm.batch([row.ids for row in rows[start : start + policy.batch_rows]])
        measured = tokens.measured(policy.skip_first)
        acts = lm.forward(tokens, capture=sites, logits=False).acts
        yield {site: acts[site][measured] for site in sites}
