"""Site names, aliases, order, and what is said of names that do not exist."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latentbench.errors import UserError
from latentbench.lm import KINDS, LM, Site, find_layout
from latentbench.testing import toy_lm

sites = st.one_of(
    st.just(Site("embed")),
    st.builds(Site, st.sampled_from([kind for kind in KINDS if kind != "embed"]), st.integers(0, 200)),
)


@given(sites)
def test_the_canonical_name_parses_back(site: Site) -> None:
    assert Site.parse(str(site)) == site
    assert Site.parse(site) is site


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("blocks.7.hook_resid_post", "resid_post.7"),
        ("blocks.7.hook_resid_pre", "resid_post.6"),
        ("blocks.0.hook_resid_pre", "embed"),
        ("blocks.7.hook_resid_mid", "resid_mid.7"),
        ("blocks.7.hook_mlp_out", "mlp_out.7"),
        ("blocks.7.hook_attn_out", "attn_out.7"),
        ("blocks.7.attn.hook_z", "attn_z.7"),
        ("hidden_states[8]", "resid_post.7"),
        ("hidden_states[0]", "embed"),
        ("model.layers.7", "resid_post.7"),
        ("model.layers.7.mlp", "mlp_out.7"),
        ("model.language_model.layers.7.self_attn", "attn_out.7"),
        ("transformer.h.7", "resid_post.7"),
        ("transformer.h.7.attn", "attn_out.7"),
        ("gpt_neox.layers.7.attention", "attn_out.7"),
        (" resid_post.7 ", "resid_post.7"),
    ],
)
def test_aliases_print_back_as_the_site(alias: str, name: str) -> None:
    assert str(Site.parse(alias)) == name


@given(st.lists(sites, min_size=2, max_size=8))
def test_sites_sort_in_the_order_of_the_forward_pass(some: list[Site]) -> None:
    ordered = sorted(some)
    layers = [-1 if site.layer is None else site.layer for site in ordered]
    assert layers == sorted(layers)
    for before, after in pairwise(ordered):
        if before.layer == after.layer:
            assert KINDS.index(before.kind) <= KINDS.index(after.kind)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resid_pots.3", "resid_post.N"),
        ("mlp_output.3", "mlp_out.N"),
        ("resid_post", "resid_post.N"),
        ("whatever", "hidden_states[8]"),
        ("resid_post.-1", "resid_post.N"),
    ],
)
def test_a_name_that_is_no_site_is_answered_with_the_nearest(name: str, expected: str) -> None:
    with pytest.raises(UserError, match="unknown site") as caught:
        Site.parse(name)
    assert expected in str(caught.value)


def test_only_embed_has_no_layer() -> None:
    with pytest.raises(UserError, match="only 'embed' has no layer"):
        Site("resid_post")
    with pytest.raises(UserError, match="only 'embed' has no layer"):
        Site("embed", 0)
    with pytest.raises(UserError, match="did you mean 'mlp_out'"):
        Site("mlp_uot", 0)


def test_a_block_past_the_end_is_answered_with_the_last_one(llama: LM) -> None:
    with pytest.raises(UserError, match=r"blocks 0 to 3; the nearest is mlp_out\.3"):
        llama.site("mlp_out.4")
    assert llama.site("blocks.3.hook_mlp_out") == Site("mlp_out", 3)


def test_the_entry_after_the_final_norm_is_refused(llama: LM) -> None:
    """Hugging Face's last hidden state is taken after the final norm, so it is no block's output."""
    with pytest.raises(UserError, match=r"after the final norm.*resid_post\.3"):
        llama.site("hidden_states[4]")
    assert llama.site("hidden_states[3]") == Site("resid_post", 2)
    with pytest.raises(UserError, match="does not exist"):
        llama.site("hidden_states[5]")


def test_parallel_blocks_have_no_middle() -> None:
    with pytest.raises(UserError, match=r"resid_mid\.1 does not exist.*resid_post\.1"):
        toy_lm("gpt_neox").site("resid_mid.1")
    assert toy_lm("gpt_neox_sequential").site("resid_mid.1") == Site("resid_mid", 1)


def test_blocks_that_only_look_like_llama_are_refused() -> None:
    """OLMo-2 normalises a sublayer's output before adding it: read as Llama its attn_out would be wrong."""
    from transformers import Olmo2Config, Olmo2ForCausalLM

    config = Olmo2Config(
        vocab_size=16,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        pad_token_id=0,
    )
    with pytest.raises(UserError, match="Olmo2ForCausalLM has no block layout known here"):
        find_layout(Olmo2ForCausalLM(config))
