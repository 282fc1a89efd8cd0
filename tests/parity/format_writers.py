"""Writes checkpoints with random weights in foreign formats, each with what its own code would make of them.

The second half of every writer is that format's forward pass as a straight line, in float64, in the orientation and
with the names of the file; nothing of the package under test is used.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

__all__ = ["Acts", "Checkpoint", "Outcome", "Shape", "Stored", "keep_largest", "save_json", "standardised"]

Acts = dict[str, Tensor]
"""Activations by site, `Float64[Tensor, "token d"]`."""
Outcome = tuple[Tensor, dict[str, Tensor]]
"""Codes, and what is written at every site; rows of NaN are not written there."""
SITE = "resid_post.3"


class Shape(NamedTuple):
    """Size of a checkpoint, and the type of its numbers."""

    d: int
    latents: int
    dtype: torch.dtype = torch.float32


@dataclass
class Checkpoint:
    """A checkpoint on disk."""

    path: Path
    """What is given to the loader."""
    weights: Path
    """The file of its tensors."""
    native: Callable[[Acts], Outcome]
    """What its own code makes of activations."""
    reads: tuple[str, ...] = (SITE,)
    options: dict[str, Any] | None = None
    """Options that it needs."""
    code_scale: Tensor | None = None
    """What our codes are multiplied by beside the format's own, `Float64[Tensor, "latent"]`."""
    signed: bool = False
    """Keeps negative values, so that no token is without latents."""


class Stored:
    """Tensors for one file, drawn one after the other; each is given back in float64 as it is stored."""

    def __init__(self, shape: Shape, seed: int = 0) -> None:
        self.shape = shape
        self.generator = torch.Generator().manual_seed(seed)
        self.held: dict[str, Tensor] = {}
        direction = self.normal(shape.d)
        direction = direction - direction.mean()
        self.direction = 2 * direction / direction.norm()
        """All encoders lean this way, so that tokens on its other side have no latents."""

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def put(self, key: str, value: Tensor) -> Tensor:
        self.held[key] = value.to(self.shape.dtype).contiguous()
        return self.held[key].double()

    def encoder(self, key: str, *, rows: bool) -> Tensor:
        """A row for each latent, or a column."""
        drawn = self.normal(self.shape.latents, self.shape.d) * self.shape.d**-0.5 + self.direction
        return self.put(key, drawn if rows else drawn.T)

    def decoder(self, key: str, *, rows: bool, d: int | None = None) -> Tensor:
        drawn = self.normal(self.shape.latents, d or self.shape.d) * 0.3
        return self.put(key, drawn if rows else drawn.T)

    def bias(self, key: str, size: int, scale: float = 0.2) -> Tensor:
        return self.put(key, self.normal(size) * scale)

    def threshold(self, key: str, *, log: bool = False) -> Tensor:
        drawn = torch.rand(self.shape.latents, generator=self.generator, dtype=torch.float64) * 0.5 + 0.1
        return self.put(key, drawn.log() if log else drawn)

    def save(self, path: Path, extra: dict[str, Any] | None = None, under: str = "") -> Path:
        """In the format of the path's suffix."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".safetensors":
            save_file(self.held, path)
        elif path.suffix == ".npz":
            small = self.shape.dtype == torch.bfloat16  # which numpy has no type for
            arrays: Any = {k: (v.half() if small else v).numpy() for k, v in self.held.items()}
            np.savez(path, **arrays)
        else:
            held: dict[str, Any] = {**self.held, **(extra or {})}
            torch.save({under: held} if under else held, path)
        return path


def save_json(path: Path, config: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(config), encoding="utf-8")


def keep_largest(values: Tensor, k: int, score: Tensor | None = None) -> Tensor:
    """Per token, the values where the score is among the k largest, and zero elsewhere."""
    ranked = values if score is None else score
    out = torch.zeros_like(values)
    for token in range(len(values)):
        for latent in sorted(range(values.shape[1]), key=lambda one: -float(ranked[token, one]))[:k]:
            out[token, latent] = values[token, latent]
    return out


def standardised(x: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    mean, std = x.mean(dim=-1, keepdim=True), x.std(dim=-1, keepdim=True)
    return (x - mean) / (std + eps), mean, std


def jump(pre: Tensor, threshold: Tensor) -> Tensor:
    return pre * (pre > threshold)


# Gemma Scope


def gemma_scope(
    root: Path, shape: Shape, *, kind: str = "res", layer: str = "layer_3", capital: bool = True
) -> Checkpoint:
    if shape.dtype == torch.bfloat16:
        shape = shape._replace(dtype=torch.float16)
    stored = Stored(shape)
    big = "W" if capital else "w"
    w_enc, w_dec = stored.encoder(f"{big}_enc", rows=False), stored.decoder(f"{big}_dec", rows=True)
    b_enc, b_dec = stored.bias("b_enc", shape.latents), stored.bias("b_dec", shape.d)
    threshold = stored.threshold("threshold")
    folder = root / f"gemma-scope-2b-pt-{kind}" / layer / "average_l0_71"
    site = {"res": SITE, "mlp": "mlp_out.3", "att": "attn_z.3"}[kind] if layer != "embedding" else "embed"

    def native(acts: Acts) -> Outcome:
        scale = shape.d**0.5 if layer == "embedding" else 1.0
        codes = jump(acts[site] / scale @ w_enc + b_enc, threshold)
        return codes, {site: (codes @ w_dec + b_dec) * scale}

    return Checkpoint(folder, stored.save(folder / "params.npz"), native, (site,))


def gemma_scope2(root: Path, shape: Shape, *, kind: str = "sae", affine: bool = False) -> Checkpoint:
    stored = Stored(shape)
    w_enc, w_dec = stored.encoder("w_enc", rows=False), stored.decoder("w_dec", rows=True)
    b_enc, b_dec = stored.bias("b_enc", shape.latents), stored.bias("b_dec", shape.d)
    threshold = stored.threshold("threshold")
    skip = torch.zeros(shape.d, shape.d, dtype=torch.float64)
    if affine:
        skip = stored.put("affine_skip_connection", stored.normal(shape.d, shape.d) * 0.1)
    read, written = SITE, SITE
    modules = ["model.layers.3.output"] * 2
    if kind == "transcoder":
        read, written = "mlp_in.3", "mlp_out.3"
        modules = [f"model.layers.3.{side}_feedforward_layernorm.output" for side in ("pre", "post")]
    config = {
        "architecture": "jump_relu",
        "model_name": "google/gemma-3-toy",
        "type": kind,
        "width": shape.latents,
        "l0": 20,
        "affine_connection": affine,
        "hf_hook_point_in": modules[0],
        "hf_hook_point_out": modules[1],
    }
    folder = root / "resid_post" / "layer_3"
    save_json(folder / "config.json", config)

    def native(acts: Acts) -> Outcome:
        codes = jump(acts[read] @ w_enc + b_enc, threshold)
        return codes, {written: codes @ w_dec + b_dec + acts[read] @ skip}

    return Checkpoint(folder, stored.save(folder / "params.safetensors"), native, (read,))


# Others


def openai(root: Path, shape: Shape, *, activation: str | None = "TopK", after: str = "ReLU") -> Checkpoint:
    stored = Stored(shape)
    w_enc, w_dec = stored.encoder("encoder.weight", rows=True), stored.decoder("decoder.weight", rows=False)
    pre_bias, latent_bias = stored.bias("pre_bias", shape.d), stored.bias("latent_bias", shape.latents)
    statistics = {
        "stats_last_nonzero": torch.zeros(shape.latents, dtype=torch.long),
        "latents_activation_frequency": torch.ones(shape.latents),
        "latents_mean_square": torch.zeros(shape.latents),
    }
    extra: dict[str, Any] = dict(statistics)
    if activation is not None:
        extra |= {"activation": activation, "activation_state_dict": {}}
    if activation == "TopK":
        extra["activation_state_dict"] = {"k": 3, "postact_fn": after}
    path = root / "gpt2-small" / "resid_post_mlp_v5_32k" / "autoencoders" / "3.pt"

    def native(acts: Acts) -> Outcome:
        x = acts[SITE]
        if activation != "TopK":
            codes = ((x - pre_bias) @ w_enc.T + latent_bias).clamp(min=0)
            return codes, {SITE: codes @ w_dec.T + pre_bias}
        inputs, mean, std = standardised(x, 1e-5)
        codes = keep_largest((inputs - pre_bias) @ w_enc.T + latent_bias, 3)
        codes = codes.clamp(min=0) if after == "ReLU" else codes
        return codes, {SITE: (codes @ w_dec.T + pre_bias) * std + mean}

    return Checkpoint(path, stored.save(path, extra), native, signed=after != "ReLU")


def mlsae(
    root: Path, shape: Shape, *, tfm: bool = False, lens: bool = False, standardize: bool = True
) -> Checkpoint:
    stored = Stored(shape)
    prefix = "autoencoder." if tfm else ""
    w_enc = stored.encoder(f"{prefix}encoder.weight", rows=True)
    w_dec = stored.decoder(f"{prefix}decoder.weight", rows=False)
    pre = stored.bias(f"{prefix}pre_encoder_bias", shape.d)
    eye = torch.eye(shape.d, dtype=torch.float64)
    before = after = eye
    config: dict[str, Any] = {"k": 3, "dead_steps_threshold": 100, "auxk": 256, "standardize": standardize}
    if tfm:
        config |= {
            "model_name": "EleutherAI/pythia-toy",
            "layers": None,
            "expansion_factor": shape.latents // shape.d,
        }
        stored.put("transformer.model.gpt_neox.embed_in.weight", stored.normal(5, shape.d))
        if shape.latents % shape.d:
            del config["expansion_factor"]
    else:
        config |= {"n_inputs": shape.d, "n_latents": shape.latents}
    if lens:
        config |= {"layers": [1, 3], "lens": True}
        for index in range(2):  # layer 3 is the second
            before = stored.put(f"encoder_lens.{index}.weight", eye + stored.normal(shape.d, shape.d) * 0.02)
            after = stored.put(f"decoder_lens.{index}.weight", eye + stored.normal(shape.d, shape.d) * 0.02)
    folder = root / f"mlsae-pythia-toy-x2-k3{'-tfm' if tfm else ''}"
    save_json(folder / "config.json", config)

    def native(acts: Acts) -> Outcome:
        inputs, mean, std = acts[SITE], torch.zeros(()), torch.ones(())
        if standardize:
            inputs, mean, std = standardised(inputs, 1e-5)
        codes = keep_largest((inputs @ before.T - pre) @ w_enc.T, 3).clamp(min=0)
        return codes, {SITE: (codes @ w_dec.T + pre) @ after.T * std + mean}

    return Checkpoint(folder, stored.save(folder / "model.safetensors"), native, options={"site": SITE})


def bartbussmann(root: Path, shape: Shape, *, kind: str = "topk", unit: bool = True) -> Checkpoint:
    stored = Stored(shape)
    w_enc, w_dec = stored.encoder("W_enc", rows=False), stored.decoder("W_dec", rows=True)
    b_enc, b_dec = stored.bias("b_enc", shape.latents), stored.bias("b_dec", shape.d)
    config = {
        "sae_type": kind,
        "act_size": shape.d,
        "dict_size": shape.latents,
        "top_k": 3,
        "hook_point": "blocks.4.hook_resid_pre",
        "model_name": "gpt2-small",
        "input_unit_norm": unit,
        "dtype": "torch.float32",
    }
    cut = (
        stored.threshold("jumprelu.log_threshold", log=True).exp() if kind == "jumprelu" else torch.zeros(())
    )
    folder = root / "gpt2-small_blocks.4.hook_resid_pre_topk_32_1000"
    save_json(folder / "config.json", config)

    def native(acts: Acts) -> Outcome:
        x, mean, std = acts[SITE], torch.zeros(()), torch.ones(())
        if unit:
            x, mean, std = standardised(x, 1e-5)
        if kind == "jumprelu":
            codes = jump((x @ w_enc + b_enc).clamp(min=0), cut)
        elif kind == "vanilla":
            codes = ((x - b_dec) @ w_enc + b_enc).clamp(min=0)
        else:
            codes = keep_largest(((x - b_dec) @ w_enc).clamp(min=0), 3)
        return codes, {SITE: (codes @ w_dec + b_dec) * std + mean}

    weights = stored.save(folder / "sae.pt")
    return Checkpoint(folder, weights, native, options={"k": 3} if kind == "batchtopk" else None)


def qwen_scope(root: Path, shape: Shape) -> Checkpoint:
    stored = Stored(shape)
    w_enc, w_dec = stored.encoder("W_enc", rows=True), stored.decoder("W_dec", rows=False)
    b_enc, b_dec = stored.bias("b_enc", shape.latents), stored.bias("b_dec", shape.d)
    path = root / "SAE-Res-toy" / "layer3.sae.pt"

    def native(acts: Acts) -> Outcome:
        codes = keep_largest(acts[SITE] @ w_enc.T + b_enc, 3).clamp(min=0)
        return codes, {SITE: codes @ w_dec.T + b_dec}

    return Checkpoint(path, stored.save(path), native, options={"k": 3})


def goodfire(root: Path, shape: Shape) -> Checkpoint:
    stored = Stored(shape)
    w_enc = stored.encoder("encoder_linear.weight", rows=True)
    w_dec = stored.decoder("decoder_linear.weight", rows=False)
    b_enc, b_dec = (
        stored.bias("encoder_linear.bias", shape.latents),
        stored.bias("decoder_linear.bias", shape.d),
    )
    path = root / "Llama-toy-SAE-l3.pth"

    def native(acts: Acts) -> Outcome:
        codes = (acts[SITE] @ w_enc.T + b_enc).clamp(min=0)
        return codes, {SITE: codes @ w_dec.T + b_dec}

    return Checkpoint(path, stored.save(path), native)
