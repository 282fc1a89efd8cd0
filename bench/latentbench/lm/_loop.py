"""The state of one batch's generation: its tokens, its rows that still go on, and its caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from latentbench.lm._begun import Stem, new_cache
from latentbench.lm._edits import Edit, EditView
from latentbench.lm._hooks import hooked, resumed
from latentbench.lm._model import WrappedModel
from latentbench.lm._sites import Site
from latentbench.lm._tokens import TokenBatch, make_batch

__all__ = ["Loop"]


class Loop:
    """Runs column after column of a batch, with the caches of the real and of the shadow pass."""

    def __init__(
        self,
        lm: WrappedModel,
        prompts: Sequence[Sequence[int]],
        edits: Sequence[Edit],
        *,
        use_cache: bool,
        draft: Sequence[int] = (),
        begun: tuple[Stem, Tensor] | None = None,
    ) -> None:
        """Prepare a batch; nothing is run.

        Args:
            lm: the model.
            prompts: token ids of each row.
            edits: of the batch.
            use_cache: whether keys and values are kept from step to step.
            draft: columns behind all prompts that `read_draft` runs with them.
            begun: what has run already, and which of its rows each row begins with.
        """
        self.lm = lm
        self.edits = edits
        self.use_cache = use_cache
        self.observed_sites = sorted({lm.site(site) for edit in edits for site in edit.observes})
        whole = [[*prompt, *draft] for prompt in prompts]
        self.tokens = make_batch(whole, lm.pad_id, "left", lm.device)
        self.positions = self.tokens.positions
        self.lengths = [len(row) for row in whole]
        """Real tokens of each row that is here."""
        self.rows = list(range(len(prompts)))
        """Which rows of the batch are here."""
        self.going = list(range(len(prompts)))
        """Places of those that have not ended."""
        self._index: Tensor | None = None
        self.draft_columns = len(draft)
        self.prompt_columns = self.tokens.ids.shape[1] - len(draft)
        self.done_columns = 0 if begun is None else begun[0].columns
        self.begun = begun
        if begun is not None:
            self.cache, self.shadow_cache = begun[0].caches(lm, begun[1])
        else:
            self.cache = new_cache(lm) if use_cache else None
            self.shadow_cache = new_cache(lm) if use_cache and self.observed_sites else None
        self.forward_tokens = 0
        self.shadow_tokens = 0

    def append(self, chosen: Tensor, going: Sequence[int]) -> None:
        """Add one generated column.

        Args:
            chosen: `Int64[Tensor, "row"]`.
            going: places of the rows that go on; the others' tokens don't matter.
        """
        column = chosen[:, None]
        real = torch.ones_like(column, dtype=torch.bool)
        self.tokens = TokenBatch(
            torch.cat([self.tokens.ids, column], dim=1), torch.cat([self.tokens.real, real], dim=1)
        )
        self.positions = torch.cat([self.positions, self.positions[:, -1:] + 1], dim=1)
        self.lengths = [length + 1 for length in self.lengths]
        self.going = list(going)

    def leave_ended(self) -> None:
        """Take the rows that have ended out of the batch and out of the caches."""
        kept = torch.tensor(self.going, device=self.lm.device)
        self.tokens = TokenBatch(self.tokens.ids[kept], self.tokens.real[kept])
        self.positions = self.positions[kept]
        for cache in (self.cache, self.shadow_cache):
            if cache is not None:
                cache.batch_select_indices(kept)
        self.lengths = [self.lengths[place] for place in self.going]
        self.rows = [self.rows[place] for place in self.going]
        self.going = list(range(len(self.rows)))
        self._index = torch.tensor(self.rows, device=self.lm.device)

    def read_draft(self) -> Tensor:
        """Run prompt and draft, then forget the draft again.

        Returns:
            `Float[Tensor, "row draft+1 vocab"]`: logits before each token of the draft and after the last.
        """
        logits = self._logits(self.draft_columns + 1)
        prompt = slice(0, self.prompt_columns)
        self.tokens = TokenBatch(self.tokens.ids[:, prompt], self.tokens.real[:, prompt])
        self.positions = self.positions[:, prompt]
        self.lengths = [length - self.draft_columns for length in self.lengths]
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
        start, width = self.done_columns, self.tokens.ids.shape[1]
        fresh = sum(min(self.lengths[place], width - start) for place in self.going)
        with torch.no_grad():
            if self.begun is not None and self.begun[0].site is not None and start == 0:
                logits = self._after_stem(*self.begun, last)
            else:
                logits = self._pass(self.edits, self._shadow(), last)
        self.forward_tokens += fresh
        self.shadow_tokens += fresh if self.observed_sites else 0
        if self.use_cache:
            self.done_columns = width
        return logits

    def _after_stem(self, stem: Stem, which: Tensor, last: int) -> Tensor:
        """All columns through the blocks behind the site that the stem has been run to."""
        site, hidden = stem.site, stem.hidden
        assert site is not None
        assert hidden is not None
        edits = [edit for edit in self.edits if self.lm.site(edit.site) >= site]
        observed = {seen: acts[which] for seen, acts in stem.observed.items()}
        with resumed(self.lm.model, self.lm.layout, site, hidden[which]):
            logits = self._pass(edits, observed, last)
        stem.fill(self.cache, which)
        return logits

    def _pass(self, edits: Sequence[Edit], observed: Mapping[Site, Tensor], last: int) -> Tensor:
        view = self._view(observed)
        with hooked(self.lm.model, self.lm.layout, edits=edits, view=view, capture={}, stop_after=None):
            output = self._run(self.cache, last)
        logits: Tensor = output.logits[:, -last:]
        return logits

    def _shadow(self) -> Mapping[Site, Tensor]:
        if not self.observed_sites:
            return {}
        kept: dict[Site, list[Tensor]] = {site: [] for site in self.observed_sites}
        with hooked(
            self.lm.model,
            self.lm.layout,
            edits=(),
            view=self._view({}),
            capture=kept,
            stop_after=self.observed_sites[-1],
        ):
            self._run(self.shadow_cache, 1)
        return {site: values[-1] for site, values in kept.items()}

    def _run(self, cache: Any, last: int) -> Any:
        """The plain call for the columns that are not in the cache yet."""
        start, width = self.done_columns, self.tokens.ids.shape[1]
        # Known here, so that no device is asked.
        padded = min(self.lengths) < width
        return self.lm.run(
            self.tokens.ids[:, start:],
            use_cache=self.use_cache,
            real=self.tokens.real if padded else None,
            positions=self.positions[:, start:],
            last_logits=last,
            cache=cache,
        )

    def _view(self, observed: Mapping[Site, Tensor]) -> EditView:
        start, rows = self.done_columns, len(self.rows)
        columns = torch.arange(start, self.tokens.ids.shape[1], device=self.lm.device)
        return EditView(
            real=self.tokens.real[:, start:],
            positions=self.positions[:, start:],
            generated=(columns >= self.prompt_columns).expand(rows, -1),
            start=start,
            observed=observed,
            memo={},
            rows=self._index,
        )
