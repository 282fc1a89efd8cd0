"""Single-site SAEs: gates, transforms, write vectors, spaces, dtypes, and bad weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from latentbench.adapters import (
    DictionaryCard,
    Gate,
    IdentityDictionary,
    InputTransform,
    JumpReluGate,
    ReluGate,
    SparseAutoencoder,
    ThresholdGate,
    TopKGate,
    random_decoder,
    with_k,
    with_threshold,
)
from latentbench.errors import AdapterError
from latentbench.lm import Site
from latentbench.testing import perfect_weights, random_sae, random_weights

Draw = Callable[..., Tensor]
SITE = Site("resid_post", 1)
F64 = torch.float64
KINDS = ("none", "standardise", "layer_norm", "constant_norm")
LATENTS = 48


def gates() -> dict[str, Gate]:
    threshold = torch.rand(LATENTS, generator=torch.Generator().manual_seed(4)) - 0.2
    return {
        "relu": ReluGate(),
        "topk": TopKGate(4, rectify=True),
        "signed": TopKGate(4, rectify=False),
        "jumprelu": JumpReluGate(threshold),
        "threshold": ThresholdGate(0.3),
    }


def expected_codes(name: str, pre: Tensor) -> Tensor:
    """The gate's definition, latent by latent."""
    if name in ("topk", "signed"):
        kept = torch.zeros_like(pre)
        top = pre.argsort(dim=1, descending=True)[:, :4]
        kept.scatter_(1, top, pre.gather(1, top))
        return kept.clamp(min=0) if name == "topk" else kept
    bar = {"relu": torch.zeros(()), "threshold": torch.tensor(0.3)}.get(name)
    if bar is None:
        gate = gates()["jumprelu"]
        assert isinstance(gate, JumpReluGate)
        bar = gate.threshold
    return torch.relu(pre) * (pre > bar)


def expected_transform(kind: str, x: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Transformed activations, and the scale and shift that bring them back."""
    d = x.shape[1]
    if kind == "none":
        return x, torch.ones(len(x), 1), torch.zeros(len(x), 1)
    if kind == "constant_norm":
        scale = x.square().sum(1, keepdim=True).sqrt() / d**0.5
        return x / (scale + eps), scale + eps, torch.zeros(len(x), 1)
    mean = x.sum(1, keepdim=True) / d
    scale = ((x - mean).square().sum(1, keepdim=True) / (d - 1)).sqrt()
    return (x - mean) / (scale + eps), scale if kind == "layer_norm" else scale + eps, mean


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gate", list(gates()))
def test_encode_and_decode_are_the_formulas(draw: Draw, kind: str, gate: str) -> None:
    transform = InputTransform(kind, 1e-2)  # type: ignore[arg-type]
    sae = random_sae(gate=gates()[gate], transform=transform, site=SITE, dtype=F64)
    x, w = draw(9, 16) * 3 + 1, sae.weights
    inputs, scale, shift = expected_transform(kind, x, 1e-2)
    assert w.b_pre is not None
    dense = expected_codes(gate, (inputs - w.b_pre) @ w.w_enc.T + w.b_enc)
    codes = sae.encode({SITE: x})
    torch.testing.assert_close(codes.dense(), dense, rtol=0, atol=1e-12)
    assert codes.nnz > 0
    written = sae.decode(codes)
    assert list(written) == [SITE]
    assert written[SITE].rows is None
    torch.testing.assert_close(
        written[SITE].values, (dense @ w.w_dec + w.b_dec) * scale + shift, rtol=0, atol=1e-12
    )


def test_topk_codes_have_k_entries_signed_and_at_most_k_rectified(draw: Draw) -> None:
    x = draw(50, 16)
    signed = random_sae(gate=TopKGate(30, rectify=False), dtype=F64).encode({SITE: x})
    assert signed.counts().tolist() == [30] * 50
    assert bool((signed.values < 0).any()), "with k past half of the latents some kept ones are negative"
    rectified = random_sae(gate=TopKGate(30, rectify=True), dtype=F64).encode({SITE: x})
    assert bool((rectified.values > 0).all())
    assert torch.equal(rectified.dense(), signed.dense().clamp(min=0))


def test_without_a_pre_bias_the_input_enters_as_it_is(draw: Draw) -> None:
    weights = random_weights(16, LATENTS, pre_bias=False, dtype=F64)
    assert weights.b_pre is None
    x = draw(5, 16)
    pre = random_sae(weights=weights, gate=ReluGate()).encode({SITE: x}).dense()
    torch.testing.assert_close(pre, torch.relu(x @ weights.w_enc.T + weights.b_enc), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_decodes_right_after_another_was_encoded(draw: Draw, kind: str) -> None:
    """SAELens keeps layer-norm statistics on the module and decodes with the last batch's."""
    sae = random_sae(transform=InputTransform(kind), dtype=F64)  # type: ignore[arg-type]
    first, second = draw(4, 16, seed=1) * 5 + 2, draw(7, 16, seed=2)
    codes = sae.encode({SITE: first})
    at_once = sae.decode(codes)[SITE].values
    sae.encode({SITE: second})
    assert torch.equal(sae.decode(codes)[SITE].values, at_once)


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_is_encoded_alike_in_every_batch(draw: Draw, kind: str) -> None:
    sae = random_sae(transform=InputTransform(kind), dtype=F64)  # type: ignore[arg-type]
    x = draw(12, 16)
    whole = sae.encode({SITE: x})
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    parts = [sae.encode({SITE: x[[token]]}) for token in order.tolist()]
    for token, part in zip(order.tolist(), parts, strict=True):
        alone = whole.select(torch.tensor([token]))
        torch.testing.assert_close(part.dense(), alone.dense(), rtol=0, atol=1e-12)
        torch.testing.assert_close(
            sae.decode(part)[SITE].values, sae.decode(alone)[SITE].values, rtol=0, atol=1e-12
        )


@given(st.sampled_from(KINDS), st.integers(0, 2**16))
def test_transforms_invert(kind: str, seed: int) -> None:
    x = torch.randn((5, 16), generator=torch.Generator().manual_seed(seed), dtype=F64) * 4 + 1
    transform = InputTransform(kind, 1e-6)  # type: ignore[arg-type]
    transformed = transform.apply(x)
    exact = 1e-5 if kind == "layer_norm" else 1e-12  # SAELens leaves eps out of the way back
    torch.testing.assert_close(
        transform.undo(transformed.acts, transformed.context), x, rtol=exact, atol=exact
    )
    if kind in ("standardise", "layer_norm"):
        torch.testing.assert_close(transformed.acts.mean(1), torch.zeros(5, dtype=F64), rtol=0, atol=1e-6)
        torch.testing.assert_close(transformed.acts.std(1), torch.ones(5, dtype=F64), rtol=0, atol=1e-5)
    if kind == "constant_norm":
        torch.testing.assert_close(
            transformed.acts.norm(dim=1), torch.full((5,), 4.0, dtype=F64), rtol=0, atol=1e-5
        )


@pytest.mark.parametrize("kind", KINDS)
def test_write_vectors_are_how_the_decoding_changes_with_a_latent(draw: Draw, kind: str) -> None:
    sae = random_sae(transform=InputTransform(kind), dtype=F64)  # type: ignore[arg-type]
    codes = sae.encode({SITE: draw(6, 16) * 3})
    base = sae.decode(codes)[SITE].values
    more = sae.decode(codes.with_values(codes.values + 0.5))[SITE].values
    vectors = sae.write_vectors(range(LATENTS), codes.context)[SITE].expand(6, LATENTS, 16)
    active = (codes.dense() != 0).to(F64)
    torch.testing.assert_close(
        more - base, 0.5 * torch.einsum("tl,tld->td", active, vectors), rtol=0, atol=1e-12
    )
    torch.testing.assert_close(sae.write_vectors([3, 1])[SITE], sae.weights.w_dec[[3, 1]])


@pytest.mark.parametrize("kind", KINDS)
def test_raw_scale_is_the_size_of_one_unit(draw: Draw, kind: str) -> None:
    sae = random_sae(transform=InputTransform(kind), dtype=F64)  # type: ignore[arg-type]
    x = draw(6, 16) * 3
    vectors = sae.write_vectors([2], sae.encode({SITE: x}).context)[SITE][:, 0].expand(6, 16)
    torch.testing.assert_close(sae.raw_scale(SITE, x) * sae.weights.w_dec[2], vectors)
    assert sae.raw_scale(SITE, x.view(2, 3, 16)).shape == (2, 3, 1)


def test_relative_values_are_on_the_scale_of_the_papers_thresholds(draw: Draw) -> None:
    """On standardised input: value x decoder norm / sqrt(d); in raw units the centred norm takes sqrt(d)'s
    place."""
    x = draw(8, 16) * 7 + 3
    standard = random_sae(transform=InputTransform("standardise"), dtype=F64)
    codes = standard.encode({SITE: x})
    norms = standard.weights.w_dec.norm(dim=1)[codes.latents]
    torch.testing.assert_close(standard.relative_values({SITE: x}, codes), codes.values * norms / 4)
    plain = random_sae(dtype=F64)
    codes = plain.encode({SITE: x})
    centred = (x - x.mean(1, keepdim=True)).norm(dim=1)
    norms = plain.weights.w_dec.norm(dim=1)[codes.latents]
    torch.testing.assert_close(
        plain.relative_values({SITE: x}, codes), codes.values * norms / centred[codes.rows()]
    )


def test_relative_values_do_not_depend_on_the_scale_of_the_model(draw: Draw) -> None:
    """A model whose activations are 100 times larger, with its SAE scaled along, has the same relative
    values."""
    plain = random_sae(dtype=F64)
    w = plain.weights
    assert w.b_pre is not None
    grown = replace(w, w_enc=w.w_enc, b_enc=w.b_enc * 100, b_dec=w.b_dec * 100, b_pre=w.b_pre * 100)
    x = draw(8, 16)
    scaled = SparseAutoencoder(plain.card, grown, plain.gate, plain.transform)
    torch.testing.assert_close(
        scaled.relative_values({SITE: x * 100}, scaled.encode({SITE: x * 100})),
        plain.relative_values({SITE: x}, plain.encode({SITE: x})),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_reconstructions_pair_targets_with_predictions(draw: Draw, kind: str) -> None:
    sae = random_sae(transform=InputTransform(kind), dtype=F64)  # type: ignore[arg-type]
    x = draw(6, 16) * 3 + 1
    codes = sae.encode({SITE: x})
    spaces = sae.reconstructions({SITE: x}, codes)
    assert torch.equal(spaces["raw"].target, x)
    assert torch.equal(spaces["raw"].prediction, sae.decode(codes)[SITE].values)
    torch.testing.assert_close(spaces["input"].target, sae.transform.apply(x).acts)
    raw_error = spaces["raw"].prediction - spaces["raw"].target
    input_error = spaces["input"].prediction - spaces["input"].target
    tolerance = 1e-4 if kind == "layer_norm" else 1e-12
    torch.testing.assert_close(
        raw_error, input_error * sae.raw_scale(SITE, x), rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtype_round_trip(draw: Draw, dtype: torch.dtype) -> None:
    sae = random_sae(gate=gates()["jumprelu"], transform=InputTransform("standardise"))
    moved = sae.to(dtype=dtype, device="cpu")
    assert moved.dtype == dtype
    assert sae.dtype == torch.float32
    assert moved is not sae
    assert isinstance(moved.gate, JumpReluGate)
    assert moved.gate.threshold.dtype == torch.float32
    x = draw(20, 16).float()
    codes = moved.encode({SITE: x})
    assert codes.values.dtype == dtype
    assert moved.decode(codes)[SITE].values.dtype == dtype
    back = moved.to(dtype=torch.float32)
    for name in ("w_enc", "b_enc", "w_dec", "b_dec", "b_pre"):
        assert torch.equal(getattr(back.weights, name), getattr(sae.weights, name).to(dtype).float())
    if dtype == torch.float64:
        torch.testing.assert_close(codes.dense().float(), sae.encode({SITE: x}).dense(), rtol=1e-4, atol=1e-5)


def test_jumprelu_compares_in_float32() -> None:
    """In bfloat16 the threshold 1.002 is 1.0, and whether a pre-activation of 1.0 passes would change."""
    gate = JumpReluGate(torch.tensor([1.002]))
    pre = torch.tensor([[1.0]], dtype=torch.bfloat16)
    assert gate(pre, {}).nnz == 0
    assert torch.tensor(1.002).bfloat16() == torch.tensor(1.0).bfloat16()
    assert JumpReluGate(torch.tensor([0.999]))(pre, {}).nnz == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gate", list(gates()))
def test_an_empty_batch_is_encoded_and_decoded(kind: str, gate: str) -> None:
    sae = random_sae(gate=gates()[gate], transform=InputTransform(kind), dtype=F64)  # type: ignore[arg-type]
    codes = sae.encode({SITE: torch.empty(0, 16)})
    assert codes.n_tokens == 0
    assert codes.nnz == 0
    assert sae.decode(codes)[SITE].values.shape == (0, 16)


def test_site_names_and_aliases_are_accepted_as_keys(draw: Draw) -> None:
    sae, x = random_sae(site=SITE, dtype=F64), draw(3, 16)
    by_site = sae.encode({SITE: x}).dense()
    assert torch.equal(sae.encode({"resid_post.1": x}).dense(), by_site)
    assert torch.equal(sae.encode({"blocks.1.hook_resid_post": x}).dense(), by_site)


def test_missing_sites_and_wrong_widths_are_named(draw: Draw) -> None:
    sae = random_sae(site=SITE)
    with pytest.raises(AdapterError, match=r"reads resid_post\.1, but only resid_post\.2 was given"):
        sae.encode({"resid_post.2": draw(3, 16)})
    with pytest.raises(AdapterError, match=r"shape \(3, 8\).*needs \[token, 16\]"):
        sae.encode({SITE: draw(3, 8)})
    with pytest.raises(AdapterError, match=r"shape \(1, 3, 16\)"):
        sae.encode({SITE: draw(1, 3, 16)})


@pytest.mark.parametrize("name", ["w_enc", "b_enc", "w_dec", "b_dec", "b_pre"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(name: str, value: float) -> None:
    weights = random_weights(16, LATENTS)
    bad = getattr(weights, name).clone()
    bad.view(-1)[0] = value
    with pytest.raises(AdapterError, match=f"weight {name} holds 1 NaN or infinite"):
        replace(weights, **{name: bad})


def test_weights_of_wrong_shapes_are_refused() -> None:
    weights = random_weights(16, LATENTS)
    with pytest.raises(AdapterError, match=r"w_dec has shape \(16, 48\).*transposed"):
        replace(weights, w_dec=weights.w_dec.T)
    card = random_sae(n_latents=40).card
    with pytest.raises(AdapterError, match="says 40 latents of width 16"):
        SparseAutoencoder(card, weights, ReluGate(), InputTransform("none"))
    with pytest.raises(AdapterError, match="at least one latent"):
        TopKGate(0, rectify=True)


def test_with_k_replaces_the_gate_and_says_so(draw: Draw) -> None:
    x = draw(9, 16)
    signed = random_sae(gate=TopKGate(4, rectify=False), dtype=F64)
    narrower = with_k(signed, 2)
    assert isinstance(narrower, SparseAutoencoder)
    assert narrower.gate == TopKGate(2, rectify=False), "a signed dictionary stays signed"
    assert narrower.encode({SITE: x}).counts().tolist() == [2] * 9
    assert narrower.card.options["k"] == 2
    assert signed.card.options["k"] == 4
    from_relu = with_k(random_sae(gate=ReluGate(), dtype=F64), 3)
    assert isinstance(from_relu, SparseAutoencoder)
    assert from_relu.gate == TopKGate(3, rectify=True)
    with pytest.raises(AdapterError, match="is a identity"):
        with_k(IdentityDictionary(SITE, 16, torch.device("cpu"), F64), 3)


def test_with_threshold_replaces_the_gate_and_drops_the_old_options(draw: Draw) -> None:
    sae = random_sae(gate=TopKGate(4, rectify=False), dtype=F64)
    gated = with_threshold(sae, 0.4)
    codes = gated.encode({SITE: draw(9, 16)})
    assert codes.nnz > 0
    assert bool((codes.values > 0.4).all())
    assert gated.card.options == {"gate": "threshold", "threshold": 0.4, "eps": 1e-6}
    assert (
        with_k(gated, 4).card.identity()
        == random_sae(gate=TopKGate(4, rectify=True), dtype=F64).card.identity()
    )
    negative = with_threshold(sae, -1.0).encode({SITE: draw(9, 16)})
    assert bool((negative.values > 0).all()), "a threshold below 0 acts as 0"


def test_perfect_weights_reconstruct_exactly(draw: Draw) -> None:
    sae = random_sae(weights=perfect_weights(16, dtype=F64), gate=TopKGate(16, rectify=False))
    x = draw(6, 16)
    torch.testing.assert_close(sae.decode(sae.encode({SITE: x}))[SITE].values, x, rtol=0, atol=1e-12)


def test_random_decoder_keeps_the_encoder_and_the_norms(draw: Draw) -> None:
    sae = random_sae(dtype=F64, transform=InputTransform("standardise"))
    control = random_decoder(sae, seed=1)
    x = draw(9, 16)
    assert torch.equal(control.encode({SITE: x}).dense(), sae.encode({SITE: x}).dense())
    torch.testing.assert_close(control.weights.w_dec.norm(dim=1), sae.weights.w_dec.norm(dim=1))
    cosines = torch.nn.functional.cosine_similarity(control.weights.w_dec, sae.weights.w_dec)
    assert float(cosines.mean().abs()) < 0.15
    assert float(cosines.abs().max()) < 0.9
    assert control.card.control
    assert not sae.card.control
    assert control.card.identity() != sae.card.identity()
    assert torch.equal(random_decoder(sae, seed=1).weights.w_dec, control.weights.w_dec)
    assert random_decoder(sae, seed=2).card.sha256 != control.card.sha256
    with pytest.raises(AdapterError, match="is a identity"):
        random_decoder(IdentityDictionary(SITE, 16, torch.device("cpu"), F64))


def test_the_identity_dictionary_is_exact(draw: Draw) -> None:
    identity = IdentityDictionary(SITE, 16, torch.device("cpu"), F64)
    x = draw(7, 16)
    x[2] = 0
    codes = identity.encode({SITE: x})
    assert codes.counts().tolist() == [16, 16, 0, 16, 16, 16, 16]
    assert torch.equal(identity.decode(codes)[SITE].values, x)
    assert torch.equal(identity.encode_at(SITE, x, {}).dense(), x)
    assert torch.equal(identity.write_vectors([1])[SITE], torch.eye(16, dtype=F64)[[1]])
    spaces = identity.reconstructions({SITE: x}, codes)
    assert torch.equal(spaces["raw"].target, spaces["raw"].prediction)
    assert identity.to(dtype=torch.float32).encode({SITE: x}).values.dtype == torch.float32
    assert identity.card.control
    assert identity.routed(codes) is None
    centred = (x - x.mean(1, keepdim=True)).norm(dim=1)
    expected = (x / centred[:, None].clamp(min=1e-300))[x != 0]
    torch.testing.assert_close(identity.relative_values({SITE: x}, codes), expected)


def test_a_card_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ValueError, match="Extra inputs are not permitted"):
        DictionaryCard(name="a", family="relu", reads=(), writes=(), d_model=1, n_latents=1, k=3)  # type: ignore[call-arg]
