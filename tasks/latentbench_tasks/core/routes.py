"""Where a routed dictionary sends its tokens: the router's histogram; no torch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from latentbench.stats import bootstrap
from latentbench.store import Curve, CurvePoint, Metric

__all__ = ["Routes", "route_shares"]

Floats = NDArray[np.float64]


class Routes(NamedTuple):
    """The router's histogram."""

    shares: Curve
    """Share of the tokens by layer."""
    effective: Metric
    """How many layers it comes to."""


def route_shares(rows: Sequence[dict[str, Any]], rng: np.random.Generator) -> Routes:
    """Share of the tokens that go to each site, and the number of equally used sites with the same entropy.

    Args:
        rows: items whose `routed` maps each site to its tokens, such as {"resid_post.7": 12}.
        rng: source of the bootstrap's draws.
    """
    sites = list(rows[0]["routed"])
    documents = {name: place for place, name in enumerate(dict.fromkeys(item["document"] for item in rows))}
    totals = np.zeros((len(documents), len(sites)))
    for item in rows:
        totals[documents[item["document"]]] += [item["routed"][site] for site in sites]
    points = []
    for place, site in enumerate(sites):
        share = bootstrap(totals, partial(_share, place), rng)
        points.append(
            CurvePoint(x=float(site.rsplit(".", 1)[1]), value=share.value, low=share.low, high=share.high)
        )
    return Routes(
        Curve(
            name="route_shares",
            x_name="layer",
            x_unit="layer",
            unit="share",
            points=points,
            note="share of the measured tokens that are routed to each layer; bootstrap over documents",
        ),
        Metric.from_estimate(
            "effective_layers",
            bootstrap(totals, _effective, rng),
            resampling_unit="document",
            unit="layers",
            direction="none",
            note="exponential of the entropy (nats) of the router's histogram: equally used layers that it comes to",
        ),
    )


def _share(place: int, totals: Floats) -> Floats:
    return _shares(totals)[:, place]


def _shares(totals: Floats) -> Floats:
    whole: Floats = totals.sum(axis=1, keepdims=True)
    shares: Floats = np.where(whole == 0, np.nan, totals / np.where(whole == 0, 1.0, whole))
    return shares


def _effective(totals: Floats) -> Floats:
    shares = _shares(totals)
    logs = np.log(np.where(shares > 0, shares, 1.0))
    effective: Floats = np.exp(-(shares * logs).sum(axis=1))
    return effective
