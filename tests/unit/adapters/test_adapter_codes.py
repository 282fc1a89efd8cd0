"""Laws of codes in CSR form."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from latentbench.adapters import Codes, codes_from_dense, codes_from_topk, decode_rows
from latentbench.errors import AdapterError


@st.composite
def dense_codes(draw: st.DrawFn) -> Tensor:
    """`Float[Tensor, "token latent"]` with any pattern of zeros, empty tokens and no tokens included."""
    tokens, latents = draw(st.integers(0, 6)), draw(st.integers(1, 8))
    seed, share = draw(st.integers(0, 2**16)), draw(st.sampled_from([0.0, 0.2, 0.7, 1.0]))
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn((tokens, latents), generator=generator, dtype=torch.float64)
    return values * (torch.rand((tokens, latents), generator=generator) < share)


def check_csr(codes: Codes) -> None:
    assert codes.offsets[0] == 0
    assert codes.offsets[-1] == codes.nnz
    assert bool((codes.offsets.diff() >= 0).all())
    assert codes.latents.dtype == codes.offsets.dtype == torch.int64
    assert bool((codes.values != 0).all())
    pairs = codes.rows() * codes.n_latents + codes.latents
    assert len(pairs.unique()) == codes.nnz, "a latent appears once in a token"


@given(dense_codes())
def test_dense_round_trip(dense: Tensor) -> None:
    codes = codes_from_dense(dense, {"mean": torch.arange(len(dense))})
    check_csr(codes)
    assert torch.equal(codes.dense(), dense)
    assert codes.n_tokens == len(dense)
    assert codes.nnz == int((dense != 0).sum())
    assert torch.equal(codes.counts(), (dense != 0).sum(dim=1))
    assert torch.equal(codes.rows(), dense.nonzero()[:, 0])


@given(dense_codes(), st.data())
def test_select_takes_tokens_with_their_context(dense: Tensor, data: st.DataObject) -> None:
    codes = codes_from_dense(dense, {"std": torch.arange(len(dense))[:, None]})
    wanted = data.draw(st.lists(st.integers(0, len(dense) - 1), max_size=8) if len(dense) else st.just([]))
    index = torch.tensor(wanted, dtype=torch.int64)
    chosen = codes.select(index)
    check_csr(chosen)
    assert torch.equal(chosen.dense(), dense[index])
    assert chosen.context["std"][:, 0].tolist() == wanted


@given(dense_codes(), st.integers(0, 2**16))
def test_keep_drops_entries_and_no_token(dense: Tensor, seed: int) -> None:
    codes = codes_from_dense(dense)
    entries = torch.rand(codes.nnz, generator=torch.Generator().manual_seed(seed)) < 0.5
    kept = codes.keep(entries)
    check_csr(kept)
    expected = dense.clone()
    expected[codes.rows()[~entries], codes.latents[~entries]] = 0
    assert kept.n_tokens == codes.n_tokens
    assert torch.equal(kept.dense(), expected)


@given(dense_codes(), st.booleans())
def test_decode_rows_is_the_matrix_product(dense: Tensor, biased: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    w_dec = torch.randn((dense.shape[1], 5), generator=generator, dtype=torch.float64)
    bias = torch.randn(5, generator=generator, dtype=torch.float64) if biased else None
    decoded = decode_rows(codes_from_dense(dense), w_dec, bias)
    expected = dense @ w_dec + (bias if bias is not None else 0)
    assert decoded.shape == (len(dense), 5)
    torch.testing.assert_close(decoded, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_decode_rows_gives_the_decoders_dtype(dtype: torch.dtype) -> None:
    dense = torch.tensor([[0.5, 0.0, -2.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    w_dec = torch.tensor([[1.0, 2.0], [3.0, 4.0], [0.5, -1.0]], dtype=dtype)
    decoded = decode_rows(codes_from_dense(dense), w_dec, torch.tensor([1.0, 0.0], dtype=dtype))
    assert decoded.dtype == dtype
    assert decoded.double().tolist() == [[0.5, 3.0], [1.0, 0.0]]


@given(dense_codes())
def test_gradients_exist_for_active_latents_only_and_are_right(dense: Tensor) -> None:
    w_dec = torch.randn((dense.shape[1], 5), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weight = torch.randn((len(dense), 5), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    codes = codes_from_dense(dense)
    values = codes.values.clone().requires_grad_()
    rows = w_dec.clone().requires_grad_()
    decoded = decode_rows(codes.with_values(values), rows, None)
    by_value, by_row = torch.autograd.grad((decoded * weight).sum(), [values, rows])
    assert by_value.shape == (codes.nnz,)
    torch.testing.assert_close(by_value, (weight @ w_dec.T)[codes.rows(), codes.latents], rtol=0, atol=1e-12)
    torch.testing.assert_close(by_row, dense.T @ weight, rtol=0, atol=1e-12)


@given(st.integers(0, 6), st.integers(1, 8), st.integers(1, 10), st.booleans(), st.integers(0, 2**16))
def test_topk_keeps_the_k_largest(tokens: int, latents: int, k: int, rectify: bool, seed: int) -> None:
    pre = torch.randn((tokens, latents), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    codes = codes_from_topk(pre, k, rectify=rectify)
    check_csr(codes)
    expected = torch.zeros_like(pre)
    for token, row in enumerate(pre.tolist()):
        for latent in sorted(range(latents), key=row.__getitem__, reverse=True)[:k]:
            expected[token, latent] = row[latent] if row[latent] > 0 or not rectify else 0.0
    assert torch.equal(codes.dense(), expected)
    if not rectify:
        assert codes.counts().tolist() == [min(k, latents)] * tokens


def test_values_must_pair_up_with_latents() -> None:
    codes = codes_from_dense(torch.eye(3))
    assert codes.with_values(torch.tensor([1.0, 2.0, 3.0])).dense().diagonal().tolist() == [1, 2, 3]
    with pytest.raises(AdapterError, match="2 values for 3 active latents"):
        codes.with_values(torch.ones(2))


def test_topk_is_differentiable_in_the_kept_pre_activations() -> None:
    pre = torch.tensor([[3.0, 1.0, 2.0]], requires_grad=True)
    codes = codes_from_topk(pre, 2, rectify=False)
    [gradient] = torch.autograd.grad(codes.values.sum(), pre)
    assert gradient.tolist() == [[1, 0, 1]]
