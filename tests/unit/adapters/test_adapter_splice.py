"""Dictionaries inside the model: spliced passes, ablated latents, steering, calibration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest
import torch
from torch import Tensor

from latentbench.adapters import (
    Dictionary,
    IdentityDictionary,
    InputTransform,
    JumpReluGate,
    ReluGate,
    TopKGate,
    calibrate,
    splice_edits,
    steering_edits,
    with_threshold,
    written_masks,
)
from latentbench.errors import UserError
from latentbench.lm import LM, AddVector, MapActivation, Site, TokenBatch
from latentbench.testing import perfect_weights, random_routesae, random_sae

Draw = Callable[..., Tensor]
Acts = dict[Site, Tensor]
F64 = torch.float64
SITE = Site("resid_post", 2)
ROUTED = [Site("resid_post", layer) for layer in range(1, 5)]


def spliced(lm: LM, tokens: TokenBatch, dictionary: Dictionary, acts: Acts, measured: Tensor) -> Acts:
    edits = splice_edits(dictionary, dictionary.encode(acts), measured)
    return lm.forward(
        tokens, edits=edits, capture=[Site("resid_post", layer) for layer in range(lm.n_layers)]
    ).acts


def logits_of(lm: LM, tokens: TokenBatch, *edits: AddVector | MapActivation) -> Tensor:
    logits = lm.forward(tokens, edits=edits).logits
    assert logits is not None
    return logits


def test_splicing_the_identity_changes_nothing(
    lm: LM, tokens: TokenBatch, acts: Acts, measured: Tensor
) -> None:
    identity = IdentityDictionary(SITE, 16, torch.device("cpu"), F64)
    edits = splice_edits(identity, identity.encode(acts), measured)
    assert torch.equal(lm.forward(tokens, edits=edits).logits, lm.forward(tokens).logits)  # type: ignore[arg-type]


def test_splicing_replaces_measured_tokens_by_their_reconstruction(
    lm: LM, tokens: TokenBatch, acts: Acts, clean: Acts, measured: Tensor
) -> None:
    sae = random_sae(site=SITE, transform=InputTransform("standardise"), dtype=F64)
    after = spliced(lm, tokens, sae, acts, measured)[SITE]
    assert torch.equal(after[measured], sae.decode(sae.encode(acts))[SITE].values)
    assert torch.equal(after[~measured], clean[SITE][~measured]), "first tokens and padding stay as they are"
    assert not bool(measured[:, 0].any())
    assert bool((~tokens.real).any())


def test_splicing_a_part_of_the_measured_tokens(lm: LM, tokens: TokenBatch, clean: Acts, draw: Draw) -> None:
    sae = random_sae(site=SITE, dtype=F64)
    some = tokens.measured(3) & (draw(*tokens.ids.shape) > 0)
    after = spliced(lm, tokens, sae, {SITE: clean[SITE][some]}, some)[SITE]
    assert bool((after[some] != clean[SITE][some]).any(dim=-1).all())
    assert torch.equal(after[~some], clean[SITE][~some])


def test_splicing_under_left_padding_agrees(lm: LM, tokens: TokenBatch) -> None:
    sae = random_sae(site=SITE, dtype=F64)
    rows = [tokens.ids[index][tokens.real[index]].tolist() for index in range(len(tokens.ids))]
    ends = []
    for side in ("right", "left"):
        batch = lm.batch(rows, side)
        measured = batch.measured()
        acts = {SITE: lm.forward(batch, capture=[SITE], logits=False).acts[SITE][measured]}
        output = lm.forward(batch, edits=splice_edits(sae, sae.encode(acts), measured))
        assert output.logits is not None
        ends.append(output.logits[batch.real])
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=1e-10)


@pytest.mark.parametrize("routing", ["hard", "random"])
@pytest.mark.parametrize("mode", ["paper", "code", "corrected"])
def test_a_routed_splice_edits_every_token_at_its_own_site_only(
    lm: LM,
    tokens: TokenBatch,
    acts: Acts,
    measured: Tensor,
    mode: Literal["paper", "code", "corrected"],
    routing: Literal["hard", "random"],
) -> None:
    dictionary = random_routesae(ROUTED, splice=mode, routing=routing, dtype=F64)
    codes = dictionary.encode(acts)
    route = codes.context["route"]
    assert len(route.unique()) == len(ROUTED)
    masks = written_masks(dictionary, codes, measured)
    assert list(masks) == ROUTED
    before: dict[Site, Tensor] = {}
    after: dict[Site, Tensor] = {}

    def keep(store: dict[Site, Tensor], site: Site) -> MapActivation:
        def kept(all_acts: Tensor, index: Tensor) -> Tensor:
            store[site] = all_acts.clone()
            return all_acts

        return MapActivation(site, kept, skip_first=0, where=None)

    edits = splice_edits(dictionary, codes, measured)
    wrapped = [keep(before, site) for site in ROUTED] + edits + [keep(after, site) for site in ROUTED]
    lm.forward(tokens, edits=wrapped)
    for index, site in enumerate(ROUTED):
        changed = torch.zeros_like(measured)
        changed[tokens.real] = (before[site] != after[site]).any(dim=-1)
        expected = torch.zeros_like(measured)
        expected[measured] = route == index
        assert torch.equal(changed, expected)
        assert torch.equal(masks[site], expected)
        # What is written is the re-encoding of what arrives there now, under the clean pass's route.
        context = {name: value[route == index] for name, value in codes.context.items()}
        arriving = before[site][expected[tokens.real]]
        written = dictionary.decode(dictionary.encode_at(site, arriving, context))[site].values
        torch.testing.assert_close(after[site][expected[tokens.real]], written, rtol=0, atol=1e-11)


def test_a_perfect_routesae_splices_perfectly_when_corrected(
    lm: LM, tokens: TokenBatch, acts: Acts, measured: Tensor
) -> None:
    clean = logits_of(lm, tokens)
    change = {}
    for mode in ("paper", "code", "corrected"):
        dictionary = random_routesae(ROUTED, weights=perfect_weights(16, dtype=F64), k=16, splice=mode)
        edits = splice_edits(dictionary, dictionary.encode(acts), measured)
        output = lm.forward(tokens, edits=edits).logits
        assert output is not None
        change[mode] = float((output - clean).abs().max())
    assert change["corrected"] < 1e-9
    assert change["code"] < 1e-9, "the official code leaves p out on both ways"
    assert change["paper"] > 0.01


def test_written_masks_of_a_single_site(acts: Acts, measured: Tensor) -> None:
    sae = random_sae(site=SITE, dtype=F64)
    assert written_masks(sae, sae.encode(acts), measured) == {SITE: measured}


def test_ablating_a_latent_takes_its_written_vector_away(
    lm: LM, tokens: TokenBatch, acts: Acts, measured: Tensor
) -> None:
    """Splicing codes without a latent equals the full splice minus value times write vector."""
    sae = random_sae(site=SITE, transform=InputTransform("standardise"), gate=ReluGate(), dtype=F64)
    codes = sae.encode(acts)
    latent = int(codes.latents.bincount().argmax())
    without = codes.keep(codes.latents != latent)
    assert without.nnz < codes.nnz
    ablated = lm.forward(tokens, edits=splice_edits(sae, without, measured), capture=[SITE]).acts[SITE]
    full = lm.forward(tokens, edits=splice_edits(sae, codes, measured), capture=[SITE]).acts[SITE]
    value = codes.dense()[:, latent, None]
    vector = sae.write_vectors([latent], codes.context)[SITE][:, 0]
    torch.testing.assert_close((full - ablated)[measured], value * vector, rtol=0, atol=1e-12)
    assert torch.equal(ablated[~measured], full[~measured])


@pytest.mark.parametrize("kind", ["none", "standardise", "layer_norm", "constant_norm"])
def test_steering_adds_the_direction_in_each_tokens_own_scale(
    lm: LM, tokens: TokenBatch, clean: Acts, draw: Draw, kind: str
) -> None:
    sae = random_sae(site=SITE, transform=InputTransform(kind, 1e-6), dtype=F64)  # type: ignore[arg-type]
    directions = draw(len(tokens.ids), 16)
    after = lm.forward(tokens, edits=steering_edits(sae, directions), capture=[SITE]).acts[SITE]
    x = clean[SITE]
    scale = {
        "none": torch.ones(*x.shape[:2], 1, dtype=F64),
        "constant_norm": x.norm(dim=-1, keepdim=True) / 4,
    }.get(kind, x.std(dim=-1, keepdim=True))
    expected = x + scale * directions[:, None] * tokens.measured()[..., None]
    torch.testing.assert_close(after, expected, rtol=1e-5, atol=1e-5)
    if kind != "none":
        assert float((scale - 1).abs().max()) > 0.1, "the scale must matter"


def test_steering_by_a_write_vector_shifts_the_code_by_the_amount(
    lm: LM, tokens: TokenBatch, acts: Acts, measured: Tensor
) -> None:
    """With orthonormal latents, adding 3 units of a decoder row adds 3 to that pre-activation and to no
    other."""
    transform = InputTransform("none")
    sae = random_sae(
        site=SITE,
        weights=perfect_weights(16, dtype=F64),
        gate=TopKGate(16, rectify=False),
        transform=transform,
    )
    direction = 3 * sae.write_vectors([5])[SITE]
    edits = steering_edits(sae, direction.expand(len(tokens.ids), -1))
    steered = lm.forward(tokens, edits=edits, capture=[SITE], logits=False).acts[SITE][measured]
    moved = sae.encode({SITE: steered}).dense() - sae.encode(acts).dense()
    expected = torch.zeros(16, dtype=F64)
    expected[5] = 3
    torch.testing.assert_close(moved, expected.expand_as(moved), rtol=0, atol=1e-11)


def test_routed_steering_acts_at_every_tokens_own_site(
    lm: LM, tokens: TokenBatch, acts: Acts, measured: Tensor, draw: Draw
) -> None:
    dictionary = random_routesae(ROUTED, dtype=F64)
    edits = steering_edits(dictionary, draw(len(tokens.ids), 16))
    assert [edit.site for edit in edits] == ROUTED
    assert all(edit.observes == tuple(ROUTED) for edit in edits)
    after = lm.forward(tokens, edits=edits, capture=ROUTED[:1]).acts[ROUTED[0]]
    clean = lm.forward(tokens, capture=ROUTED[:1]).acts[ROUTED[0]]
    changed = (after != clean).any(dim=-1)
    assert torch.equal(changed[measured], dictionary.encode(acts).context["route"] == 0)
    assert not bool(changed[~measured].any())


def test_dictionaries_and_models_of_different_dtypes_work_together(
    lm: LM, tokens: TokenBatch, acts: Acts, measured: Tensor, draw: Draw
) -> None:
    for dictionary in (random_sae(site=SITE), random_routesae(ROUTED)):
        assert dictionary.dtype == torch.float32
        assert lm.dtype == F64
        codes = dictionary.encode(acts)
        precise = dictionary.to(dtype=F64)
        coarse = lm.forward(tokens, edits=splice_edits(dictionary, codes, measured)).logits
        fine = lm.forward(tokens, edits=splice_edits(precise, precise.encode(acts), measured)).logits
        torch.testing.assert_close(coarse, fine, rtol=1e-3, atol=1e-3)
        assert lm.forward(tokens, edits=steering_edits(dictionary, draw(3, 16))).logits is not None


@pytest.mark.parametrize("target", [1.0, 4.0, 7.5, 20.0])
def test_calibration_hits_its_target_on_the_sample(acts: Acts, target: float) -> None:
    threshold = JumpReluGate(torch.rand(48, generator=torch.Generator().manual_seed(0)))
    for dictionary in (
        random_sae(site=SITE, gate=ReluGate(), dtype=F64),
        random_sae(
            site=SITE, gate=TopKGate(4, rectify=False), transform=InputTransform("standardise"), dtype=F64
        ),
        random_sae(site=SITE, gate=threshold),
        random_routesae(ROUTED, dtype=F64),
    ):
        n_tokens = len(acts[SITE])
        halves = [
            {site: value[half] for site, value in acts.items()} for half in (slice(0, 9), slice(9, None))
        ]
        calibrated = calibrate(dictionary, halves, target)
        codes = calibrated.encode(acts)
        assert abs(codes.nnz - target * n_tokens) <= 1, dictionary.card.name
        assert bool((codes.values > 0).all())
        assert calibrated.card.options["gate"] == "threshold"


def test_calibration_keeps_the_largest_activations(acts: Acts) -> None:
    sae = random_sae(site=SITE, gate=ReluGate(), dtype=F64)
    everything = sae.encode(acts).values.sort(descending=True).values
    kept = calibrate(sae, [acts], 5.0).encode(acts).values.sort(descending=True).values
    torch.testing.assert_close(kept, everything[: len(kept)])


def test_targets_that_can_not_be_reached_are_refused(acts: Acts) -> None:
    sae = random_sae(site=SITE, dtype=F64)
    with pytest.raises(UserError, match=r"can't be calibrated to L0 48.*are positive, \d+ are needed"):
        calibrate(sae, [acts], 48.0)
    with pytest.raises(UserError, match="on 0 calibration tokens"):
        calibrate(sae, [], 4.0)
    assert with_threshold(sae, 0.5).card.options["threshold"] == 0.5
