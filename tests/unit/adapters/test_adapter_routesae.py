"""RouteSAE against a straight-line reading of the paper's equations and of its code's standardisation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import pytest
import torch
from torch import Tensor

from latentbench.adapters import (
    InputTransform,
    RouteSae,
    TopKGate,
    route_tokens,
    routed_sites,
    with_k,
    with_threshold,
)
from latentbench.errors import AdapterError
from latentbench.lm import Site
from latentbench.testing import perfect_weights, random_routesae, random_sae

Draw = Callable[..., Tensor]
Mode = Literal["paper", "code", "corrected"]
MODES: tuple[Mode, ...] = ("paper", "code", "corrected")
F64 = torch.float64
SITES = [Site("resid_post", layer) for layer in range(4)]


class Token(NamedTuple):
    """One token through the reference."""

    route: int
    probability: float
    code: Tensor
    predicted: Tensor
    """Of the p-scaled, standardised input."""
    mean: Tensor
    std: Tensor


def reference(
    dictionary: RouteSae, xs: list[Tensor], *, mean_pool: bool = False, scale: bool = True
) -> Token:
    """arXiv 2503.08200, equations 5 to 11, for one token; `xs` is its activation at every routed site.

    Standardisation, latent bias and signed TopK as in the official code.
    """
    w = dictionary.sae.weights
    assert w.b_pre is not None
    assert isinstance(dictionary.sae.gate, TopKGate)
    means = [x.sum() / len(x) for x in xs]
    stds = [((x - m) ** 2).sum().div(len(x) - 1).sqrt() + 1e-6 for x, m in zip(xs, means, strict=True)]
    normal = [(x - m) / s for x, m, s in zip(xs, means, stds, strict=True)]
    pooled = sum(normal[1:], start=normal[0])  # (5)
    if mean_pool:
        pooled = pooled / len(normal)
    alpha = dictionary.router @ pooled  # (6)
    shares = alpha.exp() / alpha.exp().sum()  # (7)
    route = int(shares.argmax())  # (8)
    p = float(shares[route])
    x_route = p * normal[route] if scale else normal[route]  # (9)
    pre = w.w_enc @ (x_route - w.b_pre) + w.b_enc  # (10), with the code's latent bias
    code = torch.zeros_like(pre)
    kept = pre.argsort(descending=True)[: dictionary.sae.gate.k]
    code[kept] = pre[kept]  # signed: no ReLU after TopK
    predicted = code @ w.w_dec + w.b_dec  # (11)
    return Token(route, p, code, predicted, means[route], stds[route])


def acts_of(draw: Draw, tokens: int = 40, seed: int = 0) -> dict[Site, Tensor]:
    """Activations of differing scale and offset from site to site."""
    return {
        site: draw(tokens, 16, seed=seed * 100 + index) * (index + 1) + index / 2
        for index, site in enumerate(SITES)
    }


def per_token(acts: Mapping[Site, Tensor]) -> list[list[Tensor]]:
    return [[acts[site][token] for site in SITES] for token in range(len(acts[SITES[0]]))]


@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_encode_is_equations_5_to_10(draw: Draw, pooling: Literal["sum", "mean"]) -> None:
    dictionary = random_routesae(SITES, pooling=pooling, k=30, dtype=F64)
    acts = acts_of(draw)
    codes = dictionary.encode(acts)
    wanted = [reference(dictionary, xs, mean_pool=pooling == "mean") for xs in per_token(acts)]
    assert codes.context["route"].tolist() == [token.route for token in wanted]
    assert len({token.route for token in wanted}) == len(SITES), "every site must be somebody's route"
    assert codes.context["route_probability"].tolist() == pytest.approx(
        [token.probability for token in wanted]
    )
    assert min(token.probability for token in wanted) < 0.6, "p must matter"
    torch.testing.assert_close(
        codes.dense(), torch.stack([token.code for token in wanted]), rtol=0, atol=1e-12
    )
    assert bool((codes.values < 0).any()), "kept values may be negative"
    assert torch.equal(dictionary.routed(codes), codes.context["route"])  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", MODES)
def test_decode_is_equation_11_and_the_way_back(draw: Draw, mode: Mode) -> None:
    dictionary = random_routesae(SITES, splice=mode, dtype=F64)
    acts = acts_of(draw)
    written = dictionary.decode(dictionary.encode(acts))
    seen = []
    for index, site in enumerate(SITES):
        rows, values = written[site]
        assert rows is not None
        for token, value in zip(rows.tolist(), values, strict=True):
            wanted = reference(dictionary, per_token(acts)[token])
            assert wanted.route == index
            predicted = wanted.predicted / wanted.probability if mode == "corrected" else wanted.predicted
            torch.testing.assert_close(value, predicted * wanted.std + wanted.mean, rtol=0, atol=1e-11)
            seen.append(token)
    assert sorted(seen) == list(range(40)), "each token is written at exactly one site"


@pytest.mark.parametrize("mode", MODES)
def test_encode_at_scales_by_p_except_in_code_mode(draw: Draw, mode: Mode) -> None:
    dictionary = random_routesae(SITES, splice=mode, dtype=F64)
    acts = acts_of(draw)
    clean = dictionary.encode(acts)
    rows = (clean.context["route"] == 2).nonzero()[:, 0]
    context = {name: value[rows] for name, value in clean.context.items()}
    again = dictionary.encode_at(SITES[2], acts[SITES[2]][rows], context)
    wanted = [reference(dictionary, per_token(acts)[row], scale=mode != "code") for row in rows.tolist()]
    torch.testing.assert_close(
        again.dense(), torch.stack([token.code for token in wanted]), rtol=0, atol=1e-12
    )
    if mode != "code":
        torch.testing.assert_close(again.dense(), clean.select(rows).dense(), rtol=0, atol=1e-12)
    moved = dictionary.encode_at(SITES[2], acts[SITES[2]][rows] * 3 + 1, context)
    torch.testing.assert_close(moved.dense(), again.dense(), rtol=1e-4, atol=1e-4)  # standardised anew
    assert torch.equal(moved.context["route_probability"], context["route_probability"])


def test_a_perfect_sae_is_a_perfect_splice_only_when_corrected(draw: Draw) -> None:
    acts = acts_of(draw)
    error: dict[Mode, float] = {}
    for mode in MODES:
        dictionary = random_routesae(SITES, weights=perfect_weights(16, dtype=F64), k=16, splice=mode)
        codes = dictionary.encode(acts)
        error[mode] = 0.0
        for site, (rows, values) in dictionary.decode(codes).items():
            assert rows is not None
            error[mode] = max(error[mode], float((values - acts[site][rows]).abs().max()))
        # The code mode's splice encodes without p, so it is perfect too, though its clean codes are not.
        if mode == "code":
            for index, site in enumerate(SITES):
                rows = (codes.context["route"] == index).nonzero()[:, 0]
                context = {name: value[rows] for name, value in codes.context.items()}
                spliced = dictionary.decode(dictionary.encode_at(site, acts[site][rows], context))[
                    site
                ].values
                torch.testing.assert_close(spliced, acts[site][rows], rtol=0, atol=1e-11)
    assert error["corrected"] < 1e-11
    assert error["paper"] > 0.1, "p x comes back as p x"


@pytest.mark.parametrize("mode", MODES)
def test_write_vectors_are_how_the_decoding_changes_with_a_latent(draw: Draw, mode: Mode) -> None:
    dictionary = random_routesae(SITES, splice=mode, dtype=F64)
    codes = dictionary.encode(acts_of(draw, tokens=12))
    more = dictionary.decode(codes.with_values(codes.values + 0.5))
    vectors = dictionary.write_vectors(range(48), codes.context)
    assert list(vectors) == SITES
    active = (codes.dense() != 0).to(F64)
    for site, (rows, values) in dictionary.decode(codes).items():
        assert rows is not None
        expected = 0.5 * torch.einsum("tl,tld->td", active[rows], vectors[site][rows])
        torch.testing.assert_close(more[site].values - values, expected, rtol=0, atol=1e-12)
    assert torch.equal(dictionary.write_vectors([5])[SITES[3]], dictionary.sae.weights.w_dec[[5]])


def test_reconstructions_name_their_targets(draw: Draw) -> None:
    dictionary = random_routesae(SITES, weights=perfect_weights(16, dtype=F64), k=16, splice="corrected")
    acts = acts_of(draw)
    spaces = dictionary.reconstructions(acts, dictionary.encode(acts))
    wanted = [reference(dictionary, xs) for xs in per_token(acts)]
    routed = torch.stack([xs[token.route] for xs, token in zip(per_token(acts), wanted, strict=True)])
    assert torch.equal(spaces["raw"].target, routed)
    scaled = torch.stack(
        [(x - token.mean) / token.std * token.probability for x, token in zip(routed, wanted, strict=True)]
    )
    torch.testing.assert_close(spaces["input"].target, scaled, rtol=0, atol=1e-12)
    for pair in spaces.values():
        torch.testing.assert_close(pair.prediction, pair.target, rtol=0, atol=1e-11)


def test_a_token_is_routed_and_encoded_alike_in_every_batch(draw: Draw) -> None:
    acts = acts_of(draw)
    for routing in ("hard", "random"):
        dictionary = random_routesae(SITES, routing=routing, dtype=F64)
        whole = dictionary.encode(acts)
        for token in (0, 7, 39):
            alone = dictionary.encode({site: value[[token]] for site, value in acts.items()})
            assert torch.equal(alone.context["route"], whole.context["route"][[token]])
            torch.testing.assert_close(alone.dense(), whole.dense()[[token]], rtol=0, atol=1e-12)


def test_random_routing_uses_every_site_evenly_and_scales_none(draw: Draw) -> None:
    dictionary = random_routesae(SITES, routing="random", dtype=F64)
    codes = dictionary.encode(acts_of(draw, tokens=4000))
    shares = torch.bincount(codes.context["route"], minlength=4) / 4000
    assert float((shares - 0.25).abs().max()) < 5 * (0.25 * 0.75 / 4000) ** 0.5
    assert torch.equal(codes.context["route_probability"], torch.ones(4000, dtype=F64))


def test_gradients_reach_the_router_through_p(draw: Draw) -> None:
    stacked = torch.stack([draw(5, 16, seed=seed) for seed in range(4)])
    router = (draw(4, 16, seed=9) * 0.1).requires_grad_()
    _, probability = route_tokens(stacked, router, "sum")
    [gradient] = torch.autograd.grad(probability.sum(), router)
    step = gradient.detach() / gradient.norm() * 1e-5
    up = route_tokens(stacked, router.detach() + step, "sum")[1].sum()
    down = route_tokens(stacked, router.detach() - step, "sum")[1].sum()
    assert float(up - down) / 2e-5 == pytest.approx(float(gradient.norm()), rel=1e-5)


@pytest.mark.parametrize(
    ("n_layers", "first", "last"),
    [(16, 3, 11), (30, 6, 21), (4, 0, 2), (12, 2, 8), (32, 7, 23)],
)
def test_routed_sites_are_the_papers(n_layers: int, first: int, last: int) -> None:
    """Llama-3.2-1B with 16 layers: the outputs of blocks 3 to 11, 9 of them."""
    sites = routed_sites(n_layers)
    assert sites == tuple(Site("resid_post", layer) for layer in range(first, last + 1))
    with pytest.raises(AdapterError, match="at least 4 layers; this one has 3"):
        routed_sites(3)


def test_other_gates_keep_the_router(draw: Draw) -> None:
    dictionary = random_routesae(SITES, dtype=F64)
    acts = acts_of(draw)
    fewer = with_k(dictionary, 2)
    assert isinstance(fewer, RouteSae)
    codes = fewer.encode(acts)
    assert codes.counts().tolist() == [2] * 40
    assert torch.equal(codes.context["route"], dictionary.encode(acts).context["route"])
    assert fewer.card.options["k"] == 2
    assert fewer.card.options["splice"] == "corrected"
    gated = with_threshold(dictionary, 0.2).encode(acts)
    assert gated.nnz > 0
    assert bool((gated.values > 0.2).all())
    moved = dictionary.to(dtype=torch.float32)
    assert moved.dtype == torch.float32
    assert moved.router.dtype == torch.float32
    assert dictionary.dtype == F64
    assert torch.equal(moved.encode(acts).context["route"], dictionary.encode(acts).context["route"])


def test_relative_values_divide_by_sqrt_d(draw: Draw) -> None:
    dictionary = random_routesae(SITES, dtype=F64)
    acts = acts_of(draw)
    codes = dictionary.encode(acts)
    norms = dictionary.sae.weights.w_dec.norm(dim=1)[codes.latents]
    torch.testing.assert_close(dictionary.relative_values(acts, codes), codes.values * norms / 4)


def test_parts_that_do_not_fit_are_refused(draw: Draw) -> None:
    good = random_routesae(SITES, dtype=F64)
    with pytest.raises(AdapterError, match=r"router of .* is \(3, 16\), but the card names 4 sites"):
        RouteSae(good.card, good.router[:3], good.sae)
    bad = good.router.clone()
    bad[1, 2] = float("nan")
    with pytest.raises(AdapterError, match=r"router of .* NaN"):
        RouteSae(good.card, bad, good.sae)
    acts = acts_of(draw)
    del acts[SITES[1]]
    with pytest.raises(AdapterError, match=r"reads resid_post\.1"):
        good.encode(acts)


def test_one_site_and_p_of_1_is_a_plain_sae(draw: Draw) -> None:
    routed = random_routesae(SITES[:1], dtype=F64)
    plain = random_sae(
        site=SITES[0],
        weights=routed.sae.weights,
        gate=TopKGate(4, rectify=False),
        transform=InputTransform("standardise", 1e-6),
    )
    x = {SITES[0]: draw(9, 16)}
    torch.testing.assert_close(routed.encode(x).dense(), plain.encode(x).dense(), rtol=0, atol=1e-14)
    torch.testing.assert_close(
        routed.decode(routed.encode(x))[SITES[0]].values, plain.decode(plain.encode(x))[SITES[0]].values
    )
