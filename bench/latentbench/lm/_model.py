"""A Hugging Face causal LM with its names, sites and tokens: what passes, edits and generation are built on."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from latentbench.errors import UserError
from latentbench.lm._hooks import StopForward
from latentbench.lm._layouts import check_site, final_norm, find_layout
from latentbench.lm._sites import Site
from latentbench.lm._tokens import TokenBatch, make_batch

__all__ = ["WrappedModel"]


class WrappedModel:
    """A causal language model, its tokenizer, and the plain call. `LM` adds capture, edits and generation."""

    def __init__(self, model: nn.Module, tokenizer: Any, *, name: str, revision: str) -> None:
        """Wrap a loaded model; `load_lm` is the usual way to get one.

        Args:
            model: a Hugging Face causal LM, on its device and in its dtype.
            tokenizer: its tokenizer, or None for a model that is only fed token ids.
            name: name to report (asset, hub id or folder).
            revision: what fixes the weights (sha256 of the file, commit of the hub repository).
        """
        self.model = cast(Any, model.eval().requires_grad_(requires_grad=False))
        self.tokenizer = tokenizer
        self.name = name
        self.revision = revision
        self.layout = find_layout(model)
        config = self.model.config.get_text_config()
        self.config = config
        self.n_layers: int = int(config.num_hidden_layers)
        self.d_model: int = int(config.hidden_size)
        self.vocab_size: int = int(config.vocab_size)
        accepted = inspect.signature(self.model.forward).parameters
        # transformers renamed the argument in 5.2x and still takes both until 5.40.
        self.cache_argument: str = "cache" if "cache" in accepted else "past_key_values"

    @property
    def device(self) -> torch.device:
        """Device of the token embeddings, where token batches go."""
        device: torch.device = next(self.model.parameters()).device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the weights."""
        dtype: torch.dtype = next(self.model.parameters()).dtype
        return dtype

    @property
    def attention(self) -> str:
        """Attention implementation in use ("sdpa", "eager", ...)."""
        return str(self.config._attn_implementation)

    @property
    def final_norm(self) -> nn.Module:
        """The norm between the last block and the vocabulary."""
        return final_norm(self.model, self.layout)

    @property
    def window(self) -> int | None:
        """Tokens that a row may have, if the model says."""
        found = getattr(self.config, "max_position_embeddings", None)
        return found if isinstance(found, int) else None

    def fits(self, prompt: Sequence[int], max_new_tokens: int) -> bool:
        """Whether `generate` takes a prompt: it isn't empty, and the window holds it with so many new tokens."""
        return len(prompt) > 0 and (self.window is None or len(prompt) + max_new_tokens <= self.window)

    def identity(self) -> dict[str, str]:
        """What can change this model's numbers, as JSON for cache keys."""
        return {
            "name": self.name,
            "revision": self.revision,
            "dtype": str(self.dtype).removeprefix("torch."),
            "attention": self.attention,
        }

    def site(self, name: str | Site) -> Site:
        """The site a name or alias stands for, checked against this model.

        Raises:
            UserError: the model has no such site; the nearest that exists is named.
        """
        site = Site.parse(name)
        if isinstance(name, str) and name.strip() == f"hidden_states[{self.n_layers}]":
            raise UserError(
                f"{name!r} is taken after the final norm by Hugging Face, so it is no block's output: "
                f"name {Site('resid_post', self.n_layers - 1)} if you mean the last block's"
            )
        return check_site(site, self.layout, self.n_layers)

    @property
    def pad_id(self) -> int:
        """Token id written on padding; masks never depend on it."""
        for owner in (self.tokenizer, self.config):
            for attribute in ("pad_token_id", "eos_token_id"):
                value = getattr(owner, attribute, None)
                if isinstance(value, int):
                    return value
        return 0

    @property
    def eos_ids(self) -> frozenset[int]:
        """Token ids that end a generated text."""
        found: set[int] = set()
        for owner in (self.tokenizer, getattr(self.model, "generation_config", None), self.config):
            value = getattr(owner, "eos_token_id", None)
            found.update([value] if isinstance(value, int) else value or [])
        return frozenset(found)

    def tokenize(
        self,
        texts: Sequence[str],
        max_tokens: int,
        *,
        bos: Literal["tokenizer", "always", "never"] = "tokenizer",
    ) -> list[list[int]]:
        """Token ids of each text, cut after `max_tokens`; no padding, no end token.

        Args:
            texts: plain texts; special-token strings inside them stay ordinary text.
            max_tokens: longest row to return.
            bos: "tokenizer" adds a beginning-of-sequence token if this tokenizer does so itself, "always" and
                "never" force it. (SmolLM2's adds none.)

        Raises:
            UserError: the model came without a tokenizer, or "always" was asked of one without a BOS token.
        """
        if self.tokenizer is None:
            raise UserError(f"{self.name} was loaded without a tokenizer: pass token ids instead of texts")
        special = bos == "tokenizer"
        encoded = self.tokenizer(list(texts), add_special_tokens=special, split_special_tokens=True)
        rows = [list(row) for row in encoded["input_ids"]]
        if special:
            ends = self.eos_ids - {self.tokenizer.bos_token_id}
            rows = [row[:-1] if len(row) > 1 and row[-1] in ends else row for row in rows]
        if bos == "always":
            if self.tokenizer.bos_token_id is None:
                raise UserError(
                    f"bos='always' was asked for, but the tokenizer of {self.name} has no BOS token"
                )
            rows = [[self.tokenizer.bos_token_id, *row] for row in rows]
        return [row[:max_tokens] for row in rows]

    def batch(self, rows: Sequence[Sequence[int]], side: Literal["left", "right"] = "right") -> TokenBatch:
        """Pad rows of token ids into a batch on this model's device."""
        return make_batch(rows, self.pad_id, side, self.device)

    def run(
        self,
        ids: Tensor,
        *,
        use_cache: bool,
        real: Tensor | None = None,
        positions: Tensor | None = None,
        last_logits: int = 0,
        cache: Any = None,
    ) -> Any:
        """Call the wrapped model as it stands, hooks and all; None if a hook stopped it.

        Args:
            ids: `Int64[Tensor, "row pos"]`: the columns to run.
            use_cache: whether the model keeps keys and values.
            real: `Bool[Tensor, "row pos"]`, with a cache over the cached columns too; None where nothing is padding.
            positions: `Int64[Tensor, "row pos"]` of `ids` within their rows, given with `real`.
            last_logits: skip the vocabulary projection of all columns but the last so many; 0 skips none.
            cache: Hugging Face cache that holds the columns before these.
        """
        arguments: dict[str, Any] = {"use_cache": use_cache}
        if real is not None:
            self._check_padding(real)
            arguments["attention_mask"] = real.long()
            arguments["position_ids"] = positions
        if cache is not None:
            arguments[self.cache_argument] = cache
        if last_logits:
            arguments["logits_to_keep"] = last_logits
        try:
            return self.model(input_ids=ids, **arguments)
        except StopForward:
            return None

    def _check_padding(self, real: Tensor) -> None:
        # Eager attention takes its softmax in float32, where float64's mask value is minus infinity: a
        # padding column at the left, which sees nothing, becomes NaN there and spreads to the whole row.
        if self.dtype == torch.float64 and self.attention == "eager" and not bool(real[:, 0].all()):
            raise UserError(
                "left padding in float64 with eager attention gives NaN in Hugging Face's models: use "
                "float32, another attention implementation, or rows of one length"
            )
