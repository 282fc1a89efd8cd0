"""A dictionary under examination, with the activations that it is examined on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from latentbench.adapters import Codes, Dictionary, Written
from latentbench.data import Document, token_rows
from latentbench.identity import sha256_text
from latentbench.lm import LM, Site, TokenBatch

__all__ = ["Acts", "Misfit", "Profile", "Subject", "chunks", "filled", "misfit", "passages"]

Acts = dict[Site, Tensor]
"""`Float[Tensor, "token d"]` by site."""

_CHUNK = 256
"""Tokens encoded at once: 131,072 latents in float32 then take 128 MiB."""
_ROWS = 8
"""Token rows in one forward pass."""
_FEW = 64
"""Tokens that the structural checks use."""
_SAMPLE = 512
"""Tokens that comparisons with other sites and settings use."""
_MASSIVE = 10.0
"""Tokens whose norm is above this multiple of the median are left out of errors. Some models give a few tokens
activations a hundred times as long as the others (arXiv 2402.17762); their squares would hide everything else."""


class Profile(NamedTuple):
    """What the codes of all tokens are like."""

    counts: Tensor
    """`Int64[Tensor, "token"]`: active latents of each token."""
    uses: Tensor
    """`Int64[Tensor, "latent"]`: tokens that each latent is active on."""
    strength: Tensor
    """`Float[Tensor, "latent"]`: sum of each latent's absolute activations."""


class Misfit(NamedTuple):
    """How far a reconstruction is from its target, in raw units, over the ordinary tokens."""

    mean: float
    """Sum of squared errors over sum of squared distances from the mean activation: the normalised MSE. Infinite
    where the reconstruction is not finite, 1 where nothing varies or is written."""
    typical: float
    """Median over tokens of squared error over squared distance from the mean. Long tokens don't outweigh the others,
    so it can be compared between sites, which differ in how uneven their tokens are."""


class Subject:
    """A dictionary, perhaps a language model, and tokens. Activations are taken once and kept."""

    def __init__(
        self,
        dictionary: Dictionary,
        lm: LM | None,
        *,
        texts: Sequence[str] | None = None,
        max_tokens: int = 2048,
        context: int = 128,
        skip_first: int = 1,
        seed: int = 0,
    ) -> None:
        """Prepare an examination; see `check_adapter` for the arguments."""
        self.dictionary = dictionary
        self.lm = lm
        self.skip_first = skip_first
        self.max_tokens = max_tokens
        self.generator = torch.Generator().manual_seed(seed)
        self.rows = [] if lm is None else _rows(lm, texts, context, max_tokens, skip_first, self.generator)
        self._acts: Acts = {}
        self._sampled: Acts = {}

    @property
    def sites(self) -> tuple[Site, ...]:
        """Every site that the dictionary reads or writes, in the model's order."""
        return tuple(sorted({*self.dictionary.reads, *self.dictionary.writes}))

    def at(self, sites: Sequence[Site]) -> Acts:
        """Activations of the measured tokens at some sites, on the dictionary's device; drawn without a model."""
        missing = [site for site in dict.fromkeys(sites) if site not in self._acts]
        if missing and self.lm is None:
            shape = (_FEW, self.dictionary.card.d_model)
            drawn = {site: torch.randn(shape, generator=self.generator) for site in sorted(missing)}
            self._acts.update({site: self._moved(value) for site, value in drawn.items()})
        elif missing:
            self._acts.update(self._captured(missing, self.max_tokens))
        return {site: self._acts[site] for site in sites}

    def sample(self, sites: Sequence[Site]) -> Acts:
        """The same for the first few hundred tokens; needs a model."""
        missing = [site for site in dict.fromkeys(sites) if site not in self._sampled]
        if missing:
            self._sampled.update(self._captured(missing, min(_SAMPLE, self.max_tokens)))
        return {site: self._sampled[site] for site in sites}

    @property
    def acts(self) -> Acts:
        """Activations of all measured tokens at the sites read and written."""
        return self.at(self.sites)

    @property
    def few(self) -> Acts:
        """Activations of the first tokens, at the sites read."""
        return {site: value[:_FEW] for site, value in self.at(self.dictionary.reads).items()}

    @cached_property
    def few_codes(self) -> Codes:
        """The codes of `few`."""
        return self.dictionary.encode(self.few)

    @cached_property
    def profile(self) -> Profile:
        """What the codes of all tokens are like."""
        uses = torch.zeros(self.dictionary.card.n_latents, dtype=torch.int64)
        strength = torch.zeros(self.dictionary.card.n_latents, dtype=torch.float64)
        counts = []
        for part in chunks(self.at(self.dictionary.reads)):
            codes = self.dictionary.encode(part)
            latents = codes.latents.cpu()
            counts.append(codes.counts().cpu())
            uses += torch.bincount(latents, minlength=len(uses))
            strength.index_add_(0, latents, codes.values.detach().abs().double().cpu())
        return Profile(torch.cat(counts), uses, strength)

    def batch(self, rows: int = _ROWS) -> tuple[TokenBatch, Tensor]:
        """The first token rows and which of their positions are measured; needs a model."""
        assert self.lm is not None
        tokens = self.lm.batch(self.rows[:rows])
        return tokens, tokens.measured(self.skip_first)

    def _captured(self, sites: Sequence[Site], tokens: int) -> Acts:
        lm = self.lm
        assert lm is not None
        parts: dict[Site, list[Tensor]] = {site: [] for site in sites}
        seen = 0
        for start in range(0, len(self.rows), _ROWS):
            if seen >= tokens:
                break
            batch = lm.batch(self.rows[start : start + _ROWS])
            measured = batch.measured(self.skip_first)
            seen += int(measured.sum())
            found = lm.forward(batch, capture=sites, logits=False).acts
            for site in sites:
                parts[site].append(self._moved(found[site][measured]))
        return {site: torch.cat(part)[:tokens] for site, part in parts.items()}

    def _moved(self, acts: Tensor) -> Tensor:
        return acts.to(device=self.dictionary.device, dtype=self.dictionary.dtype)


def passages() -> list[str]:
    """Twenty short texts of several kinds, written for this project, that ship with it."""
    text = (Path(__file__).parent / "passages.txt").read_text(encoding="utf-8")
    return [part.strip("\n") for part in text.split("\n\n") if part.strip()]


def chunks(acts: Mapping[Site, Tensor]) -> Iterator[Acts]:
    """The same activations, a few hundred tokens at a time."""
    tokens = min((value.shape[0] for value in acts.values()), default=0)
    for start in range(0, tokens, _CHUNK):
        yield {site: value[start : start + _CHUNK] for site, value in acts.items()}


def filled(written: Written, like: Tensor) -> tuple[Tensor, Tensor]:
    """What was written at every token, 0 where nothing was, and which tokens were written.

    Args:
        written: values at some tokens.
        like: `Float[Tensor, "token d"]`, for the shape.
    """
    if written.rows is None:
        return written.values, torch.ones(like.shape[0], dtype=torch.bool, device=written.values.device)
    full = written.values.new_zeros((like.shape[0], written.values.shape[1]))
    full[written.rows] = written.values
    at = torch.zeros(like.shape[0], dtype=torch.bool, device=full.device)
    at[written.rows] = True
    return full, at


def misfit(
    run: Callable[[Acts], Mapping[Site, Written]], feed: Mapping[Site, Tensor], target: Mapping[Site, Tensor]
) -> Misfit:
    """How far what a dictionary gives back is from what it should.

    Args:
        run: encode and decode.
        feed: what is encoded, by the names of the sites that the dictionary reads.
        target: what should come back, by the names of the sites that it writes.
    """
    ordinary = {site: _ordinary(value) for site, value in target.items()}
    mean = {site: value[ordinary[site]].mean(dim=0) for site, value in target.items()}
    errors, spreads = [], []
    start = 0
    for part in chunks(feed):
        tokens = next(iter(part.values())).shape[0]
        here = slice(start, start + tokens)
        start += tokens
        for site, written in run(part).items():
            wanted = target[site][here]
            predicted, at = filled(written, wanted)
            chosen = at & ordinary[site][here]
            errors.append((predicted.to(wanted) - wanted)[chosen].double().square().sum(dim=1))
            spreads.append((wanted - mean[site])[chosen].double().square().sum(dim=1))
    error, spread = torch.cat(errors), torch.cat(spreads)
    if not bool(torch.isfinite(error).all()):
        return Misfit(math.inf, math.inf)
    if float(spread.sum()) == 0:
        return Misfit(1.0, 1.0)
    return Misfit(float(error.sum() / spread.sum()), float((error / spread.clamp(min=1e-30)).median()))


def _ordinary(acts: Tensor) -> Tensor:
    norms: Tensor = acts.float().norm(dim=1)
    return norms <= _MASSIVE * norms.median()


def _rows(
    lm: LM,
    texts: Sequence[str] | None,
    context: int,
    max_tokens: int,
    skip_first: int,
    generator: torch.Generator,
) -> list[list[int]]:
    """Token rows with `max_tokens` measured tokens, or fewer of short texts; drawn if there is no tokenizer."""
    context = min(context, int(getattr(lm.config, "max_position_embeddings", None) or context))
    if lm.tokenizer is not None:
        documents = [
            Document(sha256=sha256_text(text), text=text, source="examination")
            for text in (passages() if texts is None else texts)
        ]
        rows = token_rows(documents, lm, context=context, skip_first=skip_first, budget_tokens=max_tokens)
        return [row.ids for row in rows]
    drawn: list[list[int]] = []
    measured = 0
    while measured < max_tokens:
        length = int(torch.randint(context // 2, context + 1, (), generator=generator))
        drawn.append(torch.randint(2, lm.vocab_size, (length,), generator=generator).tolist())
        measured += length - skip_first
    return drawn
