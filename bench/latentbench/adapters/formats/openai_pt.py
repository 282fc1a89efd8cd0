"""OpenAI's sparse_autoencoder: one `.pt` file, the state dict of its Autoencoder, named for a layer.

Keys: `pre_bias` [d], `latent_bias` [latent], `encoder.weight` [latent, d], `decoder.weight` [d, latent], buffers of
training, and two entries that are no tensors: `activation` ("ReLU", "TopK") and `activation_state_dict` (`k`,
`postact_fn`). With TopK the input is layer-normed, token by token: mean 0 and unbiased standard deviation 1, 1e-5
added, undone without it. Source: GitHub openai/sparse_autoencoder, model.py. Sites come from the published paths,
such as `resid_post_mlp_v5_32k/autoencoders/8.pt`.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from latentbench.adapters._dictionary import Dictionary
from latentbench.adapters._format import Format, LoadOptions
from latentbench.adapters._gates import Gate, ReluGate
from latentbench.adapters._sae import SaeWeights, SparseAutoencoder
from latentbench.adapters._transforms import InputTransform
from latentbench.adapters.formats._names import (
    Facts,
    card_of,
    first_named,
    keys_of,
    names_above,
    only_file,
    topk_gate,
)
from latentbench.adapters.formats._sites import Place, settle
from latentbench.adapters.formats._tensors import pt_entries, read_pt, require
from latentbench.errors import AdapterError
from latentbench.lm import Site

__all__ = ["FORMAT", "OpenAiFormat"]

_KEYS = {"latent_bias", "stats_last_nonzero"}
_LOCATIONS = {
    "resid_post_mlp": "resid_post",
    "resid_post_attn": "resid_mid",
    "resid_delta_mlp": "mlp_out",
    "resid_delta_attn": "attn_out",
}


class OpenAiFormat:
    """See the module."""

    def recognise(self, path: Path) -> str | None:
        """See `Format.recognise`; the buffers tell it from RouteSAE's files."""
        file = only_file(path, "*.pt")
        if file is None or not keys_of(file) >= _KEYS:
            return None
        return f"{file.name} with pre_bias, latent_bias and training statistics: OpenAI's sparse_autoencoder"

    def load(self, path: Path, options: LoadOptions) -> Dictionary:
        """See `Format.load`; `site` is needed where the file does not lie as it was published."""
        file = only_file(path, "*.pt") or path
        tensors = read_pt(file)
        require(tensors, {"pre_bias": (None,), "latent_bias": (None,)}, file=file.name)
        latents, width = len(tensors["latent_bias"]), len(tensors["pre_bias"])
        require(
            tensors,
            {"encoder.weight": (latents, width), "decoder.weight": (width, latents)},
            file=file.name,
        )
        gate, transform = _activation(file, tensors, options)
        weights = SaeWeights(
            tensors["encoder.weight"],
            tensors["latent_bias"],
            tensors["decoder.weight"].T.contiguous(),
            tensors["pre_bias"],
            tensors["pre_bias"],
        )
        said = first_named(file, r"^(?:resid_(?:post|delta)_(?:mlp|attn)|mlp_post_act)(?:_v\d+\w*)?$")
        place = settle(
            _place(file, said[0] if said else ""),
            options.site,
            transcoder=False,
            file=file.name,
            said=f"a folder above is named {said[0]}" if said else "no folder above names a location",
        )
        card = card_of(
            file,
            Facts(
                name=f"{said[0]}, layer {file.stem}" if said else file.stem,
                family=str(gate.describe()["gate"]),
                place=place,
                lm="gpt2" if "gpt2-small" in names_above(file) else "",
            ),
            weights.w_enc.shape,
            gate,
            transform,
        )
        return SparseAutoencoder(card, weights, gate, transform)


FORMAT: Format = OpenAiFormat()


def _activation(file: Path, tensors: dict[str, Tensor], options: LoadOptions) -> tuple[Gate, InputTransform]:
    entries = pt_entries(file)
    # A file without the entry is a ReLU autoencoder, as OpenAI's own loader takes it.
    activation = entries.get("activation", "ReLU")
    if activation == "ReLU":
        return ReluGate(), InputTransform("none")
    if activation != "TopK":
        raise AdapterError(f"{file.name}: key activation is {activation!r}, and 'ReLU' or 'TopK' is expected")
    after = entries.get("activation_state_dict.postact_fn", "ReLU")
    if after not in ("ReLU", "Identity"):
        raise AdapterError(
            f"{file.name}: key activation_state_dict.postact_fn is {after!r}, and 'ReLU' or 'Identity' is expected"
        )
    held = tensors.get("activation_state_dict.k")
    gate = topk_gate(
        None if held is None else int(held),
        options.k,
        rectify=after == "ReLU",
        file=file.name,
        where="activation_state_dict holds none",
    )
    return gate, InputTransform("layer_norm", 1e-5)


def _place(file: Path, folder: str) -> Place | None:
    kind = next((site for name, site in _LOCATIONS.items() if folder.startswith(name)), None)
    if kind is None or not file.stem.isdecimal():
        return None
    site = Site(kind, int(file.stem))
    return Place(site, site)
