"""Where each site lives inside the block layouts of Hugging Face causal language models.

A layout is recognised by the submodules that a block has, not by the model's class name, so a new model
with a known block shape works without a change here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from torch import nn

from latentbench.errors import UserError, nearest
from latentbench.lm._sites import Site

__all__ = ["BlockLayout", "Tap", "find_layout"]


class Tap(NamedTuple):
    """The hook point of a site: one side of one submodule of a block."""

    path: str
    """Dotted path below the block; empty for the block itself."""
    side: Literal["input", "output"]
    """Whether the site is what goes into the submodule or what comes out of it."""


class BlockLayout(NamedTuple):
    """One block layout: where the block list is and where every site kind is hooked."""

    name: str
    """Family that the layout is named after."""
    blocks: str
    """Dotted path of the block list below the causal LM."""
    taps: Mapping[str, Tap]
    """Site kind -> hook point, `embed` excepted (it is the input of block 0)."""
    without: tuple[str, ...] = ()
    """Attributes that a block must not have: they change what its submodules add to the residual stream."""


_LLAMA = {
    "attn_z": Tap("self_attn.o_proj", "input"),
    "attn_out": Tap("self_attn", "output"),
    "resid_mid": Tap("post_attention_layernorm", "input"),
    "mlp_in": Tap("mlp", "input"),
    "mlp_out": Tap("mlp", "output"),
    "resid_post": Tap("", "output"),
}
_GEMMA = _LLAMA | {
    # Gemma-2 and -3 normalise a sublayer's output before they add it.
    "attn_out": Tap("post_attention_layernorm", "output"),
    "resid_mid": Tap("pre_feedforward_layernorm", "input"),
    "mlp_out": Tap("post_feedforward_layernorm", "output"),
}
_GPT2 = {
    "attn_z": Tap("attn.c_proj", "input"),
    "attn_out": Tap("attn", "output"),
    "resid_mid": Tap("ln_2", "input"),
    "mlp_in": Tap("mlp", "input"),
    "mlp_out": Tap("mlp", "output"),
    "resid_post": Tap("", "output"),
}
_NEOX = {
    "attn_z": Tap("attention.dense", "input"),
    "attn_out": Tap("post_attention_dropout", "output"),
    "resid_mid": Tap("post_attention_layernorm", "input"),
    "mlp_in": Tap("mlp", "input"),
    "mlp_out": Tap("post_mlp_dropout", "output"),
    "resid_post": Tap("", "output"),
}
# OLMo-2, GLM-4 and Granite blocks have Llama's submodules, but normalise or scale what these give before they
# add it.
_NOT_LLAMA = ("post_feedforward_layernorm", "post_self_attn_layernorm", "residual_multiplier")
_CANDIDATES = (
    BlockLayout("gemma", "model.layers", _GEMMA),
    BlockLayout("gemma", "model.language_model.layers", _GEMMA),
    BlockLayout("llama", "model.layers", _LLAMA, _NOT_LLAMA),
    BlockLayout("gpt2", "transformer.h", _GPT2),
    BlockLayout("gpt_neox", "gpt_neox.layers", _NEOX),
)


def find_layout(model: nn.Module) -> BlockLayout:
    """The block layout of a causal LM.

    Raises:
        UserError: no known layout fits; the message names the layouts and what the model has instead.
    """
    for layout in _CANDIDATES:
        blocks = submodule(model, layout.blocks)
        if not isinstance(blocks, nn.ModuleList) or not len(blocks):
            continue
        if any(hasattr(blocks[0], name) for name in layout.without):
            continue
        if all(submodule(blocks[0], tap.path) is not None for tap in layout.taps.values()):
            taps = dict(layout.taps)
            if getattr(blocks[0], "use_parallel_residual", False):
                del taps["resid_mid"]  # attention and MLP read the same stream: there is no middle
            return layout._replace(taps=taps)
    lists = [name for name, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    raise UserError(
        f"{type(model).__name__} has no block layout known here "
        f"({', '.join(sorted({c.name for c in _CANDIDATES}))}); "
        f"its module lists are {lists[:5]}. Add a BlockLayout to latentbench.lm._layouts for it."
    )


def submodule(root: nn.Module, path: str) -> nn.Module | None:
    """The submodule at a dotted path, `root` itself for an empty one, or None if there is none."""
    module: object = root
    for part in filter(None, path.split(".")):
        module = getattr(module, part, None)
    return module if isinstance(module, nn.Module) else None


def final_norm(model: nn.Module, layout: BlockLayout) -> nn.Module:
    """The norm between the last block and the vocabulary.

    Raises:
        UserError: it has none of the known names.
    """
    body = layout.blocks.rpartition(".")[0]
    for name in ("norm", "ln_f", "final_layer_norm"):
        found = submodule(model, f"{body}.{name}")
        if found is not None:
            return found
    raise UserError(
        f"{type(model).__name__} has no final norm known here: add its name to latentbench.lm._layouts"
    )


def check_site(site: Site, layout: BlockLayout, n_layers: int) -> Site:
    """`site` if a model of this layout and depth has it.

    Raises:
        UserError: it has not; the nearest site that exists is named.
    """
    if site.layer is None:
        return site
    if site.kind not in layout.taps:
        close = nearest(site.kind, layout.taps) or ["resid_post"]
        raise UserError(
            f"site {site} does not exist in this {layout.name} model (its blocks add attention and MLP in "
            f"parallel); the nearest that does is {Site(close[0], min(site.layer, n_layers - 1))}"
        )
    if not 0 <= site.layer < n_layers:
        last = Site(site.kind, n_layers - 1)
        raise UserError(
            f"site {site} does not exist: the model has blocks 0 to {n_layers - 1}; the nearest is {last}"
        )
    return site
