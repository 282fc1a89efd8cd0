"""dictionary_learning of GitHub's saprmarks: a folder with `ae.pt` and `config.json`, and a fork's crosscoders.

Two orientations occur: AutoEncoder, AutoEncoderNew, GatedAutoEncoder, AutoEncoderTopK and BatchTopKSAE are made of
nn.Linear (`encoder.weight` [latent, d], `decoder.weight` [d, latent]); JumpReluAutoEncoder and
MatryoshkaBatchTopKSAE hold `W_enc` [d, latent] and `W_dec` [latent, d]. AutoEncoderNew and JumpReluAutoEncoder have
no pre-bias. An AutoEncoder's codes are multiplied by its decoder norms, as its `from_pretrained` does. BatchTopK
families are used with the threshold they store, so that a code does not depend on the batch. Source:
dictionary_learning 0.1.0.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from latentbench.adapters._card import DictionaryCard
from latentbench.adapters._dictionary import Dictionary
from latentbench.adapters._format import Format, LoadOptions
from latentbench.adapters._gates import Gate, GatedGate, JumpReluGate, ReluGate, TopKGate
from latentbench.adapters._sae import SaeWeights, SparseAutoencoder
from latentbench.adapters._transforms import InputTransform
from latentbench.adapters.formats._dl_crosscoder import (
    CROSSCODERS,
    Checkpoint,
    build_crosscoder,
    threshold_gate,
)
from latentbench.adapters.formats._sites import Place, block_input, parse_site, settle
from latentbench.adapters.formats._tensors import (
    Shape,
    read_json,
    read_weights,
    require,
    tensor_shapes,
)
from latentbench.errors import AdapterError, unknown_name
from latentbench.identity import sha256_file
from latentbench.lm import Site

__all__ = ["FORMAT", "DictionaryLearningFormat"]

_CONFIG = "config.json"
_NAMES = ("ae.pt", "ae_final.pt", "model_final.pt", "model.safetensors")
_FAMILIES = {
    "AutoEncoder": "relu",
    "AutoEncoderNew": "relu",
    "GatedAutoEncoder": "gated",
    "JumpReluAutoEncoder": "jumprelu",
    "AutoEncoderTopK": "topk",
    "BatchTopKSAE": "batchtopk",
    "MatryoshkaBatchTopKSAE": "matryoshka",
    **dict.fromkeys(CROSSCODERS, "crosscoder"),
}
_BY_ARCHITECTURE = {
    "relu": "AutoEncoder",
    "gated": "GatedAutoEncoder",
    "jumprelu": "JumpReluAutoEncoder",
    "topk": "AutoEncoderTopK",
    "batchtopk": "BatchTopKSAE",
    "matryoshka": "MatryoshkaBatchTopKSAE",
    "crosscoder": "CrossCoder",
}
_LINEAR = {"encoder.weight", "decoder.weight"}
_SIGNATURES: tuple[tuple[str, set[str]], ...] = (
    ("GatedAutoEncoder", _LINEAR | {"decoder_bias", "r_mag", "gate_bias", "mag_bias"}),
    ("AutoEncoder", _LINEAR | {"encoder.bias", "bias"}),
    ("MatryoshkaBatchTopKSAE", {"W_enc", "b_enc", "W_dec", "b_dec", "group_sizes"}),
)
"""Keys that no other format has together, the first that fits."""


class DictionaryLearningFormat:
    """See the module."""

    def recognise(self, path: Path) -> str | None:
        """See `Format.recognise`."""
        weights = _weights_file(path)
        if weights is None:
            return None
        try:
            trainer = _trainer(_config(weights))
        except AdapterError:
            trainer = {}  # its message is for loading
        named = trainer.get("dict_class")
        if named is not None:
            return f"{weights.name}, and its {_CONFIG} names dict_class {named}, as dictionary_learning writes it"
        try:
            kind = _by_shapes(tensor_shapes(weights), trainer)
        except AdapterError:
            kind = None
        if kind is None and weights.name == "ae.pt":
            return "ae.pt, as dictionary_learning writes it"
        return None if kind is None else f"{weights.name} with the tensors of dictionary_learning's {kind}"

    def load(self, path: Path, options: LoadOptions) -> Dictionary:
        """See `Format.load`; `architecture` is needed where there is no config and the tensors can't tell."""
        weights = _weights_file(path)
        if weights is None:
            raise AdapterError(f"{path.name} holds none of {', '.join(_NAMES)}")
        config = _config(weights)
        trainer, buffer = _trainer(config), config.get("buffer")
        checkpoint = Checkpoint(
            file=weights.name,
            name=weights.parent.name if weights.name in _NAMES else weights.stem,
            tensors=read_weights(weights),
            trainer=trainer,
            buffer=buffer if isinstance(buffer, dict) else {},
            sha256=sha256_file(weights),
        )
        kind = _kind(checkpoint, options)
        if kind in CROSSCODERS:
            return build_crosscoder(checkpoint, kind, options)
        return _build(checkpoint, kind, options)


FORMAT: Format = DictionaryLearningFormat()


def _weights_file(path: Path) -> Path | None:
    """The weights that a path stands for, or None."""
    if path.is_dir() or path.name == _CONFIG:
        folder = path if path.is_dir() else path.parent
        found = [folder / name for name in _NAMES if (folder / name).is_file()]
        return found[0] if found else None
    return path if path.is_file() and (path.suffix in (".pt", ".pth") or path.name in _NAMES) else None


def _config(weights: Path) -> dict[str, Any]:
    """The config beside the weights, or above a folder of checkpoints; empty where there is none."""
    folders = (
        [weights.parent, weights.parent.parent] if weights.parent.name == "checkpoints" else [weights.parent]
    )
    for folder in folders:
        if (folder / _CONFIG).is_file():
            return read_json(folder / _CONFIG)
    return {}


def _trainer(config: dict[str, Any]) -> dict[str, Any]:
    """What the config says of the dictionary: under `trainer`, or all of it where the fork's hub wrote it."""
    found = config.get("trainer", config)
    return found if isinstance(found, dict) else {}


def _by_shapes(shapes: dict[str, tuple[int, ...]], trainer: dict[str, Any]) -> str | None:
    keys = {key.removeprefix("_orig_mod.") for key in shapes}
    if {"activation_dim", "dict_size"} <= set(trainer) or "code_normalization_id" in keys:
        three = len(shapes.get("encoder.weight", ())) == 3
        if three and {"encoder.bias", "decoder.weight", "decoder.bias"} <= keys:
            return "BatchTopKCrossCoder" if "threshold" in keys else "CrossCoder"
    for kind, signature in _SIGNATURES:
        if signature <= keys:
            return kind
    return None


def _kind(checkpoint: Checkpoint, options: LoadOptions) -> str:
    """The class: of the config, else of the tensors, else as asked for. What was asked must not contradict it."""
    held = {name: tuple(value.shape) for name, value in checkpoint.tensors.items()}
    said = checkpoint.trainer.get("dict_class") or _by_shapes(held, dict(checkpoint.trainer))
    if said is not None and said not in _FAMILIES:
        raise AdapterError(
            f"{_CONFIG}: key dict_class is {said!r}, and one of {', '.join(_FAMILIES)} is expected"
        )
    asked = options.architecture
    if asked is not None and asked not in _BY_ARCHITECTURE:
        raise unknown_name("architecture", asked, _BY_ARCHITECTURE)
    if said is None and asked is None:
        raise AdapterError(
            f"{checkpoint.file}: key dict_class is missing, for want of a {_CONFIG}, and the tensors "
            f"({', '.join(sorted(held))}) fit several classes: give architecture, one of "
            f"{', '.join(_BY_ARCHITECTURE)}"
        )
    if said is not None and asked is not None and _FAMILIES[said] != asked:
        raise AdapterError(
            f"{checkpoint.file}: key dict_class is {said}, which is {_FAMILIES[said]}, and {asked} was asked for"
        )
    if said is not None:
        return str(said)
    # Two classes are one architecture; their biases tell them apart.
    return "AutoEncoderNew" if asked == "relu" and "decoder.bias" in held else _BY_ARCHITECTURE[str(asked)]


def _build(checkpoint: Checkpoint, kind: str, options: LoadOptions) -> SparseAutoencoder:
    width, latents = _sizes(checkpoint, kind)
    require(checkpoint.tensors, _shapes(kind, width, latents), file=checkpoint.file)
    weights, gate = _PARTS[kind](checkpoint, options)
    site = str(_site(checkpoint, options))
    k = (
        _k(checkpoint, options)
        if kind in ("AutoEncoderTopK", "BatchTopKSAE", "MatryoshkaBatchTopKSAE")
        else None
    )
    card = DictionaryCard(
        name=checkpoint.name,
        family=_FAMILIES[kind],
        reads=(site,),
        writes=(site,),
        d_model=width,
        n_latents=latents,
        nominal_l0=None if k is None else float(k),
        options={**gate.describe(), **_groups(checkpoint, kind, latents)},
        lm=str(checkpoint.trainer.get("lm_name") or ""),
        source=checkpoint.name,
        sha256=checkpoint.sha256,
    )
    return SparseAutoencoder(card, weights, gate, InputTransform("none"))


def _shapes(kind: str, width: int | None, latents: int | None) -> dict[str, Shape]:
    """The keys of a class; sizes of None are not known yet."""
    linear: dict[str, Shape] = {"encoder.weight": (latents, width), "decoder.weight": (width, latents)}
    plain: dict[str, Shape] = {
        "W_enc": (width, latents),
        "b_enc": (latents,),
        "W_dec": (latents, width),
        "b_dec": (width,),
    }
    bias: dict[str, Shape] = {"encoder.bias": (latents,)}
    wanted: dict[str, dict[str, Shape]] = {
        "AutoEncoder": {**linear, **bias, "bias": (width,)},
        "AutoEncoderNew": {**linear, **bias, "decoder.bias": (width,)},
        "GatedAutoEncoder": {
            **linear,
            "decoder_bias": (width,),
            "r_mag": (latents,),
            "gate_bias": (latents,),
            "mag_bias": (latents,),
        },
        "JumpReluAutoEncoder": {**plain, "threshold": (latents,)},
        "AutoEncoderTopK": {**linear, **bias, "b_dec": (width,)},
        "BatchTopKSAE": {**linear, **bias, "b_dec": (width,), "threshold": ()},
        "MatryoshkaBatchTopKSAE": {**plain, "threshold": ()},
    }
    return wanted[kind]


def _sizes(checkpoint: Checkpoint, kind: str) -> tuple[int, int]:
    """Width and latents: as the config says, else as the biases are long, which can't be transposed."""
    wanted = _shapes(kind, None, None)
    require(checkpoint.tensors, dict.fromkeys(wanted), file=checkpoint.file)
    by_latent = next(key for key in ("encoder.bias", "b_enc", "gate_bias") if key in wanted)
    by_width = next(key for key in ("bias", "decoder.bias", "decoder_bias", "b_dec") if key in wanted)
    width = checkpoint.trainer.get("activation_dim") or checkpoint.tensors[by_width].numel()
    latents = checkpoint.trainer.get("dict_size") or checkpoint.tensors[by_latent].numel()
    return int(width), int(latents)


def _linear(checkpoint: Checkpoint, bias: str, *, pre_bias: bool) -> SaeWeights:
    tensors = checkpoint.tensors
    w_enc, w_dec, b_dec = tensors["encoder.weight"], tensors["decoder.weight"].T.contiguous(), tensors[bias]
    b_enc = tensors.get("encoder.bias", torch.zeros(len(w_enc)))
    return SaeWeights(w_enc, b_enc, w_dec, b_dec, b_dec if pre_bias else None)


def _plain(checkpoint: Checkpoint, *, pre_bias: bool) -> SaeWeights:
    tensors = checkpoint.tensors
    w_enc, b_dec = tensors["W_enc"].T.contiguous(), tensors["b_dec"]
    return SaeWeights(w_enc, tensors["b_enc"], tensors["W_dec"], b_dec, b_dec if pre_bias else None)


def _auto_encoder(checkpoint: Checkpoint, options: LoadOptions) -> tuple[SaeWeights, Gate]:
    weights = _linear(checkpoint, "bias", pre_bias=True)
    norms = weights.w_dec.norm(dim=1)
    if torch.allclose(norms, torch.ones_like(norms)):
        return weights, ReluGate()
    # A latent without a decoder has norm 0: its code is 0 and its row stays as it is.
    divisor = torch.where(norms > 0, norms, torch.ones(()))
    folded = SaeWeights(
        weights.w_enc * norms[:, None],
        weights.b_enc * norms,
        weights.w_dec / divisor[:, None],
        weights.b_dec,
        weights.b_pre,
    )
    return folded, ReluGate()


def _auto_encoder_new(checkpoint: Checkpoint, options: LoadOptions) -> tuple[SaeWeights, Gate]:
    return _linear(checkpoint, "decoder.bias", pre_bias=False), ReluGate()


def _gated(checkpoint: Checkpoint, options: LoadOptions) -> tuple[SaeWeights, Gate]:
    held: list[Tensor] = [checkpoint.tensors[key] for key in ("gate_bias", "r_mag", "mag_bias")]
    return _linear(checkpoint, "decoder_bias", pre_bias=True), GatedGate(*held)


def _jumprelu(checkpoint: Checkpoint, options: LoadOptions) -> tuple[SaeWeights, Gate]:
    return _plain(checkpoint, pre_bias=False), JumpReluGate(checkpoint.tensors["threshold"])


def _topk(checkpoint: Checkpoint, options: LoadOptions) -> tuple[SaeWeights, Gate]:
    # Its threshold is for use on demand: the class keeps the k largest latents unless told otherwise.
    k = _k(checkpoint, options)
    if k is None:
        raise AdapterError(
            f"{checkpoint.file}: key k is missing, and a number of latents is expected: give k"
        )
    return _linear(checkpoint, "b_dec", pre_bias=True), TopKGate(k, rectify=True)


def _batch_topk(checkpoint: Checkpoint, options: LoadOptions) -> tuple[SaeWeights, Gate]:
    return _linear(checkpoint, "b_dec", pre_bias=True), threshold_gate(checkpoint, options)


def _matryoshka(checkpoint: Checkpoint, options: LoadOptions) -> tuple[SaeWeights, Gate]:
    return _plain(checkpoint, pre_bias=True), threshold_gate(checkpoint, options)


_PARTS: dict[str, Callable[[Checkpoint, LoadOptions], tuple[SaeWeights, Gate]]] = {
    "AutoEncoder": _auto_encoder,
    "AutoEncoderNew": _auto_encoder_new,
    "GatedAutoEncoder": _gated,
    "JumpReluAutoEncoder": _jumprelu,
    "AutoEncoderTopK": _topk,
    "BatchTopKSAE": _batch_topk,
    "MatryoshkaBatchTopKSAE": _matryoshka,
}


def _k(checkpoint: Checkpoint, options: LoadOptions) -> int | None:
    """Active latents per token: of the config and the tensors, which must agree, else as given."""
    said, held = checkpoint.trainer.get("k"), checkpoint.tensors.get("k")
    if said is not None and held is not None and int(said) != int(held):
        raise AdapterError(
            f"{checkpoint.file}: key k is {int(held)}, and {said} is expected from {_CONFIG}: the config belongs to "
            "other weights"
        )
    found = said if said is not None else held
    return options.k if found is None else int(found)


def _groups(checkpoint: Checkpoint, kind: str, latents: int) -> dict[str, list[int]]:
    """Where the groups of a matryoshka dictionary end."""
    sizes = checkpoint.tensors.get("group_sizes")
    if kind != "MatryoshkaBatchTopKSAE" or sizes is None:
        return {}
    ends = [int(end) for end in sizes.cumsum(0)]
    if not ends or ends[-1] != latents:
        raise AdapterError(
            f"{checkpoint.file}: key group_sizes adds up to {ends[-1] if ends else 0}, and {latents} latents are "
            "expected"
        )
    return {"groups": ends}


def _site(checkpoint: Checkpoint, options: LoadOptions) -> Site:
    trainer = checkpoint.trainer
    layer, module = trainer.get("layer"), trainer.get("submodule_name")
    site = _module_site(str(module), str(checkpoint.buffer.get("io", "out"))) if module else None
    numbered = isinstance(layer, int) and not isinstance(layer, bool) and layer >= 0
    said = f"{_CONFIG} says layer {layer} and submodule_name {module!r}"
    if (
        site is not None
        and numbered
        and site.kind != "embed"
        and str(layer) not in re.findall(r"\d+", str(module))
    ):
        raise AdapterError(
            f"{_CONFIG}: key layer is {layer}, and that of submodule_name {module!r} is expected: they contradict "
            "each other"
        )
    found = None if site is None else Place(site, site)
    place = settle(found, options.site, transcoder=False, file=_CONFIG, said=said)
    if site is None and numbered and place.reads.layer != layer:
        raise AdapterError(f"{_CONFIG}: key layer is {layer}, and {place.reads} was asked for")
    return place.reads


def _module_site(module: str, io: str) -> Site | None:
    """The site of `resid_post_layer_8`, `mlp_out_layer3` or a path of modules such as `model.layers.8`."""
    named = re.fullmatch(r"(resid_post|resid_out|resid_mid|mlp_out|attn_out)_layer_?(\d+)", module)
    if named:
        return Site("resid_post" if named[1] == "resid_out" else named[1], int(named[2]))
    site = parse_site(module)
    if site is None or site.layer is None or io == "out" or "layers" not in module:
        return site if io == "out" else None
    if io == "in" and site.kind in ("resid_post", "mlp_out"):
        return block_input(site.layer) if site.kind == "resid_post" else Site("mlp_in", site.layer)
    return None
