"""SAELens checkpoints: a folder with `cfg.json` and `sae_weights.safetensors`, or `release/id`.

Covers the standard, topk and jumprelu architectures (batchtopk and matryoshka are exported as jumprelu), in
the v6 layout and the flat one before it, read without importing sae_lens. Source: SAELens 6.54.12.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from latentbench.adapters._card import DictionaryCard
from latentbench.adapters._dictionary import Dictionary
from latentbench.adapters._gates import Gate, JumpReluGate, ReluGate, TopKGate
from latentbench.adapters._load import Format, LoadOptions
from latentbench.adapters._sae import SaeWeights, SparseAutoencoder
from latentbench.adapters._transforms import InputTransform
from latentbench.adapters.formats._tensors import read_tensors
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
        try:
            config = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise AdapterError(f"{_CONFIG} of {folder.name!r} is not JSON: {error}") from error
        tensors = read_tensors(folder / _WEIGHTS)
        return build(config, tensors, name=folder.name, sha256=sha256_file(folder / _WEIGHTS))


FORMAT: Format = SaeLensFormat()


def load_release(source: str) -> Dictionary:
    """An SAE of the SAELens registry.

    Args:
        source: `release/id`, such as `gemma-scope-2b-pt-res-canonical/layer_12/width_16k/canonical`.

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
    return build(native.cfg.to_dict(), tensors, name=source, sha256=digest)


def build(config: dict[str, Any], tensors: dict[str, Tensor], *, name: str, sha256: str) -> SparseAutoencoder:
    """An SAE from a SAELens config, v6 or older, and its float32 tensors.

    Raises:
        AdapterError: the config asks for something that this loader does not reproduce exactly.
    """
    metadata = {**config, **(config.get("metadata") or {})}
    architecture = _architecture(config)
    _refuse_unknown(metadata, architecture, name)
    weights, gate = _weights(config, architecture, tensors, name)
    transform = _transform(config, name)
    hook = metadata.get("hook_name") or metadata.get("hook_point")
    if not hook:
        raise AdapterError(f"{name}: the SAELens config names no hook_name, so the site is unknown")
    site = str(Site.parse(str(hook)))
    card = DictionaryCard(
        name=name,
        family=architecture,
        reads=(site,),
        writes=(site,),
        d_model=weights.w_enc.shape[1],
        n_latents=weights.w_enc.shape[0],
        nominal_l0=float(gate.k) if isinstance(gate, TopKGate) else None,
        normalisation=transform.kind,
        options={**gate.describe(), "eps": transform.eps},
        lm=str(metadata.get("model_name") or ""),
        source=name,
        sha256=sha256,
    )
    return SparseAutoencoder(card, weights, gate, transform)


def _architecture(config: dict[str, Any]) -> str:
    # Before v6 a TopK SAE called itself "standard" and said so only in its activation function.
    if config.get("activation_fn_str") == "topk" or config.get("activation_fn") == "topk":
        return "topk"
    return {"standard": "relu"}.get(
        str(config.get("architecture", "standard")), str(config.get("architecture"))
    )


def _refuse_unknown(metadata: dict[str, Any], architecture: str, name: str) -> None:
    if architecture not in ("relu", "topk", "jumprelu"):
        raise AdapterError(
            f"{name}: SAELens architecture {architecture!r} is not supported yet (standard, topk and "
            "jumprelu are)"
        )
    if metadata.get("rescale_acts_by_decoder_norm") and architecture != "topk":
        raise AdapterError(
            f"{name}: rescale_acts_by_decoder_norm with architecture {architecture!r} is not known"
        )
    head = metadata.get("hook_head_index", metadata.get("hook_point_head_index"))
    if head is not None:
        raise AdapterError(
            f"{name}: it reads one attention head only (hook_head_index {head}), which is not supported yet"
        )
    if metadata.get("reshape_activations", "none") not in ("none", "hook_z"):
        raise AdapterError(
            f"{name}: reshape_activations {metadata['reshape_activations']!r} is not supported"
        )


def _weights(
    config: dict[str, Any], architecture: str, tensors: dict[str, Tensor], name: str
) -> tuple[SaeWeights, Gate]:
    missing = sorted({"W_enc", "W_dec", "b_dec", "b_enc"} - set(tensors))
    if missing:
        raise AdapterError(
            f"{name}: SAELens weights lack {', '.join(missing)}; they hold {', '.join(sorted(tensors))}"
        )
    w_enc, w_dec, b_enc = tensors["W_enc"].T.contiguous(), tensors["W_dec"].contiguous(), tensors["b_enc"]
    scale = tensors.get("scaling_factor")
    if scale is not None and not bool((scale == 1).all()):
        if not config.get("finetuning_scaling_factor"):
            raise AdapterError(
                f"{name}: the weights hold a scaling_factor, but the config does not say that it was used"
            )
        w_dec = w_dec * scale[:, None]
    if config.get("rescale_acts_by_decoder_norm"):
        # TopK ranks pre-activations times the decoder norm and divides again in the decoder: fold it in.
        norms = tensors["W_dec"].norm(dim=1)
        w_enc, b_enc, w_dec = w_enc * norms[:, None], b_enc * norms, w_dec / norms[:, None]
    pre = tensors["b_dec"] if config.get("apply_b_dec_to_input", True) else None
    gate: Gate = ReluGate()
    if architecture == "topk":
        kwargs = config.get("activation_fn_kwargs") or {}
        k = config.get("k") or kwargs.get("k")
        if not k:
            raise AdapterError(f"{name}: the SAELens config is TopK but names no k")
        gate = TopKGate(int(k), rectify=True)
    elif architecture == "jumprelu":
        if "threshold" not in tensors:
            raise AdapterError(f"{name}: the SAELens config is jumprelu but the weights hold no threshold")
        gate = JumpReluGate(tensors["threshold"])
    return SaeWeights(w_enc, b_enc, w_dec, tensors["b_dec"], pre), gate


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
