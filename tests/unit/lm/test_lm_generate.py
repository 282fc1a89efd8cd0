"""Generation: cache on and off, edits in each phase, batches of unequal prompts, sampling, shadow passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from latentbench.adapters import steering_edits
from latentbench.errors import UserError
from latentbench.lm import BOTH_PHASES, LM, AddVector, Edit, EditView, Generation, Phase, Site, TokenBatch
from latentbench.lm._sampling import choose, uniforms
from latentbench.testing import random_routesae, random_sae

Draw = Callable[..., Tensor]
SITE = Site("resid_post", 1)
NEW = 7
PHASES: tuple[frozenset[Phase], ...] = (frozenset({"prefill"}), frozenset({"decode"}), BOTH_PHASES)


@dataclass(eq=False)
class Recorder(Edit):
    """Changes nothing and keeps what passes."""

    site: Site
    chunks: list[tuple[int, Tensor]] = field(default_factory=list)

    def apply(self, hidden: Tensor, view: EditView) -> Tensor:
        self.chunks.append((view.start, hidden.clone()))
        return hidden

    def columns(self) -> Tensor:
        """The activation of every column, `Float[Tensor, "row pos d"]`, whether they came at once or one by
        one."""
        width = max(start + hidden.shape[1] for start, hidden in self.chunks)
        whole = self.chunks[0][1].new_zeros(self.chunks[0][1].shape[0], width, self.chunks[0][1].shape[2])
        for start, hidden in self.chunks:
            whole[:, start : start + hidden.shape[1]] = hidden
        return whole


def greedy(lm: LM, rows: list[list[int]], *edits: Edit, use_cache: bool = True) -> Generation:
    return lm.generate(rows, max_new_tokens=NEW, edits=edits, stop_ids=(), use_cache=use_cache)


def by_hand(lm: LM, row: list[int], vector: Tensor, phases: frozenset[Phase]) -> list[int]:
    """Greedy continuation of one prompt by full passes, with the vector added where the phases say."""
    ids = list(row)
    for _ in range(NEW):
        tokens = lm.batch([ids])
        generated = torch.arange(len(ids)) >= len(row)
        chosen = (generated & ("decode" in phases)) | (~generated & ("prefill" in phases))
        chosen[0] = False
        logits = lm.forward(tokens, edits=[AddVector(SITE, vector, where=chosen[None])]).logits
        assert logits is not None
        ids.append(int(logits[0, -1].argmax()))
    return ids[len(row) :]


def test_a_batch_of_unequal_prompts_equals_each_prompt_alone(lm: LM, rows: list[list[int]]) -> None:
    together = greedy(lm, rows)
    assert together.tokens == [greedy(lm, [row]).tokens[0] for row in rows]
    assert all(len(row) == NEW for row in together.tokens)
    assert len({tuple(row) for row in together.tokens}) == len(rows), (
        "the prompts must not all lead to one text"
    )
    assert together.forward_tokens == sum(map(len, rows)) + len(rows) * (NEW - 1)
    assert together.shadow_tokens == 0


def test_generation_equals_hugging_faces(lm: LM, rows: list[list[int]]) -> None:
    with torch.no_grad():
        output = lm.model.generate(
            torch.tensor([rows[0]]), max_new_tokens=NEW, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
    assert greedy(lm, [rows[0]]).tokens[0] == output[0, len(rows[0]) :].tolist()


@pytest.mark.parametrize("phases", PHASES, ids=["prefill", "decode", "both"])
def test_cache_on_and_off_agree_under_edits(
    lm: LM, rows: list[list[int]], draw: Draw, phases: frozenset[Phase]
) -> None:
    vectors = draw(len(rows), lm.d_model) * 4
    edit = AddVector(SITE, vectors, phases=phases)
    last = Site("resid_post", lm.n_layers - 1)
    cached_acts, plain_acts = Recorder(last), Recorder(last)
    cached = greedy(lm, rows, edit, cached_acts)
    plain = greedy(lm, rows, edit, plain_acts, use_cache=False)
    assert cached.tokens == plain.tokens
    assert cached.tokens != greedy(lm, rows).tokens, "the edit must matter"
    assert cached.tokens == [by_hand(lm, row, vectors[i], phases) for i, row in enumerate(rows)]
    real = lm.batch(rows, "left").real
    real = torch.cat([real, torch.ones(len(rows), NEW - 1, dtype=torch.bool)], dim=1)
    torch.testing.assert_close(cached_acts.columns()[real], plain_acts.columns()[real], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("use_cache", [True, False])
def test_edits_act_on_the_prefill_and_on_every_decode_step(
    llama: LM, rows: list[list[int]], use_cache: bool
) -> None:
    recorder = Recorder(SITE)
    greedy(llama, rows, recorder, use_cache=use_cache)
    widest = max(map(len, rows))
    widths = [hidden.shape[1] for _, hidden in recorder.chunks]
    assert len(widths) == 1 + (NEW - 1), "the last new token is not run through the model"
    assert widths == ([widest] + [1] * (NEW - 1) if use_cache else list(range(widest, widest + NEW)))


@pytest.mark.parametrize("use_cache", [True, False])
def test_masks_and_token_vectors_speak_of_the_prompt_only(
    llama: LM, rows: list[list[int]], draw: Draw, use_cache: bool
) -> None:
    prompt = llama.batch(rows, "left")
    vector = draw(llama.d_model) * 4
    where = draw(*prompt.ids.shape, seed=5) > 0
    masked = greedy(llama, rows, AddVector(SITE, vector, where=where), use_cache=use_cache)
    split = [
        AddVector(SITE, vector, where=where, phases=frozenset({"prefill"})),
        AddVector(SITE, vector, phases=frozenset({"decode"})),
    ]
    assert masked.tokens == greedy(llama, rows, *split).tokens, "generated tokens always count"
    per_token = AddVector(SITE, vector * where[..., None])
    assert greedy(llama, rows, per_token, use_cache=use_cache).tokens == greedy(llama, rows, split[0]).tokens


def test_stop_tokens_end_their_own_row_only(lm: LM, rows: list[list[int]]) -> None:
    free = greedy(lm, rows).tokens
    stop = free[0][3]
    stopped = lm.generate(rows, max_new_tokens=NEW, stop_ids=[stop])
    for row, whole, done in zip(stopped.tokens, free, stopped.stopped, strict=True):
        assert row == (whole[: whole.index(stop)] if stop in whole else whole)
        assert done == (stop in whole)
    assert len(stopped.tokens[0]) == free[0].index(stop)


def test_generation_ends_early_when_every_row_has_stopped(llama: LM, rows: list[list[int]]) -> None:
    first = [row[0] for row in greedy(llama, rows).tokens]
    done = llama.generate(rows, max_new_tokens=50, stop_ids=first)
    assert done.tokens == [[], [], []]
    assert done.stopped == [True, True, True]
    assert done.forward_tokens == sum(map(len, rows))


def test_the_models_own_end_tokens_are_the_default(llama: LM, rows: list[list[int]], draw: Draw) -> None:
    assert llama.eos_ids == frozenset({1})
    # Steered along the end token's own unembedding the model ends at once.
    towards_end = llama.model.lm_head.weight[1] * 100
    done = llama.generate(rows, max_new_tokens=3, edits=[AddVector(Site("resid_post", 3), towards_end)])
    assert done.stopped == [True, True, True]
    assert done.tokens == [[], [], []]


def test_sampling_needs_a_seed_for_each_row(llama: LM) -> None:
    with pytest.raises(UserError, match="needs seeds, one for each row"):
        llama.generate([[2, 3]], max_new_tokens=2, temperature=1.0)
    with pytest.raises(UserError, match="2 seeds for 1 rows"):
        llama.generate([[2, 3]], max_new_tokens=2, temperature=1.0, seeds=[1, 2])
    with pytest.raises(UserError, match="seed -1 of row 1"):
        llama.generate([[2, 3], [2, 3]], max_new_tokens=2, temperature=1.0, seeds=[1, -1])
    for temperature in (-1, float("nan"), float("inf")):
        with pytest.raises(UserError, match="0 \\(greedy\\) or positive"):
            llama.generate([[2, 3]], max_new_tokens=2, temperature=temperature)


def test_sampling_follows_the_tempered_softmax(llama: LM) -> None:
    rows, temperature = [[2, 3, 4]] * 4000, 0.7
    drawn = llama.generate(rows, max_new_tokens=1, temperature=temperature, seeds=range(4000), stop_ids=())
    shares = torch.bincount(torch.tensor(drawn.tokens)[:, 0], minlength=llama.vocab_size) / len(rows)
    logits = llama.forward(llama.batch(rows[:1])).logits
    assert logits is not None
    expected = torch.softmax(logits[0, -1] / temperature, dim=-1)
    spread = (expected * (1 - expected) / len(rows)).sqrt()
    assert bool(((shares - expected).abs() <= 5 * spread + 1e-12).all())
    hotter = torch.softmax(logits[0, -1], dim=-1)
    assert bool(((shares - hotter).abs() > 5 * spread).any()), "the test can tell the temperatures apart"


def test_a_sampled_row_is_the_same_in_every_batch(lm: LM, rows: list[list[int]], draw: Draw) -> None:
    """Alone, in another order and with fewer new tokens: only its own seed, prompt and edits count."""
    vectors = draw(len(rows), lm.d_model) * 3

    def sampled(which: list[int], new: int = NEW, shift: int = 0) -> list[list[int]]:
        return lm.generate(
            [rows[i] for i in which],
            max_new_tokens=new,
            edits=[AddVector(SITE, vectors[which])],
            temperature=1.0,
            seeds=[40 + i + shift for i in which],
            stop_ids=(),
        ).tokens

    together = sampled([0, 1, 2])
    assert together == [sampled([i])[0] for i in range(3)]
    assert together == sampled([2, 0, 1])[1:] + sampled([2, 0, 1])[:1]
    assert [row[:3] for row in together] == sampled([0, 1, 2], new=3)
    assert together != sampled([0, 1, 2], shift=100), "the seed must matter"


def test_uniform_numbers_of_a_row_are_its_own() -> None:
    drawn = uniforms([5, 6, 2**100], 4000)
    assert torch.equal(drawn[1:2, :7], uniforms([6], 7))
    # Written down once: the numbers must stay the same from version to version.
    assert drawn[0, :3].tolist() == [0.7337459554446363, 0.5905206445727093, 0.20780894066207112]
    assert float(drawn.min()) >= 0
    assert float(drawn.max()) < 1
    assert float((drawn.mean(dim=1) - 0.5).abs().max()) < 5 * (1 / 12 / 4000) ** 0.5
    assert float(torch.corrcoef(drawn).fill_diagonal_(0).abs().max()) < 5 / 4000**0.5


def test_choosing_never_takes_a_token_that_is_ruled_out_nor_one_from_nan() -> None:
    low, nan = -torch.inf, torch.nan
    logits = torch.tensor(
        [
            [low, 0.0, low, 0.0],
            [0.0, nan, 1.0, 2.0],
            [low] * 4,
            [0.0, torch.inf, 0.0, 0.0],
            [3.0, 1.0, 1.0, 1.0],
        ]
    )
    assert choose(logits, 0.0, None).tolist() == [1, -1, -1, -1, 0]
    for share, wanted in ((0.0, 1), (0.4999, 1), (0.5, 3), (1 - 2**-53, 3)):
        drawn = torch.full((5,), share, dtype=torch.float64)
        assert choose(logits, 1.0, drawn).tolist()[:4] == [wanted, -1, -1, -1]


@pytest.mark.parametrize("temperature", [1e-30, 1e-39, 1e-300])
def test_next_to_no_temperature_is_greedy(temperature: float) -> None:
    """Logits over it are no longer finite, and shares made of them are NaN."""
    logits = torch.tensor([[1.0, 5.0, 2.0, 0.0], [-3.0, -9.0, -1.0, -torch.inf]])
    drawn = torch.tensor([0.3, 0.99], dtype=torch.float64)
    assert choose(logits, temperature, drawn).tolist() == [1, 2]


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("broken_at", [1, 4])
def test_a_row_that_is_no_longer_finite_ends_alone(
    lm: LM, rows: list[list[int]], use_cache: bool, temperature: float, broken_at: int
) -> None:
    """Broken in the prompt or at the third token it generated; its neighbours go on as they would without it."""
    amounts = torch.zeros(len(rows), lm.d_model, dtype=torch.float64)
    amounts[1] = torch.nan
    late = len(rows[1]) + broken_at - 2

    class Late(AddVector):  # AddVector multiplies with its mask, and 0 * NaN is NaN
        def apply(self, hidden: Tensor, view: EditView) -> Tensor:
            hit = view.real & (view.positions >= late)
            return torch.where(hit[..., None], super().apply(hidden, view), hidden)

    edit = Late(SITE, amounts, skip_first=late)
    seeds = [3, 4, 5]

    def run(which: list[int], *edits: Edit) -> Generation:
        return lm.generate(
            [rows[i] for i in which],
            max_new_tokens=NEW,
            edits=edits,
            temperature=temperature,
            seeds=[seeds[i] for i in which],
            stop_ids=(),
            use_cache=use_cache,
        )

    free, found = run([0, 1, 2]), run([0, 1, 2], edit)
    assert free.broken == [None] * 3
    assert found.broken == [None, f"logits were not finite at new token {broken_at}", None]
    assert found.tokens == [free.tokens[0], free.tokens[1][: broken_at - 1], free.tokens[2]]
    assert found.stopped == [False] * 3


def test_prompts_that_can_not_be_continued_are_named(llama: LM, rows: list[list[int]]) -> None:
    assert llama.window == 64
    with pytest.raises(UserError, match="prompt of row 1 is empty"):
        llama.generate([rows[0], []], max_new_tokens=2)
    with pytest.raises(
        UserError, match=r"row 0 has 12 tokens, and 53 are to be generated, but .* window of 64"
    ):
        llama.generate(rows, max_new_tokens=53)
    assert [llama.fits(rows[0], new) for new in (52, 53)] == [True, False]
    assert not llama.fits([], 1)


def test_no_prompts_and_no_tokens(llama: LM) -> None:
    assert llama.generate([[2, 3]], max_new_tokens=0).tokens == [[]]
    with pytest.raises(UserError, match="at least one row"):
        llama.generate([], max_new_tokens=1)
    with pytest.raises(UserError, match="blocks 0 to 3"):
        llama.generate([[2]], max_new_tokens=1, edits=[AddVector(Site("resid_post", 9), torch.zeros(16))])


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("routing", ["hard", "random"])
def test_steering_follows_the_clean_route_of_every_token(
    lm: LM, rows: list[list[int]], draw: Draw, use_cache: bool, routing: str
) -> None:
    """A token's route depends on blocks behind the first routed one, so it comes from the unedited model."""
    sites = [Site("resid_post", layer) for layer in range(lm.n_layers - 1)]
    dictionary = random_routesae(sites, d_model=lm.d_model, routing=routing, dtype=lm.dtype)  # type: ignore[arg-type]
    steering = steering_edits(dictionary, draw(len(rows), lm.d_model) * 3)
    before, after = [Recorder(site) for site in sites], [Recorder(site) for site in sites]
    steered = greedy(lm, rows, *before, *steering, *after, use_cache=use_cache)
    assert steered.tokens != greedy(lm, rows).tokens

    whole = [row + new[:-1] for row, new in zip(rows, steered.tokens, strict=True)]
    tokens: TokenBatch = lm.batch(whole, "left")
    clean = lm.forward(tokens, capture=sites, logits=False).acts
    measured = tokens.measured(1)
    route = dictionary.route({site: clean[site][measured] for site in sites})[0]
    assert len(route.unique()) == len(sites), "every site must be somebody's route"
    for index in range(len(sites)):
        changed = (before[index].columns() != after[index].columns()).any(dim=-1)
        expected = torch.zeros_like(measured)
        expected[measured] = route == index
        assert torch.equal(changed, expected), index
    runs = steered.forward_tokens
    assert steered.shadow_tokens == runs


@pytest.mark.parametrize("phases", PHASES, ids=["prefill", "decode", "both"])
def test_routed_steering_agrees_with_and_without_a_cache(
    lm: LM, rows: list[list[int]], draw: Draw, phases: frozenset[Phase]
) -> None:
    sites = [Site("resid_post", layer) for layer in range(lm.n_layers - 1)]
    dictionary = random_routesae(sites, d_model=lm.d_model, dtype=lm.dtype)
    steering = steering_edits(dictionary, draw(len(rows), lm.d_model) * 3, phases)
    cached = greedy(lm, rows, *steering)
    assert cached.tokens == greedy(lm, rows, *steering, use_cache=False).tokens
    assert cached.tokens == [
        greedy(lm, [row], *steering_edits(dictionary, (draw(len(rows), lm.d_model) * 3)[[i]], phases)).tokens[
            0
        ]
        for i, row in enumerate(rows)
    ]


def test_single_site_steering_needs_no_shadow_pass(llama: LM, rows: list[list[int]], draw: Draw) -> None:
    dictionary = random_sae(site=SITE, dtype=torch.float64)
    directions = draw(len(rows), 16) * 4
    steered = greedy(llama, rows, *steering_edits(dictionary, directions))
    assert steered.shadow_tokens == 0
    assert steered.tokens == greedy(llama, rows, AddVector(SITE, directions)).tokens
