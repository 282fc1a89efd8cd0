"""Rows that were run once, so that many continuations of them under different edits share the work."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from latentbench.errors import UserError
from latentbench.lm._edits import Edit, EditView
from latentbench.lm._hooks import hooked
from latentbench.lm._sites import Site

if TYPE_CHECKING:
    from latentbench.lm._lm import LM

__all__ = ["Begun", "begin_below", "begin_columns", "new_cache"]


class Begun(NamedTuple):
    """One row as far as it has been run; see `LM.begin`."""

    prompt: tuple[int, ...]
    """Token ids of the prompt."""
    draft: tuple[int, ...]
    """Tokens behind it that greedy decoding is likely to give."""
    columns: int
    """Columns that all blocks have run; 0 if all columns have run as far as `site`."""
    cache: Any
    """Keys and values of what has run, for one row."""
    shadow: Any
    """The same of the shadow pass; None without one."""
    site: Site | None
    """Where every column stopped; None if whole columns have run."""
    hidden: Tensor | None
    """`Float[Tensor, "1 pos d"]` at that site."""
    observed: Mapping[Site, Tensor]
    """`Float[Tensor, "1 pos d"]` at the sites that edits will observe."""

    def caches(self, lm: LM, copies: int) -> tuple[Any, Any]:
        """The caches of the pass and of its shadow for several copies of the row, free to be written on."""
        if self.site is not None:
            return new_cache(lm), None if self.shadow is None else _copies(self.shadow, copies)
        return _copies(self.cache, copies), None if self.shadow is None else _copies(self.shadow, copies)

    def at(self, site: Site) -> Begun:
        """The same row begun at a later site, one of those that are observed.

        Edits before it must leave the row's own columns as they are.
        """
        return self._replace(site=site, hidden=self.observed[site])

    def fill(self, cache: Any, copies: int) -> None:
        """Put in what the blocks up to `site` keep, once the blocks behind it have run."""
        assert self.site is not None
        assert self.site.layer is not None
        for layer in range(self.site.layer + 1):
            kept = self.cache.layers[layer]
            cache.update(kept.keys.expand(copies, -1, -1, -1), kept.values.expand(copies, -1, -1, -1), layer)


def new_cache(lm: LM) -> Any:
    """An empty cache of keys and values."""
    from transformers import DynamicCache

    return DynamicCache(config=lm.config)


def begin_below(
    lm: LM, prompt: Sequence[int], draft: Sequence[int], site: Site, observe: Sequence[Site]
) -> Begun:
    """See `LM.begin_below`."""
    if site.kind != "resid_post":
        raise UserError(f"a row can be begun up to a resid_post site, not up to {site}")
    cache = _roomy_cache(lm, len(prompt) + len(draft))
    acts = _run(lm, [*prompt, *draft], cache, capture=sorted({site, *observe}), edits=(), observed=None)
    observed = {seen: acts[seen] for seen in observe}
    shadow = cache if observe else None
    return Begun(tuple(prompt), tuple(draft), 0, cache, shadow, site, acts[site], observed)


def begin_columns(
    lm: LM, prompt: Sequence[int], draft: Sequence[int], columns: int, edits: Sequence[Edit]
) -> Begun:
    """See `LM.begin_columns`."""
    if not 0 < columns < len(prompt):
        raise UserError(
            f"{columns} columns of a prompt of {len(prompt)}: at least one is run, and one must be left"
        )
    observe = sorted({site for edit in edits for site in edit.observes})
    cache = _roomy_cache(lm, len(prompt) + len(draft))
    shadow = new_cache(lm) if observe else None
    first = prompt[:columns]
    observed = _run(lm, first, shadow, capture=observe, edits=(), observed=None) if observe else {}
    _run(lm, first, cache, capture=(), edits=edits, observed=observed)
    return Begun(tuple(prompt), tuple(draft), columns, cache, shadow, None, None, {})


def _run(
    lm: LM,
    ids: Sequence[int],
    cache: Any,
    *,
    capture: Sequence[Site],
    edits: Sequence[Edit],
    observed: Mapping[Site, Tensor] | None,
) -> dict[Site, Tensor]:
    """Run a row into a cache; without `observed` it stops at the last captured site."""
    batch = lm.batch([list(ids)])
    view = EditView(batch.real, batch.positions, torch.zeros_like(batch.real), 0, observed or {}, {})
    kept: dict[Site, list[Tensor]] = {site: [] for site in capture}
    with (
        torch.no_grad(),
        hooked(
            lm.model,
            lm.layout,
            edits=edits,
            view=view,
            capture=kept,
            stop_after=capture[-1] if observed is None else None,
        ),
    ):
        lm.run(batch, use_cache=True, last_logits=1, cache=cache)
    return {site: values[-1] for site, values in kept.items()}


def _roomy_cache(lm: LM, columns: int) -> Any:
    """An empty cache that will still hold all of so many columns, so that a draft can be taken out again."""
    cache = new_cache(lm)
    windows = [layer.sliding_window for layer in cache.layers if layer.is_sliding]
    if windows and columns >= min(windows):
        raise UserError(
            f"a row of {columns} tokens fills {lm.name}'s attention window of {min(windows)}: it can't be begun and "
            "continued, only generated from the start"
        )
    return cache


def _copies(cache: Any, copies: int) -> Any:
    several = copy.deepcopy(cache)
    several.batch_repeat_interleave(copies)
    return several
