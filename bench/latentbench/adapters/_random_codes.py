"""Random codes of the same sparsity: what a dictionary would look like if it did not matter which latents fire."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Self

import torch
from torch import Tensor

from latentbench.adapters._codes import Codes
from latentbench.adapters._gates import Gate

__all__ = ["RandomCodesGate", "random_codes"]

_ROUNDS = 4
_GOLDEN: Final = 0x9E3779B97F4A7C15
_ODD: Final = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)
"""Multipliers of splitmix64 (Steele, Lea and Flood 2014), as signed numbers."""


@dataclass(frozen=True, eq=False)
class RandomCodesGate(Gate):
    """Another gate, and then random latents in place of the active ones; see `random_codes`."""

    inner: Gate
    """Decides how many latents are active, and with which values."""
    seed: int = 0
    """Chooses the random latents."""

    def __call__(self, pre: Tensor, context: Mapping[str, Tensor]) -> Codes:
        """See `Gate`."""
        return random_codes(self.inner(pre, context), self.seed)

    @property
    def core(self) -> Gate:
        """See `Gate.core`: the gate inside."""
        return self.inner

    def around(self, gate: Gate) -> Gate:
        """See `Gate.around`: whatever the sparsity is set by, the latents stay random."""
        return gate if isinstance(gate, RandomCodesGate) else replace(self, inner=gate)

    def describe(self) -> dict[str, object]:
        """See `Gate`."""
        inner = self.inner.describe()
        return {**inner, "gate": f"random-codes of {inner['gate']}", "seed": self.seed}

    def tensors(self) -> dict[str, Tensor]:
        """See `Gate`: those of the gate inside."""
        return self.inner.tensors()

    def to(self, device: torch.device | str | None) -> Self:
        """See `Gate`."""
        return replace(self, inner=self.inner.to(device))

    def narrow(self, latents: Tensor) -> Self:
        """See `Gate`."""
        return replace(self, inner=self.inner.narrow(latents))


def random_codes(codes: Codes, seed: int) -> Codes:
    """Codes in which every token has as many latents as before, with the same values, but random ones.

    Every set of latents of that size is (about) equally likely, so latents are used equally often and at random
    tokens. The draw is a function of the seed and of the set of latents that were active, so a token has the same
    random latents in every batch, on every device and in every run, and tokens whose active sets differ in a single
    latent have unrelated ones. Tokens with equal sets share them: with one or two active latents per token that is
    no longer random.

    Args:
        codes: the true codes; their context is kept.
        seed: another seed gives other latents.
    """
    rows = codes.rows()
    order = torch.argsort(rows * max(1, codes.n_latents) + codes.latents)  # a gate may give them in any order
    sums = torch.zeros(codes.n_tokens, dtype=torch.int64, device=rows.device)
    sums.index_add_(0, rows, _mixed(codes.latents + _nonce(seed + 1)))
    keys = _mixed(sums)[rows]
    place = torch.arange(codes.nnz, device=rows.device) - codes.offsets[:-1][rows]
    return replace(codes, latents=_permuted(place, keys, codes.n_latents), values=codes.values[order])


def _permuted(places: Tensor, keys: Tensor, size: int) -> Tensor:
    """Where a permutation of range(size), one for each key, sends each place.

    A Feistel network permutes the next power of 4; what falls outside of the range is sent on until it is inside,
    which leaves a permutation of the range (Black and Rogaway 2002, "Ciphers with arbitrary finite domains").
    """
    half = max(1, math.ceil(math.log2(max(2, size)) / 2))
    sent = _feistel(places, keys, half)
    outside = (sent >= size).nonzero()[:, 0]
    while len(outside):
        sent[outside] = _feistel(sent[outside], keys[outside], half)
        outside = outside[sent[outside] >= size]
    return sent


def _feistel(places: Tensor, keys: Tensor, half: int) -> Tensor:
    mask = (1 << half) - 1
    left, right = places >> half, places & mask
    for step in range(_ROUNDS):
        left, right = right, left ^ (_mixed(right + keys + _nonce(step)) & mask)
    return (left << half) | right


def _nonce(number: int) -> int:
    """Far apart for neighbouring numbers, as a signed number of 64 bits."""
    return (number * _GOLDEN + 2**63) % 2**64 - 2**63


def _mixed(values: Tensor) -> Tensor:
    """Splitmix64's finaliser: every bit of the result depends on every bit of the number."""
    for shift, odd in ((30, _ODD[0]), (27, _ODD[1])):
        values = (values ^ _shifted(values, shift)) * odd
    return values ^ _shifted(values, 31)


def _shifted(values: Tensor, shift: int) -> Tensor:
    """Logical shift to the right; the one of signed numbers copies the sign."""
    return (values >> shift) & ((1 << (64 - shift)) - 1)
