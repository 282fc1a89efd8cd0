"""Rows that were run once, so that many continuations of them under different edits share the work."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from latentbench.errors import UserError
from latentbench.lm._edits import Edit, EditView
from latentbench.lm._hooks import hooked
from latentbench.lm._model import WrappedModel
from latentbench.lm._sites import Site
from latentbench.lm._tokens import TokenBatch, make_batch

__all__ = ["Begun", "Stem", "begin_below", "begin_columns", "common_stem", "new_cache", "picked"]

_SHARED = 2
"""Rows for each distinct prompt, on average, from which on running the prompts once pays."""


class Stem(NamedTuple):
    """Some rows as far as they have been run, for batches whose rows begin with one of them."""

    columns: int
    """Columns that all blocks have run; 0 if all columns have run as far as `site`."""
    cache: Any
    """Keys and values of what has run."""
    shadow: Any
    """The same of the shadow pass; None without one."""
    site: Site | None
    """Where every column stopped; None if whole columns have run."""
    hidden: Tensor | None
    """`Float[Tensor, "stem pos d"]` at that site."""
    observed: Mapping[Site, Tensor]
    """`Float[Tensor, "stem pos d"]` at the sites that edits will observe."""

    def caches(self, lm: WrappedModel, which: Tensor) -> tuple[Any, Any]:
        """The caches of the pass and of its shadow for a batch, free to be written on.

        Args:
            lm: the model.
            which: `Int64[Tensor, "row"]`: the row here that each row of the batch begins with.
        """
        shadow = None if self.shadow is None else picked(self.shadow, which)
        return new_cache(lm) if self.site is not None else picked(self.cache, which), shadow

    def fill(self, cache: Any, which: Tensor) -> None:
        """Put in what the blocks up to `site` keep, once the blocks behind it have run."""
        assert self.site is not None
        assert self.site.layer is not None
        for layer in range(self.site.layer + 1):
            cache.layers[layer] = _picked_layer(self.cache.layers[layer], which)


class Begun(NamedTuple):
    """One row as far as it has been run; see `LM.begin_below` and `LM.begin_columns`."""

    prompt: tuple[int, ...]
    """Token ids of the prompt."""
    draft: tuple[int, ...]
    """Tokens behind it that greedy decoding is likely to give."""
    stem: Stem
    """What has run, for one row."""

    @property
    def observed(self) -> Mapping[Site, Tensor]:
        """`Float[Tensor, "1 pos d"]` at the sites that edits will observe."""
        return self.stem.observed

    def at(self, site: Site) -> Begun:
        """The same row begun at a later site, one of those that are observed.

        Edits before it must leave the row's own columns as they are.
        """
        return self._replace(stem=self.stem._replace(site=site, hidden=self.observed[site]))


def new_cache(lm: WrappedModel) -> Any:
    """An empty cache of keys and values."""
    from transformers import DynamicCache

    return DynamicCache(config=lm.config)


def picked(cache: Any, which: Tensor) -> Any:
    """A cache with some rows of another, as often as they are named; the other stays as it is."""
    some = copy.copy(cache)
    some.layers = [_picked_layer(layer, which) for layer in cache.layers]
    return some


def _picked_layer(layer: Any, which: Tensor) -> Any:
    some = copy.copy(layer)  # layers put new tensors in place of old ones, and never write into them
    some.batch_select_indices(which)
    return some


def begin_below(
    lm: WrappedModel, prompt: Sequence[int], draft: Sequence[int], site: Site, observe: Sequence[Site]
) -> Begun:
    """See `LM.begin_below`."""
    if site.kind != "resid_post":
        raise UserError(f"a row can be begun up to a resid_post site, not up to {site}")
    _check_room(lm, len(prompt) + len(draft))
    return Begun(tuple(prompt), tuple(draft), _stem_below(lm, lm.batch([[*prompt, *draft]]), site, observe))


def begin_columns(
    lm: WrappedModel, prompt: Sequence[int], draft: Sequence[int], columns: int, edits: Sequence[Edit]
) -> Begun:
    """See `LM.begin_columns`."""
    if not 0 < columns < len(prompt):
        raise UserError(
            f"{columns} columns of a prompt of {len(prompt)}: at least one is run, and one must be left"
        )
    _check_room(lm, len(prompt) + len(draft))
    observe = sorted({site for edit in edits for site in edit.observes})
    cache, shadow = new_cache(lm), new_cache(lm) if observe else None
    first = lm.batch([prompt[:columns]])
    observed = _run(lm, first, shadow, capture=observe, edits=(), observed=None) if observe else {}
    _run(lm, first, cache, capture=(), edits=edits, observed=observed)
    return Begun(tuple(prompt), tuple(draft), Stem(columns, cache, shadow, None, None, {}))


def common_stem(
    lm: WrappedModel, prompts: Sequence[Sequence[int]], edits: Sequence[Edit]
) -> tuple[Stem, Tensor] | None:
    """Run each distinct prompt once, as far as no edit changes it.

    Args:
        lm: the model.
        prompts: token ids of each row, with prompts among them that are the same.
        edits: of the batch.

    Returns:
        The stem, padded on the left as the whole batch is, and `Int64[Tensor, "row"]`: which of its rows each row
        begins with. None if there is little to share.
    """
    places: dict[tuple[int, ...], int] = {}
    which = [places.setdefault(tuple(prompt), len(places)) for prompt in prompts]
    site = _untouched(lm, [lm.site(edit.site) for edit in edits])
    if site is None or len(prompts) < _SHARED * len(places):
        return None
    observe = sorted({lm.site(seen) for edit in edits for seen in edit.observes})
    batch = make_batch(list(places), lm.pad_id, "left", lm.device)
    return _stem_below(lm, batch, site, observe), torch.tensor(which, device=lm.device)


def _untouched(lm: WrappedModel, sites: Sequence[Site]) -> Site | None:
    """The last block output before any edit has acted; None if there is none."""
    if not sites:
        return Site("resid_post", lm.n_layers - 1)
    first = min(sites)
    if first.kind == "resid_post":
        return first
    return Site("resid_post", first.layer - 1) if first.layer else None


def _stem_below(lm: WrappedModel, batch: TokenBatch, site: Site, observe: Sequence[Site]) -> Stem:
    cache = new_cache(lm)
    acts = _run(lm, batch, cache, capture=sorted({site, *observe}), edits=(), observed=None)
    observed = {seen: acts[seen] for seen in observe}
    return Stem(0, cache, cache if observe else None, site, acts[site], observed)


def _run(
    lm: WrappedModel,
    batch: TokenBatch,
    cache: Any,
    *,
    capture: Sequence[Site],
    edits: Sequence[Edit],
    observed: Mapping[Site, Tensor] | None,
) -> dict[Site, Tensor]:
    """Run rows into a cache; without `observed` it stops at the last captured site."""
    generated = torch.zeros_like(batch.real)
    view = EditView(batch.real, batch.positions, generated, 0, observed or {}, {}, prompt_goes_on=True)
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
        lm.run(
            batch.ids,
            use_cache=True,
            real=batch.real if batch.padded else None,
            positions=view.positions,
            last_logits=1,
            cache=cache,
        )
    return {site: values[-1] for site, values in kept.items()}


def _check_room(lm: WrappedModel, columns: int) -> None:
    """Refuse rows of which a cache would not keep all columns, so that a draft could not be taken out again."""
    windows = [layer.sliding_window for layer in new_cache(lm).layers if layer.is_sliding]
    if windows and columns >= min(windows):
        raise UserError(
            f"a row of {columns} tokens fills {lm.name}'s attention window of {min(windows)}: it can't be begun and "
            "continued, only generated from the start"
        )
