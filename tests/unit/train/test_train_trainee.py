"""What is trained: routing, gradients and the loss."""

from __future__ import annotations

import math
from typing import Literal

import pytest
import torch
from torch import Tensor

from latentbench.adapters import route_tokens
from latentbench.lm import Site
from latentbench.train import Recipe, Trainee, TraineeSpec

D, SITES = 24, tuple(Site("resid_post", layer) for layer in range(2, 8))
RECIPE = Recipe(
    name="toy", lm="toy", tokens=100, latents=48, k=5, trainees=(TraineeSpec(name="a", kind="topk"),)
)


def trainee(kind: Literal["topk", "routesae", "random"]) -> Trainee:
    return Trainee(TraineeSpec(name="a", kind=kind), RECIPE, D, SITES, seed=3)


@pytest.fixture(scope="module")
def stacked() -> Tensor:
    """`Float[Tensor, "site token d"]`, standardised."""
    drawn = torch.randn((len(SITES), 6000, D), generator=torch.Generator().manual_seed(1))
    return (drawn - drawn.mean(dim=-1, keepdim=True)) / drawn.std(dim=-1, keepdim=True)


def test_random_routing_is_nearly_uniform_over_sites(stacked: Tensor) -> None:
    route, probability = route_tokens(stacked, trainee("random").router, "sum", "random")
    counts = torch.bincount(route, minlength=len(SITES))
    expected = stacked.shape[1] / len(SITES)
    spread = math.sqrt(expected * (1 - 1 / len(SITES)))
    assert counts.shape == (len(SITES),)
    assert float((counts - expected).abs().max()) < 5 * spread
    assert bool((probability == 1).all())


def test_random_routing_depends_on_the_token_alone(stacked: Tensor) -> None:
    router = trainee("random").router
    whole, _ = route_tokens(stacked, router, "sum", "random")
    order = torch.randperm(stacked.shape[1], generator=torch.Generator().manual_seed(2))[:50]
    few, _ = route_tokens(stacked[:, order], router, "sum", "random")
    assert torch.equal(few, whole[order])


@pytest.mark.parametrize(("kind", "learns"), [("routesae", True), ("random", False), ("topk", False)])
def test_only_routesae_trains_its_router(
    stacked: Tensor, kind: Literal["topk", "routesae", "random"], learns: bool
) -> None:
    trained = trainee(kind)
    trained(stacked[:, :64])[0].mean().backward()
    assert (trained.router.grad is not None and bool(trained.router.grad.abs().sum() > 0)) == learns
    assert trained.router.requires_grad == learns
    for weight in (trained.w_enc, trained.w_dec, trained.b_enc, trained.b_pre):
        assert weight.grad is not None
        assert bool(weight.grad.abs().sum() > 0)


@pytest.mark.parametrize("kind", ["topk", "routesae", "random"])
def test_loss_is_the_normalised_error_written_out(
    stacked: Tensor, kind: Literal["topk", "routesae", "random"]
) -> None:
    trained, tokens = trainee(kind), stacked[:, :20]
    with torch.no_grad():
        loss, codes = trained(tokens)
    trained.requires_grad_(requires_grad=False)
    for token in range(20):
        x = trained.choose(tokens)[token]
        pre = trained.w_enc @ (x - trained.b_pre) + trained.b_enc
        kept = pre.topk(RECIPE.k).indices
        found = pre[kept] @ trained.w_dec[kept] + trained.b_pre
        assert float(loss[token]) == pytest.approx(float(((found - x) ** 2).mean() / (x**2).mean()), rel=1e-4)
    assert bool((codes.counts() == RECIPE.k).all())


def test_every_kind_starts_from_the_same_encoder() -> None:
    first, second = trainee("topk"), trainee("routesae")
    assert torch.equal(first.w_enc, second.w_enc)
    norms = first.w_dec.norm(dim=1)
    torch.testing.assert_close(norms, torch.ones_like(norms))


def test_normalising_the_decoder_leaves_directions_alone() -> None:
    trained = trainee("topk")
    before = trained.w_dec.detach().clone()
    with torch.no_grad():
        trained.w_dec.mul_(torch.linspace(0.5, 3.0, RECIPE.latents)[:, None])
    trained.normalise_decoder()
    torch.testing.assert_close(trained.w_dec.detach(), before)
