"""Dictionaries by themselves: sparse decode, training, and the memory of encoding."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from passes import first_blocks
from timing import MEBIBYTE, Bench, alternate, compared, peak_bytes, rate

from latentbench.adapters import (
    DictionaryCard,
    InputTransform,
    SaeWeights,
    SparseAutoencoder,
    TopKGate,
    codes_from_topk,
    decode_rows,
)
from latentbench.data import load_corpus
from latentbench.train import BlockView, Recipe, Trainee, TraineeSpec, TrainOptions, train

WIDTH, LATENTS, K, TOKENS = 576, 32_768, 64, 2048
"""Sizes of the decode target."""
WIDE, MANY = 131_072, 4096
"""Latents and tokens of the encoding target."""
ENCODING_LIMIT = 512 * MEBIBYTE
"""What encoding may take beside the weights, however many tokens there are."""


def measure_decoding(bench: Bench) -> list[dict[str, Any]]:
    """The decode of sparse codes against scattering them into a dense matrix and multiplying."""
    generator = torch.Generator().manual_seed(0)
    w_dec = torch.randn((LATENTS, WIDTH), generator=generator).to(bench.device)
    pre = torch.randn((TOKENS, LATENTS), generator=generator)
    codes = codes_from_topk(pre.to(bench.device), K, rectify=True)
    del pre

    def dense() -> None:
        codes.dense() @ w_dec

    seconds = alternate(bench, {"dense": dense, "sparse": lambda: decode_rows(codes, w_dec, None)})
    return [
        compared(
            bench,
            "sparse_decode",
            seconds["dense"],
            seconds["sparse"],
            tokens_per_second=rate(TOKENS, seconds["sparse"]),
            bare_tokens_per_second=rate(TOKENS, seconds["dense"]),
            note=f"{LATENTS:,} latents, k = {K}, d = {WIDTH}, {TOKENS:,} tokens / dense scatter and matmul",
        )
    ]


def measure_routing(bench: Bench) -> list[dict[str, Any]]:
    """Training steps of RouteSAE against the single-layer TopK, from standardised activations of 16 sites."""
    trainees = (TraineeSpec(name="topk", kind="topk"), TraineeSpec(name="routesae", kind="routesae"))
    recipe = Recipe(name="perf", lm="none", tokens=10**9, batch_tokens=512, trainees=trainees)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn((16, 8192, WIDTH), generator=generator)
    block = ((drawn - drawn.mean(dim=2, keepdim=True)) / drawn.std(dim=2, keepdim=True)).to(bench.device)
    batches = torch.randperm(block.shape[1], generator=generator).to(bench.device).split(512)

    def steps(unit: int) -> None:
        trainee = Trainee(recipe.units()[unit], recipe, WIDTH, 16).to(bench.device)
        optimiser = torch.optim.Adam([p for p in trainee.parameters() if p.requires_grad], fused=True)
        view = BlockView(block)
        for number, batch in enumerate(batches):
            optimiser.zero_grad(set_to_none=True)
            trainee.loss(trainee(view, batch, number)).backward()
            optimiser.step()

    seconds = alternate(bench, {"topk": lambda: steps(0), "routesae": lambda: steps(1)})
    return [
        compared(
            bench,
            "routesae_training",
            seconds["topk"],
            seconds["routesae"],
            tokens_per_second=rate(block.shape[1], seconds["routesae"]),
            bare_tokens_per_second=rate(block.shape[1], seconds["topk"]),
            note="RouteSAE over 16 sites, 2,304 latents, once the activations are there / TopK at one site",
        )
    ]


def measure_training(bench: Bench) -> list[dict[str, Any]]:
    """Training of three dictionaries from one stream against the bare model to the last routed block."""
    trainees = tuple(TraineeSpec(name=kind, kind=kind) for kind in ("topk", "routesae", "random"))
    recipe = Recipe(
        name="perf",
        lm=bench.lm.name,
        tokens=16_384,
        rows=32,
        batch_tokens=512,
        held_out_tokens=512,
        trainees=trainees,
    )
    corpus, held_out = (load_corpus(bench.corpus.name, split=split) for split in ("train", "calibrate"))
    depth = bench.lm.n_layers * 3 // 4
    ids = bench.ids(0, 32)

    def bare() -> None:
        with first_blocks(bench.lm, depth) as body, torch.no_grad():
            body(input_ids=ids, use_cache=False)

    def ours() -> None:
        with tempfile.TemporaryDirectory() as folder:
            options = TrainOptions(device=bench.device)
            train(bench.lm, corpus, held_out, recipe, Path(folder), options=options)

    seconds = alternate(bench._replace(repeats=2), {"bare": bare, "train": ours})
    scaled = [one * recipe.tokens / ids.numel() for one in seconds["bare"]]
    return [
        compared(
            bench,
            "training",
            scaled,
            seconds["train"],
            tokens_per_second=rate(recipe.tokens, seconds["train"]),
            bare_tokens_per_second=rate(ids.numel(), seconds["bare"]),
            note=f"three dictionaries of 2,304 latents from one stream / bare model of {depth} blocks, no head",
        )
    ]


def encoding_child() -> None:
    """Print the bytes by which the peak of encoding rises over the weights and activations held before it."""
    generator = torch.Generator().manual_seed(0)
    w_enc = torch.randn((WIDE, WIDTH), generator=generator)
    weights = SaeWeights(w_enc, torch.zeros(WIDE), w_enc, torch.zeros(WIDTH), None)
    card = DictionaryCard(
        name="wide",
        family="topk",
        reads=("resid_post.1",),
        writes=("resid_post.1",),
        d_model=WIDTH,
        n_latents=WIDE,
        nominal_l0=float(K),
        normalisation="none",
    )
    sae = SparseAutoencoder(card, weights, TopKGate(K, rectify=True), InputTransform("none", 0.0))
    acts = torch.randn((MANY, WIDTH), generator=generator)
    sae.encode({sae.reads[0]: acts[:64]})
    before = peak_bytes(reset=True)
    sae.encode({sae.reads[0]: acts})
    after = peak_bytes()
    print(json.dumps(None if before is None or after is None else after - before))


def measure_encoding() -> list[dict[str, Any]]:
    """Peak memory of encoding many tokens against a wide dictionary, in a process of its own."""
    command = [sys.executable, str(Path(__file__).with_name("run.py")), "--encoding-child"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    rise = json.loads(done.stdout)
    return [
        {
            "name": "encoding_memory",
            "growth_mebibytes": None if rise is None else round(rise / MEBIBYTE, 1),
            "limit_mebibytes": ENCODING_LIMIT / MEBIBYTE,
            "dense_mebibytes": MANY * WIDE * 4 / MEBIBYTE,
            "met": None if rise is None else rise < ENCODING_LIMIT,
            "note": f"rise of the peak resident memory, {MANY:,} tokens against {WIDE:,} latents",
        }
    ]
