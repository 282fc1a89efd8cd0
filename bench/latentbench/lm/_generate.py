"""Generation with a KV cache under edits, row by row steerable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from latentbench.errors import UserError
from latentbench.lm._begun import Begun, new_cache
from latentbench.lm._edits import Edit, EditView
from latentbench.lm._hooks import hooked, resumed
from latentbench.lm._sites import Site
from latentbench.lm._tokens import TokenBatch, make_batch

if TYPE_CHECKING:
    from latentbench.lm._lm import LM

__all__ = ["Generation", "continue_begun", "generate"]


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
    draft_logits: Tensor | None = None
    """`Float[Tensor, "row draft+1 vocab"]` before each token of the draft and after the last; None without a draft."""


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

    def choose(step: int) -> Tensor:
        return _choose(loop.last_logits(), temperature, generator)

    return _decode(loop, choose, max_new_tokens, stop_ids)


def continue_begun(
    lm: LM,
    begun: Begun,
    copies: int,
    *,
    max_new_tokens: int,
    edits: Sequence[Edit],
    stop_ids: frozenset[int],
) -> Generation:
    """See `LM.continue_begun`."""
    loop = _Loop(lm, [begun.prompt] * copies, edits, use_cache=True, begun=begun)
    logits = loop.read_draft()
    if _accepted(logits, begun.draft, stop_ids, max_new_tokens):
        whole = list(begun.draft[:max_new_tokens])
        ended = [len(begun.draft) < max_new_tokens] * copies
        return Generation([whole] * copies, ended, loop.forward_tokens, loop.shadow_tokens, logits)

    def choose(step: int) -> Tensor:
        return (loop.last_logits() if step else logits[:, 0]).argmax(dim=-1)

    return _decode(loop, choose, max_new_tokens, stop_ids)._replace(draft_logits=logits)


def _decode(
    loop: _Loop, choose: Callable[[int], Tensor], max_new_tokens: int, stop_ids: frozenset[int]
) -> Generation:
    rows = len(loop.tokens.ids)
    new: list[list[int]] = [[] for _ in range(rows)]
    stopped = [False] * rows
    for step in range(max_new_tokens):
        chosen = choose(step)
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


def _accepted(logits: Tensor, draft: Sequence[int], stop_ids: frozenset[int], most: int) -> bool:
    """Whether greedy decoding gives the draft in every row, and stops behind it or at the budget."""
    best = logits.argmax(dim=-1)
    n = min(len(draft), most)
    wanted = torch.tensor(list(draft[:n]), device=best.device, dtype=best.dtype)
    if not bool((best[:, :n] == wanted).all()) or stop_ids & set(draft[:n]):
        return False
    return n == most or all(token in stop_ids for token in best[:, n].tolist())


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
        self,
        lm: LM,
        prompts: Sequence[Sequence[int]],
        edits: Sequence[Edit],
        *,
        use_cache: bool,
        begun: Begun | None = None,
    ) -> None:
        self.lm = lm
        self.edits = edits
        draft = () if begun is None else begun.draft
        self.tokens = make_batch([[*prompt, *draft] for prompt in prompts], lm.pad_id, "left", lm.device)
        self.prompt_columns = self.tokens.ids.shape[1] - len(draft)
        self.draft_columns = len(draft)
        self.observed_sites = sorted({lm.site(site) for edit in edits for site in edit.observes})
        self.use_cache = use_cache
        self.begun = begun
        self.done_columns = 0 if begun is None else begun.columns
        if begun is not None:
            self.cache, self.shadow_cache = begun.caches(lm, len(prompts))
        else:
            self.cache = new_cache(lm) if use_cache else None
            self.shadow_cache = new_cache(lm) if use_cache and self.observed_sites else None
        self.forward_tokens = 0
        self.shadow_tokens = 0

    def append(self, chosen: Tensor) -> None:
        """Add one generated column, `Int64[Tensor, "row"]`."""
        ids = torch.cat([self.tokens.ids, chosen[:, None]], dim=1)
        real = torch.cat([self.tokens.real, torch.ones_like(chosen, dtype=torch.bool)[:, None]], dim=1)
        self.tokens = TokenBatch(ids, real)

    def read_draft(self) -> Tensor:
        """Run prompt and draft, then forget the draft again.

        Returns:
            `Float[Tensor, "row draft+1 vocab"]`: logits before each token of the draft and after the last.
        """
        logits = self._logits(self.draft_columns + 1)
        self.tokens = TokenBatch(
            self.tokens.ids[:, : self.prompt_columns], self.tokens.real[:, : self.prompt_columns]
        )
        for cache in (self.cache, self.shadow_cache):
            if cache is not None and self.draft_columns:
                cache.crop(-self.draft_columns)
        self.done_columns = self.prompt_columns
        return logits

    def last_logits(self) -> Tensor:
        """Run the columns that are not in the cache yet.

        Returns:
            Logits of the last one, `Float[Tensor, "row vocab"]`.
        """
        return self._logits(1)[:, -1]

    def _logits(self, last: int) -> Tensor:
        """Run the columns that are not in the cache yet; logits of the last few, `Float[Tensor, "row last vocab"]`."""
        deep = self.begun if self.begun is not None and self.begun.site and self.done_columns == 0 else None
        copies, edits = len(self.tokens.ids), self.edits
        with torch.no_grad():
            start = self.done_columns
            columns = TokenBatch(self.tokens.ids[:, start:], self.tokens.real)
            fresh = int(self.tokens.real[:, start:].sum())
            if deep is None:
                observed = self._shadow(columns, fresh)
                restart: AbstractContextManager[None] = nullcontext()
            else:
                assert deep.site is not None
                assert deep.hidden is not None
                edits = [edit for edit in edits if self.lm.site(edit.site) >= deep.site]
                observed = {site: acts.expand(copies, -1, -1) for site, acts in deep.observed.items()}
                restart = resumed(
                    self.lm.model, self.lm.layout, deep.site, deep.hidden.expand(copies, -1, -1)
                )
            with (
                restart,
                hooked(
                    self.lm.model,
                    self.lm.layout,
                    edits=edits,
                    view=self._view(start, observed),
                    capture={},
                    stop_after=None,
                ),
            ):
                output = self.lm.run(columns, use_cache=self.use_cache, last_logits=last, cache=self.cache)
            if deep is not None:
                deep.fill(self.cache, copies)
        self.forward_tokens += fresh
        if self.use_cache:
            self.done_columns = self.tokens.ids.shape[1]
        logits: Tensor = output.logits[:, -last:]
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
