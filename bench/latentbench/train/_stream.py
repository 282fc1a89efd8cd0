"""The activation stream: standardised activations of a corpus in blocks, from the model or from a cache on disk."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from latentbench.adapters import InputTransform
from latentbench.data import Corpus, TokenRow, measured_tokens, token_rows
from latentbench.errors import UserError
from latentbench.identity import sha256_json
from latentbench.lm import LM, Site
from latentbench.train._recipe import Recipe

__all__ = ["STANDARDISE", "ActivationStream", "Block", "StreamClock"]

STANDARDISE = InputTransform("standardise", 1e-6)
"""What RouteSAE's code does to every token at every site (arXiv 2503.08200, GitHub swei2001/RouteSAEs)."""
_INDEX = "stream.json"


class Block(NamedTuple):
    """Tokens that are shuffled together; also the grain of resuming."""

    acts: Tensor
    """`Float[Tensor, "site token d"]`, standardised; float16 if it went through a cache."""
    mean: Tensor
    """`Float[Tensor, "site token 1"]`: with `std`, what brings `acts` back to raw units."""
    std: Tensor
    """`Float[Tensor, "site token 1"]`."""
    first: int
    """Row of the stream that it starts at."""
    after: int
    """Row behind it."""

    @property
    def n_tokens(self) -> int:
        """Measured tokens in it."""
        return self.acts.shape[1]

    def raw(self, site: int) -> Tensor:
        """Activations at one site in raw units, `Float[Tensor, "token d"]`."""
        return self.acts[site].float() * self.std[site] + self.mean[site]


@dataclass
class StreamClock:
    """Where the time of a stream went, to tell whether the model or the training is the bottleneck."""

    lm_tokens: int = 0
    """Tokens that the model ran over."""
    lm_seconds: float = 0.0
    """Seconds it took for them."""
    waited_seconds: float = 0.0
    """Seconds in which the reader had no block to work on."""


@dataclass(eq=False)
class ActivationStream:
    """Blocks of one split of a corpus.

    A block depends only on its first row, so a stream can be entered at any block. With a cache folder every
    block is stored in half precision (relative error 5e-4) when it is first made, and read from there later;
    it is rounded the same way on both occasions.
    """

    lm: LM
    """Runs only for blocks that the cache lacks."""
    corpus: Corpus
    """The split that is streamed."""
    sites: tuple[Site, ...]
    """Captured sites, in the order of a block's first axis."""
    recipe: Recipe
    """Row length, rows per forward pass and block size."""
    budget_tokens: int
    """Measured tokens wanted; whole rows are taken."""
    cache: Path | None = None
    """Folder of the cache."""
    prefetch: bool = False
    """Make the next block on another thread while the present one is used; pays where the model is on a GPU."""
    clock: StreamClock = field(default_factory=StreamClock)
    """Filled while the stream is read."""

    def __post_init__(self) -> None:
        self.rows: Sequence[TokenRow] = token_rows(
            self.corpus,
            self.lm,
            context=self.recipe.context,
            skip_first=self.recipe.skip_first,
            budget_tokens=self.budget_tokens,
        )
        self.tokens = measured_tokens(self.rows, self.recipe.skip_first)
        if not self.tokens:
            raise UserError(
                f"the {self.corpus.split} split of {self.corpus.name!r} holds no tokens to stream"
            )
        if self.cache is not None:
            _claim(self.cache, self.key())

    def key(self) -> str:
        """Checksum of everything that blocks depend on, but for the number of tokens."""
        return sha256_json(
            {
                "lm": self.lm.identity(),
                "corpus": [self.corpus.sha256, self.corpus.split],
                "sites": [str(site) for site in self.sites],
                "context": self.recipe.context,
                "skip_first": self.recipe.skip_first,
                "rows": self.recipe.rows,
                "block_tokens": self.recipe.block_tokens,
            }
        )

    def blocks(self, first: int = 0) -> Iterator[Block]:
        """The blocks from row `first` on."""
        if self.prefetch:
            yield from _ahead(self._next, first, len(self.rows), self.clock)
            return
        while first < len(self.rows):
            began = time.perf_counter()
            block = self._next(first)
            self.clock.waited_seconds += time.perf_counter() - began
            yield block
            first = block.after

    def _next(self, first: int) -> Block:
        if self.cache is None:
            return self._made(first)
        found = sorted(self.cache.glob(f"{first:07d}-*.safetensors"))
        ends = [int(file.stem.partition("-")[2]) for file in found]
        # A stream of fewer tokens ends inside a block of a longer one: it must not see the rows behind.
        whole = [file for file, end in zip(found, ends, strict=True) if end <= len(self.rows)]
        if whole:
            held = load_file(whole[-1])
            after = int(whole[-1].stem.partition("-")[2])
            return Block(held["acts"], held["mean"], held["std"], first, after)
        block = self._made(first)
        block = block._replace(acts=block.acts.half())
        target = self.cache / f"{first:07d}-{block.after:07d}.safetensors"
        tensors = {"acts": block.acts, "mean": block.mean, "std": block.std}
        save_file({name: value.cpu().contiguous() for name, value in tensors.items()}, f"{target}.tmp")
        os.replace(f"{target}.tmp", target)
        return block

    @torch.no_grad()
    def _made(self, first: int) -> Block:
        began = time.perf_counter()
        parts: list[tuple[Tensor, Tensor, Tensor]] = []
        held, after = 0, first
        while held < self.recipe.block_tokens and after < len(self.rows):
            rows = self.rows[after : after + self.recipe.rows]
            tokens = self.lm.batch([row.ids for row in rows])
            measured = tokens.measured(self.recipe.skip_first)
            acts = self.lm.forward(tokens, capture=self.sites, logits=False).acts
            done = [STANDARDISE.apply(acts[site][measured].float()) for site in self.sites]
            means, stds = (torch.stack([one.context[name] for one in done]) for name in ("mean", "std"))
            parts.append((torch.stack([one.acts for one in done]), means, stds))
            held += parts[-1][0].shape[1]
            after += len(rows)
        acts_, mean, std = (torch.cat(values, dim=1) for values in zip(*parts, strict=True))
        self.clock.lm_tokens += held
        self.clock.lm_seconds += time.perf_counter() - began
        return Block(acts_, mean, std, first, after)


def _claim(cache: Path, key: str) -> None:
    """Make the folder a cache of this stream.

    Raises:
        UserError: it holds the blocks of another stream.
    """
    cache.mkdir(parents=True, exist_ok=True)
    index = cache / _INDEX
    if index.is_file():
        if json.loads(index.read_text(encoding="utf-8"))["key"] != key:
            raise UserError(
                f"{cache} caches activations of another model, corpus or block size: delete it or name another "
                "folder"
            )
        return
    partial = index.with_suffix(".tmp")
    partial.write_text(json.dumps({"key": key}), encoding="utf-8")
    os.replace(partial, index)


def _ahead(make: Callable[[int], Block], first: int, end: int, clock: StreamClock) -> Iterator[Block]:
    """Blocks with one made ahead."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="activations") as pool:
        coming = pool.submit(make, first) if first < end else None
        while coming is not None:
            began = time.perf_counter()
            block = coming.result()
            clock.waited_seconds += time.perf_counter() - began
            coming = pool.submit(make, block.after) if block.after < end else None
            yield block
