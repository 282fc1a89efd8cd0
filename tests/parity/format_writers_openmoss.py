"""Writes Llama Scope and llamascopium checkpoints with random weights, see `format_writers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from format_writers import SITE, Acts, Checkpoint, Outcome, Shape, Stored, keep_largest, save_json
from torch import Tensor

__all__ = ["llama_scope", "llamascopium", "llamascopium_crosscoder"]


def llama_scope(root: Path, shape: Shape, **changes: Any) -> Checkpoint:
    """The config's keys as published; `distilled` is the later layout."""
    distilled = changes.pop("distilled", False)
    stored = Stored(shape)
    w_enc, w_dec = stored.encoder("encoder.weight", rows=True), stored.decoder("decoder.weight", rows=False)
    b_enc, b_dec = stored.bias("encoder.bias", shape.latents), stored.bias("decoder.bias", shape.d)
    config: dict[str, Any] = {
        "hook_point_in": "blocks.3.hook_resid_post",
        "hook_point_out": "blocks.3.hook_resid_post",
        "use_decoder_bias": True,
        "apply_decoder_bias_to_pre_encoder": False,
        "expansion_factor": shape.latents / shape.d,
        "d_model": shape.d,
        "d_sae": shape.latents,
        "act_fn": "jumprelu",
        "jump_relu_threshold": 0.25,
        "norm_activation": "dataset-wise",
        "dataset_average_activation_norm": {"in": 7.0, "out": 6.5},
        "sparsity_include_decoder_norm": True,
        "use_glu_encoder": False,
        "top_k": 3,
        **changes,
    }
    cut: Tensor | float = config["jump_relu_threshold"]
    names = ("hyperparams.json", "checkpoints/final.safetensors")
    if distilled:
        del config["d_sae"], config["jump_relu_threshold"]
        cut = stored.threshold("log_jumprelu_threshold", log=True).exp()
        names = ("config.json", "sae_weights.safetensors")
    folder = root / "Llama3_1-8B-Base-L3R-8x"
    save_json(folder / names[0], config)

    def native(acts: Acts) -> Outcome:
        x = acts[SITE]
        norms = w_dec.norm(dim=0)
        scale_in = scale_out = torch.ones((), dtype=torch.float64)
        if config["norm_activation"] == "dataset-wise":
            averages = config["dataset_average_activation_norm"]
            scale_in, scale_out = (
                shape.d**0.5 / torch.tensor(averages[k], dtype=torch.float64) for k in ("in", "out")
            )
        elif config["norm_activation"] == "token-wise":
            scale_in = scale_out = shape.d**0.5 / x.norm(dim=-1, keepdim=True)
        inputs = x * scale_in - (b_dec if config["apply_decoder_bias_to_pre_encoder"] else 0)
        pre = inputs @ w_enc.T + b_enc
        score = pre * norms if config["sparsity_include_decoder_norm"] else pre
        if config["act_fn"] == "topk":
            codes = keep_largest(pre.clamp(min=0), config["top_k"], score.clamp(min=0))
        else:
            codes = pre * (score > (cut if config["act_fn"] == "jumprelu" else 0))
        return codes, {SITE: (codes @ w_dec.T + b_dec) / scale_out}

    by_norm = config["act_fn"] == "topk" and config["sparsity_include_decoder_norm"]
    return Checkpoint(
        folder, stored.save(folder / names[1]), native, code_scale=w_dec.norm(dim=0) if by_norm else None
    )


def llamascopium(root: Path, shape: Shape, *, suffix: str = ".safetensors", **changes: Any) -> Checkpoint:
    stored = Stored(shape)
    w_enc, w_dec = stored.encoder("W_E", rows=False), stored.decoder("W_D", rows=True)
    b_enc, b_dec = stored.bias("b_E", shape.latents), stored.bias("b_D", shape.d)
    config: dict[str, Any] = {
        "sae_type": "sae",
        "d_model": shape.d,
        "expansion_factor": shape.latents / shape.d,
        "act_fn": "jumprelu",
        "norm_activation": "dataset-wise",
        "top_k": 3,
        "hook_point_in": "blocks.3.hook_resid_post",
        "hook_point_out": "blocks.3.hook_resid_post",
        **changes,
    }
    hooks = {
        "blocks.3.hook_resid_post": SITE,
        "blocks.3.hook_resid_mid": "resid_mid.3",
        "blocks.3.hook_mlp_out": "mlp_out.3",
    }
    read, written = (hooks[config[f"hook_point_{side}"]] for side in ("in", "out"))
    cut: Tensor | float = 0.0
    if config["act_fn"] == "jumprelu":
        cut = stored.threshold("activation_function.log_jumprelu_threshold", log=True).exp()
    averages = {}
    for average, hook in zip((7.0, 6.5), (config["hook_point_in"], config["hook_point_out"]), strict=True):
        averages[hook] = stored.put(f"dataset_average_activation_norm.{hook}", torch.tensor(average))
    folder = root / "L3R-8x"
    save_json(folder / "config.json", config)

    def native(acts: Acts) -> Outcome:
        x, norms = acts[read], w_dec.norm(dim=1)
        scale_in = scale_out = torch.ones((), dtype=torch.float64)
        if config["norm_activation"] == "dataset-wise":
            scale_in = shape.d**0.5 / averages[config["hook_point_in"]]
            scale_out = shape.d**0.5 / averages[config["hook_point_out"]]
        elif config["norm_activation"] == "token-wise":
            scale_in = scale_out = shape.d**0.5 / x.norm(dim=-1, keepdim=True)
        pre = (x * scale_in @ w_enc + b_enc) * norms
        if config["act_fn"] in ("topk", "batchtopk"):
            codes = keep_largest(pre.clamp(min=0), config["top_k"]) / norms
        else:
            codes = pre * (pre > cut) / norms
        return codes, {written: (codes @ w_dec + b_dec) / scale_out}

    weights = stored.save(
        folder / f"sae_weights{suffix}",
        {"version": "2.0"} if suffix == ".pt" else None,
        "sae" if suffix == ".pt" else "",
    )
    topk = config["act_fn"] in ("topk", "batchtopk")
    return Checkpoint(
        folder,
        weights,
        native,
        (read,),
        {"k": config["top_k"]} if config["act_fn"] == "batchtopk" else None,
        w_dec.norm(dim=1) if topk else None,
    )


def llamascopium_crosscoder(root: Path, shape: Shape, **changes: Any) -> Checkpoint:
    sites = ("resid_post.1", SITE)
    stored = Stored(shape)
    parts: dict[str, Tensor] = {}
    for key, draw in (
        ("W_E", lambda: (stored.normal(shape.latents, shape.d) * shape.d**-0.5 + stored.direction).T),
        ("W_D", lambda: stored.normal(shape.latents, shape.d) * 0.3),
        ("b_E", lambda: stored.normal(shape.latents) * 0.2),
        ("b_D", lambda: stored.normal(shape.d) * 0.2),
    ):
        parts[key] = stored.put(key, torch.stack([draw() for _ in sites]))
    hooks = [f"blocks.{site.split('.')[1]}.hook_resid_post" for site in sites]
    averages = [
        stored.put(f"dataset_average_activation_norm.{hook}", torch.tensor(5.0 + i))
        for i, hook in enumerate(hooks)
    ]
    config = {
        "sae_type": "crosscoder",
        "d_model": shape.d,
        "expansion_factor": shape.latents / shape.d,
        "act_fn": "relu",
        "norm_activation": "dataset-wise",
        "hook_points": hooks,
        **changes,
    }
    folder = root / "crosscoder"
    save_json(folder / "config.json", config)

    def native(acts: Acts) -> Outcome:
        scales = [shape.d**0.5 / average for average in averages]
        pre = sum(acts[site] * scales[i] @ parts["W_E"][i] + parts["b_E"][i] for i, site in enumerate(sites))
        assert isinstance(pre, Tensor)
        codes = pre.clamp(min=0)
        return codes, {
            site: (codes @ parts["W_D"][i] + parts["b_D"][i]) / scales[i] for i, site in enumerate(sites)
        }

    return Checkpoint(folder, stored.save(folder / "sae_weights.safetensors"), native, sites)
