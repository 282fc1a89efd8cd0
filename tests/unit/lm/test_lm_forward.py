"""Capture, resumed passes, early stop and padding, on every block layout."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor

from latentbench.errors import UserError
from latentbench.lm import LM, Site, TokenBatch
from latentbench.lm._layouts import submodule
from latentbench.testing import FAMILIES, toy_lm


def all_sites(lm: LM) -> list[Site]:
    return sorted(
        [Site("embed")] + [Site(kind, layer) for layer in range(lm.n_layers) for kind in lm.layout.taps]
    )


def block(lm: LM, layer: int) -> torch.nn.Module:
    blocks = submodule(lm.model, lm.layout.blocks)
    assert isinstance(blocks, torch.nn.ModuleList)
    return blocks[layer]


def test_resuming_at_any_block_equals_the_full_pass_bit_for_bit(lm: LM, tokens: TokenBatch) -> None:
    full = lm.forward(tokens, capture=all_sites(lm))
    for layer in range(lm.n_layers):
        site = Site("resid_post", layer)
        behind = [other for other in all_sites(lm) if other >= site]
        again = lm.forward(tokens, resume=(site, full.acts[site]), capture=behind)
        assert again.logits is not None
        assert full.logits is not None
        assert torch.equal(again.logits, full.logits), site
        assert all(torch.equal(again.acts[other], full.acts[other]) for other in behind), site


def test_resuming_does_not_run_the_blocks_before(lm: LM, tokens: TokenBatch) -> None:
    site = Site("resid_post", 1)
    hidden = lm.forward(tokens, capture=[site], logits=False).acts[site]
    ran: list[int] = []
    handles = [
        block(lm, layer).register_forward_hook(lambda *_args, layer=layer: ran.append(layer))
        for layer in range(lm.n_layers)
    ]
    lm.forward(tokens, resume=(site, hidden))
    assert ran == [2, 3]
    ran.clear()
    lm.forward(tokens)
    assert ran == [0, 1, 2, 3], "the blocks are back in their places"
    for handle in handles:
        handle.remove()


def test_without_logits_the_pass_stops_after_the_last_captured_site(lm: LM, tokens: TokenBatch) -> None:
    ran: list[int] = []
    handles = [
        block(lm, layer).register_forward_hook(lambda *_args, layer=layer: ran.append(layer))
        for layer in range(lm.n_layers)
    ]
    wanted = [Site("resid_post", 0), Site("mlp_out", 1)]
    early = lm.forward(tokens, capture=wanted, logits=False)
    assert ran == [0], "block 1 is left in the middle, 2 and 3 never start"
    for handle in handles:
        handle.remove()
    full = lm.forward(tokens, capture=wanted)
    assert early.logits is None
    assert all(torch.equal(early.acts[site], full.acts[site]) for site in wanted)


def test_residual_sites_are_hugging_faces_hidden_states(lm: LM, tokens: TokenBatch) -> None:
    acts = lm.forward(tokens, capture=all_sites(lm)).acts
    with torch.no_grad():
        output = lm.model(
            input_ids=tokens.ids,
            attention_mask=tokens.real.long(),
            position_ids=tokens.positions,
            output_hidden_states=True,
        )
    assert torch.equal(acts[Site("embed")], output.hidden_states[0])
    for layer in range(lm.n_layers - 1):
        assert torch.equal(acts[Site("resid_post", layer)], output.hidden_states[layer + 1])
    last = acts[Site("resid_post", lm.n_layers - 1)]
    assert not torch.equal(last, output.hidden_states[-1]), (
        "Hugging Face's last entry is taken after the final norm"
    )
    head = {"gpt2": "transformer.ln_f", "gpt_neox": "gpt_neox.final_layer_norm"}.get(
        lm.layout.name, "model.norm"
    )
    norm = submodule(lm.model, head)
    assert norm is not None
    assert torch.equal(norm(last), output.hidden_states[-1])


def test_sublayer_outputs_add_up_to_the_residual_stream(lm: LM, tokens: TokenBatch) -> None:
    acts = lm.forward(tokens, capture=all_sites(lm)).acts
    tolerance = 1e-5 if lm.dtype == torch.float32 else 1e-12
    for layer in range(lm.n_layers):
        before = acts[Site("resid_post", layer - 1) if layer else Site("embed")]
        attention, mlp = acts[Site("attn_out", layer)], acts[Site("mlp_out", layer)]
        after = acts[Site("resid_post", layer)]
        torch.testing.assert_close(before + attention + mlp, after, rtol=tolerance, atol=tolerance)
        assert float(attention.norm()) > 0.1
        assert float(mlp.norm()) > 0.1
        if "resid_mid" in lm.layout.taps:
            middle = acts[Site("resid_mid", layer)]
            torch.testing.assert_close(before + attention, middle, rtol=tolerance, atol=tolerance)
            torch.testing.assert_close(middle + mlp, after, rtol=tolerance, atol=tolerance)


# Family -> (projection of the heads, norm before the MLP, norms after attention and MLP), below a block.
PARTS = {
    "llama": ("self_attn.o_proj", "post_attention_layernorm", "", ""),
    "gemma": (
        "self_attn.o_proj",
        "pre_feedforward_layernorm",
        "post_attention_layernorm",
        "post_feedforward_layernorm",
    ),
    "gpt2": ("attn.c_proj", "ln_2", "", ""),
    "gpt_neox": ("attention.dense", "post_attention_layernorm", "", ""),
}


def test_sublayer_inputs_give_the_sublayer_outputs(lm: LM, tokens: TokenBatch) -> None:
    acts = lm.forward(tokens, capture=all_sites(lm)).acts
    projection, mlp_norm, attention_post, mlp_post = PARTS[lm.layout.name]

    def call(path: str, value: Tensor) -> Tensor:
        module = submodule(block(lm, 1), path)
        assert module is not None
        return module(value) if path else value

    attended = call(attention_post, call(projection, acts[Site("attn_z", 1)]))
    assert torch.equal(attended, acts[Site("attn_out", 1)])
    read = acts[Site("resid_mid", 1) if "resid_mid" in lm.layout.taps else Site("resid_post", 0)]
    assert torch.equal(call(mlp_norm, read), acts[Site("mlp_in", 1)])
    assert torch.equal(call(mlp_post, call("mlp", acts[Site("mlp_in", 1)])), acts[Site("mlp_out", 1)])


def test_left_and_right_padding_agree_on_real_tokens(lm: LM, rows: list[list[int]]) -> None:
    right, left = lm.batch(rows, "right"), lm.batch(rows, "left")
    from_right = lm.forward(right, capture=all_sites(lm))
    from_left = lm.forward(left, capture=all_sites(lm))
    assert from_right.logits is not None
    assert from_left.logits is not None
    torch.testing.assert_close(
        from_left.logits[left.real], from_right.logits[right.real], rtol=1e-5, atol=1e-5
    )
    for site in all_sites(lm):
        torch.testing.assert_close(
            from_left.acts[site][left.real], from_right.acts[site][right.real], rtol=1e-5, atol=1e-5
        )


def test_padding_does_not_change_a_row(lm: LM, rows: list[list[int]]) -> None:
    site = Site("resid_post", lm.n_layers - 1)
    batch = lm.batch(rows)
    together = lm.forward(batch, capture=[site], logits=False).acts[site]
    for index, row in enumerate(rows):
        alone = lm.forward(lm.batch([row]), capture=[site], logits=False).acts[site]
        torch.testing.assert_close(together[index][batch.real[index]], alone[0], rtol=1e-5, atol=1e-5)


def test_a_pass_that_would_give_nothing_back_is_refused(llama: LM) -> None:
    with pytest.raises(UserError, match="name a site"):
        llama.forward(llama.batch([[2, 3]]), logits=False)


def test_what_resuming_can_not_do_is_refused(llama: LM) -> None:
    tokens = llama.batch([[2, 3, 4]])
    hidden = torch.zeros(1, 3, 16, dtype=torch.float64)
    with pytest.raises(UserError, match=r"resumes only from a resid_post site, not from mlp_out\.1"):
        llama.forward(tokens, resume=(Site("mlp_out", 1), hidden))
    with pytest.raises(UserError, match=r"shape \(1, 3, 16\); found \(1, 3, 8\)"):
        llama.forward(tokens, resume=(Site("resid_post", 1), hidden[..., :8]))
    with pytest.raises(UserError, match=r"found \(1, 2, 16\)"):
        llama.forward(tokens, resume=(Site("resid_post", 1), hidden[:, :2]))
    with pytest.raises(UserError, match=r"mlp_out\.1 lies before resid_post\.1"):
        llama.forward(tokens, resume=(Site("resid_post", 1), hidden), capture=[Site("mlp_out", 1)])


def test_gradients_flow_through_a_resumed_pass(lm: LM, tokens: TokenBatch) -> None:
    site = Site("resid_post", 1)
    clean = lm.forward(tokens, capture=[site]).acts[site]
    hidden = clean.clone().requires_grad_()
    logits = lm.forward(tokens, resume=(site, hidden), grad=True).logits
    assert logits is not None
    [gradient] = torch.autograd.grad(logits[0, 5, 3], hidden)
    assert float(gradient[0, :6].norm()) > 0
    assert not gradient[0, 6:].any(), "later tokens do not reach an earlier one"
    assert not gradient[1:].any(), "nor do other rows"
    step = gradient / gradient.norm()
    size = 1e-2 if lm.dtype == torch.float32 else 1e-4
    ends = []
    for sign in (1, -1):
        moved = lm.forward(tokens, resume=(site, clean + sign * size * step)).logits
        assert moved is not None
        ends.append(float(moved[0, 5, 3]))
    assert (ends[0] - ends[1]) / (2 * size) == pytest.approx(float(gradient.norm()), rel=2e-2)


def test_no_graph_is_kept_unless_asked_for(llama: LM) -> None:
    tokens = llama.batch([[2, 3, 4]])
    with torch.enable_grad():
        logits = llama.forward(tokens).logits
    assert logits is not None
    assert not logits.requires_grad
    assert not any(weight.requires_grad for weight in llama.model.parameters())


def test_left_padding_that_would_become_nan_is_refused() -> None:
    from latentbench.testing import toy_lm

    gemma = toy_lm("gemma2", dtype=torch.float64)
    assert gemma.attention == "eager"
    with pytest.raises(UserError, match="float64 with eager attention"):
        gemma.forward(gemma.batch([[2, 3], [4]], side="left"))
    logits = gemma.forward(gemma.batch([[2, 3], [4]])).logits
    assert logits is not None
    assert bool(torch.isfinite(logits).all())


def test_identity_names_what_changes_the_numbers(lm: LM, family: str) -> None:
    assert lm.identity() == {
        "name": f"toy-{family}",
        "revision": "seed-0",
        "dtype": str(lm.dtype).removeprefix("torch."),
        "attention": "eager" if family == "gemma2" else "sdpa",
    }


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("side", ["left", "right"])
def test_last_logits_are_the_end_of_all(family: str, side: Literal["left", "right"]) -> None:
    lm = toy_lm(family)
    tokens = lm.batch([[3, 5, 7, 9, 11], [4, 6, 8]], side=side)
    whole, last = lm.forward(tokens).logits, lm.forward(tokens, last_logits=2).logits
    assert whole is not None
    assert last is not None
    torch.testing.assert_close(last, whole[:, -2:])
