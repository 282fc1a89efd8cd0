"""Token rows and activations of a split under a token policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from latentbench.data import Corpus, TokenRow, token_rows
from latentbench.lm import LM, Site
from latentbench.run._task import TokenPolicy

__all__ = ["stream_acts", "stream_rows"]


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
