"""The shared pass: one forward pass over the tokens feeds every watcher of every dictionary."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from torch import Tensor

from latentbench.adapters import Dictionary
from latentbench.lm import LM, Site, TokenBatch

if TYPE_CHECKING:
    from latentbench.data import TokenRow

__all__ = ["WatchedBatch"]

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class WatchedBatch:
    """One batch of the shared pass, as watchers see it."""

    lm: LM
    """The model the pass runs on."""
    dictionary: Dictionary
    """The dictionary whose watcher is being fed."""
    index: int
    """Number of the batch within its stream."""
    rows: Sequence[TokenRow]
    """Document and token range of each row."""
    tokens: TokenBatch
    """The batch itself."""
    measured: Tensor
    """`Bool[Tensor, "row pos"]`: the tokens that were encoded, in row-major order."""
    acts: Mapping[Site, Tensor]
    """Clean activations, `Float[Tensor, "row pos d"]`, at the sites any dictionary of the pass needs."""
    logits: Tensor | None
    """Clean logits, `Float[Tensor, "row pos vocab"]`, while some watcher needs them."""
    memo: dict[str, object] = field(default_factory=dict)
    """Results shared by the watchers of this batch: clean losses, ablated passes."""

    def flat(self, site: Site) -> Tensor:
        """`Float[Tensor, "token d"]`: activations of the measured tokens at a site."""
        return self.once(f"flat:{site}", lambda: self.acts[site][self.measured])

    def flat_acts(self) -> dict[Site, Tensor]:
        """Activations of the measured tokens at every site this dictionary reads or writes."""
        return {site: self.flat(site) for site in {*self.dictionary.reads, *self.dictionary.writes}}

    def token_rows(self) -> Tensor:
        """`Int64[Tensor, "token"]`: row of each measured token."""
        return self.once("token_rows", lambda: self.measured.nonzero()[:, 0])

    def token_columns(self) -> Tensor:
        """`Int64[Tensor, "token"]`: position of each measured token within its row (rows are right-padded)."""
        return self.once("token_columns", lambda: self.measured.nonzero()[:, 1])

    def once(self, key: str, make: Callable[[], T]) -> T:
        """A result shared by all watchers of the batch, made at the first call."""
        if key not in self.memo:
            self.memo[key] = make()
        value: T = self.memo[key]  # type: ignore[assignment]
        return value
