"""Goodfire's SAEs: one `.pt` or `.pth` file of two nn.Linear, named for its language model and layer.

Keys: `encoder_linear.weight` [latent, d], `encoder_linear.bias` [latent], `decoder_linear.weight` [d, latent],
`decoder_linear.bias` [d]. ReLU, no pre-bias. `NAME-SAE-l19` reads what block 19 gives, as SAELens 6.54.12 has it.
"""

from __future__ import annotations

import re
from pathlib import Path

from latentbench.adapters._dictionary import Dictionary
from latentbench.adapters._format import Format, LoadOptions
from latentbench.adapters._gates import ReluGate
from latentbench.adapters._sae import SaeWeights, SparseAutoencoder
from latentbench.adapters._transforms import InputTransform
from latentbench.adapters.formats._names import Facts, card_of, keys_of, only_file
from latentbench.adapters.formats._sites import Place, settle
from latentbench.adapters.formats._tensors import read_pt, require
from latentbench.lm import Site

__all__ = ["FORMAT", "GoodfireFormat"]

_KEYS = {"encoder_linear.weight", "encoder_linear.bias", "decoder_linear.weight", "decoder_linear.bias"}


class GoodfireFormat:
    """See the module."""

    def recognise(self, path: Path) -> str | None:
        """See `Format.recognise`."""
        file = only_file(path, "*.pt", "*.pth")
        if not _KEYS & keys_of(file):
            return None
        return f"{file.name if file else path.name} with encoder_linear and decoder_linear: Goodfire"

    def load(self, path: Path, options: LoadOptions) -> Dictionary:
        """See `Format.load`; `site` is needed where the file is not named NAME-SAE-lN."""
        file = only_file(path, "*.pt", "*.pth") or path
        tensors = read_pt(file)
        require(
            tensors,
            dict.fromkeys(("encoder_linear.bias", "decoder_linear.bias"), (None,)),
            file=file.name,
        )
        latents, width = len(tensors["encoder_linear.bias"]), len(tensors["decoder_linear.bias"])
        require(
            tensors,
            {"encoder_linear.weight": (latents, width), "decoder_linear.weight": (width, latents)},
            file=file.name,
        )
        named = re.fullmatch(r"(.+)-SAE-l(\d+)", file.stem)
        site = Site("resid_post", int(named[2])) if named else None
        place = settle(
            Place(site, site) if site else None,
            options.site,
            transcoder=False,
            file=file.name,
            said=f"its name {'is' if named else 'is not'} NAME-SAE-lLAYER",
        )
        weights = SaeWeights(
            tensors["encoder_linear.weight"],
            tensors["encoder_linear.bias"],
            tensors["decoder_linear.weight"].T.contiguous(),
            tensors["decoder_linear.bias"],
            None,
        )
        gate = ReluGate()
        card = card_of(
            file,
            Facts(
                name=file.stem,
                family="relu",
                place=place,
                lm=named[1] if named else "",
            ),
            weights.w_enc.shape,
            gate,
        )
        return SparseAutoencoder(card, weights, gate, InputTransform("none"))


FORMAT: Format = GoodfireFormat()
