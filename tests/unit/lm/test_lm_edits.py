"""Edits in a forward pass, against the same change made by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from latentbench.errors import LatentbenchError, UserError
from latentbench.lm import LM, AddVector, EditView, MapActivation, Site, TokenBatch

Draw = Callable[..., Tensor]
SITE = Site("resid_post", 1)


def logits_of(lm: LM, tokens: TokenBatch, *edits: AddVector | MapActivation) -> Tensor:
    logits = lm.forward(tokens, edits=edits).logits
    assert logits is not None
    return logits


def by_hand(lm: LM, tokens: TokenBatch, change: Tensor) -> Tensor:
    """Logits with `change` added to the clean activation at SITE, through a resumed pass."""
    hidden = lm.forward(tokens, capture=[SITE], logits=False).acts[SITE]
    logits = lm.forward(tokens, resume=(SITE, hidden + change.to(hidden.dtype))).logits
    assert logits is not None
    return logits


def hook_count(lm: LM) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in lm.model.modules())


def test_an_identity_edit_changes_nothing_bit_for_bit(lm: LM, tokens: TokenBatch) -> None:
    clean = logits_of(lm, tokens)
    for kind in ("embed", *lm.layout.taps):
        site = Site(kind, None if kind == "embed" else 1)
        assert torch.equal(logits_of(lm, tokens, MapActivation(site, lambda acts, index: acts)), clean), site
        zero = AddVector(site, torch.zeros(lm.d_model))
        assert torch.equal(logits_of(lm, tokens, zero), clean), site


def test_adding_a_vector_equals_adding_it_by_hand(lm: LM, tokens: TokenBatch, draw: Draw) -> None:
    vector = draw(lm.d_model)
    edited = logits_of(lm, tokens, AddVector(SITE, vector))
    expected = by_hand(lm, tokens, vector * tokens.measured(1)[..., None])
    assert torch.equal(edited, expected)
    assert not torch.equal(edited, logits_of(lm, tokens))


@pytest.mark.parametrize("skip_first", [0, 1, 3])
def test_the_first_tokens_of_each_row_are_left_out(
    lm: LM, rows: list[list[int]], draw: Draw, skip_first: int
) -> None:
    tokens, vector = lm.batch(rows, "right"), draw(lm.d_model)
    edited = logits_of(lm, tokens, AddVector(SITE, vector, skip_first=skip_first))
    assert torch.equal(edited, by_hand(lm, tokens, vector * tokens.measured(skip_first)[..., None]))
    left = lm.batch(rows, "left")
    again = logits_of(lm, left, AddVector(SITE, vector, skip_first=skip_first))
    torch.testing.assert_close(again[left.real], edited[tokens.real], rtol=1e-5, atol=1e-5)


def test_every_row_can_carry_its_own_vector(
    lm: LM, tokens: TokenBatch, rows: list[list[int]], draw: Draw
) -> None:
    vectors = draw(len(rows), lm.d_model)
    edited = logits_of(lm, tokens, AddVector(SITE, vectors))
    for index, row in enumerate(rows):
        alone = logits_of(lm, lm.batch([row]), AddVector(SITE, vectors[index]))
        torch.testing.assert_close(edited[index][tokens.real[index]], alone[0], rtol=1e-5, atol=1e-5)


def test_every_token_can_carry_its_own_vector(lm: LM, tokens: TokenBatch, draw: Draw) -> None:
    vectors = draw(*tokens.ids.shape, lm.d_model)
    edited = logits_of(lm, tokens, AddVector(SITE, vectors, skip_first=0))
    assert torch.equal(edited, by_hand(lm, tokens, vectors * tokens.real[..., None]))


def test_where_masks_choose_positions(lm: LM, tokens: TokenBatch, draw: Draw) -> None:
    vector, where = draw(lm.d_model), draw(*tokens.ids.shape, seed=3) > 0
    edited = logits_of(lm, tokens, AddVector(SITE, vector, where=where))
    assert torch.equal(edited, by_hand(lm, tokens, vector * (where & tokens.measured(1))[..., None]))
    nowhere = AddVector(SITE, vector, where=torch.zeros_like(where))
    assert torch.equal(logits_of(lm, tokens, nowhere), logits_of(lm, tokens)), "selecting nothing is no error"


def test_map_activation_sees_the_selected_tokens_in_order(lm: LM, tokens: TokenBatch) -> None:
    hidden = lm.forward(tokens, capture=[SITE], logits=False).acts[SITE]
    selected = tokens.measured(1)
    seen: list[tuple[Tensor, Tensor]] = []

    def double(acts: Tensor, index: Tensor) -> Tensor:
        seen.append((acts, index))
        return acts * 2

    edited = logits_of(lm, tokens, MapActivation(SITE, double))
    [(acts, index)] = seen
    assert torch.equal(acts, hidden[selected])
    assert torch.equal(index, selected.flatten().nonzero()[:, 0])
    assert torch.equal(edited, by_hand(lm, tokens, hidden * selected[..., None]))


def test_edits_at_one_site_act_in_their_order(llama: LM, rows: list[list[int]], draw: Draw) -> None:
    tokens, vector = llama.batch(rows), draw(llama.d_model)
    add = AddVector(SITE, vector)
    double = MapActivation(SITE, lambda acts, index: acts * 2)
    assert torch.equal(logits_of(llama, tokens, add, double), logits_of(llama, tokens, double, add, add))
    assert not torch.allclose(logits_of(llama, tokens, add, double), logits_of(llama, tokens, double, add))


def test_adding_to_a_sublayer_output_adds_to_the_stream(lm: LM, tokens: TokenBatch, draw: Draw) -> None:
    vector = draw(lm.d_model)
    at_mlp = logits_of(lm, tokens, AddVector(Site("mlp_out", 1), vector))
    torch.testing.assert_close(at_mlp, logits_of(lm, tokens, AddVector(SITE, vector)), rtol=1e-4, atol=1e-4)
    if "resid_mid" in lm.layout.taps:
        at_attention = logits_of(lm, tokens, AddVector(Site("attn_out", 1), vector))
        at_middle = logits_of(lm, tokens, AddVector(Site("resid_mid", 1), vector))
        torch.testing.assert_close(at_middle, at_attention, rtol=1e-4, atol=1e-4)
        assert not torch.allclose(at_middle, at_mlp, atol=1e-3), "what enters the MLP moves too"


def test_editing_the_embedding_and_the_heads_equals_the_same_change_by_hand(
    llama: LM, rows: list[list[int]], draw: Draw
) -> None:
    tokens, vector = llama.batch(rows), draw(llama.d_model)
    added = vector * tokens.measured(1)[..., None]
    with torch.no_grad():
        embedded = llama.model.get_input_embeddings()(tokens.ids)
        expected = llama.model(inputs_embeds=embedded + added, attention_mask=tokens.real.long()).logits
    edited = logits_of(llama, tokens, AddVector(Site("embed"), vector))
    assert torch.equal(edited[tokens.real], expected[tokens.real])
    heads = logits_of(llama, tokens, AddVector(Site("attn_z", 1), vector))
    written = llama.model.model.layers[1].self_attn.o_proj.weight @ vector
    torch.testing.assert_close(heads, logits_of(llama, tokens, AddVector(Site("attn_out", 1), written)))


def test_editing_what_the_mlp_reads_leaves_the_stream_beside_it(
    lm: LM, tokens: TokenBatch, draw: Draw
) -> None:
    sites = [Site("mlp_in", 1), Site("mlp_out", 1), SITE]
    clean = lm.forward(tokens, capture=sites).acts
    edited = lm.forward(tokens, capture=sites, edits=[AddVector(sites[0], draw(lm.d_model))]).acts
    moved = edited[sites[1]] - clean[sites[1]]
    assert float(moved.norm()) > 0.1
    torch.testing.assert_close(edited[SITE] - clean[SITE], moved, rtol=1e-4, atol=1e-4)


def test_captured_activations_are_the_edited_ones(lm: LM, tokens: TokenBatch, draw: Draw) -> None:
    vector = draw(lm.d_model)
    before, after = Site("resid_post", 0), Site("resid_post", 2)
    clean = lm.forward(tokens, capture=[before, SITE, after], logits=False).acts
    edited = lm.forward(
        tokens, capture=[before, SITE, after], edits=[AddVector(SITE, vector)], logits=False
    ).acts
    assert torch.equal(edited[before], clean[before])
    added = (vector * tokens.measured(1)[..., None]).to(lm.dtype)
    assert torch.equal(edited[SITE], clean[SITE] + added)
    assert not torch.equal(edited[after], clean[after])


def test_an_edit_acts_at_the_resumed_site_itself(lm: LM, tokens: TokenBatch, draw: Draw) -> None:
    hidden = lm.forward(tokens, capture=[SITE], logits=False).acts[SITE]
    edit = AddVector(SITE, draw(lm.d_model))
    resumed = lm.forward(tokens, resume=(SITE, hidden), edits=[edit]).logits
    assert resumed is not None
    assert torch.equal(resumed, logits_of(lm, tokens, edit))


def test_edits_that_can_not_act_are_errors(llama: LM, draw: Draw) -> None:
    tokens, vector = llama.batch([[2, 3, 4]]), draw(16)
    hidden = llama.forward(tokens, capture=[SITE], logits=False).acts[SITE]
    with pytest.raises(UserError, match=r"resid_post\.0 lies before resid_post\.1"):
        llama.forward(tokens, resume=(SITE, hidden), edits=[AddVector(Site("resid_post", 0), vector)])
    with pytest.raises(LatentbenchError, match=r"resid_post\.3 touched nothing"):
        llama.forward(tokens, capture=[SITE], logits=False, edits=[AddVector(Site("resid_post", 3), vector)])
    with pytest.raises(UserError, match="blocks 0 to 3"):
        llama.forward(tokens, edits=[AddVector(Site("resid_post", 4), vector)])
    assert hook_count(llama) == 0


def test_hooks_and_blocks_are_put_right_after_an_exception(lm: LM, tokens: TokenBatch) -> None:
    clean, hooks = logits_of(lm, tokens), hook_count(lm)
    hidden = lm.forward(tokens, capture=[SITE], logits=False).acts[SITE]

    def fail(acts: Tensor, index: Tensor) -> Tensor:
        raise ZeroDivisionError("from the edit")

    with pytest.raises(ZeroDivisionError, match="from the edit"):
        lm.forward(tokens, edits=[MapActivation(SITE, fail)], capture=[Site("mlp_out", 2)])
    with pytest.raises(ZeroDivisionError, match="from the edit"):
        lm.forward(tokens, edits=[MapActivation(Site("resid_post", 2), fail)], resume=(SITE, hidden))
    assert hook_count(lm) == hooks
    assert torch.equal(logits_of(lm, tokens), clean)


def test_gradients_reach_the_vector_of_an_edit(lm: LM, tokens: TokenBatch, draw: Draw) -> None:
    vector = draw(3, lm.d_model).to(lm.dtype).requires_grad_()
    logits = lm.forward(tokens, edits=[AddVector(SITE, vector)], grad=True).logits
    assert logits is not None
    [gradient] = torch.autograd.grad(logits[1, 4, 2], vector)
    assert not gradient[0].any()
    assert not gradient[2].any()
    step = (gradient / gradient.norm()).detach()
    size = 1e-2 if lm.dtype == torch.float32 else 1e-4
    up = logits_of(lm, tokens, AddVector(SITE, vector.detach() + size * step))[1, 4, 2]
    down = logits_of(lm, tokens, AddVector(SITE, vector.detach() - size * step))[1, 4, 2]
    assert float(up - down) / (2 * size) == pytest.approx(float(gradient.norm()), rel=2e-2)


def test_an_edit_sees_the_unedited_model_through_the_shadow_pass(
    lm: LM, tokens: TokenBatch, draw: Draw
) -> None:
    watched = Site("resid_post", 2)
    seen: list[EditView] = []

    class Watching(AddVector):
        observes = (watched,)

        def apply(self, hidden: Tensor, view: EditView) -> Tensor:
            seen.append(view)
            return super().apply(hidden, view)

    clean = lm.forward(tokens, capture=[watched]).acts[watched]
    output = lm.forward(tokens, capture=[watched], edits=[Watching(SITE, draw(lm.d_model))])
    assert torch.equal(seen[0].observed[watched], clean), (
        "as it is without any edit, and behind the edit's own site"
    )
    assert not torch.equal(output.acts[watched], clean)
    assert seen[0].start == 0
    assert not bool(seen[0].generated.any())
