"""Summaries of the core task from its per-row items; no torch.

Every metric is a function of sums over documents, so its interval is a bootstrap over documents of exactly the
published statistic, and no number depends on how tokens were batched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from latentbench.stats import Estimate, Units, bootstrap, count_reaching, subsample_count, unscored
from latentbench.store import Curve, Metric
from latentbench_tasks.core.routes import route_shares

__all__ = ["recompute", "summarise", "units"]

Floats = NDArray[np.float64]
_SCALARS = ("tokens", "scored", "l0", "ce", "ce_spliced", "ce_zero", "ce_mean", "kl", "rows")
_SPACES = {
    "raw": "in raw activations",
    "input": "after the input transform (and, for routed dictionaries, the scaling by the route's probability)",
}


class _Definition(NamedTuple):
    name: str
    statistic: Callable[[Floats], Floats]
    unit: str
    direction: Literal["higher", "lower", "none"]
    note: str
    headline: bool = False


def summarise(
    items: list[dict[str, Any]], rng: np.random.Generator, *, dense_above: float
) -> tuple[list[Metric], list[Curve], dict[str, int]]:
    """Metrics, curves and counts of a cell.

    Args:
        items: the watcher's items, in any order.
        rng: source of the bootstrap's draws.
        dense_above: share of tokens above which a latent is called dense.
    """
    rows = [item for item in items if item["kind"] == "core"]
    if not rows:
        return (
            [_metric(d, unscored("no tokens were watched", 0)) for d in _definitions({})],
            [],
            {"tokens": 0},
        )
    rows = sorted(rows, key=lambda item: (item["document"], item["start_token"]))
    columns, units = _document_totals(rows)
    metrics = [_metric(d, bootstrap(units, d.statistic, rng)) for d in _definitions(columns)]
    tokens = sum(item["tokens"] for item in rows)
    metrics += _latent_metrics(rows, tokens, rng, dense_above)
    counts = {"documents": len(units), "rows": len(rows), "tokens": tokens}
    counts["scored_tokens"] = sum(item["scored"] for item in rows)
    routes = route_shares(rows, rng) if "routed" in rows[0] else None
    if routes is None:
        return metrics, [], counts
    return [*metrics, routes.effective], [routes.shares], counts


def units(
    items: Sequence[dict[str, Any]], _judgements: Sequence[dict[str, Any]], _config: Mapping[str, Any]
) -> Units | None:
    """The metrics that are functions of sums, by document; None without items."""
    rows = sorted(
        (item for item in items if item["kind"] == "core"),
        key=lambda item: (item["document"], item["start_token"]),
    )
    if not rows:
        return None
    columns, sums = _document_totals(rows)
    names = tuple(dict.fromkeys(item["document"] for item in rows))
    return Units(names, sums, {one.name: one.statistic for one in _definitions(columns)})


def recompute(
    items: list[dict[str, Any]],
    judgements: list[dict[str, Any]],
    config: Mapping[str, Any],
    rng: np.random.Generator,
) -> tuple[list[Metric], list[Curve], dict[str, int]]:
    """`summarise` of a stored cell, as entry points of `latentbench.metrics` are called.

    Args:
        items: what was measured.
        judgements: what was judged.
        config: the task's options, as the run record holds them.
        rng: source of the draws.
    """
    return summarise(items, rng, dense_above=config["dense_above"])


def _document_totals(rows: list[dict[str, Any]]) -> tuple[dict[str, Any], Floats]:
    """Column places by name, and `Float[unit, stat]`: the sums of each document."""
    vectors: list[str] = [name for name in ("raw_sum", "input_sum") if name in rows[0]]
    scalars = [*_SCALARS, *(n for n in rows[0] if n.startswith(("raw_", "input_")) and n not in vectors)]
    columns: dict[str, Any] = {name: place for place, name in enumerate(scalars)}
    width = len(scalars)
    for name in vectors:
        columns[name] = slice(width, width + len(rows[0][name]))
        width += len(rows[0][name])
    documents = {name: place for place, name in enumerate(dict.fromkeys(item["document"] for item in rows))}
    totals = np.zeros((len(documents), width))
    for item in rows:
        total = totals[documents[item["document"]]]
        for name in scalars:
            total[columns[name]] += 1.0 if name == "rows" else item[name]
        for name in vectors:
            total[columns[name]] += item[name]
    return columns, totals


def _definitions(columns: dict[str, Any]) -> list[_Definition]:
    def per(top: str, bottom: str) -> Callable[[Floats], Floats]:
        return lambda t: _divide(t[:, columns[top]], t[:, columns[bottom]])

    def recovered(ablated: str) -> Callable[[Floats], Floats]:
        return lambda t: _divide(
            t[:, columns[ablated]] - t[:, columns["ce_spliced"]], t[:, columns[ablated]] - t[:, columns["ce"]]
        )

    made = [
        _Definition("l0", per("l0", "tokens"), "latents/token", "none", "mean number of nonzero latents", True),
        _Definition(
            "ce_recovered", recovered("ce_zero"), "share", "higher",
            "(CE zero-ablated - CE spliced) / (CE zero-ablated - CE clean), the same positions in all three", True,
        ),
        _Definition(
            "ce_recovered_mean", recovered("ce_mean"), "share", "higher",
            "as ce_recovered, with the site's mean over calibration tokens in place of zero",
        ),
        _Definition(
            "ce_increase", lambda t: per("ce_spliced", "scored")(t) - per("ce", "scored")(t), "nats/token",
            "lower", "CE spliced - CE clean",
        ),
        _Definition("ce_clean", per("ce", "scored"), "nats/token", "none", "CE of the unedited model"),
        _Definition("ce_zero", per("ce_zero", "scored"), "nats/token", "none", "CE with the positions zeroed"),
        _Definition(
            "kl", per("kl", "scored"), "nats/token", "lower", "KL(clean || spliced), mean over scored tokens"
        ),
        _Definition(
            "kl_per_sequence", per("kl", "rows"), "nats/row", "lower",
            "KL(clean || spliced) summed over a row's scored tokens, mean over rows (RouteSAE's reduction, "
            "without its padding; depends on the context length)",
        ),
    ]  # fmt: skip
    for space, words in _SPACES.items():
        made += [
            _Definition(
                "explained_variance" if space == "raw" else f"explained_variance_{space}",
                partial(_explained, columns, space),
                "share", "higher",
                f"1 - squared error / squared distance from the mean activation of these tokens, {words}",
                space == "raw",
            ),
            _Definition(
                "normalised_mse" if space == "raw" else f"normalised_mse_{space}",
                per(f"{space}_ratio", "tokens"), "ratio", "lower",
                f"mean over tokens of squared error / squared norm, not centred, {words}",
            ),
            _Definition(
                "cosine" if space == "raw" else f"cosine_{space}", per(f"{space}_cosine", "tokens"), "cosine",
                "higher", f"mean cosine of activation and reconstruction, {words}",
            ),
            _Definition(
                "l2_ratio" if space == "raw" else f"l2_ratio_{space}", per(f"{space}_l2_ratio", "tokens"),
                "ratio", "none", f"mean norm of the reconstruction / norm of the activation, {words}",
            ),
        ]  # fmt: skip
    return made


def _explained(columns: dict[str, Any], space: str, totals: Floats) -> Floats:
    return 1 - _divide(totals[:, columns[f"{space}_error"]], _variance(totals, columns, space))


def _variance(totals: Floats, columns: dict[str, Any], space: str) -> Floats:
    """Summed squared distance from the mean: sum |x|^2 - |sum x|^2 / n."""
    sums = totals[:, columns[f"{space}_sum"]]
    return totals[:, columns[f"{space}_square"]] - _divide(
        (sums**2).sum(axis=1), totals[:, columns["tokens"]]
    )


def _divide(top: Floats, bottom: Floats) -> Floats:
    empty = bottom == 0
    return np.where(empty, np.nan, top / np.where(empty, 1.0, bottom))


def _metric(definition: _Definition, estimate: Estimate) -> Metric:
    return Metric.from_estimate(
        definition.name,
        estimate,
        resampling_unit="document",
        unit=definition.unit,
        direction=definition.direction,
        note=definition.note,
        headline=definition.headline,
    )


def _latent_metrics(
    rows: list[dict[str, Any]], tokens: int, rng: np.random.Generator, dense_above: float
) -> list[Metric]:
    """Shares of latents that never fired, and that fire on too many tokens."""
    n_latents = rows[0]["n_latents"]
    if not n_latents:
        return _without_latents(len({item["document"] for item in rows}))
    names = {name: place for place, name in enumerate(dict.fromkeys(item["document"] for item in rows))}
    active = np.zeros(n_latents, dtype=np.int64)
    pairs: set[tuple[int, int]] = set()
    for item in rows:
        active[item["latents"]] += np.asarray(item["active"], dtype=np.int64)
        pairs.update((names[item["document"]], latent) for latent in item["latents"])
    unit, latent = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2).T
    alive = count_reaching(unit, latent, len(names), n_latents)
    live = subsample_count(len(names), alive, rng, maximum=n_latents)
    note = f"latents that were never active on {tokens:,} tokens; falls as more are watched"
    dead = _complement(live, n_latents)
    dense = float((active > dense_above * tokens).sum()) / n_latents
    return [
        Metric.from_estimate(
            "dead_latents", dead, resampling_unit="document", unit="share", direction="lower", note=note
        ),
        Metric(
            name="dense_latents",
            value=dense,
            n=len(names),
            resampling_unit="document",
            unit="share",
            direction="lower",
            note=f"latents active on more than {dense_above:.0%} of the tokens; no interval is given",
        ),
    ]


def _without_latents(documents: int) -> list[Metric]:
    """A dictionary without latents (the mean) has no share of them."""
    reason = unscored("the dictionary has no latents", documents)
    return [
        Metric.from_estimate(
            name,
            reason,
            resampling_unit="document",
            unit="share",
            direction="lower",
            note="a share of its latents",
        )
        for name in ("dead_latents", "dense_latents")
    ]


def _complement(live: Estimate, total: int) -> Estimate:
    if live.value is None:
        return live
    low = None if live.high is None else 1 - live.high / total
    high = None if live.low is None else 1 - live.low / total
    return Estimate(1 - live.value / total, low, high, live.level, live.method, live.n)
