"""What is trained: inputs, routing, gradients and the loss."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from latentbench.adapters import route_tokens
from latentbench.errors import UserError
from latentbench.train import BlockView, Recipe, Trainee, TraineeSpec
from latentbench.train._coders import GatedCoder, JumpReluCoder
from latentbench.train._recipe import Kind
from latentbench.train._trainees import spaced_sites

D, N_SITES = 24, 6
KINDS: list[Kind] = ["topk", "routesae", "random", "relu", "gated", "jumprelu", "mlsae", "crosscoder"]


def recipe_of(spec: TraineeSpec) -> Recipe:
    return Recipe(name="toy", lm="toy", tokens=100, latents=48, k=5, trainees=(spec,))


def trainee(kind: Kind, **options: object) -> Trainee:
    spec = TraineeSpec.model_validate({"name": "a", "kind": kind, "seeds": 3, "n_sites": 3, **options})
    recipe = recipe_of(spec)
    return Trainee(recipe.units()[0], recipe, D, N_SITES)


@pytest.fixture(scope="module")
def stacked() -> Tensor:
    """`Float[Tensor, "site token d"]`, standardised."""
    drawn = torch.randn((N_SITES, 6000, D), generator=torch.Generator().manual_seed(1))
    return (drawn - drawn.mean(dim=-1, keepdim=True)) / drawn.std(dim=-1, keepdim=True)


@pytest.fixture(scope="module")
def view(stacked: Tensor) -> BlockView:
    return BlockView(stacked)


def router(trained: Trainee) -> Tensor:
    found = trained.reader.router
    assert isinstance(found, Tensor)
    return found


def test_random_routing_is_nearly_uniform_over_sites(stacked: Tensor) -> None:
    route, probability = route_tokens(stacked, router(trainee("random")), "sum", "random")
    counts = torch.bincount(route, minlength=N_SITES)
    expected = stacked.shape[1] / N_SITES
    spread = math.sqrt(expected * (1 - 1 / N_SITES))
    assert counts.shape == (N_SITES,)
    assert float((counts - expected).abs().max()) < 5 * spread
    assert bool((probability == 1).all())


def test_random_routing_depends_on_the_token_alone(stacked: Tensor) -> None:
    drawn = router(trainee("random"))
    whole, _ = route_tokens(stacked, drawn, "sum", "random")
    order = torch.randperm(stacked.shape[1], generator=torch.Generator().manual_seed(2))[:50]
    few, _ = route_tokens(stacked[:, order], drawn, "sum", "random")
    assert torch.equal(few, whole[order])


@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_a_routed_input_is_that_of_the_dictionary(stacked: Tensor, view: BlockView, pooling: str) -> None:
    trained = trainee("routesae", pooling=pooling)
    batch = torch.tensor([5, 17, 4000])
    chosen = stacked[:, batch]
    pooled = chosen.sum(dim=0) if pooling == "sum" else chosen.mean(dim=0)
    probability, route = torch.softmax(pooled @ router(trained).T, dim=1).max(dim=1)
    expected = chosen[route, torch.arange(3)] * probability[:, None]
    torch.testing.assert_close(trained.reader(view, batch, 0), expected)


def test_soft_routing_reads_the_weighted_mean_of_the_sites(stacked: Tensor, view: BlockView) -> None:
    trained = trainee("routesae", routing="soft")
    batch = torch.tensor([5, 17])
    weights = torch.softmax(stacked[:, batch].sum(dim=0) @ router(trained).T, dim=1)
    expected = sum(weights[:, site, None] * stacked[site, batch] for site in range(N_SITES))
    torch.testing.assert_close(trained.reader(view, batch, 0), expected)


def test_mlsae_goes_through_all_sites_and_is_measured_at_the_last(stacked: Tensor, view: BlockView) -> None:
    trained, batch = trainee("mlsae"), torch.tensor([5])
    seen = [trained.reader(view, batch, turn) for turn in range(N_SITES)]
    wanted = sorted(stacked[:, 5, 0].tolist())
    assert sorted(float(one[0, 0]) for one in seen) == wanted
    trained.eval()
    assert all(torch.equal(trained.reader(view, batch, turn), stacked[-1, batch]) for turn in range(3))


def test_a_crosscoder_reads_its_sites_side_by_side(stacked: Tensor, view: BlockView) -> None:
    batch = torch.tensor([5, 17])
    assert spaced_sites(N_SITES, 3) == (1, 3, 5)
    expected = torch.cat([stacked[site, batch] for site in (1, 3, 5)], dim=1)
    torch.testing.assert_close(trainee("crosscoder").reader(view, batch, 0), expected)


def test_a_crosscoder_of_more_sites_than_there_are_is_refused() -> None:
    with pytest.raises(UserError, match="n_sites = 9, but this model has 6 routed sites"):
        trainee("crosscoder", n_sites=9)


def test_a_half_precision_block_comes_out_in_float32(stacked: Tensor) -> None:
    half = BlockView(stacked.half())
    batch, route = torch.tensor([1, 2]), torch.tensor([0, 4])
    for found in (
        half.at(2, batch),
        half.routed(route, batch),
        half.pooled("sum", batch),
        half.stacked(batch),
    ):
        assert found.dtype == torch.float32
    torch.testing.assert_close(half.pooled("mean", batch), stacked[:, batch].mean(dim=0), atol=2e-3, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_reach_what_is_trained_and_nothing_else(view: BlockView, kind: Kind) -> None:
    trained = trainee(kind, bandwidth=1.0)
    trained.loss(trained(view, torch.arange(64))).backward()
    frozen = {name for name, parameter in trained.named_parameters() if not parameter.requires_grad}
    expected = {
        "random": {"reader.router"},
        "gated": {"coder.b_enc", "coder.b_gate"},
        "crosscoder": {"coder.b_pre"},
    }
    assert frozen == expected.get(kind, set())
    for name, parameter in trained.named_parameters():
        if name not in frozen:
            assert parameter.grad is not None, name
            assert bool(parameter.grad.abs().sum() > 0), name


def by_hand(trained: Trainee, x: Tensor) -> Tensor:
    """Dense latents of one input, written out."""
    coder = trained.coder
    pre = coder.w_enc @ (x - coder.b_pre) + coder.b_enc
    if isinstance(coder, GatedCoder):
        return ((coder.r_mag.exp() * pre + coder.b_mag).clamp(min=0)) * (pre + coder.b_gate > 0)
    if isinstance(coder, JumpReluCoder):
        return torch.where(pre > coder.threshold, pre, 0.0)
    if trained.unit.spec.kind in ("relu", "crosscoder"):
        return pre.clamp(min=0)
    kept = pre.topk(trained.unit.k).indices
    return torch.zeros_like(pre).index_put((kept,), pre[kept])


@pytest.mark.parametrize("kind", KINDS)
def test_loss_is_the_normalised_error_and_the_penalty_written_out(view: BlockView, kind: Kind) -> None:
    trained, batch = trainee(kind, penalty=0.7, threshold=0.3), torch.arange(20)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in trained.coder.named_parameters():
            if name.startswith(("b_", "r_")) and parameter.requires_grad:
                parameter.normal_(std=0.1, generator=generator)
        outcome, inputs = trained(view, batch, 4), trained.reader(view, batch, 4)
        loss = float(trained.loss(outcome))
        errors, penalties = [], []
        for x in inputs:
            z = by_hand(trained, x)
            parts = (z @ trained.coder.w_dec + trained.coder.b_pre - x).view(trained.coder.parts, -1)
            sizes = x.view(trained.coder.parts, -1)
            errors.append(float((parts.square().mean(dim=1) / sizes.square().mean(dim=1)).mean()))
            penalties.append(float((z > 0).sum()) if kind == "jumprelu" else float(z.mean()))
            assert int((z != 0).sum()) == int(outcome.active[len(errors) - 1])
    assert outcome.error.tolist() == pytest.approx(errors, rel=1e-4)
    has_penalty = kind in ("relu", "gated", "jumprelu", "crosscoder")
    expected = sum(errors) / 20 + (0.7 * sum(penalties) / 20 if has_penalty else 0.0)
    assert loss == pytest.approx(expected, rel=1e-4)


def test_jumprelu_gradients_are_the_straight_through_ones() -> None:
    coder = JumpReluCoder(D, 8, torch.Generator().manual_seed(0), threshold=0.5, bandwidth=0.4)
    inputs = torch.randn((300, D), generator=torch.Generator().manual_seed(1))
    done = coder(inputs)
    assert done.penalty is not None
    (done.predicted.sum() + 3.0 * done.penalty).backward()
    with torch.no_grad():
        pre = coder.pre_activations(inputs)
        inside = ((pre - 0.5).abs() < 0.2).float()
        of_dense = coder.w_dec.sum(dim=1)
        expected = -(0.5 * of_dense * inside.sum(dim=0) + 3.0 / 300 * inside.sum(dim=0)) / 0.4
    assert coder.threshold.grad is not None
    torch.testing.assert_close(coder.threshold.grad, expected, rtol=1e-4, atol=1e-4)


def test_every_kind_starts_from_the_same_encoder() -> None:
    first, second = trainee("topk").coder, trainee("relu").coder
    assert torch.equal(first.w_enc, second.w_enc)
    norms = first.w_dec.norm(dim=1)
    torch.testing.assert_close(norms, torch.ones_like(norms))


@pytest.mark.parametrize("kind", ["topk", "crosscoder"])
def test_normalising_the_decoder_leaves_directions_alone(kind: Kind) -> None:
    coder = trainee(kind).coder
    before = coder.w_dec.detach().clone()
    with torch.no_grad():
        by_site = coder.w_dec.view(48, coder.parts, D)
        by_site.mul_(torch.linspace(0.5, 3.0, 48 * coder.parts).view(48, coder.parts, 1))
    coder.normalise_decoder()
    torch.testing.assert_close(coder.w_dec.detach(), before)
