"""Which rows to generate together."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from latentbench.errors import UserError

__all__ = ["generation_batches"]


def generation_batches(prompts: Sequence[Sequence[int]], most_rows: int) -> list[list[int]]:
    """Batches of rows of like length, so that little is padding and equal prompts are run once.

    Args:
        prompts: token ids of each row.
        most_rows: most rows of a batch; batches are as even as can be.

    Returns:
        Indices into `prompts` by batch, each once. The longest come first, so that too little memory shows at once.

    Raises:
        UserError: batches of no rows.
    """
    if most_rows < 1:
        raise UserError(f"batches of {most_rows} rows: a batch has at least one")
    order = sorted(range(len(prompts)), key=lambda row: (-len(prompts[row]), tuple(prompts[row]), row))
    count = -(-len(order) // most_rows)
    edges = [len(order) * batch // count for batch in range(count + 1)] if count else [0]
    return [order[start:stop] for start, stop in itertools.pairwise(edges)]
