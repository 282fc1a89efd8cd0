"""Our own format: NAME.safetensors beside NAME.json, the card with everything needed to load it again."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from pathlib import Path
from typing import get_args

import torch
from pydantic import ValidationError
from safetensors.torch import save_file
from torch import Tensor

from latentbench.adapters._card import DictionaryCard
from latentbench.adapters._crosscoder import Crosscoder, CrosscoderWeights
from latentbench.adapters._dictionary import Dictionary
from latentbench.adapters._format import Format, LoadOptions
from latentbench.adapters._gates import (
    AbsTopKGate,
    Gate,
    GatedGate,
    JumpReluGate,
    ReluGate,
    ThresholdGate,
    TopKGate,
)
from latentbench.adapters._routesae import RouteSae, Routing
from latentbench.adapters._sae import SaeWeights, SparseAutoencoder
from latentbench.adapters._transforms import TRANSFORM_KINDS, InputTransform
from latentbench.adapters.formats._tensors import read_tensors
from latentbench.errors import AdapterError
from latentbench.identity import sha256_file
from latentbench.lm import Site

__all__ = ["FORMAT", "NativeFormat", "save_dictionary"]


class NativeFormat:
    """See the module."""

    def recognise(self, path: Path) -> str | None:
        """See `Format.recognise`."""
        weights, card = _files(path)
        if weights.is_file() and card.is_file():
            return f"{weights.name} with its card {card.name}"
        return None

    def load(self, path: Path, options: LoadOptions) -> Dictionary:
        """See `Format.load`."""
        weights_file, card_file = _files(path)
        card = read_card(card_file)
        found = sha256_file(weights_file)
        if card.sha256 and card.sha256 != found:
            raise AdapterError(
                f"{weights_file.name} has sha256 {found[:12]}..., but its card says {card.sha256[:12]}...: "
                "the weights were changed after the card was written; get both from one place again"
            )
        return build(card.model_copy(update={"sha256": found}), read_tensors(weights_file), options)


FORMAT: Format = NativeFormat()


def read_card(path: Path) -> DictionaryCard:
    """The card in a JSON file.

    Raises:
        AdapterError: the file is no card; the first thing wrong with it is named.
    """
    try:
        return DictionaryCard.model_validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise AdapterError(f"{path.name} is no dictionary card: {where}: {first['msg']}") from error


def build(card: DictionaryCard, tensors: dict[str, Tensor], options: LoadOptions) -> Dictionary:
    """A dictionary from its card and float32 tensors."""
    _check_family(card, options)
    needed = {"w_enc", "b_enc", "w_dec", "b_dec"} | ({"router"} if card.family == "routesae" else set())
    missing = sorted(needed - set(tensors))
    if missing:
        raise AdapterError(
            f"checkpoint of {card.name!r} lacks {', '.join(missing)}; it holds {', '.join(tensors)}"
        )
    if card.normalisation not in TRANSFORM_KINDS:
        raise AdapterError(
            f"card of {card.name!r} names normalisation {card.normalisation!r}; known: "
            f"{', '.join(TRANSFORM_KINDS)}"
        )
    transform = InputTransform(card.normalisation, card.options.get("eps", 1e-6))
    gate = _gate(card, tensors)
    card = _at_site(card, options.site)
    if card.family == "crosscoder":
        several = CrosscoderWeights(
            tensors["w_enc"], tensors["b_enc"], tensors["w_dec"], tensors["b_dec"], tensors.get("b_pre")
        )
        return Crosscoder(card, several, gate, transform)
    weights = SaeWeights(
        tensors["w_enc"],
        tensors["b_enc"],
        tensors["w_dec"],
        tensors["b_dec"],
        tensors.get("b_pre"),
        tensors.get("skip"),
    )
    if card.family != "routesae":
        return SparseAutoencoder(card, weights, gate, transform)
    chosen = dict(card.options)
    if options.mode is not None:
        chosen["splice"] = options.mode
    if chosen.get("routing", "hard") not in get_args(Routing):
        raise AdapterError(
            f"card of {card.name!r} names routing {chosen['routing']!r}; known: {', '.join(get_args(Routing))}"
        )
    card = card.model_copy(update={"options": chosen})
    inner = card.model_copy(update={"reads": card.reads[:1], "writes": card.writes[:1]})
    sae = SparseAutoencoder(inner, weights, gate, transform)
    return RouteSae(
        card,
        tensors["router"],
        sae,
        pooling=chosen.get("pooling", "sum"),
        splice=chosen.get("splice", "corrected"),
        routing=chosen.get("routing", "hard"),
    )


def _check_family(card: DictionaryCard, options: LoadOptions) -> None:
    if card.family == "temporal":
        raise AdapterError(
            f"{card.name!r} is a temporal dictionary: its codes depend on the tokens before, and a code here is that "
            "of one token"
        )
    if options.architecture not in (None, card.family):
        raise AdapterError(
            f"{card.name!r} is a {card.family}, and {options.architecture!r} was asked for: the card says what it is, "
            "so leave the architecture out"
        )
    pooling = card.options.get("pooling", "sum") if card.family == "routesae" else None
    if options.pooling not in (None, pooling):
        raise AdapterError(
            f"{card.name!r} is a {card.family} with pooling {pooling!r}, and {options.pooling!r} was asked for: the "
            "card says what it is, so leave the pooling out"
        )


def _at_site(card: DictionaryCard, site: str | None) -> DictionaryCard:
    """The card for the asked site: one of an MLSAE's own, or the one that it names anyway."""
    if site is None:
        return card
    wanted = str(Site.parse(site))
    own = card.options.get("sites") or list(card.reads)
    if wanted not in own or (len(card.reads) > 1):
        raise AdapterError(
            f"{card.name!r} reads {', '.join(own)}, and {wanted} was asked for: leave the site out, or take another "
            "dictionary"
        )
    return card.model_copy(
        update={"reads": (wanted,), "writes": (wanted,)} if card.options.get("sites") else {}
    )


def _gate(card: DictionaryCard, tensors: dict[str, Tensor]) -> Gate:
    kind = card.options.get("gate")
    if kind == "topk":
        return TopKGate(int(card.options["k"]), rectify=bool(card.options["rectify"]))
    if kind == "abstopk":
        return AbsTopKGate(int(card.options["k"]))
    if kind == "relu":
        return ReluGate()
    if kind == "threshold":
        return ThresholdGate(float(card.options["threshold"]))
    if kind == "jumprelu" and "threshold" in tensors:
        return JumpReluGate(tensors["threshold"])
    if kind == "gated" and {"b_gate", "r_mag", "b_mag"} <= set(tensors):
        return GatedGate(tensors["b_gate"], tensors["r_mag"], tensors["b_mag"])
    raise AdapterError(
        f"card of {card.name!r} names gate {kind!r}, and the weights hold {', '.join(tensors)}; known: topk, "
        "abstopk, relu, threshold, jumprelu (with a threshold), gated (with b_gate, r_mag and b_mag)"
    )


def save_dictionary(
    folder: Path, name: str, dictionary: Dictionary, dtype: torch.dtype = torch.float16
) -> Path:
    """Write NAME.safetensors and NAME.json, each by atomic rename, the card last.

    Args:
        folder: where to write; made if missing.
        name: file stem.
        dictionary: an SAE, transcoder, crosscoder or RouteSAE of this package.
        dtype: type of the weights on disk; what a gate has for each latent stays at least in float32.

    Returns:
        The path of the weights.

    Raises:
        AdapterError: the dictionary is of a family that this format can't hold, or its weights exceed the type.
    """
    sae = dictionary.sae if isinstance(dictionary, RouteSae) else dictionary
    if not isinstance(sae, SparseAutoencoder | Crosscoder):
        raise AdapterError(
            f"{dictionary.card.name!r} is a {dictionary.card.family}: there are no weights to save"
        )
    if sae.gate.core is not sae.gate:
        raise AdapterError(
            f"{dictionary.card.name!r} has the gate {sae.gate.describe()['gate']!r}, which no checkpoint holds: save "
            "what it was made from"
        )
    tensors = _tensors(dictionary, sae, dtype)
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{name}.safetensors"
    save_file(tensors, f"{target}.tmp")
    os.replace(f"{target}.tmp", target)
    gate = sae.gate.describe()
    card = dictionary.card.model_copy(
        update={
            "sha256": sha256_file(target),
            "options": {**dictionary.card.options, **gate, "eps": sae.transform.eps},
        }
    )
    text = json.dumps(card.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"
    partial = folder / f"{name}.json.tmp"
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, folder / f"{name}.json")
    return target


def _tensors(
    dictionary: Dictionary, sae: SparseAutoencoder | Crosscoder, dtype: torch.dtype
) -> dict[str, Tensor]:
    held = {field.name: getattr(sae.weights, field.name) for field in fields(sae.weights)}
    if isinstance(dictionary, RouteSae):
        held["router"] = dictionary.router
    # Cloned: the pre-bias and the decoder bias may be one tensor, and safetensors refuses shared memory.
    found = {
        key: value.detach().to("cpu", dtype).clone().contiguous()
        for key, value in held.items()
        if value is not None
    }
    for key, value in found.items():
        if value.numel() and not bool(torch.isfinite(value).all()):
            raise AdapterError(
                f"weight {key} of {dictionary.card.name!r} holds numbers that {dtype} can't: save it in float32"
            )
    # Latents near their threshold flip if it is rounded, and these take little room.
    exact = torch.promote_types(dtype, torch.float32)
    gate = {key: value.detach().to("cpu", exact).clone() for key, value in sae.gate.tensors().items()}
    return found | gate


def _files(path: Path) -> tuple[Path, Path]:
    """Weights and card for a path to either, or to a folder that holds one such pair."""
    if path.is_dir():
        pairs = [file for file in sorted(path.glob("*.safetensors")) if file.with_suffix(".json").is_file()]
        path = pairs[0] if len(pairs) == 1 else path / "dictionary.safetensors"
    return path.with_suffix(".safetensors"), path.with_suffix(".json")
