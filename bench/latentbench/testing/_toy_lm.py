"""Tiny language models with random weights, one for every block layout that `latentbench.lm` knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from latentbench.errors import unknown_name
from latentbench.lm import LM

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

__all__ = ["FAMILIES", "toy_lm"]


def toy_lm(
    family: str = "llama",
    *,
    n_layers: int = 4,
    d_model: int = 16,
    vocab_size: int = 48,
    window: int = 6,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    tokenizer: Any = None,
) -> LM:
    """A language model of a real architecture, small enough for a forward pass in milliseconds.

    Every weight is drawn anew, norms and biases included, so that no part of a block is the identity by
    accident.

    Args:
        family: one of `FAMILIES`.
        n_layers: number of blocks.
        d_model: width of the residual stream, a multiple of 4.
        vocab_size: number of tokens; 0 pads and 1 ends a text.
        window: width of the sliding attention windows, in the families that have them.
        seed: of the weights.
        dtype: of the weights; float64 makes tight tolerances possible.
        tokenizer: handed on to the model; None for one that is only fed token ids.

    Raises:
        UserError: the family is unknown.
    """
    if family not in _CONFIGS:
        raise unknown_name("toy model family", family, _CONFIGS)
    from transformers import AutoModelForCausalLM

    config = _CONFIGS[family](n_layers, d_model, vocab_size, window)
    with torch.random.fork_rng(devices=[]):  # building a model draws from the global generator
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    _randomise(model, torch.Generator().manual_seed(seed))
    return LM(model, tokenizer, name=f"toy-{family}", revision=f"seed-{seed}")


def _randomise(model: nn.Module, generator: torch.Generator) -> None:
    with torch.no_grad():
        for name, weight in model.named_parameters():
            drawn = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            if weight.dim() > 1:
                weight.copy_(drawn / weight.shape[-1] ** 0.5)
            else:  # norm weights stay near what their architecture starts them at, which is 0 in Gemma
                weight.copy_(drawn * 0.2 + (0.0 if name.endswith("bias") else weight.double()))


def _llama_like(n_layers: int, d_model: int, vocab_size: int) -> dict[str, Any]:
    return {
        "num_hidden_layers": n_layers,
        "hidden_size": d_model,
        "vocab_size": vocab_size,
        "intermediate_size": 2 * d_model,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": d_model // 4,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
        "bos_token_id": None,
        "eos_token_id": 1,
    }


def _llama(n_layers: int, d_model: int, vocab_size: int, window: int) -> PreTrainedConfig:
    from transformers import LlamaConfig

    return LlamaConfig(**_llama_like(n_layers, d_model, vocab_size))


def _qwen2(n_layers: int, d_model: int, vocab_size: int, window: int) -> PreTrainedConfig:
    from transformers import Qwen2Config

    options = _llama_like(n_layers, d_model, vocab_size)
    del options["head_dim"]
    return Qwen2Config(**options)


def _qwen3(n_layers: int, d_model: int, vocab_size: int, window: int) -> PreTrainedConfig:
    from transformers import Qwen3Config

    return Qwen3Config(**_llama_like(n_layers, d_model, vocab_size))


def _gemma2(n_layers: int, d_model: int, vocab_size: int, window: int) -> PreTrainedConfig:
    from transformers import Gemma2Config

    return Gemma2Config(**_llama_like(n_layers, d_model, vocab_size), sliding_window=window)


def _gemma3(n_layers: int, d_model: int, vocab_size: int, window: int) -> PreTrainedConfig:
    from transformers import Gemma3TextConfig

    kinds = ["full_attention" if layer % 2 else "sliding_attention" for layer in range(n_layers)]
    options = _llama_like(n_layers, d_model, vocab_size)
    return Gemma3TextConfig(**options, sliding_window=window, layer_types=kinds)


def _gpt2(n_layers: int, d_model: int, vocab_size: int, window: int) -> PreTrainedConfig:
    from transformers import GPT2Config

    return GPT2Config(
        n_layer=n_layers,
        n_embd=d_model,
        n_head=4,
        n_positions=64,
        vocab_size=vocab_size,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
    )


def _neox(parallel: bool) -> Callable[[int, int, int, int], PreTrainedConfig]:
    def make(n_layers: int, d_model: int, vocab_size: int, window: int) -> PreTrainedConfig:
        from transformers import GPTNeoXConfig

        return GPTNeoXConfig(
            num_hidden_layers=n_layers,
            hidden_size=d_model,
            vocab_size=vocab_size,
            intermediate_size=2 * d_model,
            num_attention_heads=4,
            max_position_embeddings=64,
            use_parallel_residual=parallel,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=1,
        )

    return make


_CONFIGS: dict[str, Callable[[int, int, int, int], PreTrainedConfig]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gpt2": _gpt2,
    "gpt_neox": _neox(parallel=True),
    "gpt_neox_sequential": _neox(parallel=False),
}
FAMILIES = tuple(_CONFIGS)
"""Architectures that `toy_lm` can build; GPT-NeoX with attention and MLP in parallel and one after the
other."""
