"""Generation with a KV cache under edits, row by row steerable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from latentbench.errors import UserError
from latentbench.lm._edits import Edit, EditView
from latentbench.lm._hooks import hooked
from latentbench.lm._sites import Site
from latentbench.lm._tokens import TokenBatch, make_batch

if TYPE_CHECKING:
    from latentbench.lm._lm import LM

__all__ = ["Generation", "generate"]


class Generation(NamedTuple):
    """Generated token ids and what they cost."""

    tokens: list[list[int]]
    """New tokens of each row, without the prompt and without the stop token."""
    stopped: list[bool]
    """Whether the row ended with a stop token, as against running out of budget."""
    forward_tokens: int
    """Real token positions that went through the model, prompt included."""
    shadow_tokens: int
    """Of a shadow pass besides, for edits that observe the unedited model; 0 without one."""


def generate(
    lm: LM,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    edits: Sequence[Edit],
    temperature: float,
    generator: torch.Generator | None,
    stop_ids: frozenset[int],
    use_cache: bool,
) -> Generation:
    """See `LM.generate`."""
    if temperature < 0 or (temperature > 0 and generator is None):
        raise UserError(
            f"temperature {temperature} needs an explicit torch.Generator: randomness here is never global"
            if temperature > 0
            else f"temperature must be 0 (greedy) or positive, not {temperature}"
        )
    loop = _Loop(lm, prompts, edits, use_cache=use_cache)
    new: list[list[int]] = [[] for _ in prompts]
    stopped = [False] * len(prompts)
    for _step in range(max_new_tokens):
        chosen = _choose(loop.last_logits(), temperature, generator)
        for row, token in enumerate(chosen.tolist()):
            if not stopped[row]:
                if token in stop_ids:
                    stopped[row] = True
                else:
                    new[row].append(token)
        if all(stopped):
            break
        loop.append(chosen)
    return Generation(new, stopped, loop.forward_tokens, loop.shadow_tokens)


def _choose(logits: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
    """Next token of each row from `Float[Tensor, "row vocab"]`."""
    if temperature == 0:
        return logits.argmax(dim=-1)
    shares = torch.softmax(logits.float() / temperature, dim=-1)
    assert generator is not None
    if generator.device != shares.device:
        shares = shares.to(generator.device)
    return torch.multinomial(shares, 1, generator=generator)[:, 0].to(logits.device)


class _Loop:
    """The state of one batch's generation: its tokens, and the caches of the real and the shadow pass."""

    def __init__(
        self, lm: LM, prompts: Sequence[Sequence[int]], edits: Sequence[Edit], *, use_cache: bool
    ) -> None:
        self.lm = lm
        self.edits = edits
        self.tokens = make_batch(prompts, lm.pad_id, "left", lm.device)
        self.prompt_columns = self.tokens.ids.shape[1]
        self.observed_sites = sorted({lm.site(site) for edit in edits for site in edit.observes})
        self.use_cache = use_cache
        self.cache = self._new_cache()
        self.shadow_cache = self._new_cache() if self.observed_sites else None
        self.done_columns = 0
        self.forward_tokens = 0
        self.shadow_tokens = 0

    def append(self, chosen: Tensor) -> None:
        """Add one generated column, `Int64[Tensor, "row"]`."""
        ids = torch.cat([self.tokens.ids, chosen[:, None]], dim=1)
        real = torch.cat([self.tokens.real, torch.ones_like(chosen, dtype=torch.bool)[:, None]], dim=1)
        self.tokens = TokenBatch(ids, real)

    def last_logits(self) -> Tensor:
        """Run the columns that are not in the cache yet.

        Returns:
            Logits of the last one, `Float[Tensor, "row vocab"]`.
        """
        with torch.no_grad():
            start = self.done_columns
            columns = TokenBatch(self.tokens.ids[:, start:], self.tokens.real)
            fresh = int(self.tokens.real[:, start:].sum())
            view = self._view(start, self._shadow(columns, fresh))
            with hooked(
                self.lm.model, self.lm.layout, edits=self.edits, view=view, capture={}, stop_after=None
            ):
                output = self.lm.run(columns, use_cache=self.use_cache, last_logits=1, cache=self.cache)
        self.forward_tokens += fresh
        if self.use_cache:
            self.done_columns = self.tokens.ids.shape[1]
        logits: Tensor = output.logits[:, -1]
        return logits

    def _shadow(self, columns: TokenBatch, fresh: int) -> Mapping[Site, Tensor]:
        if not self.observed_sites:
            return {}
        kept: dict[Site, list[Tensor]] = {site: [] for site in self.observed_sites}
        with hooked(
            self.lm.model,
            self.lm.layout,
            edits=(),
            view=self._view(self.done_columns, {}),
            capture=kept,
            stop_after=self.observed_sites[-1],
        ):
            self.lm.run(columns, use_cache=self.use_cache, cache=self.shadow_cache)
        self.shadow_tokens += fresh
        return {site: values[-1] for site, values in kept.items()}

    def _view(self, start: int, observed: Mapping[Site, Tensor]) -> EditView:
        columns = torch.arange(start, self.tokens.ids.shape[1], device=self.lm.device)
        generated = (columns >= self.prompt_columns).expand(self.tokens.ids.shape[0], -1)
        return EditView(
            real=self.tokens.real[:, start:],
            positions=self.tokens.positions[:, start:],
            generated=generated,
            start=start,
            observed=observed,
            memo={},
        )

    def _new_cache(self) -> Any:
        if not self.use_cache:
            return None
        from transformers import DynamicCache

        return DynamicCache(config=self.lm.config)
