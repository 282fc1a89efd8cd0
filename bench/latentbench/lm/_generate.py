"""Generation with a KV cache under edits, row by row steerable."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from latentbench.errors import UserError
from latentbench.lm._begun import Begun, common_stem
from latentbench.lm._edits import Edit
from latentbench.lm._loop import Loop
from latentbench.lm._model import WrappedModel
from latentbench.lm._sampling import NOT_FINITE, choose, uniforms

__all__ = ["Generation", "continue_begun", "generate"]


_ENDED = 0.25
"""Share of a batch's rows that must have ended for it to pay to copy the caches of the others."""


class Generation(NamedTuple):
    """Generated token ids and what they cost."""

    tokens: list[list[int]]
    """New tokens of each row, without the prompt and without the stop token."""
    stopped: list[bool]
    """Whether the row ended with a stop token, as against running out of budget."""
    broken: list[str | None]
    """Why the row ended before its time, with the tokens up to there kept; None for rows that are sound."""
    forward_tokens: int
    """Real token positions of rows that were going on, prompt included; what rows share counts for each of them."""
    shadow_tokens: int
    """Of a shadow pass besides, for edits that observe the unedited model; 0 without one."""
    draft_logits: Tensor | None = None
    """`Float[Tensor, "row draft+1 vocab"]` before each token of the draft and after the last; None without a draft."""


def generate(
    lm: WrappedModel,
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
    begun = common_stem(lm, prompts, edits) if use_cache and max_new_tokens else None
    loop = Loop(lm, prompts, edits, use_cache=use_cache, begun=begun)

    def next_tokens(step: int) -> Tensor:
        return choose(loop.last_logits(), temperature, None if drawn is None else drawn[loop.rows, step])

    return _decode(loop, next_tokens, max_new_tokens, stop_ids)


def check_prompts(lm: WrappedModel, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> None:
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
    lm: WrappedModel,
    begun: Begun,
    copies: int,
    *,
    max_new_tokens: int,
    edits: Sequence[Edit],
    stop_ids: frozenset[int],
) -> Generation:
    """See `LM.continue_begun`."""
    stem = begun.stem, torch.zeros(copies, dtype=torch.int64, device=lm.device)
    loop = Loop(lm, [begun.prompt] * copies, edits, use_cache=True, draft=begun.draft, begun=stem)
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
    loop: Loop, next_tokens: Callable[[int], Tensor], max_new_tokens: int, stop_ids: frozenset[int]
) -> Generation:
    rows = len(loop.rows)
    new: list[list[int]] = [[] for _ in range(rows)]
    stopped = [False] * rows
    broken: list[str | None] = [None] * rows
    for step in range(max_new_tokens):
        chosen = next_tokens(step)
        tokens = chosen.tolist()
        going = []
        for place in loop.going:
            row, token = loop.rows[place], tokens[place]
            if token == NOT_FINITE:
                broken[row] = f"logits were not finite at new token {step + 1}"
            elif token in stop_ids:
                stopped[row] = True
            else:
                new[row].append(token)
                going.append(place)
        if not going or step + 1 == max_new_tokens:
            break
        # Rows with NaN leave at once: what edits would make of them is nobody's business.
        nan = NOT_FINITE in tokens
        loop.append(chosen.clamp(min=0) if nan else chosen, going)
        if nan or len(going) <= (1 - _ENDED) * len(loop.rows):
            loop.leave_ended()
    return Generation(new, stopped, broken, loop.forward_tokens, loop.shadow_tokens)


def _accepted(logits: Tensor, draft: Sequence[int], stop_ids: frozenset[int], most: int) -> bool:
    """Whether greedy decoding gives the draft in every row, and stops behind it or at the budget."""
    best = torch.stack([choose(column, 0.0, None) for column in logits.unbind(dim=1)], dim=1)
    n = min(len(draft), most)
    wanted = torch.tensor(list(draft[:n]), device=best.device, dtype=best.dtype)
    if not bool((best[:, :n] == wanted).all()) or stop_ids & set(draft[:n]):
        return False
    return n == most or all(token in stop_ids for token in best[:, n].tolist())
