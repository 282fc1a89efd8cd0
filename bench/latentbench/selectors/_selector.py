"""The protocol of selectors, and what they give."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from latentbench.selectors._spliced import Spliced

__all__ = ["LatentScores", "Selector", "TokenSet", "by_latent", "chosen_entries", "count_to_choose"]

TokenSet = Literal["all", "last"]


class LatentScores(NamedTuple):
    """The latents that are active on an example, and what a selector makes of each."""

    latents: Tensor
    """`Int64[Tensor, "active"]`, ascending."""
    scores: Tensor
    """`Float64[Tensor, "active"]`."""

    def top(self, k: int) -> Tensor:
        """The k latents with the highest scores, the highest first; ties go to the lower index."""
        order = torch.argsort(self.scores, descending=True, stable=True)
        return self.latents[order[:k]]

    def bottom(self, k: int) -> Tensor:
        """The k latents with the lowest scores above 0, the lowest first, as GradSAE's low set (section 3.2)."""
        positive = self.scores > 0
        order = torch.argsort(self.scores[positive], stable=True)
        return self.latents[positive][order[:k]]


class Selector(Protocol):
    """Ranks the latents that are active on each example; one method, one file."""

    @property
    def name(self) -> str:
        """Name in results."""
        ...

    @property
    def keep_error(self) -> bool:
        """Whether it wants to be run with the dictionary's error added back."""
        ...

    def scores(self, spliced: Spliced) -> list[LatentScores]:
        """Scores of each example's active latents, in the order of the rows."""
        ...


def chosen_entries(spliced: Spliced, tokens: TokenSet) -> Tensor:
    """`Bool[Tensor, "nnz"]`: the stored entries on all measured tokens, or on each row's last one."""
    if tokens == "all":
        return torch.ones_like(spliced.codes.latents, dtype=torch.bool)
    rows = spliced.rows
    last = torch.ones_like(rows, dtype=torch.bool)
    last[:-1] = rows[:-1] != rows[1:]
    return last[spliced.codes.rows()]


def by_latent(
    spliced: Spliced, entries: Tensor, values: Tensor, *, mean: bool, tokens: TokenSet
) -> list[LatentScores]:
    """Entry values summed by row and latent, or averaged over the row's tokens.

    Args:
        spliced: the examples.
        entries: `Bool[Tensor, "nnz"]`, which stored entries count.
        values: `Float[Tensor, "nnz"]`.
        mean: divide by the tokens of the row that count (1 for "last").
        tokens: which ones those are.
    """
    codes = spliced.codes
    width = codes.n_latents
    row = spliced.rows[codes.rows()][entries]
    key, place = torch.unique(row * width + codes.latents[entries], return_inverse=True)
    sums = torch.zeros(len(key), dtype=torch.float64, device=values.device)
    sums = sums.index_add(0, place.to(values.device), values[entries].double())
    counts = spliced.measured.sum(dim=1).tolist()
    found = []
    for number, count in enumerate(counts):
        mine = (key // width == number).to(values.device)
        divisor = max(1, count) if mean and tokens == "all" else 1
        found.append(LatentScores(key[key // width == number] % width, sums[mine] / divisor))
    return found


def count_to_choose(spliced: Spliced, row: int, k: int | str) -> int:
    """How many latents a rule chooses: a number, or "50%" of those active at the row's last token (GradSAE's code)."""
    if isinstance(k, int):
        return k
    if k != "50%":
        raise ValueError(f"k is {k!r}; a number or '50%'")
    last = int((spliced.rows == row).nonzero()[-1, 0])
    return int(spliced.codes.counts()[last]) // 2
