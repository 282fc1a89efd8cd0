"""The language model under study, over any Hugging Face causal LM."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from latentbench.errors import UserError
from latentbench.lm._begun import Begun, begin_below, begin_columns
from latentbench.lm._edits import Edit, EditView
from latentbench.lm._generate import Generation, continue_begun, generate
from latentbench.lm._hooks import StopForward, hooked, resumed
from latentbench.lm._layouts import check_site, final_norm, find_layout
from latentbench.lm._sites import Site
from latentbench.lm._tokens import TokenBatch, make_batch

__all__ = ["LM", "Forward"]


class Forward(NamedTuple):
    """What a forward pass gives back."""

    logits: Tensor | None
    """`Float[Tensor, "row pos vocab"]`, or None if they were not asked for."""
    acts: dict[Site, Tensor]
    """Captured activations, `Float[Tensor, "row pos d"]` each, as they leave the site (edits included)."""


class LM:
    """A causal language model with sites, edits, resumed passes and generation.

    Hooks, block layouts, padding, token policy, dtype and device are handled here and nowhere else.
    """

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

    def forward(
        self,
        tokens: TokenBatch,
        *,
        capture: Iterable[Site] = (),
        edits: Sequence[Edit] = (),
        resume: tuple[Site, Tensor] | None = None,
        logits: bool = True,
        last_logits: int = 0,
        grad: bool = False,
    ) -> Forward:
        """One forward pass without a KV cache.

        Args:
            tokens: the batch, padded on either side.
            capture: sites whose activations to return.
            edits: changes to make on the way; edits at one site act in their order.
            resume: `(site, hidden)` starts after the block of a `resid_post` site with `hidden`
                (`Float[Tensor, "row pos d"]`) as its output, so only the blocks behind it are run.
            logits: False stops the pass after the last captured site.
            last_logits: logits of this many columns at the end of the batch only; 0 gives all. Pad on the left to have
                every row's last tokens there.
            grad: True leaves autograd on (the weights themselves never take gradients).

        Raises:
            UserError: a site does not exist, or can't be reached from the resumed site.
            LatentbenchError: an edit never acted because its site was not reached.
        """
        capture = sorted({self.site(site) for site in capture})
        resume = (self.site(resume[0]), resume[1]) if resume is not None else None
        if not logits and not capture:
            raise UserError(
                "forward(logits=False) with no site to capture would compute nothing: name a site"
            )
        tokens = tokens.to(self.device)
        self._check_reachable(tokens, capture, edits, resume)
        kept: dict[Site, list[Tensor]] = {site: [] for site in capture}
        with torch.set_grad_enabled(grad):
            view = EditView(
                real=tokens.real,
                positions=tokens.positions,
                generated=torch.zeros_like(tokens.real),
                start=0,
                observed=self._observe(tokens, edits),
                memo={},
            )
            stop = capture[-1] if not logits else None
            restart = resumed(self.model, self.layout, *resume) if resume else nullcontext()
            with (
                restart,
                hooked(self.model, self.layout, edits=edits, view=view, capture=kept, stop_after=stop),
            ):
                output = self.run(tokens, use_cache=False, last_logits=last_logits)
        return Forward(
            logits=output.logits if output is not None and logits else None,
            acts={site: values[-1] for site, values in kept.items()},
        )

    def run(self, tokens: TokenBatch, *, use_cache: bool, last_logits: int = 0, cache: Any = None) -> Any:
        """Call the wrapped model as it stands, hooks and all; None if a hook stopped it.

        Args:
            tokens: ids of the columns to run; with a cache, `real` covers the cached columns too.
            use_cache: whether the model keeps keys and values.
            last_logits: skip the vocabulary projection of all columns but the last so many; 0 skips none.
            cache: Hugging Face cache that holds the columns before these.
        """
        arguments: dict[str, Any] = {"use_cache": use_cache}
        columns = tokens.ids.shape[1]
        if tokens.padded:
            self._check_padding(tokens)
            arguments["attention_mask"] = tokens.real.long()
            arguments["position_ids"] = tokens.positions[:, -columns:]
        if cache is not None:
            arguments[self.cache_argument] = cache
        if last_logits:
            arguments["logits_to_keep"] = last_logits
        try:
            return self.model(input_ids=tokens.ids, **arguments)
        except StopForward:
            return None

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        edits: Sequence[Edit] = (),
        temperature: float = 0.0,
        seeds: Sequence[int] | None = None,
        stop_ids: Iterable[int] | None = None,
        use_cache: bool = True,
    ) -> Generation:
        """Continue each prompt, with edits on prompt tokens, generated tokens or both.

        Args:
            prompts: token ids of each row, each of which `fits`; padded on the left here.
            max_new_tokens: most tokens to generate for a row.
            edits: as in `forward`; which phase they act on is the edit's own setting.
            temperature: 0 takes the most likely token, otherwise softmax sampling at this temperature.
            seeds: one for each row, needed for sampling: a row's text follows from its own seed, prompt and edits,
                whatever else is in the batch (up to rounding).
            stop_ids: tokens that end a row, kept out of its result; None takes the model's end tokens.
            use_cache: False recomputes all columns at every step (slow; for checks).

        Raises:
            UserError: sampling without seeds, a prompt that is empty or too long, or a site that does not exist.
        """
        for edit in edits:
            self.site(edit.site)
        stops = self.eos_ids if stop_ids is None else frozenset(stop_ids)
        return generate(
            self,
            prompts,
            max_new_tokens=max_new_tokens,
            edits=edits,
            temperature=temperature,
            seeds=seeds,
            stop_ids=stops,
            use_cache=use_cache,
        )

    def begin_below(
        self, prompt: Sequence[int], draft: Sequence[int], site: Site, observe: Iterable[Site] = ()
    ) -> Begun:
        """Run all columns of one row as far as a site, for continuations whose edits begin there.

        Args:
            prompt: token ids.
            draft: tokens that greedy decoding is likely to give, without a stop token.
            site: the first site that is edited, `resid_post`.
            observe: the sites that the edits observe.

        Raises:
            UserError: the site isn't a block's output.
        """
        return begin_below(self, prompt, draft, self.site(site), [self.site(seen) for seen in observe])

    def begin_columns(
        self, prompt: Sequence[int], draft: Sequence[int], columns: int, edits: Sequence[Edit]
    ) -> Begun:
        """Run the first columns of one row through all blocks, for continuations whose edits differ behind them.

        Args:
            prompt: token ids.
            draft: as in `begin_below`.
            columns: how many, fewer than the prompt has.
            edits: what they are changed by in all continuations, for a single row.

        Raises:
            UserError: no column is run, or none is left.
        """
        return begin_columns(self, prompt, draft, columns, edits)

    def continue_begun(
        self,
        begun: Begun,
        copies: int,
        *,
        max_new_tokens: int,
        edits: Sequence[Edit],
        stop_ids: Iterable[int] | None = None,
    ) -> Generation:
        """Greedy continuations of a begun row under edits that differ from copy to copy.

        The same tokens as `generate` of the prompt, up to rounding, at less cost; the draft is run with the prompt, and
        nothing more is run if every copy agrees with it.

        Args:
            begun: from `begin_below` or `begin_columns`.
            copies: rows; edits see that many.
            max_new_tokens: most tokens to generate for a row.
            edits: as in `generate`. Those before the site that the row has been run to act on generated tokens alone:
                that they leave this row as it is (another route) is for the caller to know.
            stop_ids: as in `generate`.
        """
        for edit in edits:
            self.site(edit.site)
        stops = self.eos_ids if stop_ids is None else frozenset(stop_ids)
        return continue_begun(self, begun, copies, max_new_tokens=max_new_tokens, edits=edits, stop_ids=stops)

    def _check_padding(self, tokens: TokenBatch) -> None:
        # Eager attention takes its softmax in float32, where float64's mask value is minus infinity: a
        # padding column at the left, which sees nothing, becomes NaN there and spreads to the whole row.
        if self.dtype == torch.float64 and self.attention == "eager" and not bool(tokens.real[:, 0].all()):
            raise UserError(
                "left padding in float64 with eager attention gives NaN in Hugging Face's models: use "
                "float32, another attention implementation, or rows of one length"
            )

    def _observe(self, tokens: TokenBatch, edits: Sequence[Edit]) -> Mapping[Site, Tensor]:
        """The shadow pass: activations of the unedited model at the sites that edits observe."""
        sites = {site for edit in edits for site in edit.observes}
        return self.forward(tokens, capture=sites, logits=False).acts if sites else {}

    def _check_reachable(
        self,
        tokens: TokenBatch,
        capture: Sequence[Site],
        edits: Sequence[Edit],
        resume: tuple[Site, Tensor] | None,
    ) -> None:
        edited = [self.site(edit.site) for edit in edits]
        if resume is None:
            return
        start, hidden = resume
        if start.kind != "resid_post":
            raise UserError(f"a forward pass resumes only from a resid_post site, not from {start}")
        wanted = (*tokens.ids.shape, self.d_model)
        if tuple(hidden.shape) != wanted:
            raise UserError(
                f"resume needs hidden states [row, pos, d] of shape {wanted}; found {tuple(hidden.shape)}"
            )
        early = sorted(site for site in {*capture, *edited} if site < start)
        if early:
            raise UserError(
                f"{early[0]} lies before {start}, from which this forward pass resumes: it is never run"
            )
