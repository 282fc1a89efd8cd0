"""The language model under study, over any Hugging Face causal LM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from latentbench.errors import UserError
from latentbench.lm._begun import Begun, begin_below, begin_columns
from latentbench.lm._edits import Edit, EditView
from latentbench.lm._generate import Generation, continue_begun, generate
from latentbench.lm._hooks import hooked, resumed
from latentbench.lm._model import WrappedModel
from latentbench.lm._sites import Site
from latentbench.lm._tokens import TokenBatch

__all__ = ["LM", "Forward"]


class Forward(NamedTuple):
    """What a forward pass gives back."""

    logits: Tensor | None
    """`Float[Tensor, "row pos vocab"]`, or None if they were not asked for."""
    acts: dict[Site, Tensor]
    """Captured activations, `Float[Tensor, "row pos d"]` each, as they leave the site (edits included)."""


class LM(WrappedModel):
    """A causal language model with sites, edits, resumed passes and generation.

    Hooks, block layouts, padding, token policy, dtype and device are handled here and nowhere else.
    """

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
        prompt_lengths: Sequence[int] | None = None,
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
            prompt_lengths: how many tokens of each row are prompt; edits take those behind them for generated ones, so
                that a finished text is read under the edits that it was written under. None makes all of them prompt.

        Raises:
            UserError: a site does not exist, or can't be reached from the resumed site; the lengths are of other rows.
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
                generated=_generated(tokens, prompt_lengths),
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
                output = self.run(
                    tokens.ids,
                    use_cache=False,
                    real=tokens.real if tokens.padded else None,
                    positions=view.positions,
                    last_logits=last_logits,
                )
        return Forward(
            logits=output.logits if output is not None and logits else None,
            acts={site: values[-1] for site, values in kept.items()},
        )

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


def _generated(tokens: TokenBatch, prompt_lengths: Sequence[int] | None) -> Tensor:
    """`Bool[Tensor, "row pos"]`: real tokens behind the prompt of their row."""
    if prompt_lengths is None:
        return torch.zeros_like(tokens.real)
    if len(prompt_lengths) != len(tokens.ids):
        raise UserError(f"{len(prompt_lengths)} prompt_lengths for {len(tokens.ids)} rows: give one for each")
    lengths = torch.tensor(list(prompt_lengths), device=tokens.ids.device)
    return tokens.real & (tokens.positions >= lengths[:, None])
