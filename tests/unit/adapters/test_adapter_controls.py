"""Controls: what each leaves of a dictionary and what it takes away, and how their sources are written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from latentbench.adapters import (
    CONTROL_SCHEMES,
    AbsTopKGate,
    Calibration,
    Codes,
    Crosscoder,
    CrosscoderWeights,
    Dictionary,
    GatedGate,
    IdentityDictionary,
    InputTransform,
    JumpReluGate,
    RandomCodesGate,
    ReluGate,
    RouteSae,
    SaeWeights,
    SparseAutoencoder,
    ThresholdGate,
    TopKGate,
    calibrate,
    load_dictionary,
    mean_control,
    pca_control,
    permuted_decoder,
    random_codes,
    random_decoder,
    random_directions,
    splice_edits,
    steering_edits,
    steering_rows,
    untrained,
    with_k,
    with_random_codes,
    with_threshold,
)
from latentbench.adapters.formats.native import save_dictionary
from latentbench.errors import AdapterError, UserError
from latentbench.lm import LM, Site, TokenBatch
from latentbench.testing import random_routesae, random_sae, random_weights

Draw = Callable[..., Tensor]
F64 = torch.float64
SITE = Site("resid_post", 1)
SITES = [Site("resid_post", layer) for layer in (1, 2, 3)]


def crosscoder() -> Crosscoder:
    one = random_sae(dtype=F64, gate=ReluGate())
    weights = [random_weights(16, 48, seed=seed, dtype=F64) for seed in range(3)]
    names = tuple(str(site) for site in SITES)
    card = one.card.model_copy(update={"reads": names, "writes": names, "family": "crosscoder"})
    stacked = CrosscoderWeights(
        torch.stack([weight.w_enc for weight in weights]),
        weights[0].b_enc - 1.5,
        torch.stack([weight.w_dec for weight in weights]),
        torch.stack([weight.b_dec for weight in weights]),
    )
    return Crosscoder(card, stacked, one.gate, InputTransform("standardise"))


def sparse_relu() -> SparseAutoencoder:
    weights = random_weights(16, 48, dtype=F64)
    return random_sae(weights=replace(weights, b_enc=weights.b_enc - 1.0), gate=ReluGate())


def transcoder() -> SparseAutoencoder:
    old = random_weights(16, 48, dtype=F64)
    skip = torch.randn((16, 16), generator=torch.Generator().manual_seed(4), dtype=F64)
    weights = SaeWeights(old.w_enc, old.b_enc, old.w_dec, old.b_dec, old.b_pre, skip)
    card = random_sae(dtype=F64).card.model_copy(update={"reads": ("mlp_in.1",), "writes": ("mlp_out.1",)})
    return SparseAutoencoder(card, weights, TopKGate(4, rectify=True), InputTransform("none"))


def gated() -> SparseAutoencoder:
    numbers = torch.Generator().manual_seed(2)
    parts = [torch.randn(48, generator=numbers, dtype=F64) * 0.3 for _ in range(3)]
    return random_sae(dtype=F64, gate=GatedGate(*parts))


KINDS: dict[str, Callable[[], Dictionary]] = {
    "topk": lambda: random_sae(dtype=F64, transform=InputTransform("standardise")),
    "signed": lambda: random_sae(dtype=F64, gate=TopKGate(5, rectify=False)),
    "abstopk": lambda: random_sae(dtype=F64, gate=AbsTopKGate(5)),
    "relu": sparse_relu,
    "jumprelu": lambda: random_sae(dtype=F64, gate=JumpReluGate(torch.full((48,), 0.4, dtype=F64))),
    "threshold": lambda: random_sae(dtype=F64, gate=ThresholdGate(0.3)),
    "gated": gated,
    "routesae": lambda: random_routesae(SITES, dtype=F64),
    "routesae as the code has it": lambda: random_routesae(SITES, dtype=F64, splice="code"),
    "crosscoder": crosscoder,
    "transcoder": transcoder,
}
EACH = pytest.mark.parametrize("kind", list(KINDS))


@pytest.fixture(scope="session")
def calibration(draw: Draw) -> Calibration:
    """400 correlated tokens at every site, in two batches."""
    mixing = torch.linspace(0.2, 3, 16, dtype=F64)[:, None] * draw(16, 16, seed=90)

    def acts(sites: Sequence[Site]) -> Iterable[Mapping[Site, Tensor]]:
        for batch in range(2):
            yield {site: draw(200, 16, seed=100 * (site.layer or 0) + batch) @ mixing + 2.0 for site in sites}

    return Calibration(acts, lambda: {"corpus": "drawn"})


def acts_of(dictionary: Dictionary, calibration: Calibration) -> dict[Site, Tensor]:
    sites = sorted({*dictionary.reads, *dictionary.writes})
    return dict(next(iter(calibration.acts(sites))))


def sae_of(dictionary: Dictionary) -> SparseAutoencoder | Crosscoder:
    found = dictionary.sae if isinstance(dictionary, RouteSae) else dictionary
    assert isinstance(found, SparseAutoencoder | Crosscoder)
    return found


def encoded(dictionary: Dictionary, calibration: Calibration) -> Codes:
    acts = acts_of(dictionary, calibration)
    return dictionary.encode({site: acts[site] for site in dictionary.reads})


def same_values_per_token(one: Codes, other: Codes) -> bool:
    pairs = zip(one.offsets[:-1].tolist(), one.offsets[1:].tolist(), strict=True)
    return all(torch.equal(one.values[a:b].sort().values, other.values[a:b].sort().values) for a, b in pairs)


@EACH
@pytest.mark.parametrize("make", [random_decoder, permuted_decoder], ids=["random", "permuted"])
def test_another_decoder_changes_only_the_directions(
    kind: str, make: Callable[[Dictionary], Dictionary], calibration: Calibration
) -> None:
    real = KINDS[kind]()
    control = make(real)
    assert type(control) is type(real)
    codes = encoded(real, calibration)
    assert torch.equal(encoded(control, calibration).dense(), codes.dense())
    before, after = sae_of(real).weights.w_dec, sae_of(control).weights.w_dec
    torch.testing.assert_close(after.norm(dim=-1), before.norm(dim=-1))
    cosines = torch.nn.functional.cosine_similarity(after, before, dim=-1)
    assert float(cosines.max()) < 0.95
    assert float(cosines.abs().mean()) < 0.35
    assert control.card.control
    assert control.card.identity() != real.card.identity()
    assert make(real).card == control.card
    acts = acts_of(real, calibration)
    strengths = [each.relative_values(acts, codes) for each in (real, control)]
    torch.testing.assert_close(*strengths)
    if isinstance(real, SparseAutoencoder) and real.is_transcoder:
        assert sae_of(control).weights.skip is not None  # type: ignore[union-attr]


def test_a_permuted_decoder_writes_each_direction_once() -> None:
    real = random_sae(dtype=F64)
    control = permuted_decoder(real)
    unit = [rows / rows.norm(dim=1, keepdim=True) for rows in (real.weights.w_dec, control.weights.w_dec)]
    donor = (unit[1] @ unit[0].T).argmax(dim=1)
    assert sorted(donor.tolist()) == list(range(48))
    assert not bool((donor == torch.arange(48)).any())
    torch.testing.assert_close(unit[1], unit[0][donor])
    assert permuted_decoder(real, seed=1).card.sha256 != control.card.sha256


@EACH
def test_random_codes_keep_how_many_and_how_strong_but_not_which(kind: str, calibration: Calibration) -> None:
    real = KINDS[kind]()
    control = with_random_codes(real)
    assert type(control) is type(real)
    codes, drawn = encoded(real, calibration), encoded(control, calibration)
    assert torch.equal(drawn.offsets, codes.offsets)
    assert same_values_per_token(drawn, codes)
    assert drawn.n_latents == codes.n_latents
    pairs = drawn.rows() * 48 + drawn.latents
    assert len(pairs.unique()) == drawn.nnz, "a latent is active once at a token"
    assert int(drawn.latents.min()) >= 0
    assert int(drawn.latents.max()) < 48
    overlap = torch.isin(pairs, codes.rows() * 48 + codes.latents).double().mean()
    expected = (codes.counts().double().square().sum() / codes.nnz / 48).item()
    assert float(overlap) == pytest.approx(expected, abs=0.06)
    assert control.card.control
    assert control.card.identity() != real.card.identity()
    assert control.card.options["gate"].startswith("random-codes of ")
    assert encoded(control.to(dtype=F64), calibration).latents.tolist() == drawn.latents.tolist()


def test_every_set_of_random_latents_is_about_equally_likely() -> None:
    numbers = torch.Generator().manual_seed(0)
    tokens, k, width = 6_000, 8, 37
    active = torch.stack([torch.randperm(500, generator=numbers)[:k] for _ in range(tokens)])
    offsets = torch.arange(tokens + 1) * k
    codes = Codes(active.flatten() % width, torch.ones(tokens * k), offsets, width)
    drawn = random_codes(codes, 0)
    use = torch.bincount(drawn.latents, minlength=width).double()
    expected = tokens * k / width
    assert float(((use - expected) ** 2 / expected).sum()) < 70  # chi-square of 36: 99.9 % lie below 68
    sets = torch.zeros((tokens, width)).index_put_((drawn.rows(), drawn.latents), torch.ones(()))
    together = sets.T @ sets
    together.fill_diagonal_(tokens * k * (k - 1) / width / (width - 1))
    pair = tokens * k * (k - 1) / width / (width - 1)
    assert float((together - pair).abs().max()) < 6 * pair**0.5
    first = random_codes(codes, 1)
    assert float((first.latents == drawn.latents).double().mean()) == pytest.approx(1 / width, abs=0.01)


def test_random_codes_depend_on_the_active_set_alone(draw: Draw) -> None:
    real = random_sae(dtype=F64, gate=ReluGate())
    control = with_random_codes(real)
    x = draw(50, 16)
    whole = control.encode({SITE: x})
    for tokens in (torch.arange(7, 8), torch.tensor([3, 41, 20])):
        part = control.encode({SITE: x[tokens]})
        torch.testing.assert_close(part.dense(), whole.dense()[tokens])
    order = torch.randperm(whole.nnz, generator=torch.Generator().manual_seed(1))
    real_codes = real.encode({SITE: x})
    order = order[torch.argsort(real_codes.rows()[order], stable=True)]
    shuffled = Codes(
        real_codes.latents[order], real_codes.values[order], real_codes.offsets, real_codes.n_latents
    )
    assert torch.equal(random_codes(shuffled, 0).dense(), random_codes(real_codes, 0).dense())
    nothing = Codes(torch.zeros(0, dtype=torch.int64), torch.zeros(0), torch.zeros(3, dtype=torch.int64), 5)
    assert random_codes(nothing, 0).n_tokens == 2


def test_every_latent_of_a_full_token_stays_in() -> None:
    for width in (1, 2, 5, 48):
        codes = Codes(torch.arange(width), torch.rand(width), torch.tensor([0, width]), width)
        assert sorted(random_codes(codes, 3).latents.tolist()) == list(range(width))


def test_setting_the_sparsity_leaves_the_codes_random(calibration: Calibration) -> None:
    for kind in ("relu", "gated", "signed", "routesae"):
        real, control = KINDS[kind](), with_random_codes(KINDS[kind]())
        for changed, plain in (
            (with_k(control, 3), with_k(real, 3)),
            (with_threshold(control, 0.2), with_threshold(real, 0.2)),
        ):
            assert isinstance(sae_of(changed).gate, RandomCodesGate)
            codes, drawn = encoded(plain, calibration), encoded(changed, calibration)
            assert torch.equal(drawn.offsets, codes.offsets)
            assert same_values_per_token(drawn, codes)
            assert not torch.equal(drawn.dense(), codes.dense())
    reached = calibrate(with_random_codes(KINDS["relu"]()), calibration.acts([SITE]), 6.0)
    assert isinstance(sae_of(reached).gate, RandomCodesGate)
    assert encoded(reached, calibration).nnz == pytest.approx(6 * 200, rel=0.2)


@EACH
def test_an_untrained_twin_has_the_shape_and_sparsity_and_nothing_learnt(
    kind: str, calibration: Calibration
) -> None:
    real = KINDS[kind]()
    twin = untrained(real, calibration)
    assert type(twin) is type(real)
    before, after = sae_of(real).weights, sae_of(twin).weights
    assert after.w_enc.shape == before.w_enc.shape
    assert after.w_dec.shape == before.w_dec.shape
    assert not bool(after.b_enc.any())
    assert not bool(after.b_dec.any())
    assert float(after.w_enc.abs().max()) <= 0.25
    torch.testing.assert_close(after.w_dec.norm(dim=-1), torch.ones_like(after.w_dec[..., 0]))
    overlap = torch.nn.functional.cosine_similarity(after.w_enc, before.w_enc, dim=-1)
    assert float(overlap.mean().abs()) < 0.1
    torch.testing.assert_close(after.w_dec, after.w_enc / after.w_enc.norm(dim=-1, keepdim=True))
    active = [sum(each.encode(batch).nnz for batch in calibration.acts(each.reads)) for each in (real, twin)]
    assert active[1] == active[0] > 0, "the mean L0 is the original's"
    assert twin.card.control
    assert twin.card.training == {}
    assert twin.card.family == f"{real.card.family}-untrained"
    assert twin.card.nominal_l0 == pytest.approx(active[0] / 400)
    again = untrained(real, calibration)
    assert torch.equal(sae_of(again).weights.w_enc, after.w_enc)
    assert untrained(real, calibration, seed=1).card.sha256 != twin.card.sha256


def test_an_untrained_topk_needs_no_activations() -> None:
    assert untrained(random_sae(), None).card.nominal_l0 == 4
    with pytest.raises(UserError, match="its L0 is not fixed by its gate"):
        untrained(random_sae(gate=ReluGate()), None)
    with pytest.raises(AdapterError, match="no weights to be trained"):
        untrained(IdentityDictionary(SITE, 16, torch.device("cpu"), F64), None)


def test_the_mean_predicts_the_mean_with_no_latents(calibration: Calibration) -> None:
    control = mean_control(SITE, calibration).to(dtype=F64)
    every = torch.cat([batch[SITE] for batch in calibration.acts([SITE])])
    codes = control.encode({SITE: every})
    assert (codes.nnz, codes.n_latents, codes.n_tokens) == (0, 0, 400)
    predicted = control.decode(codes)[SITE].values
    torch.testing.assert_close(predicted, every.mean(dim=0).expand_as(every), atol=1e-6, rtol=0)
    assert control.card.nominal_l0 == 0
    assert control.write_vectors([])[SITE].shape == (0, 16)
    assert with_k(control, 4).encode({SITE: every}).nnz == 0


def test_pca_is_the_best_linear_code_of_its_rank(calibration: Calibration) -> None:
    every = torch.cat([batch[SITE] for batch in calibration.acts([SITE])])
    centred = every - every.mean(dim=0)
    values = torch.linalg.svdvals(centred)
    last = None
    for rank in (1, 5, 16):
        control = pca_control(SITE, rank, rank, calibration).to(dtype=F64)
        codes = control.encode({SITE: every})
        assert codes.counts().tolist() == [rank] * 400
        assert bool((codes.values < 0).any())
        error = (control.decode(codes)[SITE].values - every).square().sum()
        torch.testing.assert_close(error, values[rank:].square().sum(), atol=1e-2, rtol=1e-5)
        last = control
    assert last is not None
    sparse = pca_control(SITE, 16, 5, calibration).to(dtype=F64)
    codes, full = sparse.encode({SITE: every}), last.encode({SITE: every})
    assert codes.counts().tolist() == [5] * 400
    best = full.dense().abs().topk(5, dim=1).values.sort(dim=1).values
    torch.testing.assert_close(codes.values.abs().view(400, 5).sort(dim=1).values, best)
    errors = [
        (each.decode(each.encode({SITE: every}))[SITE].values - every).square().sum()
        for each in (sparse, pca_control(SITE, 5, 5, calibration).to(dtype=F64))
    ]
    assert errors[0] < errors[1], "a choice for each token beats one choice for all"
    rows = sparse.weights.w_enc
    torch.testing.assert_close(rows @ rows.T, torch.eye(16, dtype=F64), atol=1e-6, rtol=0)
    assert bool((rows.gather(1, rows.abs().argmax(dim=1, keepdim=True)) > 0).all())


def test_random_directions_are_unit_and_written_as_they_are_read(draw: Draw) -> None:
    control = random_directions(SITE, 16, 40, 3).to(dtype=F64)
    torch.testing.assert_close(control.weights.w_dec.norm(dim=1), torch.ones(40, dtype=F64))
    assert torch.equal(control.weights.w_dec, control.weights.w_enc)
    codes = control.encode({SITE: draw(30, 16)})
    assert codes.counts().tolist() == [3] * 30
    assert bool((codes.values > 0).all())
    assert control.card.nominal_l0 == 3
    other = random_directions(SITE, 16, 40, 3, seed=1)
    assert other.card.sha256 != control.card.sha256
    assert float((other.weights.w_enc.double() - control.weights.w_enc).abs().max()) > 0.1


def sources(path: Path) -> dict[str, tuple[str, str]]:
    """Control by scheme: its source and its family."""
    return {
        "identity": ("identity:resid_post.1", "identity"),
        "mean": ("mean:resid_post.1", "mean"),
        "pca": ("pca:resid_post.1:9:4", "pca"),
        "random-directions": ("random-directions:resid_post.1:40:4", "random-directions"),
        "random-codes": (f"random-codes:{path}", "topk-random-codes"),
        "permuted-decoder": (f"permuted-decoder:{path}", "topk-permuted-decoder"),
        "random-decoder": (f"random-decoder:{path}", "topk-random-decoder"),
        "untrained": (f"untrained:{path}", "topk-untrained"),
    }


@pytest.mark.parametrize("scheme", CONTROL_SCHEMES)
def test_a_control_loads_from_its_source_and_edits_the_model(
    scheme: str, tmp_path: Path, lm: LM, tokens: TokenBatch, measured: Tensor, calibration: Calibration
) -> None:
    path = save_dictionary(tmp_path, "toy", random_sae(site=SITE), torch.float32)
    source, family = sources(path)[scheme]
    control = load_dictionary(source, lm=lm, dtype="float64", calibration=calibration)
    assert control.card.family == family
    assert control.card.control
    assert control.card.source == source.replace(str(path), path.name)
    twice = load_dictionary(source, lm=lm, dtype="float64", calibration=calibration)
    assert twice.card == control.card
    clean = lm.forward(tokens, capture=[SITE])
    codes = control.encode({SITE: clean.acts[SITE][measured]})
    spliced = lm.forward(tokens, edits=splice_edits(control, codes, measured))
    assert spliced.logits is not None
    assert clean.logits is not None
    assert torch.equal(spliced.logits, clean.logits) == (scheme == "identity")
    if control.card.n_latents:
        rows = steering_rows(control, [1]).expand(3, -1)
        steered = lm.forward(tokens, edits=steering_edits(control, 3 * rows)).logits
        assert steered is not None
        assert not torch.equal(steered, clean.logits)


def test_controls_of_controls(tmp_path: Path) -> None:
    path = save_dictionary(tmp_path, "toy", random_sae(site=SITE), torch.float32)
    both = load_dictionary(f"random-codes:permuted-decoder:{path}")
    assert both.card.family == "topk-permuted-decoder-random-codes"
    assert both.card.source == "random-codes:permuted-decoder:toy.safetensors"
    with pytest.raises(AdapterError, match="random-codes of topk"):
        load_dictionary(str(save_dictionary(tmp_path / "saved", "no", both)))


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("mean:resid_post.1", "is fitted on activations"),
        ("pca:resid_post.1:4", "is fitted on activations"),
        ("mean:resid_post.1:3", "write mean:SITE"),
        ("pca:resid_post.1", "write pca:SITE:RANK or"),
        ("pca:resid_post.1:x", "write pca:SITE:RANK or"),
        ("pca:resid_post.1:0", "whole numbers above 0"),
        ("pca:resid_post.1:4:9", "9 of 4 latents"),
        ("random-directions:resid_post.1:40", "write random-directions:SITE:WIDTH:K"),
        ("random-directions:resid_post.1:4:5", "5 of 4 latents"),
        ("mean:resid_past.1", "resid_post"),
        ("random-codes:identity:resid_post.1", "no gate"),
        ("permuted-decoder:identity:resid_post.1", "no decoder"),
        ("untrained:identity:resid_post.1", "no weights"),
        ("permuted-decoder:nowhere", "unknown dictionary 'nowhere'"),
    ],
)
def test_a_wrong_source_is_named_in_one_line(source: str, error: str, lm: LM) -> None:
    with pytest.raises(UserError, match=error) as caught:
        load_dictionary(source, lm=lm)
    assert "\n" not in str(caught.value)


def test_a_control_that_lacks_what_it_needs_says_so(lm: LM, calibration: Calibration) -> None:
    with pytest.raises(UserError, match=r"width of the activations: load it with lm="):
        load_dictionary("random-directions:resid_post.1:40:4")
    with pytest.raises(UserError, match="16 dimensions, no more components"):
        load_dictionary("pca:resid_post.1:17", lm=lm, calibration=calibration)
    with pytest.raises(UserError, match="400 calibration tokens"):
        load_dictionary("pca:resid_post.1:400", lm=lm, calibration=calibration)
    empty: Any = Calibration(lambda _sites: iter(()), dict)
    with pytest.raises(UserError, match="0 calibration tokens"):
        load_dictionary("mean:resid_post.1", lm=lm, calibration=empty)
