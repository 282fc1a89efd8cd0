"""Foreign checkpoints, loaded by us: the codes and reconstructions of the code that writes such files.

References are straight lines in float64, see `format_writers`; ours run in float32.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import format_writers as writers
import format_writers_openmoss as openmoss
import format_writers_routesae as routesae
import pytest
import torch
from format_writers import Checkpoint, Shape
from torch import Tensor

from latentbench.adapters import Dictionary, Format, LoadOptions, RouteSae, formats
from latentbench.lm import Site

torch.set_num_threads(1)  # toy tensors: threads would only wait for each other

SIZES = {"wide": (12, 40), "square": (16, 16), "narrow": (20, 9)}
CASES: dict[str, tuple[str, Callable[[Path, Shape], Checkpoint]]] = {
    "gemma_scope": ("gemma_scope", writers.gemma_scope),
    "gemma_scope-mlp-small-letters": ("gemma_scope", partial(writers.gemma_scope, kind="mlp", capital=False)),
    "gemma_scope-att": ("gemma_scope", partial(writers.gemma_scope, kind="att")),
    "gemma_scope-embedding": ("gemma_scope", partial(writers.gemma_scope, layer="embedding")),
    "gemma_scope2": ("gemma_scope2", writers.gemma_scope2),
    "gemma_scope2-transcoder": ("gemma_scope2", partial(writers.gemma_scope2, kind="transcoder")),
    "gemma_scope2-affine": ("gemma_scope2", partial(writers.gemma_scope2, kind="transcoder", affine=True)),
    "llama_scope": ("llama_scope", openmoss.llama_scope),
    "llama_scope-plain-gate": (
        "llama_scope",
        partial(
            openmoss.llama_scope, sparsity_include_decoder_norm=False, apply_decoder_bias_to_pre_encoder=True
        ),
    ),
    "llama_scope-token-wise": ("llama_scope", partial(openmoss.llama_scope, norm_activation="token-wise")),
    "llama_scope-topk": ("llama_scope", partial(openmoss.llama_scope, act_fn="topk")),
    "llama_scope-relu": ("llama_scope", partial(openmoss.llama_scope, act_fn="relu")),
    "llama_scope-distilled": ("llama_scope", partial(openmoss.llama_scope, distilled=True)),
    "llamascopium": ("llamascopium", openmoss.llamascopium),
    "llamascopium-pt": ("llamascopium", partial(openmoss.llamascopium, suffix=".pt")),
    "llamascopium-relu": ("llamascopium", partial(openmoss.llamascopium, act_fn="relu")),
    "llamascopium-topk": (
        "llamascopium",
        partial(openmoss.llamascopium, act_fn="topk", norm_activation="token-wise"),
    ),
    "llamascopium-batchtopk": ("llamascopium", partial(openmoss.llamascopium, act_fn="batchtopk")),
    "llamascopium-inference": ("llamascopium", partial(openmoss.llamascopium, norm_activation="inference")),
    "llamascopium-transcoder": (
        "llamascopium",
        partial(
            openmoss.llamascopium,
            hook_point_in="blocks.3.hook_resid_mid",
            hook_point_out="blocks.3.hook_mlp_out",
        ),
    ),
    "llamascopium-crosscoder": ("llamascopium", openmoss.llamascopium_crosscoder),
    "openai-topk": ("openai_pt", writers.openai),
    "openai-topk-identity": ("openai_pt", partial(writers.openai, after="Identity")),
    "openai-relu": ("openai_pt", partial(writers.openai, activation="ReLU")),
    "openai-unnamed": ("openai_pt", partial(writers.openai, activation=None)),
    "mlsae": ("mlsae", writers.mlsae),
    "mlsae-raw": ("mlsae", partial(writers.mlsae, standardize=False)),
    "mlsae-tfm": ("mlsae", partial(writers.mlsae, tfm=True)),
    "mlsae-lens": ("mlsae", partial(writers.mlsae, lens=True)),
    "bartbussmann-topk": ("bartbussmann", writers.bartbussmann),
    "bartbussmann-raw": ("bartbussmann", partial(writers.bartbussmann, unit=False)),
    "bartbussmann-batchtopk": ("bartbussmann", partial(writers.bartbussmann, kind="batchtopk")),
    "bartbussmann-vanilla": ("bartbussmann", partial(writers.bartbussmann, kind="vanilla")),
    "bartbussmann-jumprelu": ("bartbussmann", partial(writers.bartbussmann, kind="jumprelu")),
    "qwen_scope": ("qwen_scope", writers.qwen_scope),
    "goodfire": ("goodfire", writers.goodfire),
    "routesae-topk": ("routesae_pt", routesae.plain),
    "routesae-relu": ("routesae_pt", partial(routesae.plain, prefix="L4_VL0.01", kind="relu")),
    "routesae-jumprelu": ("routesae_pt", partial(routesae.plain, prefix="L4_JL1e-05", kind="jumprelu")),
    "routesae-mlsae": ("routesae_pt", partial(routesae.plain, prefix="ML_K3", kind="mlsae")),
    "routesae-random": ("routesae_pt", partial(routesae.plain, prefix="RDM_K3", kind="random")),
    "routesae-gated": ("routesae_pt", routesae.gated),
    "routesae-crosscoder": ("routesae_pt", routesae.crosscoder),
    "routesae-sum-hard": ("routesae_pt", routesae.routesae),
    "routesae-mean-hard": ("routesae_pt", partial(routesae.routesae, pooling="mean")),
    "routesae-sum-soft": ("routesae_pt", partial(routesae.routesae, routing="soft")),
    "routesae-renamed": ("routesae_pt", partial(routesae.routesae, named=False)),
}


def every_format() -> dict[str, Format]:
    """Every FORMAT of the package by module."""
    names = [module.name for module in pkgutil.iter_modules(formats.__path__) if module.name[0] != "_"]
    return {name: importlib.import_module(f"{formats.__name__}.{name}").FORMAT for name in names}


def recognised(path: Path) -> dict[str, str]:
    found = {name: one.recognise(path) for name, one in every_format().items()}
    return {name: reason for name, reason in found.items() if reason is not None}


def loaded(name: str, checkpoint: Checkpoint, **changes: Any) -> Dictionary:
    options = LoadOptions(**{**(checkpoint.options or {}), **changes})
    return every_format()[name].load(checkpoint.path, options)


def tokens(checkpoint: Checkpoint, d: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        site: torch.randn(60, d, generator=generator, dtype=torch.float64).float().double() * 1.5 + 0.3
        for site in checkpoint.reads
    }


def agree(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found.double(), expected.double(), rtol=1e-5, atol=1e-5)


def written_everywhere(ours: Dictionary, acts: dict[Site, Tensor], n: int) -> dict[str, Tensor]:
    """What is written at every site; NaN where nothing is."""
    full: dict[str, Tensor] = {}
    for site, written in ours.decode(ours.encode(acts)).items():
        rows = torch.arange(n) if written.rows is None else written.rows
        values = written.values.new_full((n, written.values.shape[1]), torch.nan)
        values[rows] = written.values
        full[str(site)] = values
    return full


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("case", CASES)
def test_codes_and_reconstructions_are_the_formats_own(
    tmp_path: Path, case: str, size: tuple[int, int], dtype: torch.dtype
) -> None:
    name, write = CASES[case]
    checkpoint = write(tmp_path, Shape(*size, dtype))
    ours = loaded(name, checkpoint)
    acts = tokens(checkpoint, size[0])
    expected, recovered = checkpoint.native(acts)
    if checkpoint.code_scale is not None:
        expected = expected * checkpoint.code_scale
    assert ours.dtype == torch.float32
    assert ours.card.n_latents == size[1]
    assert ours.card.reads == checkpoint.reads
    given = {Site.parse(site): value.float() for site, value in acts.items()}
    codes = ours.encode(given)
    assert codes.nnz > 0
    if not checkpoint.signed:
        assert int(codes.counts().min()) == 0, "a token without latents is among them"
    agree(codes.dense(), expected)
    assert torch.equal(codes.dense() != 0, expected != 0)
    if "" in recovered:  # belongs to no site
        agree(ours.reconstructions(given, codes)["input"].prediction, recovered[""])
        return
    found = written_everywhere(ours, given, len(expected))
    for site, values in recovered.items():
        there = ~values.isnan().any(dim=1)
        if site not in found:
            assert not bool(there.any())
            continue
        assert torch.equal(there, ~found[site].isnan().any(dim=1))
        agree(found[site][there], values[there])


def test_random_without_a_site_spreads_tokens_over_all_of_them(tmp_path: Path) -> None:
    """Each token's code is that of the one SAE at the site it was given."""
    shape = Shape(12, 40)
    checkpoint = routesae.plain(tmp_path, shape, prefix="RDM_K3", kind="random")
    ours = loaded("routesae_pt", checkpoint, site=None)
    assert isinstance(ours, RouteSae)
    assert ours.card.reads == tuple(f"resid_post.{layer}" for layer in range(16))
    generator = torch.Generator().manual_seed(0)
    acts = {site: torch.randn(400, 12, generator=generator) for site in ours.reads}
    codes = ours.encode(acts)
    route = ours.routed(codes)
    assert route is not None
    assert int(torch.bincount(route, minlength=16).min()) > 5
    for index, site in enumerate(ours.reads):
        one = routesae.plain(tmp_path, shape, prefix="RDM_K3", kind="random", site=str(site))
        expected, _ = one.native({str(site): acts[site].double()})
        agree(codes.dense()[route == index], expected[route == index])
