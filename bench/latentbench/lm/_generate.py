"""Generation with a KV cache under edits, row by row steerable."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from latentbench.errors import UserError
from latentbench.lm._begun import Begun, new_cache
from latentbench.lm._edits import Edit, EditView
from latentbench.lm._hooks import hooked, resumed
from latentbench.lm._sampling import NOT_FINITE, choose, uniforms
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
    broken: list[str | None]
    """Why the row ended before its time, with the tokens up to there kept; None for rows that are sound."""
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
    seeds: Sequence[int] | None,
    stop_ids: frozenset[int],
    use_cache: bool,
) -> Generation:
    """See `LM.generate`."""
    check_prompts(lm, prompts, max_new_tokens)
    drawn = _drawn(temperature, seeds, len(prompts), max_new_tokens)
    loop = _Loop(lm, prompts, edits, use_cache=use_cache)

    def next_tokens(step: int) -> Tensor:
        return choose(loop.last_logits(), temperature, None if drawn is None else drawn[:, step])

    return _decode(loop, next_tokens, max_new_tokens, stop_ids)


def check_prompts(lm: LM, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> None:
    """Refuse prompts that can't be continued.

    Raises:
        UserError: there are none, or one is empty or longer than the model's window with what is to be generated.
    """
    if not prompts:
        raise UserError("generation needs at least one row, and no prompts were given")
    for row, prompt in enumerate(prompts):
        if not len(prompt):
            raise UserError(f"the prompt of row {row} is empty: there is nothing to continue. Leave it out")
        if not lm.fits(prompt, max_new_tokens):
            raise UserError(
                f"the prompt of row {row} has {len(prompt)} tokens, and {max_new_tokens} are to be generated, but "
                f"{lm.name} has a window of {lm.window}: cut it, or generate fewer (LM.fits tells which rows fit)"
            )


def _drawn(temperature: float, seeds: Sequence[int] | None, rows: int, steps: int) -> Tensor | None:
    """The numbers that sampling uses up, `Float64[Tensor, "row step"]`; None for greedy decoding."""
    if not (math.isfinite(temperature) and temperature >= 0):
        raise UserError(f"temperature must be 0 (greedy) or positive, not {temperature}")
    if seeds is not None and len(seeds) != rows:
        raise UserError(f"{len(seeds)} seeds for {rows} rows: sampling needs one for each row")
    if temperature == 0:
        return None
    if seeds is None:
        raise UserError(
            f"temperature {temperature} needs seeds, one for each row: randomness here is never global"
        )
    return uniforms(seeds, steps)


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
        sound: list[str | None] = [None] * copies
        return Generation([whole] * copies, ended, sound, loop.forward_tokens, loop.shadow_tokens, logits)

    def next_tokens(step: int) -> Tensor:
        return choose(loop.last_logits() if step else logits[:, 0], 0.0, None)

    return _decode(loop, next_tokens, max_new_tokens, stop_ids)._replace(draft_logits=logits)


def _decode(
    loop: _Loop, next_tokens: Callable[[int], Tensor], max_new_tokens: int, stop_ids: frozenset[int]
) -> Generation:
    rows = len(loop.tokens.ids)
    new: list[list[int]] = [[] for _ in range(rows)]
    stopped = [False] * rows
    broken: list[str | None] = [None] * rows
    for step in range(max_new_tokens):
        chosen = next_tokens(step)
        for row, token in enumerate(chosen.tolist()):
            if stopped[row] or broken[row] is not None:
                continue
            if token == NOT_FINITE:
                broken[row] = f"logits were not finite at new token {step + 1}"
            elif token in stop_ids:
                stopped[row] = True
            else:
                new[row].append(token)
        if all(done or why is not None for done, why in zip(stopped, broken, strict=True)):
            break
        loop.append(torch.where(chosen == NOT_FINITE, loop.lm.pad_id, chosen))
    return Generation(new, stopped, broken, loop.forward_tokens, loop.shadow_tokens)


def _accepted(logits: Tensor, draft: Sequence[int], stop_ids: frozenset[int], most: int) -> bool:
    """Whether greedy decoding gives the draft in every row, and stops behind it or at the budget."""
    best = torch.stack([choose(column, 0.0, None) for column in logits.unbind(dim=1)], dim=1)
    n = min(len(draft), most)
    wanted = torch.tensor(list(draft[:n]), device=best.device, dtype=best.dtype)
    if not bool((best[:, :n] == wanted).all()) or stop_ids & set(draft[:n]):
        return False
    return n == most or all(token in stop_ids for token in best[:, n].tolist())


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
