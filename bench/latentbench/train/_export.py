"""From a trainee to a dictionary and its card."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from latentbench.adapters import (
    Crosscoder,
    CrosscoderWeights,
    Dictionary,
    DictionaryCard,
    Gate,
    GatedGate,
    JumpReluGate,
    ReluGate,
    RouteSae,
    SaeWeights,
    SparseAutoencoder,
    TopKGate,
)
from latentbench.lm import LM, Site
from latentbench.train._coders import GatedCoder, JumpReluCoder
from latentbench.train._readers import RandomSite, Routed
from latentbench.train._stream import STANDARDISE
from latentbench.train._trainees import Trainee, one_site, spaced_sites

__all__ = ["export"]


def export(
    trainee: Trainee, lm: LM, sites: tuple[Site, ...], source: str, training: dict[str, Any]
) -> Dictionary:
    """A frozen dictionary with the present weights.

    Args:
        trainee: what was trained.
        lm: the model it reads.
        sites: the routed sites.
        source: name of the recipe.
        training: the record of the training, for the card.
    """
    reads = _reads(trainee, sites)
    card = DictionaryCard(
        name=trainee.name,
        family="routesae" if trainee.unit.spec.kind == "random" else trainee.unit.spec.kind,
        reads=tuple(map(str, reads)),
        writes=tuple(map(str, reads)),
        d_model=lm.d_model,
        n_latents=trainee.coder.w_enc.shape[0],
        nominal_l0=float(trainee.unit.k),
        normalisation="standardise",
        options=_options(trainee, sites),
        lm=lm.name,
        source=source,
        training=training,
    )
    parts = {name: value.detach().clone() for name, value in trainee.coder.named_parameters()}
    gate = _gate(trainee, parts)
    if trainee.unit.spec.kind == "crosscoder":
        return Crosscoder(card, _crosscoder_weights(parts, len(reads)), gate, STANDARDISE)
    weights = SaeWeights(parts["w_enc"], parts["b_enc"], parts["w_dec"], parts["b_pre"], parts["b_pre"])
    reader = trainee.reader
    if not isinstance(reader, Routed | RandomSite):
        return SparseAutoencoder(card, weights, gate, STANDARDISE)
    inner = card.model_copy(update={"reads": card.reads[:1], "writes": card.writes[:1]})
    sae = SparseAutoencoder(inner, weights, gate, STANDARDISE)
    pooling: Literal["sum", "mean"] = reader.pooling if isinstance(reader, Routed) else "sum"
    routing = reader.routing if isinstance(reader, Routed) else "random"
    return RouteSae(card, reader.router.detach().clone(), sae, pooling, "corrected", routing)


def _reads(trainee: Trainee, sites: tuple[Site, ...]) -> tuple[Site, ...]:
    kind = trainee.unit.spec.kind
    if kind in ("routesae", "random"):
        return sites
    if kind == "crosscoder":
        return tuple(sites[index] for index in spaced_sites(len(sites), trainee.unit.spec.n_sites))
    if kind == "mlsae":
        return sites[-1:]
    return (sites[one_site(trainee.unit.spec.site, len(sites))],)


def _options(trainee: Trainee, sites: tuple[Site, ...]) -> dict[str, Any]:
    kind, reader = trainee.unit.spec.kind, trainee.reader
    if isinstance(reader, Routed):
        return {"pooling": reader.pooling, "routing": reader.routing, "splice": "corrected"}
    if kind == "random":
        return {"pooling": "sum", "routing": "random", "splice": "corrected"}
    return {"sites": list(map(str, sites))} if kind == "mlsae" else {}


def _gate(trainee: Trainee, parts: dict[str, Tensor]) -> Gate:
    if isinstance(trainee.coder, JumpReluCoder):
        return JumpReluGate(parts["threshold"])
    if isinstance(trainee.coder, GatedCoder):
        return GatedGate(parts["b_gate"], parts["r_mag"], parts["b_mag"])
    if trainee.unit.spec.kind in ("relu", "crosscoder"):
        return ReluGate()
    return TopKGate(trainee.unit.k, rectify=False)


def _crosscoder_weights(parts: dict[str, Tensor], n_sites: int) -> CrosscoderWeights:
    latents = len(parts["b_enc"])
    by_site = {
        name: parts[name].view(latents, n_sites, -1).transpose(0, 1).contiguous()
        for name in ("w_enc", "w_dec")
    }
    return CrosscoderWeights(
        w_enc=by_site["w_enc"],
        b_enc=parts["b_enc"],
        w_dec=by_site["w_dec"],
        b_dec=parts["b_pre"].view(n_sites, -1),
        b_pre=None,
    )
