"""Codes changed in the running model: against plain splices, dense codes by hand, and selection's own passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from latentbench.adapters import (
    Crosscoder,
    CrosscoderWeights,
    Dictionary,
    DictionaryCard,
    EditLatents,
    InputTransform,
    JumpReluGate,
    LatentChange,
    ReluGate,
    changed_codes,
    codes_from_dense,
    latent_edits,
    splice_edits,
)
from latentbench.errors import AdapterError
from latentbench.lm import LM, EditView, MapActivation, Site, TokenBatch
from latentbench.testing import random_routesae, random_sae

Draw = Callable[..., Tensor]
Acts = dict[Site, Tensor]
F64 = torch.float64
SITE = Site("resid_post", 2)
ROUTED = [Site("resid_post", layer) for layer in range(1, 5)]
NONE = LatentChange.none()


def jumprelu() -> Dictionary:
    return random_sae(site=SITE, gate=JumpReluGate(torch.full((48,), 0.3, dtype=F64)), dtype=F64)


def routesae() -> Dictionary:
    return random_routesae(ROUTED, router_scale=2.0, dtype=F64)


def crosscoder(draw: Draw) -> Crosscoder:
    sites = ("resid_post.1", "resid_post.3")
    card = DictionaryCard(
        name="toy",
        family="crosscoder",
        reads=sites,
        writes=sites,
        d_model=16,
        n_latents=48,
        normalisation="none",
        source="test",
        sha256="0" * 64,
    )
    weights = CrosscoderWeights(
        w_enc=draw(2, 48, 16, seed=1) / 4,
        b_enc=draw(48, seed=2) / 4,
        w_dec=draw(2, 48, 16, seed=3) / 4,
        b_dec=draw(2, 16, seed=4) / 4,
    )
    return Crosscoder(card, weights, ReluGate(), InputTransform("none"))


def logits_of(lm: LM, tokens: TokenBatch, edits: list[MapActivation]) -> Tensor:
    logits = lm.forward(tokens, edits=edits).logits
    assert logits is not None
    return logits[tokens.real]


@pytest.mark.parametrize("make", [jumprelu, routesae])
def test_without_a_change_it_is_the_plain_splice(
    lm: LM, tokens: TokenBatch, acts: Acts, measured: Tensor, make: Callable[[], Dictionary]
) -> None:
    dictionary = make()
    plain = logits_of(lm, tokens, splice_edits(dictionary, dictionary.encode(acts), measured))  # type: ignore[arg-type]
    ours = logits_of(lm, tokens, latent_edits(dictionary, [NONE] * 3))  # type: ignore[arg-type]
    assert torch.allclose(ours, plain, atol=1e-10)
    assert not torch.allclose(ours, logits_of(lm, tokens, []), atol=1e-3)


def test_a_crosscoder_writes_its_clean_codes_everywhere(
    lm: LM, tokens: TokenBatch, acts: Acts, measured: Tensor, draw: Draw
) -> None:
    dictionary = crosscoder(draw)
    plain = logits_of(lm, tokens, splice_edits(dictionary, dictionary.encode(acts), measured))  # type: ignore[arg-type]
    assert torch.allclose(logits_of(lm, tokens, latent_edits(dictionary, [NONE] * 3)), plain, atol=1e-10)  # type: ignore[arg-type]


@pytest.mark.parametrize("tokens_set", ["all", "last", "prompt_last"])
def test_with_the_error_kept_nothing_changes_without_a_change(
    lm: LM, tokens: TokenBatch, draw: Draw, tokens_set: str
) -> None:
    plain = logits_of(lm, tokens, [])
    for dictionary in (jumprelu(), routesae(), crosscoder(draw)):
        edits = latent_edits(dictionary, [NONE] * 3, tokens=tokens_set, keep_error=True)  # type: ignore[arg-type]
        assert torch.allclose(logits_of(lm, tokens, edits), plain, atol=1e-9)  # type: ignore[arg-type]


@pytest.mark.parametrize("keep_error", [True, False])
def test_changes_reach_their_own_row_alone(lm: LM, tokens: TokenBatch, *, keep_error: bool) -> None:
    dictionary = jumprelu()
    change = LatentChange(torch.arange(24), torch.tensor([30, 3]), torch.tensor([1.5, 0.7]))
    plain = lm.forward(tokens, edits=latent_edits(dictionary, [NONE] * 3, keep_error=keep_error)).logits
    found = lm.forward(
        tokens, edits=latent_edits(dictionary, [NONE, change, NONE], keep_error=keep_error)
    ).logits
    assert plain is not None
    assert found is not None
    assert torch.equal(found[0], plain[0])
    assert torch.equal(found[2][tokens.real[2]], plain[2][tokens.real[2]])
    assert not torch.allclose(found[1][1:9], plain[1][1:9], atol=1e-3)


@pytest.mark.parametrize("keep_error", [True, False])
def test_zeros_and_values_are_those_of_dense_codes(
    lm: LM, tokens: TokenBatch, clean: Acts, *, keep_error: bool
) -> None:
    dictionary = jumprelu()
    change = LatentChange(torch.arange(24), torch.tensor([30, 3]), torch.tensor([1.5, 0.7]))
    edits = latent_edits(dictionary, [change] * 3, keep_error=keep_error)
    found = lm.forward(tokens, edits=edits, capture=[SITE], logits=False).acts[SITE]
    measured = tokens.measured()
    raw = clean[SITE][measured]
    codes = dictionary.encode({SITE: raw})
    dense = codes.dense()
    dense[:, :24] = 0
    dense[:, 30], dense[:, 3] = 1.5, 0.7
    wanted = dictionary.decode(codes_from_dense(dense, codes.context))[SITE].values
    if keep_error:
        wanted = wanted + raw - dictionary.decode(codes)[SITE].values
    assert torch.allclose(found[measured], wanted, atol=1e-10)
    assert torch.equal(found[~measured], clean[SITE][~measured])


def test_last_means_the_prompts_last_token_and_every_generated_one(lm: LM, tokens: TokenBatch) -> None:
    dictionary = jumprelu()
    change = LatentChange.zeroed(torch.arange(48))
    batch = lm.batch([tokens.ids[0].tolist()])
    found = lm.forward(
        batch, edits=latent_edits(dictionary, [change], tokens="last", keep_error=True), capture=[SITE]
    ).acts[SITE][0]
    clean = lm.forward(batch, capture=[SITE]).acts[SITE][0]
    assert torch.equal(found[:-1], clean[:-1])
    assert not torch.allclose(found[-1], clean[-1], atol=1e-3)


def test_the_prompts_last_token_alone_leaves_generated_ones(lm: LM, tokens: TokenBatch) -> None:
    change = LatentChange.zeroed(torch.arange(48))
    prompt = tokens.ids[0].tolist()
    edits = latent_edits(jumprelu(), [change], tokens="prompt_last", keep_error=True)
    kept: list[torch.Tensor] = []

    class Seen(EditLatents):
        def apply(self, hidden: Tensor, view: EditView) -> Tensor:
            after = super().apply(hidden, view)
            kept.append((after != hidden).any(dim=-1)[0])
            return after

    seen = [Seen(*(getattr(edit, field.name) for field in fields(edit))) for edit in edits]
    for cache in (True, False):
        kept.clear()
        lm.generate([prompt], max_new_tokens=3, edits=seen, stop_ids=(), use_cache=cache)
        columns = [len(prompt) - 1 in row.nonzero()[:, 0].tolist() and int(row.sum()) == 1 for row in kept]
        assert columns == ([True, False, False] if cache else [True, True, True])


@pytest.mark.parametrize("tokens_set", ["all", "last", "prompt_last"])
@pytest.mark.parametrize("keep_error", [True, False])
def test_generation_is_the_same_with_a_cache_and_without(
    lm: LM, tokens: TokenBatch, draw: Draw, tokens_set: str, *, keep_error: bool
) -> None:
    rows = [row[real].tolist() for row, real in zip(tokens.ids, tokens.real, strict=True)]
    some = LatentChange(torch.arange(30), torch.tensor([40]), torch.tensor([4.0], dtype=F64))
    changes = [NONE, some, some]
    for dictionary in (jumprelu(), routesae(), crosscoder(draw)):
        edits = latent_edits(dictionary, changes, tokens=tokens_set, keep_error=keep_error)  # type: ignore[arg-type]
        runs = [
            lm.generate(rows, max_new_tokens=6, edits=edits, stop_ids=(), use_cache=cache).tokens
            for cache in (True, False)
        ]
        assert runs[0] == runs[1]


def test_begun_rows_give_the_same_answers(lm: LM, tokens: TokenBatch, draw: Draw) -> None:
    prompt = tokens.ids[0].tolist()
    some = LatentChange(torch.arange(30), torch.tensor([40]), torch.tensor([6.0], dtype=F64))
    changes = [NONE, some, LatentChange.zeroed(torch.arange(20, 48))]
    for dictionary in (jumprelu(), routesae(), crosscoder(draw)):
        edits = latent_edits(dictionary, changes)
        wanted = lm.generate([prompt] * 3, max_new_tokens=5, edits=edits, stop_ids=()).tokens
        begun = lm.begin_below(prompt, wanted[0][:2], dictionary.writes[0], observe=edits[0].observes)
        assert lm.continue_begun(begun, 3, max_new_tokens=5, edits=edits, stop_ids=()).tokens == wanted
        late = latent_edits(dictionary, changes, tokens="last")
        wanted = lm.generate([prompt] * 3, max_new_tokens=5, edits=late, stop_ids=()).tokens
        base = latent_edits(dictionary, [NONE], tokens="last")
        begun = lm.begin_columns(
            prompt, wanted[0][:2], len(prompt) - 1, [replace(e, tokens="all") for e in base]
        )
        assert lm.continue_begun(begun, 3, max_new_tokens=5, edits=late, stop_ids=()).tokens == wanted


@given(st.integers(0, 2**20), st.integers(1, 5), st.integers(0, 6), st.integers(0, 6))
def test_changed_codes_are_those_of_dense_ones(seed: int, n: int, zeros: int, puts: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    dense = torch.relu(torch.randn(n, 8, generator=generator, dtype=F64))
    rows = torch.randint(0, 2, (n,), generator=generator)
    where = torch.rand(n, generator=generator) < 0.6
    changes = [
        LatentChange(
            torch.randperm(8, generator=generator)[:zeros],
            torch.randperm(8, generator=generator)[:puts],
            torch.randn(puts, generator=generator, dtype=F64),
        )
        for _ in range(2)
    ]
    found = changed_codes(codes_from_dense(dense), rows, changes, where)
    for token in range(n):
        if where[token]:
            change = changes[int(rows[token])]
            dense[token, change.zero] = 0
            dense[token, change.put] = change.values
    assert torch.equal(found.dense(), dense)


def test_changes_must_pair_with_rows(lm: LM, tokens: TokenBatch) -> None:
    with pytest.raises(AdapterError, match="one for each row"):
        lm.forward(tokens, edits=latent_edits(jumprelu(), [NONE]))
