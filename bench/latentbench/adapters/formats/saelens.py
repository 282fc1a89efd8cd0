"""SAELens checkpoints: a folder with `cfg.json` and `sae_weights.safetensors`, or `release/id`.

Covers the standard, gated, topk, abstopk and jumprelu architectures (batchtopk and matryoshka are exported as
jumprelu) and the transcoders, plain, with a skip matrix or with jumprelu; in the layout since version 6 and the flat
one of versions 3 to 5, where a TopK SAE says so only in its activation function. Read without importing sae_lens.
Source: SAELens 6.54.12.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from latentbench.adapters._card import DictionaryCard
from latentbench.adapters._dictionary import Dictionary
from latentbench.adapters._format import Format, LoadOptions
from latentbench.adapters._gates import AbsTopKGate, Gate, GatedGate, JumpReluGate, ReluGate, TopKGate
from latentbench.adapters._sae import SaeWeights, SparseAutoencoder
from latentbench.adapters._transforms import InputTransform
from latentbench.adapters.formats._sites import Place, parse_site, settle
from latentbench.adapters.formats._tensors import Shape, read_json, read_tensors, require
from latentbench.errors import AdapterError
from latentbench.identity import sha256_bytes, sha256_file
from latentbench.lm import Site

__all__ = ["FORMAT", "SaeLensFormat", "load_release"]

_CONFIG, _WEIGHTS = "cfg.json", "sae_weights.safetensors"
_TRANSFORMS = {
    "none": InputTransform("none"),
    "layer_norm": InputTransform("layer_norm", 1e-5),
    "constant_norm_rescale": InputTransform("constant_norm", 0.0),
}
_GATES = {
    "standard": "relu",
    "gated": "gated",
    "topk": "topk",
    "abstopk": "abstopk",
    "jumprelu": "jumprelu",
    "transcoder": "relu",
    "skip_transcoder": "relu",
    "jumprelu_transcoder": "jumprelu",
    "jumprelu_skip_transcoder": "jumprelu",
}
"""Gate of each architecture that is read."""
_TRAINING = (
    "is that of a training checkpoint: save it for use (save_inference_model), which makes it jumprelu"
)
_REFUSED = {
    "temporal": "has codes that depend on the tokens before, and a code here is that of one token",
    "matching_pursuit": "finds its codes by an iterative search over the decoder, which no gate here does",
    "batchtopk": _TRAINING,
    "matryoshka_batchtopk": _TRAINING,
}


class SaeLensFormat:
    """See the module."""

    def recognise(self, path: Path) -> str | None:
        """See `Format.recognise`."""
        folder = path if path.is_dir() else path.parent
        if (
            (folder / _CONFIG).is_file()
            and (folder / _WEIGHTS).is_file()
            and path.name in (folder.name, _WEIGHTS, _CONFIG)
        ):
            return f"a folder with {_CONFIG} and {_WEIGHTS}, as SAELens writes it"
        return None

    def load(self, path: Path, options: LoadOptions) -> Dictionary:
        """See `Format.load`; there are no modes to choose here."""
        folder = path if path.is_dir() else path.parent
        config = read_json(folder / _CONFIG)
        tensors = read_tensors(folder / _WEIGHTS)
        digest = sha256_file(folder / _WEIGHTS)
        return build(config, tensors, name=folder.name, sha256=digest, options=options)


FORMAT: Format = SaeLensFormat()


def load_release(source: str, options: LoadOptions | None = None) -> Dictionary:
    """An SAE of the SAELens registry.

    Args:
        source: `release/id`, such as `gemma-scope-2b-pt-res-canonical/layer_12/width_16k/canonical`.
        options: what the registry does not say of it.

    Raises:
        AdapterError: sae-lens is not installed, or does not know the release or can't fetch it.
    """
    release, _, sae_id = source.partition("/")
    try:
        from sae_lens import SAE  # takes several seconds to import
    except ImportError as error:
        raise AdapterError(
            f"{source!r} looks like a SAELens release/id, which needs the sae-lens package: "
            "pip install 'latentbench[saelens]'. If you meant a path, it does not exist."
        ) from error
    try:
        native = SAE.from_pretrained(release, sae_id)
    except (ValueError, KeyError, OSError) as error:
        raise AdapterError(f"SAELens can't load release {release!r}, id {sae_id!r}: {error}") from error
    tensors = {name: value.detach().float().cpu() for name, value in native.state_dict().items()}
    digest = sha256_bytes(b"".join(tensors[name].numpy().tobytes() for name in sorted(tensors)))
    return build(native.cfg.to_dict(), tensors, name=source, sha256=digest, options=options or LoadOptions())


def build(
    config: dict[str, Any], tensors: dict[str, Tensor], *, name: str, sha256: str, options: LoadOptions
) -> SparseAutoencoder:
    """An SAE or transcoder from a SAELens config, v6 or older, and its float32 tensors.

    Raises:
        AdapterError: the config asks for something that this loader does not reproduce exactly.
    """
    metadata = {**config, **(config.get("metadata") or {})}
    architecture = _architecture(config)
    _refuse_unknown(metadata, architecture, name)
    transcoder = architecture.endswith("transcoder")
    family = "transcoder" if transcoder else _GATES[architecture]
    if options.architecture not in (None, family, architecture):
        raise AdapterError(
            f"{name}/{_CONFIG}: key architecture is {architecture!r}, and {options.architecture!r} was asked for"
        )
    require(tensors, _shapes(config, tensors, architecture), file=f"{name}/{_WEIGHTS}")
    gate = _gate(config, architecture, tensors, options, name)
    weights = _weights(config, architecture, tensors, name)
    transform = _transform(config, name)
    place = _place(metadata, options, name, transcoder=transcoder)
    card = DictionaryCard(
        name=name,
        family=family,
        reads=(str(place.reads),),
        writes=(str(place.writes),),
        d_model=weights.w_enc.shape[1],
        n_latents=weights.w_enc.shape[0],
        nominal_l0=float(gate.k) if isinstance(gate, TopKGate | AbsTopKGate) else None,
        normalisation=transform.kind,
        options={**gate.describe(), "eps": transform.eps},
        lm=str(metadata.get("model_name") or ""),
        source=name,
        sha256=sha256,
    )
    return SparseAutoencoder(card, weights, gate, transform)


def _architecture(config: dict[str, Any]) -> str:
    # Before v6 a TopK SAE called itself "standard" and said so only in its activation function.
    if "topk" in (config.get("activation_fn_str"), config.get("activation_fn")):
        return "topk"
    return str(config.get("architecture") or "standard")


def _refuse_unknown(metadata: dict[str, Any], architecture: str, name: str) -> None:
    where = f"{name}/{_CONFIG}: key"
    if architecture in _REFUSED:
        raise AdapterError(f"{where} architecture is {architecture!r}, which {_REFUSED[architecture]}")
    if architecture not in _GATES:
        raise AdapterError(
            f"{where} architecture is {architecture!r}, and one of {', '.join(_GATES)} is expected"
        )
    for key in ("activation_fn", "activation_fn_str"):
        if metadata.get(key) not in (None, "relu", "topk"):
            raise AdapterError(f"{where} {key} is {metadata[key]!r}, and 'relu' or 'topk' is expected")
    if (metadata.get("activation_fn_kwargs") or {}).get("signed"):
        raise AdapterError(
            f"{where} activation_fn_kwargs has signed true, and false is expected: SAELens does not apply it, so "
            "which of the two was meant is not known"
        )
    if metadata.get("rescale_acts_by_decoder_norm") and architecture not in ("topk", "abstopk"):
        raise AdapterError(
            f"{where} rescale_acts_by_decoder_norm with architecture {architecture!r} is true, and false is expected: "
            "it is known of topk and abstopk only"
        )
    for key in ("hook_head_index", "hook_point_head_index", "hook_head_index_out"):
        if metadata.get(key) is not None:
            raise AdapterError(
                f"{where} {key} is {metadata[key]}, and none is expected: it reads one attention head only, which is "
                "not supported"
            )
    if metadata.get("reshape_activations", "none") not in ("none", "hook_z"):
        raise AdapterError(
            f"{where} reshape_activations is {metadata['reshape_activations']!r}, and 'none' or 'hook_z' is expected"
        )
    if metadata.get("apply_b_dec_to_input") and architecture.endswith("transcoder"):
        raise AdapterError(
            f"{where} apply_b_dec_to_input is true, and false is expected: a transcoder's decoder bias is one of its "
            "output"
        )


def _shapes(config: dict[str, Any], tensors: dict[str, Tensor], architecture: str) -> dict[str, Shape]:
    """Shapes by key; sizes that the config leaves out are those of biases, or any."""
    by_latent = tensors.get("b_mag" if architecture == "gated" else "b_enc")
    latents = config.get("d_sae") or (by_latent.numel() if by_latent is not None else None)
    out = config.get("d_out") if architecture.endswith("transcoder") else config.get("d_in")
    if out is None and "b_dec" in tensors:
        out = tensors["b_dec"].numel()
    width = config.get("d_in") or (None if architecture.endswith("transcoder") else out)
    wanted: dict[str, Shape] = {"W_enc": (width, latents), "W_dec": (latents, out), "b_dec": (out,)}
    own = ("b_gate", "b_mag", "r_mag") if architecture == "gated" else ("b_enc",)
    wanted |= dict.fromkeys(own, (latents,))
    if _GATES[architecture] == "jumprelu":
        wanted["threshold"] = (latents,)
    if "skip" in architecture:
        wanted["W_skip"] = (out, width)
    return wanted


def _gate(
    config: dict[str, Any], architecture: str, tensors: dict[str, Tensor], options: LoadOptions, name: str
) -> Gate:
    kind = _GATES[architecture]
    if kind == "relu":
        return ReluGate()
    if kind == "jumprelu":
        return JumpReluGate(tensors["threshold"])
    if kind == "gated":
        return GatedGate(tensors["b_gate"], tensors["r_mag"], tensors["b_mag"])
    k = config.get("k") or (config.get("activation_fn_kwargs") or {}).get("k") or options.k
    if not k:
        raise AdapterError(
            f"{name}/{_CONFIG}: the config is of architecture {architecture!r} but names no k: a number of latents is "
            "expected; give k"
        )
    return AbsTopKGate(int(k)) if kind == "abstopk" else TopKGate(int(k), rectify=True)


def _weights(config: dict[str, Any], architecture: str, tensors: dict[str, Tensor], name: str) -> SaeWeights:
    w_enc, w_dec = tensors["W_enc"].T.contiguous(), tensors["W_dec"].contiguous()
    # A gated SAE has its biases in the gate.
    b_enc = torch.zeros(len(w_enc)) if architecture == "gated" else tensors["b_enc"]
    scale = tensors.get("scaling_factor")
    if scale is not None and not bool((scale == 1).all()):
        require(tensors, {"scaling_factor": (len(w_enc),)}, file=f"{name}/{_WEIGHTS}")
        if not config.get("finetuning_scaling_factor"):
            raise AdapterError(
                f"{name}/{_WEIGHTS}: the weights hold a key scaling_factor, but the config does not say that it was "
                "used: finetuning_scaling_factor true is expected"
            )
        w_dec = w_dec * scale[:, None]
    if config.get("rescale_acts_by_decoder_norm"):
        # TopK ranks pre-activations times the decoder norm and divides again in the decoder: fold it in.
        norms = tensors["W_dec"].norm(dim=1)
        divisor = torch.where(norms > 0, norms, torch.ones(()))
        w_enc, b_enc, w_dec = w_enc * norms[:, None], b_enc * norms, w_dec / divisor[:, None]
    transcoder = architecture.endswith("transcoder")
    pre = tensors["b_dec"] if not transcoder and config.get("apply_b_dec_to_input", True) else None
    return SaeWeights(
        w_enc, b_enc, w_dec, tensors["b_dec"], pre, tensors["W_skip"] if "skip" in architecture else None
    )


def _place(metadata: dict[str, Any], options: LoadOptions, name: str, *, transcoder: bool) -> Place:
    read = metadata.get("hook_name") or metadata.get("hook_point")
    written = metadata.get("hook_name_out") if transcoder else read
    sites = [parse_site(str(hook)) if hook else None for hook in (read, written)]
    found = Place(sites[0], sites[1]) if sites[0] is not None and sites[1] is not None else None
    said = f"the config names hook_name {read!r}" if read else "the config names no hook_name"
    if transcoder:
        said += f" and hook_name_out {written!r}" if written else " and no hook_name_out"
    if found is None and options.site is None and read and written:
        for hook in (read, written):
            Site.parse(str(hook))  # its message lists what is known
    return settle(found, options.site, transcoder=transcoder, file=f"{name}/{_CONFIG}", said=said)


def _transform(config: dict[str, Any], name: str) -> InputTransform:
    kind = config.get("normalize_activations") or "none"
    if kind is True:  # before v6: a yes or no
        kind = "expected_average_only_in"
    if kind == "expected_average_only_in":
        raise AdapterError(
            f"{name}: normalize_activations 'expected_average_only_in' needs the scale it was trained "
            "with, which "
            "the checkpoint does not hold: fold it in with SAELens (fold_activation_norm_scaling_factor) "
            "and save again"
        )
    if kind not in _TRANSFORMS:
        raise AdapterError(
            f"{name}: normalize_activations {kind!r} is not supported ({', '.join(_TRANSFORMS)} are)"
        )
    return _TRANSFORMS[kind]
