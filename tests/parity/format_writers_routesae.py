"""Writes RouteSAE's official checkpoints with random weights, see `format_writers`; here for a model of 6 layers.

hidden_states[1] to [4] are routed, that is what blocks 0 to 3 give.
"""

from __future__ import annotations

from pathlib import Path

import torch
from format_writers import SITE, Acts, Checkpoint, Outcome, Shape, Stored, keep_largest, standardised
from torch import Tensor

__all__ = ["N_LAYERS", "crosscoder", "gated", "plain", "routesae"]

N_LAYERS = 6
ROUTED = tuple(f"resid_post.{entry - 1}" for entry in range(N_LAYERS // 4, N_LAYERS * 3 // 4 + 1))


def _named(root: Path, prefix: str, shape: Shape) -> Path:
    return root / f"{prefix}_toy_100M_{shape.latents}.pt"


def plain(
    root: Path, shape: Shape, *, prefix: str = "L4_K3", kind: str = "topk", site: str = SITE
) -> Checkpoint:
    """TopK, Vanilla, JumpReLU, MLSAE or Random."""
    stored = Stored(shape)
    w_enc, w_dec = stored.encoder("encoder.weight", rows=True), stored.decoder("decoder.weight", rows=False)
    pre_bias, latent_bias = stored.bias("pre_bias", shape.d), stored.bias("latent_bias", shape.latents)
    cut = stored.threshold("threshold") if kind == "jumprelu" else torch.zeros(())
    path = _named(root, prefix, shape)

    def native(acts: Acts) -> Outcome:
        x, mean, std = standardised(acts[site], 1e-6)
        pre = (x - pre_bias) @ w_enc.T + latent_bias
        codes = pre * (pre > cut) if kind in ("relu", "jumprelu") else keep_largest(pre, 3)
        return codes, {site: (codes @ w_dec.T + pre_bias) * std + mean}

    several = kind in ("mlsae", "random")
    return Checkpoint(
        path,
        stored.save(path),
        native,
        (site,),
        {"site": site} if several else None,
        signed=kind in ("topk", "mlsae", "random"),
    )


def gated(root: Path, shape: Shape) -> Checkpoint:
    stored = Stored(shape)
    w_enc, w_dec = stored.encoder("encoder.weight", rows=True), stored.decoder("decoder.weight", rows=False)
    pre_bias, gate_bias = stored.bias("pre_bias", shape.d), stored.bias("gate_bias", shape.latents)
    mag_bias, r_mag = stored.bias("mag_bias", shape.latents), stored.bias("r_mag", shape.latents)
    path = _named(root, "L4_GL0.01", shape)

    def native(acts: Acts) -> Outcome:
        x, mean, std = standardised(acts[SITE], 1e-6)
        pre = (x - pre_bias) @ w_enc.T
        codes = (pre + gate_bias > 0) * (r_mag.exp() * pre + mag_bias).clamp(min=0)
        return codes, {SITE: (codes @ w_dec.T + pre_bias) * std + mean}

    return Checkpoint(path, stored.save(path), native)


def routesae(
    root: Path, shape: Shape, *, pooling: str = "sum", routing: str = "hard", named: bool = True
) -> Checkpoint:
    stored = Stored(shape)
    w_enc = stored.encoder("sae.encoder.weight", rows=True)
    w_dec = stored.decoder("sae.decoder.weight", rows=False)
    pre_bias = stored.bias("sae.pre_bias", shape.d)
    latent_bias = stored.bias("sae.latent_bias", shape.latents)
    router = stored.put("router.weight", stored.normal(len(ROUTED), shape.d) * 0.3)
    path = _named(root, f"{pooling}_{routing}_K3", shape) if named else root / "renamed.pt"

    def native(acts: Acts) -> Outcome:
        done = [standardised(acts[site], 1e-6) for site in ROUTED]
        stacked = torch.stack([one[0] for one in done], dim=1)
        pooled = stacked.sum(dim=1) if pooling == "sum" else stacked.mean(dim=1)
        weights = torch.softmax(pooled @ router.T, dim=-1)
        if routing == "soft":
            codes = keep_largest(
                ((stacked * weights[:, :, None]).sum(dim=1) - pre_bias) @ w_enc.T + latent_bias, 3
            )
            return codes, {"": codes @ w_dec.T + pre_bias}
        best, target = weights.max(dim=-1)
        routed = stacked[torch.arange(len(target)), target] * best[:, None]
        codes = keep_largest((routed - pre_bias) @ w_enc.T + latent_bias, 3)
        predicted = codes @ w_dec.T + pre_bias
        return codes, {
            site: torch.where((target == i)[:, None], predicted * done[i][2] + done[i][1], torch.nan)
            for i, site in enumerate(ROUTED)
        }

    options: dict[str, object] = {"n_layers": N_LAYERS, "mode": "paper"}
    if not named:
        options |= {
            "pooling": pooling,
            "k": 3,
            "architecture": "routesae" + ("-soft" if routing == "soft" else ""),
        }
    return Checkpoint(path, stored.save(path), native, ROUTED, options, signed=True)


def crosscoder(root: Path, shape: Shape) -> Checkpoint:
    stored = Stored(shape)
    latent_bias = stored.bias("latent_bias", shape.latents)
    encoders: list[Tensor] = []
    decoders: list[Tensor] = []
    for index in range(len(ROUTED)):
        encoders.append(stored.encoder(f"encoder.{index}.weight", rows=True))
        decoders.append(stored.decoder(f"decoder.{index}.weight", rows=False))
    path = _named(root, "Cross_CL0.01", shape)

    def native(acts: Acts) -> Outcome:
        done = [standardised(acts[site], 1e-6) for site in ROUTED]
        pre = latent_bias.expand(len(done[0][0]), -1)
        for index, one in enumerate(done):
            pre = pre + one[0] @ encoders[index].T
        codes = pre.clamp(min=0)
        return codes, {site: codes @ decoders[i].T * done[i][2] + done[i][1] for i, site in enumerate(ROUTED)}

    return Checkpoint(path, stored.save(path), native, ROUTED, {"n_layers": N_LAYERS})
