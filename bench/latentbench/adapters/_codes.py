"""Codes: the sparse activations of a batch of tokens, in CSR form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional

from latentbench.errors import AdapterError

__all__ = ["Codes", "codes_from_dense", "codes_from_topk", "concat_codes", "decode_rows"]


@dataclass(frozen=True, eq=False)
class Codes:
    """Active latents of each token. Token t owns entries `offsets[t]` to `offsets[t + 1]`.

    Only active latents are stored, so gradients with respect to `values` exist only for them.
    """

    latents: Tensor
    """`Int64[Tensor, "nnz"]`: latent of each entry; unique within a token."""
    values: Tensor
    """`Float[Tensor, "nnz"]`: its activation; never 0, negative where the dictionary is signed."""
    offsets: Tensor
    """`Int64[Tensor, "token+1"]`: where each token's entries start."""
    n_latents: int
    """Width of the dictionary."""
    context: Mapping[str, Tensor] = field(default_factory=dict)
    """Per-token state that decoding needs, each `Tensor[token, ...]`: `mean` and `std` of the
    standardisation, `route` (index into the card's reads) and `route_probability`, `skip` (the output of a
    transcoder's linear skip)."""

    @property
    def n_tokens(self) -> int:
        """Number of tokens."""
        return self.offsets.shape[0] - 1

    @property
    def nnz(self) -> int:
        """Number of stored entries."""
        return self.latents.shape[0]

    def counts(self) -> Tensor:
        """`Int64[Tensor, "token"]`: active latents of each token, its L0."""
        return self.offsets.diff()

    def rows(self) -> Tensor:
        """`Int64[Tensor, "nnz"]`: token of each entry."""
        return torch.repeat_interleave(
            torch.arange(self.n_tokens, device=self.offsets.device), self.counts(), output_size=self.nnz
        )

    def dense(self) -> Tensor:
        """`Float[Tensor, "token latent"]`; for small cases and tests, the hot paths never build it."""
        full = self.values.new_zeros((self.n_tokens, self.n_latents))
        return full.index_put((self.rows(), self.latents), self.values)

    def with_values(self, values: Tensor) -> Codes:
        """The same latents with other activations (scaled, steered, or carrying gradients)."""
        if values.shape != self.latents.shape:
            raise AdapterError(f"{values.shape[0]} values for {self.nnz} active latents: they must pair up")
        return replace(self, values=values)

    def keep(self, entries: Tensor) -> Codes:
        """Only the entries where `Bool[Tensor, "nnz"]` is True; every token stays, if with fewer latents."""
        kept = torch.zeros(self.n_tokens, dtype=torch.int64, device=self.offsets.device)
        kept.index_add_(0, self.rows(), entries.long())
        return replace(
            self, latents=self.latents[entries], values=self.values[entries], offsets=_offsets(kept)
        )

    def select(self, tokens: Tensor) -> Codes:
        """The codes of some tokens only, in the order given.

        Args:
            tokens: `Int64[Tensor, "n"]`, token indices.
        """
        counts = self.counts()[tokens]
        offsets = _offsets(counts)
        within = torch.arange(int(offsets[-1]), device=tokens.device) - torch.repeat_interleave(
            offsets[:-1], counts
        )
        entries = torch.repeat_interleave(self.offsets[:-1][tokens], counts) + within
        context = {name: value[tokens] for name, value in self.context.items()}
        return Codes(self.latents[entries], self.values[entries], offsets, self.n_latents, context)


def codes_from_topk(
    pre: Tensor, k: int, *, rectify: bool, context: Mapping[str, Tensor] | None = None
) -> Codes:
    """The k largest pre-activations of each token.

    Args:
        pre: `Float[Tensor, "token latent"]`.
        k: how many to keep; more than there are latents keeps all.
        rectify: drop what is not positive (TopK then ReLU). False keeps signed values, as RouteSAE does.
        context: per-token state for decoding.
    """
    values, latents = pre.topk(min(k, pre.shape[1]), dim=1, sorted=False)
    kept = values > 0 if rectify else values != 0
    counts = kept.sum(dim=1)
    return Codes(latents[kept], values[kept], _offsets(counts), pre.shape[1], context or {})


def codes_from_dense(dense: Tensor, context: Mapping[str, Tensor] | None = None) -> Codes:
    """The nonzero entries of `Float[Tensor, "token latent"]`, as a gated family produces them."""
    rows, latents = dense.nonzero(as_tuple=True)
    counts = torch.bincount(rows, minlength=dense.shape[0])
    return Codes(latents, dense[rows, latents], _offsets(counts), dense.shape[1], context or {})


def concat_codes(parts: Sequence[Codes]) -> Codes:
    """The codes of several batches of tokens, one after the other.

    Args:
        parts: at least one; all of one width and with the same context entries.
    """
    if len(parts) == 1:
        return parts[0]
    return Codes(
        torch.cat([part.latents for part in parts]),
        torch.cat([part.values for part in parts]),
        _offsets(torch.cat([part.counts() for part in parts])),
        parts[0].n_latents,
        {name: torch.cat([part.context[name] for part in parts]) for name in parts[0].context},
    )


def decode_rows(codes: Codes, w_dec: Tensor, bias: Tensor | None) -> Tensor:
    """Sum of each token's decoder rows weighted by its activations, without a dense code matrix.

    Args:
        codes: the active latents.
        w_dec: `Float[Tensor, "latent d"]`.
        bias: `Float[Tensor, "d"]`, added to every token.

    Returns:
        `Float[Tensor, "token d"]` in the decoder's dtype, differentiable in `codes.values` and `w_dec`.
    """
    summed = functional.embedding_bag(
        codes.latents,
        w_dec,
        codes.offsets,
        mode="sum",
        per_sample_weights=codes.values.to(w_dec.dtype),  # embedding_bag refuses mixed types
        include_last_offset=True,
    )
    return summed if bias is None else summed + bias


def _offsets(counts: Tensor) -> Tensor:
    return functional.pad(counts.cumsum(0), (1, 0))
