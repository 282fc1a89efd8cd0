"""Selectors against finite differences, brute force and the model's own output, in float64 on toy models."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest
import torch
from torch import Tensor

from latentbench.adapters import (
    Codes,
    Crosscoder,
    CrosscoderWeights,
    Dictionary,
    DictionaryCard,
    InputTransform,
    ReluGate,
)
from latentbench.errors import UserError
from latentbench.lm import LM, MapActivation
from latentbench.selectors import (
    Attribution,
    ExactAblation,
    Example,
    GradSae,
    IntegratedGradients,
    LatentScores,
    MeanActivation,
    RandomActive,
    Selector,
    Spliced,
    Target,
    TargetKind,
    TargetTokens,
    count_to_choose,
    matched_by_activation,
    splice,
)
from latentbench.testing import random_routesae, random_sae, toy_lm

torch.set_num_threads(1)  # toy tensors: threads would only wait for each other
F64 = torch.float64
EXAMPLES = (Example((5, 9, 3, 14, 8), (7, 2)), Example((4, 11, 6), (10,)), Example((3, 3, 12, 9), (13, 6, 2)))


def model() -> LM:
    return toy_lm("gpt2", n_layers=4, dtype=F64)  # a Llama norm works in float32 whatever its type


def crosscoder() -> Dictionary:
    generator = torch.Generator().manual_seed(3)
    sites = ("resid_post.0", "resid_post.2")
    w_enc = torch.randn(2, 20, 16, generator=generator, dtype=F64) / 4
    weights = CrosscoderWeights(
        w_enc=w_enc,
        b_enc=torch.full((20,), -0.1, dtype=F64),
        w_dec=torch.randn(2, 20, 16, generator=generator, dtype=F64) / 4,
        b_dec=torch.zeros(2, 16, dtype=F64),
        b_pre=None,
    )
    card = DictionaryCard(
        name="toy",
        family="crosscoder",
        reads=sites,
        writes=sites,
        d_model=16,
        n_latents=20,
        normalisation="standardise",
    )
    return Crosscoder(card, weights, ReluGate(), InputTransform("standardise"))


MADE: dict[str, Callable[[], Dictionary]] = {
    "topk": lambda: random_sae(
        site="resid_post.1", n_latents=24, dtype=F64, transform=InputTransform("standardise")
    ),
    "raw": lambda: random_sae(site="resid_post.2", n_latents=24, dtype=F64),
    "routed": lambda: random_routesae(
        ["resid_post.0", "resid_post.1", "resid_post.2"], n_latents=24, dtype=F64
    ),
    "crosscoder": crosscoder,
}
DICTIONARIES = pytest.mark.parametrize("made", MADE.values(), ids=MADE)
TARGETS = [Target(kind, tokens) for kind in get_args(TargetKind) for tokens in get_args(TargetTokens)]
KINDS = pytest.mark.parametrize("target", TARGETS, ids=str)


def spliced(
    made: Callable[[], Dictionary], target: Target | None = None, *, keep_error: bool = True
) -> Spliced:
    return splice(model(), made(), EXAMPLES, target or Target(), keep_error=keep_error)


def own_target(lm: LM, example: Example, target: Target) -> float:
    """Straight from the model's logits, without a dictionary."""
    row = target.row(example)
    logits = lm.forward(lm.batch([row])).logits
    assert logits is not None
    wanted = target.wanted(example)
    last = logits[0, len(row) - len(wanted) :]
    chosen = last.gather(1, torch.tensor(wanted)[:, None])[:, 0]
    if target.kind == "logit":
        return float(chosen.sum())
    total = (chosen - last.logsumexp(dim=1)).sum()
    return float(total.exp() if target.kind == "probability" else total)


@DICTIONARIES
@KINDS
def test_with_its_error_added_back_the_pass_is_the_model_s_own(
    made: Callable[[], Dictionary], target: Target
) -> None:
    found = spliced(made, target)
    expected = [own_target(found.lm, example, target) for example in EXAMPLES]
    assert found.values().tolist() == pytest.approx(expected, rel=1e-9)


@DICTIONARIES
@pytest.mark.parametrize("keep_error", [True, False])
@KINDS
def test_the_gradient_is_that_of_finite_differences(
    made: Callable[[], Dictionary], target: Target, keep_error: bool
) -> None:
    found = spliced(made, target, keep_error=keep_error)
    gradient, step = found.gradient(), 1e-5
    rows = found.rows[found.codes.rows()]
    for entry in range(0, found.codes.nnz, 7):
        nudge = torch.zeros_like(found.codes.values)
        nudge[entry] = step
        up, down = (
            found.values(found.codes.with_values(found.codes.values + sign * nudge)) for sign in (1, -1)
        )
        assert float(gradient[entry]) == pytest.approx(
            float((up - down)[rows[entry]] / (2 * step)), rel=1e-5, abs=1e-9
        )


def brute_force(found: Spliced, row: int, latent: int) -> float:
    """The same ablation in the whole batch, by codes that lack the latent in one row."""
    codes = found.codes
    gone = (codes.latents == latent) & (found.rows[codes.rows()] == row)
    return float((found.values() - found.values(codes.keep(~gone)))[row])


@DICTIONARIES
@pytest.mark.parametrize("keep_error", [True, False])
def test_exact_ablation_is_brute_force(made: Callable[[], Dictionary], keep_error: bool) -> None:
    found = spliced(made, Target("log_probability", "answer"), keep_error=keep_error)
    for row, one in enumerate(ExactAblation(batch=5).scores(found)):
        active = found.codes.latents[found.rows[found.codes.rows()] == row]
        assert one.latents.tolist() == sorted(set(active.tolist()))
        for latent, effect in zip(one.latents.tolist(), one.scores.tolist(), strict=True):
            assert effect == pytest.approx(brute_force(found, row, latent), abs=1e-10)


def test_ablation_is_the_model_with_the_latent_s_writing_taken_away() -> None:
    """No part of the selectors' own path: the activation itself is edited."""
    made, lm = MADE["raw"](), model()
    found = splice(lm, made, EXAMPLES[:1], Target("log_probability"), keep_error=True)
    (one,) = ExactAblation().scores(found)
    row, site = Target().row(EXAMPLES[0]), made.reads[0]
    batch = lm.batch([row])
    dense = found.codes.dense()
    latent = int(one.latents[0])
    direction = made.write_vectors([latent])[site][0]

    def without(acts: Tensor, _index: Tensor) -> Tensor:
        return acts - dense[:, latent, None] * direction

    logits = lm.forward(batch, edits=[MapActivation(site, without)]).logits
    assert logits is not None
    expected = float(logits[0, -1].log_softmax(0)[EXAMPLES[0].answer[0]])
    clean = own_target(lm, EXAMPLES[0], Target("log_probability"))
    assert float(one.scores[0]) == pytest.approx(clean - expected, abs=1e-10)


@DICTIONARIES
def test_estimates_approach_ablation_as_activations_shrink(made: Callable[[], Dictionary]) -> None:
    """To first order attribution is the exact effect: with activations scaled down the rest falls quadratically."""
    misses = []
    for scale in (1e-2, 1e-3):
        found = spliced(made, Target("log_probability"))
        small = found.codes.with_values(found.codes.values * scale)
        shrunk = Spliced(**{**{name: getattr(found, name) for name in vars(found)}, "codes": small})
        exact, linear = ExactAblation().scores(shrunk)[0], Attribution().scores(shrunk)[0]
        misses.append(float((exact.scores - linear.scores).abs().max() / exact.scores.abs().max()))
    assert misses[1] < 0.2 * misses[0]


def test_integrated_gradients_sum_to_the_whole_effect() -> None:
    """Completeness: over all entries they add up to what taking all latents away changes."""
    found = spliced(MADE["topk"], Target("log_probability"))
    everything = found.values() - found.values(
        found.codes.keep(torch.zeros(found.codes.nnz, dtype=torch.bool))
    )
    for many, tolerance in ((20, 0.2), (400, 0.01)):
        sums = [float(one.scores.sum()) for one in IntegratedGradients(steps=many).scores(found)]
        assert sums == pytest.approx(
            everything.tolist(), rel=tolerance, abs=tolerance * float(everything.abs().max())
        )
    one_step, linear = IntegratedGradients(steps=1).scores(found), Attribution().scores(found)
    assert all(torch.equal(a.scores, b.scores) for a, b in zip(one_step, linear, strict=True))


def test_gradsae_cuts_before_or_after_the_mean() -> None:
    found = spliced(MADE["topk"])
    products = found.codes.values * found.gradient()
    entries = found.rows[found.codes.rows()] == 0
    tokens = int(found.measured[0].sum())
    for relu, cut in (("before", True), ("after", False)):
        selector = GradSae(relu=relu, keep_error=True)  # type: ignore[arg-type]
        one = selector.scores(found)[0]
        for latent, score in zip(one.latents.tolist(), one.scores.tolist(), strict=True):
            mine = products[entries & (found.codes.latents == latent)]
            mean = float((mine.clamp(min=0) if cut else mine).sum()) / tokens
            assert score == pytest.approx(max(0.0, mean), abs=1e-12)
    assert GradSae.preset("paper").relu == "after"
    assert GradSae.preset("code").relu == "before"
    assert GradSae.preset("corrected").keep_error
    with pytest.raises(ValueError, match="known: paper, code, corrected"):
        GradSae.preset("papre")


def test_mean_activation_is_the_mean_over_the_row_s_tokens() -> None:
    found = spliced(MADE["topk"])
    dense = found.codes.dense()
    for row, one in enumerate(MeanActivation().scores(found)):
        mean = dense[found.rows == row].mean(dim=0)
        assert one.scores.tolist() == pytest.approx(mean[one.latents].tolist())
    last = MeanActivation(tokens="last").scores(found)[1]
    final = dense[(found.rows == 1).nonzero()[-1, 0]]
    assert one_dict(last) == pytest.approx({int(c): float(final[c]) for c in final.nonzero()[:, 0]})


def one_dict(one: LatentScores) -> dict[int, float]:
    return dict(zip(one.latents.tolist(), one.scores.tolist(), strict=True))


SELECTORS: list[Selector] = [
    MeanActivation(),
    GradSae(),
    GradSae.preset("code"),
    Attribution(),
    IntegratedGradients(3),
    ExactAblation(),
    RandomActive(),
]


@DICTIONARIES
@pytest.mark.parametrize("selector", SELECTORS, ids=lambda selector: selector.name)
def test_scores_do_not_depend_on_the_company(made: Callable[[], Dictionary], selector: Selector) -> None:
    together = selector.scores(splice(model(), made(), EXAMPLES, Target(), keep_error=selector.keep_error))
    for example, one in zip(EXAMPLES, together, strict=True):
        (alone,) = selector.scores(
            splice(model(), made(), [example], Target(), keep_error=selector.keep_error)
        )
        assert one_dict(one) == pytest.approx(one_dict(alone), abs=1e-12)


def test_a_certain_answer_still_has_a_gradient_in_half_precision() -> None:
    """p (1 - p) is 1e-9 or so: far below what bfloat16's own path through a softmax keeps."""
    found = spliced(MADE["topk"])
    lm = found.lm
    head = lm.model.get_output_embeddings()
    with torch.no_grad():
        head.weight.mul_(60)
    sure = [
        Example(example.prompt, (int(lm.forward(lm.batch([example.prompt])).logits[0, -1].argmax()),))  # type: ignore[index]
        for example in EXAMPLES
    ]
    exact = splice(lm, MADE["topk"](), sure, Target(), keep_error=True)
    doubt = 1 - exact.values()
    assert float(doubt.min()) < 1e-3
    gradient = exact.gradient()
    half = lm.model.to(torch.bfloat16)
    assert half is lm.model
    rough = splice(lm, MADE["topk"]().to(dtype=torch.float32), sure, Target(), keep_error=True).gradient()
    assert bool(rough.isfinite().all())
    for row in range(len(sure)):
        mine = exact.rows[exact.codes.rows()] == row
        assert float(gradient[mine].abs().max()) > 0
    assert int((rough != 0).sum()) > 0.9 * len(rough)


def test_top_and_bottom_of_a_score() -> None:
    one = LatentScores(torch.tensor([2, 5, 7, 9]), torch.tensor([0.5, -1.0, 0.0, 0.1], dtype=F64))
    assert one.top(2).tolist() == [2, 9]
    assert one.top(9).tolist() == [2, 9, 7, 5]
    assert one.bottom(3).tolist() == [9, 2]


def test_half_of_the_latents_at_the_last_token() -> None:
    found = spliced(MADE["topk"])
    last = (found.rows == 0).nonzero()[-1, 0]
    assert count_to_choose(found, 0, "50%") == int(found.codes.counts()[last]) // 2 > 0
    assert count_to_choose(found, 0, 10) == 10
    with pytest.raises(ValueError, match="a number or '50%'"):
        count_to_choose(found, 0, "half")


def test_partners_are_near_and_taken_once() -> None:
    levels = LatentScores(torch.arange(6), torch.tensor([1.0, 1.1, 5.0, 5.1, 0.2, 9.0], dtype=F64))
    chosen = torch.tensor([0, 2])
    partners = matched_by_activation(chosen, levels, torch.Generator().manual_seed(0))
    assert sorted(partners.tolist()) == [1, 3]
    everything = matched_by_activation(torch.arange(6), levels, torch.Generator().manual_seed(0))
    assert len(everything) == 0


def test_an_example_without_active_latents_has_no_scores() -> None:
    found = spliced(MADE["topk"])
    none = found.codes.keep(found.rows[found.codes.rows()] != 1)
    bare = Spliced(**{**{name: getattr(found, name) for name in vars(found)}, "codes": none})
    for selector in (MeanActivation(), ExactAblation()):
        one = selector.scores(bare)[1]
        assert len(one.latents) == len(one.scores) == 0


def test_cost_counts_what_was_run() -> None:
    found = spliced(MADE["topk"])  # writes after block 1 of 4
    before = found.cost.forwards
    assert before == pytest.approx(3 * 2 / 4)
    found.gradient()
    assert found.cost.forwards - before == pytest.approx(3 * 0.5)
    assert found.cost.backwards == pytest.approx(3 * 0.5)
    now = found.cost.forwards
    scores = ExactAblation().scores(found)
    passes = sum(len(one.latents) for one in scores) + 3
    assert found.cost.forwards - now == pytest.approx(passes * 0.5)


def test_bad_input_is_one_line() -> None:
    with pytest.raises(UserError, match="needs a prompt and an answer"):
        Example((1, 2), ())
    with pytest.raises(UserError, match="no examples"):
        splice(model(), MADE["topk"](), [], Target(), keep_error=True)
    long = Example(tuple([3] * 5000), (4,))
    with pytest.raises(UserError, match="an example has 5000 tokens"):
        splice(model(), MADE["topk"](), [long], Target(), keep_error=True)
    found = spliced(MADE["topk"])
    with pytest.raises(UserError, match="copies are made of one example"):
        found.copies([found.codes])


def test_codes_are_not_changed() -> None:
    found = spliced(MADE["topk"])
    before = Codes(found.codes.latents.clone(), found.codes.values.clone(), found.codes.offsets.clone(), 24)
    for selector in SELECTORS:
        selector.scores(found)
    assert torch.equal(before.values, found.codes.values)
    assert not found.codes.values.requires_grad
