"""Gated, AbsTopK, transcoder, crosscoder, MLSAE and matryoshka dictionaries, and encoding in blocks."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import latentbench.adapters._load as load_module
import latentbench.adapters._sae as sae_module
from latentbench.adapters import (
    AbsTopKGate,
    Codes,
    Crosscoder,
    CrosscoderWeights,
    Dictionary,
    DictionaryCard,
    Gate,
    GatedGate,
    InputTransform,
    JumpReluGate,
    LoadOptions,
    ReluGate,
    RouteSae,
    SaeWeights,
    SparseAutoencoder,
    TopKGate,
    calibrate,
    concat_codes,
    load_dictionary,
    splice_edits,
    steering_edits,
    steering_rows,
    with_k,
    with_prefix,
    with_threshold,
)
from latentbench.adapters.formats.native import save_dictionary
from latentbench.errors import AdapterError, UserError
from latentbench.lm import LM, Site, TokenBatch
from latentbench.registry import FORMATS
from latentbench.testing import random_routesae, random_sae, random_weights

Draw = Callable[..., Tensor]
F64 = torch.float64
SITE, OUT = Site("resid_post", 1), Site("mlp_out", 2)
SITES = (Site("resid_post", 1), Site("resid_post", 3))
LATENTS = 48
PLAIN = InputTransform("none")


def card(reads: tuple[Site, ...], writes: tuple[Site, ...], family: str, **more: object) -> DictionaryCard:
    return DictionaryCard.model_validate(
        {
            "name": "toy",
            "family": family,
            "reads": tuple(map(str, reads)),
            "writes": tuple(map(str, writes)),
            "d_model": 16,
            "n_latents": LATENTS,
            **more,
        }
    )


def gated() -> GatedGate:
    generator = torch.Generator().manual_seed(2)
    gate, growth, bias = (torch.randn(LATENTS, generator=generator, dtype=F64) * 0.3 for _ in range(3))
    return GatedGate(gate, growth, bias)


def gated_sae() -> SparseAutoencoder:
    weights = random_weights(16, LATENTS).to(None, F64)
    weights = replace(weights, b_enc=torch.zeros(LATENTS, dtype=F64))
    return SparseAutoencoder(card((SITE,), (SITE,), "gated"), weights, gated(), PLAIN)


def transcoder(*, skip: bool = True) -> SparseAutoencoder:
    generator = torch.Generator().manual_seed(3)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=F64)

    weights = SaeWeights(
        w_enc=drawn(LATENTS, 16),
        b_enc=drawn(LATENTS),
        w_dec=drawn(LATENTS, 16),
        b_dec=drawn(16),
        b_pre=None,
        skip=drawn(16, 16) if skip else None,
    )
    return SparseAutoencoder(card((SITE,), (OUT,), "transcoder"), weights, TopKGate(4, rectify=True), PLAIN)


def crosscoder(kind: str = "standardise") -> Crosscoder:
    generator = torch.Generator().manual_seed(4)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=F64)

    weights = CrosscoderWeights(
        drawn(2, LATENTS, 16), drawn(LATENTS), drawn(2, LATENTS, 16), drawn(2, 16), drawn(2, 16)
    )
    about = card(SITES, SITES, "crosscoder", normalisation=kind)
    return Crosscoder(about, weights, ReluGate(), InputTransform(kind, 1e-6))  # type: ignore[arg-type]


def test_a_gated_code_is_gate_times_magnitude(draw: Draw) -> None:
    sae, x = gated_sae(), draw(30, 16)
    gate = gated()
    assert sae.weights.b_pre is not None
    a = (x - sae.weights.b_pre) @ sae.weights.w_enc.T
    expected = (a + gate.b_gate > 0) * torch.relu(gate.r_mag.exp() * a + gate.b_mag)
    dense = sae.encode({SITE: x}).dense()
    torch.testing.assert_close(dense, expected, rtol=1e-5, atol=1e-5)
    assert 0 < int((dense > 0).sum()) < int((expected.new_ones(expected.shape)).sum())


def test_a_gated_sae_under_k_is_ranked_by_its_magnitudes(draw: Draw) -> None:
    sae, x = gated_sae(), draw(30, 16)
    gate = gated()
    assert sae.weights.b_pre is not None
    a = (x - sae.weights.b_pre) @ sae.weights.w_enc.T
    magnitude = gate.r_mag.exp() * a + gate.b_mag
    kept = torch.zeros_like(magnitude)
    top = magnitude.topk(5, dim=1).indices
    kept.scatter_(1, top, magnitude.gather(1, top).clamp(min=0))
    narrowed = with_k(sae, 5)
    torch.testing.assert_close(narrowed.encode({SITE: x}).dense(), kept, rtol=1e-6, atol=1e-6)
    assert narrowed.card.options == {"gate": "topk", "k": 5, "rectify": True}
    assert narrowed.card.nominal_l0 == 5


def test_abstopk_keeps_the_farthest_from_zero_with_their_sign(draw: Draw) -> None:
    pre = draw(20, LATENTS)
    dense = AbsTopKGate(6)(pre, {}).dense()
    assert int((dense != 0).sum()) == 120
    assert bool((dense < 0).any())
    bar = pre.abs().topk(6, dim=1).values[:, -1:]
    torch.testing.assert_close(dense, pre.where(pre.abs() >= bar, pre.new_zeros(())))


def test_abstopk_takes_another_k_but_no_threshold() -> None:
    sae = random_sae(site=SITE).with_gate(AbsTopKGate(4))
    narrowed = with_k(sae, 2)
    assert isinstance(narrowed, SparseAutoencoder)
    assert narrowed.gate == AbsTopKGate(2)
    with pytest.raises(AdapterError, match="set its k instead"):
        with_threshold(sae, 0.5)


GATES: dict[str, Gate] = {
    "relu": ReluGate(),
    "topk": TopKGate(4, rectify=True),
    "abstopk": AbsTopKGate(4),
    "jumprelu": JumpReluGate(torch.linspace(0, 1, LATENTS)),
    "gated": gated(),
}


@pytest.mark.parametrize("name", list(GATES))
def test_encoding_in_blocks_is_encoding(monkeypatch: pytest.MonkeyPatch, draw: Draw, name: str) -> None:
    sae = SparseAutoencoder(
        card((SITE,), (SITE,), name, normalisation="standardise"),
        random_weights(16, LATENTS).to(None, F64),
        GATES[name],
        InputTransform("standardise"),
    )
    x = draw(37, 16)
    whole = sae.encode({SITE: x})
    monkeypatch.setattr(sae_module, "BLOCK_BYTES", 5 * LATENTS * 8)
    parts = sae.encode({SITE: x})
    assert torch.equal(parts.latents, whole.latents)
    assert torch.equal(parts.offsets, whole.offsets)
    torch.testing.assert_close(parts.values, whole.values, rtol=1e-12, atol=1e-12)
    assert all(torch.equal(parts.context[key], whole.context[key]) for key in whole.context)


def test_codes_are_joined_in_order(draw: Draw) -> None:
    sae = random_sae(site=SITE).to(dtype=F64)
    x = draw(9, 16)
    whole = sae.encode({SITE: x})
    joined = concat_codes([sae.encode({SITE: x[:4]}), sae.encode({SITE: x[4:4]}), sae.encode({SITE: x[4:]})])
    torch.testing.assert_close(joined.dense(), whole.dense())
    assert set(joined.context) == set(whole.context)


def test_a_transcoder_predicts_another_site(draw: Draw) -> None:
    sae, x = transcoder(), draw(12, 16)
    weights = sae.weights
    pre = x @ weights.w_enc.T + weights.b_enc
    kept = torch.zeros_like(pre)
    top = pre.topk(4, dim=1).indices
    kept.scatter_(1, top, pre.gather(1, top).clamp(min=0))
    assert weights.skip is not None
    expected = kept @ weights.w_dec + weights.b_dec + x @ weights.skip.T
    codes = sae.encode({SITE: x})
    written = sae.decode(codes)
    assert list(written) == [OUT]
    torch.testing.assert_close(written[OUT].values, expected)
    target = draw(12, 16, seed=1)
    pair = sae.reconstructions({SITE: x, OUT: target}, codes)["raw"]
    assert torch.equal(pair.target, target)
    torch.testing.assert_close(pair.prediction, expected)
    assert list(sae.write_vectors([1])) == [OUT]


def test_a_part_of_a_transcoder_s_codes_keeps_its_skip(draw: Draw) -> None:
    sae, x = transcoder(), draw(12, 16)
    codes, chosen = sae.encode({SITE: x}), torch.tensor([7, 2])
    whole = sae.decode(codes)[OUT].values
    torch.testing.assert_close(sae.decode(codes.select(chosen))[OUT].values, whole[chosen])


def test_what_a_transcoder_can_not_do_is_refused(draw: Draw) -> None:
    sae, x = transcoder(), draw(3, 16)
    with pytest.raises(AdapterError, match=r"encodes resid_post\.1, not what it writes at mlp_out\.2"):
        sae.encode_at(OUT, x, {})
    with pytest.raises(AdapterError, match=r"predicts mlp_out\.2, but only resid_post\.1"):
        sae.reconstructions({SITE: x}, sae.encode({SITE: x}))
    about = card((SITE,), (OUT,), "transcoder", normalisation="standardise")
    with pytest.raises(AdapterError, match="only 'none' is"):
        SparseAutoencoder(about, sae.weights, sae.gate, InputTransform("standardise"))
    with pytest.raises(AdapterError, match="its card must name the site that it writes"):
        SparseAutoencoder(card((SITE,), (SITE,), "topk"), sae.weights, sae.gate, PLAIN)


def test_a_spliced_transcoder_writes_its_prediction(lm: LM, tokens: TokenBatch, measured: Tensor) -> None:
    sae = transcoder(skip=False)
    clean = lm.forward(tokens, capture=[SITE, OUT]).acts
    codes = sae.encode({SITE: clean[SITE][measured]})
    after = lm.forward(tokens, edits=splice_edits(sae, codes, measured), capture=[SITE, OUT]).acts
    torch.testing.assert_close(after[OUT][measured], sae.decode(codes)[OUT].values)
    torch.testing.assert_close(after[SITE], clean[SITE])
    torch.testing.assert_close(after[OUT][~measured], clean[OUT][~measured])


@pytest.mark.parametrize("kind", ["none", "standardise", "constant_norm"])
def test_a_crosscoder_is_the_formula(draw: Draw, kind: str) -> None:
    coder = crosscoder(kind)
    acts = {site: draw(10, 16, seed=index) * (index + 1) + index for index, site in enumerate(SITES)}
    weights = coder.weights
    assert weights.b_pre is not None
    pre = weights.b_enc.expand(10, -1).clone()
    inputs = {}
    for index, site in enumerate(SITES):
        inputs[site] = coder.transform.apply(acts[site])
        pre += (inputs[site].acts - weights.b_pre[index]) @ weights.w_enc[index].T
    codes = coder.encode(acts)
    torch.testing.assert_close(codes.dense(), pre.relu())
    raw = coder.reconstructions(acts, codes)["raw"]
    for index, site in enumerate(SITES):
        predicted = pre.relu() @ weights.w_dec[index] + weights.b_dec[index]
        expected = coder.transform.undo(predicted, inputs[site].context)
        torch.testing.assert_close(coder.decode(codes)[site].values, expected)
        torch.testing.assert_close(raw.prediction[:, 16 * index : 16 * index + 16], expected)
        torch.testing.assert_close(raw.target[:, 16 * index : 16 * index + 16], acts[site])


@pytest.mark.parametrize("kind", ["none", "standardise"])
def test_a_crosscoder_s_write_vectors_are_how_its_decoding_changes(draw: Draw, kind: str) -> None:
    coder = crosscoder(kind)
    codes = coder.encode({site: draw(6, 16, seed=index) for index, site in enumerate(SITES)})
    entry = int((codes.latents == int(codes.latents[0])).nonzero()[0])
    latent, token = int(codes.latents[entry]), int(codes.rows()[entry])
    more = codes.values.clone()
    more[entry] += 1
    before, after = coder.decode(codes), coder.decode(codes.with_values(more))
    vectors = coder.write_vectors([latent], codes.context)
    for site in SITES:
        change = (after[site].values - before[site].values)[token]
        torch.testing.assert_close(vectors[site][:, 0].expand(6, 16)[token], change)


def test_a_crosscoder_s_strengths_do_not_depend_on_how_often_a_site_is_given(draw: Draw) -> None:
    """Two sites with the same activations and weights are as one site: relative to all of them, nothing changes."""
    single = random_sae(site=SITE, transform=InputTransform("standardise")).to(dtype=F64)
    weights = single.weights
    pre = torch.zeros((2, 16), dtype=F64) if weights.b_pre is None else torch.stack([weights.b_pre] * 2)
    both = CrosscoderWeights(
        torch.stack([weights.w_enc / 2] * 2),
        weights.b_enc,
        torch.stack([weights.w_dec] * 2),
        torch.stack([weights.b_dec] * 2),
        pre,
    )
    about = card(SITES, SITES, "crosscoder", normalisation="standardise")
    double = Crosscoder(about, both, single.gate, single.transform)
    x = draw(8, 16)
    acts = {SITE: x}, dict.fromkeys(SITES, x)
    codes = single.encode(acts[0]), double.encode(acts[1])
    torch.testing.assert_close(codes[0].dense(), codes[1].dense())
    ours = codes[1].with_values(double.relative_values(acts[1], codes[1])).dense()
    theirs = codes[0].with_values(single.relative_values(acts[0], codes[0])).dense()
    torch.testing.assert_close(ours, theirs)


def test_a_crosscoder_is_spliced_and_steered_at_all_its_sites(
    lm: LM, tokens: TokenBatch, measured: Tensor, acts: dict[Site, Tensor]
) -> None:
    coder = crosscoder()
    codes = coder.encode(acts)
    after = lm.forward(tokens, edits=splice_edits(coder, codes, measured), capture=SITES).acts
    for site, written in coder.decode(codes).items():
        torch.testing.assert_close(after[site][measured], written.values)
    rows = steering_rows(coder, [3])
    assert rows.shape == (1, 32)
    clean = lm.forward(tokens, capture=SITES).acts[SITES[0]]
    edits = steering_edits(coder, 2 * rows.expand(len(tokens.ids), -1))
    changed = lm.forward(tokens, edits=edits, capture=SITES).acts[SITES[0]]
    expected = 2 * coder.raw_scale(SITES[0], clean) * coder.weights.w_dec[0, 3]
    torch.testing.assert_close((changed - clean)[measured], expected[measured])
    with pytest.raises(AdapterError, match="steering_rows"):
        steering_edits(coder, rows[:, :24])


def test_what_a_crosscoder_can_not_do_is_refused(draw: Draw) -> None:
    coder = crosscoder()
    with pytest.raises(AdapterError, match=r"can't be taken from resid_post\.3 alone"):
        coder.encode_at(SITES[1], draw(2, 16), {})
    with pytest.raises(AdapterError, match="in the same order"):
        Crosscoder(card(SITES, SITES[::-1], "crosscoder"), coder.weights, coder.gate, coder.transform)
    with pytest.raises(AdapterError, match=r"weight w_dec has shape \(2, 16, 48\)"):
        replace(coder.weights, w_dec=coder.weights.w_dec.transpose(1, 2))
    with pytest.raises(AdapterError, match="NaN or infinite"):
        replace(coder.weights, b_enc=coder.weights.b_enc * torch.nan)


@pytest.mark.parametrize("make", [gated_sae, transcoder, crosscoder, lambda: with_k(gated_sae(), 3)])
def test_every_family_survives_our_own_format(
    draw: Draw, tmp_path: Path, make: Callable[[], Dictionary]
) -> None:
    made = make()
    path = save_dictionary(tmp_path, "toy", made, F64)
    loaded = load_dictionary(str(path), dtype="float64")
    acts = {site: draw(9, 16, seed=index) for index, site in enumerate(made.reads)}
    single = made.to(dtype=torch.float32).to(dtype=F64)  # a checkpoint is read in float32
    ours, theirs = single.encode(acts), loaded.encode(acts)
    torch.testing.assert_close(theirs.dense(), ours.dense(), rtol=1e-6, atol=1e-6)
    for site, written in single.decode(ours).items():
        torch.testing.assert_close(loaded.decode(theirs)[site].values, written.values, rtol=1e-6, atol=1e-6)


def test_an_mlsae_is_loaded_at_one_of_its_sites(tmp_path: Path) -> None:
    sae = random_sae(site=SITES[1])
    sae.card = sae.card.model_copy(
        update={"family": "mlsae", "options": {**sae.card.options, "sites": list(map(str, SITES))}}
    )
    path = str(save_dictionary(tmp_path, "toy", sae, torch.float32))
    assert load_dictionary(path).reads == (SITES[1],)
    there = load_dictionary(path, options=LoadOptions(site="blocks.1.hook_resid_post"))
    assert there.reads == there.writes == (SITES[0],)
    with pytest.raises(
        AdapterError, match=r"reads resid_post\.1, resid_post\.3, and resid_post\.2 was asked"
    ):
        load_dictionary(path, options=LoadOptions(site="resid_post.2"))


def test_a_site_that_contradicts_the_card_is_refused(tmp_path: Path) -> None:
    path = str(save_dictionary(tmp_path, "toy", random_sae(site=SITE), torch.float32))
    assert load_dictionary(path, options=LoadOptions(site="resid_post.1")).reads == (SITE,)
    with pytest.raises(AdapterError, match=r"resid_post\.2 was asked for"):
        load_dictionary(path, options=LoadOptions(site="resid_post.2"))


def test_a_prefix_of_a_matryoshka_is_its_first_latents(tmp_path: Path, draw: Draw) -> None:
    gate = JumpReluGate(torch.linspace(0, 1, LATENTS))
    weights = random_weights(16, LATENTS)
    about = card((SITE,), (SITE,), "matryoshka", options={"groups": [8, 24, 48]})
    sae = SparseAutoencoder(about, weights, gate, PLAIN)
    path = str(save_dictionary(tmp_path, "toy", sae, torch.float32))
    first = load_dictionary(path, options=LoadOptions(prefix=24))
    x = draw(20, 16).float()
    torch.testing.assert_close(first.encode({SITE: x}).dense(), sae.encode({SITE: x}).dense()[:, :24])
    assert (first.card.n_latents, first.card.options["groups"]) == (24, [8, 24])
    with pytest.raises(AdapterError, match="12 would cut a group"):
        with_prefix(sae, 12)
    with pytest.raises(AdapterError, match="names no groups"):
        with_prefix(random_sae(site=SITE), 24)


def test_a_path_that_two_formats_claim_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_dictionary(tmp_path, "toy", random_sae(site=SITE), torch.float32)

    class Greedy:
        def recognise(self, path: Path) -> str | None:
            return "any path at all"

        def load(self, path: Path, options: LoadOptions) -> Dictionary:
            raise NotImplementedError

    known = FORMATS.load
    monkeypatch.setattr(FORMATS, "names", lambda: ["greedy", "native"])
    monkeypatch.setattr(FORMATS, "load", lambda name: Greedy() if name == "greedy" else known(name))
    found = load_module.recognise(path)
    assert [one.format for one in found] == ["greedy", "native"]
    with pytest.raises(AdapterError, match=r"fits 2 formats .*any path at all"):
        load_dictionary(str(path))


def test_calibration_holds_a_bounded_number_of_values(monkeypatch: pytest.MonkeyPatch, draw: Draw) -> None:
    sae = random_sae(site=SITE).to(dtype=F64).with_gate(ReluGate())
    batches = [{SITE: draw(50, 16, seed=seed)} for seed in range(4)]
    exact = calibrate(sae, batches, 3.0)
    monkeypatch.setattr("latentbench.adapters._calibrate._AT_LEAST", 12)
    monkeypatch.setattr("latentbench.adapters._calibrate._TIMES_TARGET", 4)
    bounded = calibrate(sae, batches, 3.0)
    assert bounded.card.options == exact.card.options
    assert bounded.card.nominal_l0 == 3.0
    monkeypatch.setattr("latentbench.adapters._calibrate._AT_LEAST", 3)
    monkeypatch.setattr("latentbench.adapters._calibrate._TIMES_TARGET", 1)
    with pytest.raises(UserError, match="more than 3 active latents"):
        calibrate(sae, batches, 3.0)


def test_an_override_says_what_sparsity_it_asks_for() -> None:
    for dictionary in (random_sae(site=SITE), random_routesae(list(SITES)), crosscoder()):
        assert with_k(dictionary, 7).card.nominal_l0 == 7
        assert with_threshold(dictionary, 0.5).card.nominal_l0 is None


def test_the_code_preset_s_raw_reconstruction_is_what_its_splice_writes(draw: Draw) -> None:
    dictionary = random_routesae(list(SITES)).to(dtype=F64)
    code = RouteSae(
        dictionary.card, dictionary.router * 0.1, dictionary.sae, dictionary.pooling, "code", "hard"
    )
    acts = {site: draw(15, 16, seed=index) for index, site in enumerate(SITES)}
    codes: Codes = code.encode(acts)
    assert float(codes.context["route_probability"].min()) < 0.9
    raw = code.reconstructions(acts, codes)["raw"]
    for index, site in enumerate(SITES):
        rows = (codes.context["route"] == index).nonzero()[:, 0]
        context = {name: value[rows] for name, value in codes.context.items()}
        spliced = code.decode(code.encode_at(site, acts[site][rows], context))
        if len(rows):
            torch.testing.assert_close(raw.prediction[rows], spliced[site].values)


def test_a_card_of_an_unknown_routing_is_refused(tmp_path: Path) -> None:
    path = save_dictionary(tmp_path, "toy", random_routesae(list(SITES)), torch.float32)
    text = json.loads(path.with_suffix(".json").read_text())
    text["options"]["routing"] = "firm"
    path.with_suffix(".json").write_text(json.dumps(text))
    with pytest.raises(AdapterError, match="names routing 'firm'; known: hard, soft, random"):
        load_dictionary(str(path))
