"""The core task: how sparse a dictionary is, how well it reconstructs, and what splicing it in costs the model.

The clean pass is the runner's shared one; the ablated passes are shared by all dictionaries that write the same
sites; only the spliced suffix is run once per dictionary. Position 0 of every row and padding are left out of
encoding, editing, ablation and every average alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from latentbench.adapters import Codes, Reconstruction, splice_edits, written_masks
from latentbench.errors import UserError
from latentbench.lm import LM, Edit, MapActivation, Site
from latentbench.run import CellSetup, Item, Summary, Task, TaskConfig, WatchedBatch, Watcher, stream_acts
from latentbench_tasks.core.metrics import recompute

__all__ = ["CoreConfig", "CoreTask"]

_CHUNKS = {"cpu": 32}
"""Scored tokens whose vocabulary-sized temporaries exist at once, by device: few enough to stay in the CPU's
caches and to reuse their memory."""
_CHUNK = 512
"""The same on any other device."""


class CoreConfig(TaskConfig):
    """Options of the core task."""

    budget_tokens: int = Field(default=4096, gt=0)
    """Measured tokens of the test split."""
    calibration_tokens: int = Field(default=4096, gt=0)
    """Tokens of the calibration split whose mean activation the mean ablation writes."""
    dense_above: float = Field(default=0.1, gt=0, lt=1)
    """A latent is called dense if it is active on more than this share of the tokens."""


class _Losses(NamedTuple):
    """Losses of one pass at the scored tokens."""

    ce: Tensor
    """`Float[Tensor, "scored"]`: cross-entropy of the next token, nats."""
    kl: Tensor
    """`Float[Tensor, "scored"]`: KL(clean || this pass), nats."""


class _Clean(NamedTuple):
    """The clean pass at the scored tokens."""

    scored: Tensor
    """`Bool[Tensor, "row pos"]`: measured tokens that have a next token in their row."""
    logits: Tensor
    """`Float[Tensor, "scored vocab"]`."""
    probabilities: Tensor
    """`Float[Tensor, "scored vocab"]`."""
    log_total: Tensor
    """`Float[Tensor, "scored"]`: log-sum-exp of the logits."""
    targets: Tensor
    """`Int64[Tensor, "scored"]`: the next tokens."""


class CoreTask(Task):
    """See the module."""

    name: ClassVar[str] = "core"
    version: ClassVar[str] = "2"
    Config: ClassVar[type[TaskConfig]] = CoreConfig
    config: CoreConfig

    def watcher(self, setup: CellSetup) -> Watcher:
        """See `Task.watcher`."""
        return _CoreWatcher(setup, self.config)

    def summarise(self, items: list[Item], judgements: list[Item], rng: np.random.Generator) -> Summary:
        """See `Task.summarise`."""
        return Summary(*recompute(items, judgements, self.config.model_dump(mode="json"), rng))

    def tokens(self) -> int:
        """See `Task.tokens`: one spliced pass; the clean and ablated ones are shared."""
        return self.config.budget_tokens


class _CoreWatcher(Watcher):
    needs_logits = True

    def __init__(self, setup: CellSetup, config: CoreConfig) -> None:
        self.budget_tokens = config.budget_tokens
        self._setup = setup
        self._config = config

    def watch(self, batch: WatchedBatch, codes: Codes) -> list[Item]:
        """See `Watcher.watch`."""
        dictionary = batch.dictionary
        clean = batch.once("core:clean", lambda: _clean(batch))
        masks = written_masks(dictionary, codes, batch.measured)
        spliced = _pass(batch, clean, splice_edits(dictionary, codes, batch.measured))
        zero = self._ablated(batch, clean, masks, "zero", lambda _site: None)
        mean = self._ablated(batch, clean, masks, f"mean:{self._config.calibration_tokens}", self._mean)
        clean_ce = clean.log_total - clean.logits.gather(1, clean.targets[:, None])[:, 0]
        per_token = {"l0": codes.counts().double()}
        for space, pair in dictionary.reconstructions(batch.flat_acts(), codes).items():
            per_token |= _errors(space, pair)
        per_scored = {
            "ce": clean_ce,
            "ce_spliced": spliced.ce,
            "ce_zero": zero.ce,
            "ce_mean": mean.ce,
            "kl": spliced.kl,
        }
        items = _items(batch, codes, per_token, per_scored, clean.scored)
        return _with_routes(items, batch, codes)

    def _ablated(
        self,
        batch: WatchedBatch,
        clean: _Clean,
        masks: dict[Site, Tensor],
        kind: str,
        value: Callable[[Site], Tensor | None],
    ) -> _Losses:
        """Losses with the written positions set to zero or to the site's mean; shared where the masks are."""

        def run() -> _Losses:
            edits: list[Edit] = [
                MapActivation(site, _fill(value(site)), mask, skip_first=0) for site, mask in masks.items()
            ]
            return _pass(batch, clean, edits)

        if all(
            mask is batch.measured for mask in masks.values()
        ):  # unrouted: the same for every such dictionary
            return batch.once(f"core:{kind}:{','.join(map(str, masks))}", run)
        return run()

    def _mean(self, site: Site) -> Tensor:
        setup, wanted = self._setup, self._config.calibration_tokens
        sites = sorted({*setup.dictionary.writes})
        key = f"core:mean:{wanted}:{','.join(map(str, sites))}"
        means = setup.shared.once(key, lambda: _mean_activations(setup, sites, wanted))
        return means[site]


def _fill(vector: Tensor | None) -> Callable[[Tensor, Tensor], Tensor]:
    def fill(acts: Tensor, _index: Tensor) -> Tensor:
        return torch.zeros_like(acts) if vector is None else vector.to(acts).expand_as(acts)

    return fill


def _clean(batch: WatchedBatch) -> _Clean:
    assert batch.logits is not None
    scored = batch.measured.clone()
    scored[:, :-1] &= batch.tokens.real[:, 1:]
    scored[:, -1] = False
    targets = batch.tokens.ids.roll(-1, dims=1)[scored]
    logits = _wide(batch.logits[scored])
    total = logits.logsumexp(dim=1)
    return _Clean(scored, logits, (logits - total[:, None]).exp_(), total, targets)


def _pass(batch: WatchedBatch, clean: _Clean, edits: list[Edit]) -> _Losses:
    """Losses of a pass that resumes from the first edited site."""
    lm: LM = batch.lm
    first = min(edit.site for edit in edits)
    resume = (first, batch.acts[first]) if first.kind == "resid_post" else None
    logits = lm.forward(batch.tokens, edits=edits, resume=resume).logits
    assert logits is not None
    return _losses(logits, clean)


def _losses(logits: Tensor, clean: _Clean) -> _Losses:
    """Cross-entropy and KL at the scored tokens, in chunks.

    KL = lse(q) - lse(p) - sum p (q - p) over logits q and p: no logarithm of a probability is taken, so it stays
    finite on logits so peaked that probabilities underflow, and nothing cancels where q is close to p.
    """
    flat = logits.flatten(0, 1)
    places = clean.scored.flatten().nonzero()[:, 0]
    size = _CHUNKS.get(flat.device.type, _CHUNK)
    ce, kl = [], []
    for start in range(0, len(places), size):
        part = slice(start, start + size)
        here = _wide(flat[places[part]])
        total = here.logsumexp(dim=1)
        ce.append(total - here.gather(1, clean.targets[part, None])[:, 0])
        moved = (here.sub_(clean.logits[part]).mul_(clean.probabilities[part])).sum(dim=1)
        kl.append((total - clean.log_total[part] - moved).clamp(min=0))
    none = clean.log_total[:0]  # rows of two tokens have nothing to score
    return _Losses(torch.cat([none, *ce]), torch.cat([none, *kl]))


def _wide(logits: Tensor) -> Tensor:
    """At least float32: sums over a vocabulary are not for half precision."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _errors(space: str, pair: Reconstruction) -> dict[str, Tensor]:
    """Per-token sufficient statistics of every error metric in one space, float64."""
    target, predicted = pair.target.double(), pair.prediction.double()
    error = (predicted - target).square().sum(dim=1)
    square = target.square().sum(dim=1)
    norms, predicted_norms = square.sqrt(), predicted.norm(dim=1)
    tiny = torch.finfo(torch.float64).tiny
    return {
        f"{space}_error": error,
        f"{space}_square": square,
        f"{space}_ratio": error / square.clamp(min=tiny),
        f"{space}_cosine": (target * predicted).sum(dim=1) / (norms * predicted_norms).clamp(min=tiny),
        f"{space}_l2_ratio": predicted_norms / norms.clamp(min=tiny),
        f"{space}_sum": target,
    }


def _items(
    batch: WatchedBatch,
    codes: Codes,
    per_token: dict[str, Tensor],
    per_scored: dict[str, Tensor],
    scored: Tensor,
) -> list[Item]:
    """One item a row: sums over its tokens, and how often each latent was active."""
    n_rows = len(batch.rows)
    token_row = batch.token_rows().cpu()
    scored_row = scored.nonzero()[:, 0].cpu()
    sums = {name: _row_sums(value, token_row, n_rows) for name, value in per_token.items()}
    sums |= {name: _row_sums(value, scored_row, n_rows) for name, value in per_scored.items()}
    tokens = torch.bincount(token_row, minlength=n_rows).tolist()
    scored_tokens = torch.bincount(scored_row, minlength=n_rows).tolist()
    entry_row = token_row[codes.rows().cpu()]
    pairs, counts = torch.unique(entry_row * codes.n_latents + codes.latents.cpu(), return_counts=True)
    items: list[Item] = []
    for row in range(n_rows):
        inside = slice(*torch.searchsorted(pairs, torch.tensor([row, row + 1]) * codes.n_latents).tolist())
        items.append(
            {
                "kind": "core",
                "row": row,
                "tokens": tokens[row],
                "scored": scored_tokens[row],
                "n_latents": codes.n_latents,
                "latents": (pairs[inside] - row * codes.n_latents).tolist(),
                "active": counts[inside].tolist(),
                **{name: value[row].tolist() for name, value in sums.items()},
            }
        )
    return items


def _with_routes(items: list[Item], batch: WatchedBatch, codes: Codes) -> list[Item]:
    """The items, of a routed dictionary with the tokens of each row that went to each site."""
    route = batch.dictionary.routed(codes)
    if route is None:
        return items
    sites = [str(site) for site in batch.dictionary.reads]
    key = batch.token_rows().cpu() * len(sites) + route.cpu()
    counts = torch.bincount(key, minlength=len(items) * len(sites)).view(len(items), len(sites)).tolist()
    return [
        {**item, "routed": dict(zip(sites, count, strict=True))}
        for item, count in zip(items, counts, strict=True)
    ]


def _row_sums(values: Tensor, rows: Tensor, n_rows: int) -> Tensor:
    values = values.detach().double().cpu()
    return values.new_zeros((n_rows, *values.shape[1:])).index_add_(0, rows, values)


def _mean_activations(setup: CellSetup, sites: list[Site], wanted: int) -> dict[Site, Tensor]:
    """Mean activation of each site over calibration tokens, `Float64[Tensor, "d"]`."""
    totals = {site: torch.zeros(setup.lm.d_model, dtype=torch.float64) for site in sites}
    count = 0
    for acts in stream_acts(setup.load_split("calibrate"), setup.lm, setup.tokens, sites, wanted):
        count += len(acts[sites[0]])
        for site in sites:
            totals[site] += acts[site].double().sum(dim=0).cpu()
    if not count:
        raise UserError("the calibration split holds no measured token: there is no mean to ablate to")
    return {site: total / count for site, total in totals.items()}
