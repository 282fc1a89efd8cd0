"""Llama Scope: `hyperparams.json` and `checkpoints/final.safetensors`, and its successor for distilled R1 models.

Tensors: `encoder.weight` [latent, d], `encoder.bias`, `decoder.weight` [d, latent], `decoder.bias`. The second layout
has `config.json` and `sae_weights.safetensors` with `log_jumprelu_threshold` [latent] besides. Source: GitHub
OpenMOSS/Language-Model-SAEs before its v2; papers arXiv 2410.20526.

What the config says, done as that code does it: with `norm_activation` "dataset-wise" the input is multiplied by
sqrt(d) / (average norm of the dataset) and the output divided by its own such factor, both folded into the weights, so
that the threshold stays as stored (SAELens 6.54.12 multiplies it by the factor as well, which the source does not).
With `sparsity_include_decoder_norm` the threshold is compared with pre-activation times decoder norm.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from latentbench.adapters._dictionary import Dictionary
from latentbench.adapters._format import Format, LoadOptions
from latentbench.adapters._sae import SaeWeights
from latentbench.adapters.formats._names import keys_of, whole
from latentbench.adapters.formats._openmoss import Source, build
from latentbench.adapters.formats._tensors import Shape, read_json, read_tensors, require
from latentbench.errors import AdapterError

__all__ = ["FORMAT", "LlamaScopeFormat"]

_OLD = ("hyperparams.json", "checkpoints/final.safetensors")
_DISTILLED = ("config.json", "sae_weights.safetensors")
_KEYS = {"encoder.weight", "encoder.bias", "decoder.weight"}
_LOG_THRESHOLD = "log_jumprelu_threshold"


class LlamaScopeFormat:
    """See the module."""

    def recognise(self, path: Path) -> str | None:
        """See `Format.recognise`."""
        found = _layout(path)
        if found is None or not _KEYS & keys_of(found[1]):
            return None
        return f"{found[0].name} and {found[1].name} with encoder and decoder: Llama Scope"

    def load(self, path: Path, options: LoadOptions) -> Dictionary:
        """See `Format.load`; transcoders need `site`, since they read inside a norm, which is no site here."""
        found = _layout(path)
        if found is None:
            raise AdapterError(f"{path.name} holds no {' and '.join(_OLD)}")
        config_file, weights_file = found
        config = read_json(config_file)
        tensors = read_tensors(weights_file)
        weights = _weights(config, tensors, config_file.name, weights_file.name)
        source = Source(
            config=config,
            config_file=config_file.name,
            weights_file=weights_file,
            name=config_file.parent.name,
            norms=_norms(config, tensors),
            lm="",
        )
        return build(source, weights, _thresholds(config, tensors, config_file.name), options)


FORMAT: Format = LlamaScopeFormat()


def _layout(path: Path) -> tuple[Path, Path] | None:
    """Config and weights for a path to the folder or to one of the two files."""
    bases = [path] if path.is_dir() else [path.parent, path.parent.parent]
    for base in bases:
        for config, weights in (_OLD, _DISTILLED):
            pair = (base / config, base / weights)
            named = path.is_dir() or path in pair
            if named and pair[0].is_file() and pair[1].is_file():
                return pair
    return None


def _weights(config: dict[str, Any], tensors: dict[str, Tensor], config_file: str, file: str) -> SaeWeights:
    width = whole(config, "d_model", file=config_file)
    if config.get("d_sae") is not None:
        latents = whole(config, "d_sae", file=config_file)
    else:
        latents = int(width * float(config.get("expansion_factor", 0)))
    shapes: dict[str, Shape] = {
        "encoder.weight": (latents, width),
        "encoder.bias": (latents,),
        "decoder.weight": (width, latents),
    }
    biased = bool(config.get("use_decoder_bias", True))
    if biased:
        shapes["decoder.bias"] = (width,)
    require(tensors, shapes, file=file)
    b_dec = tensors["decoder.bias"] if biased else torch.zeros(width)
    pre = biased and bool(config.get("apply_decoder_bias_to_pre_encoder", False))
    return SaeWeights(
        tensors["encoder.weight"],
        tensors["encoder.bias"],
        tensors["decoder.weight"].T.contiguous(),
        b_dec,
        b_dec if pre else None,
    )


def _thresholds(config: dict[str, Any], tensors: dict[str, Tensor], config_file: str) -> Tensor | None:
    """One for each latent; None where the activation function has none."""
    latents = len(tensors["encoder.bias"])
    if config.get("act_fn") != "jumprelu":
        return None
    if _LOG_THRESHOLD in tensors:
        require(tensors, {_LOG_THRESHOLD: (latents,)}, file=_DISTILLED[1])
        return tensors[_LOG_THRESHOLD].exp()
    single = config.get("jump_relu_threshold")
    if not isinstance(single, int | float) or isinstance(single, bool):
        raise AdapterError(
            f"{config_file}: key jump_relu_threshold is {single!r}, and a number is expected for act_fn 'jumprelu'"
        )
    return torch.full((latents,), float(single))


def _norms(config: dict[str, Any], tensors: dict[str, Tensor]) -> tuple[float | None, float | None]:
    """Average norms of the dataset at input and output: of the config, or of the weights under the hook's name."""
    held = config.get("dataset_average_activation_norm")
    found: dict[str, float] = (
        {key: float(value) for key, value in held.items()} if isinstance(held, dict) else {}
    )
    read = str(config.get("hook_point_in"))
    written = str(config.get("hook_point_out") or read)
    for key, value in tensors.items():
        if key.startswith("dataset_average_activation_norm."):
            found[key.split(".", 1)[1]] = float(value)
    first = found.get("in", found.get(read))
    return first, found.get("out", found.get(written, first if read == written else None))
