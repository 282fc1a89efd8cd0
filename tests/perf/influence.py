"""Selectors: GradSAE's cost in bare forwards, exact ablation against a loop, and the memory of a wide gradient."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from timing import CONTEXT, MEBIBYTE, Bench, alternate, compared, peak_bytes, rate
from torch import Tensor

from latentbench.adapters import Dictionary, LatentChange, TopKGate, latent_edits, load_dictionary
from latentbench.lm import Site
from latentbench.selectors import ExactAblation, Example, GradSae, Spliced, Target, splice
from latentbench.testing import random_sae

DICTIONARIES = {"": "zoo:smollm2-topk-r21-k64", "_routed": "zoo:smollm2-routesae-k64"}
"""Ends of the measures' names, and what they are about."""
EXAMPLES = 8
ABLATED = 64
"""Latents of the loop; exact ablation gets the same ones."""
NARROW, WIDE = 4608, 131_072
"""Latents of the two dictionaries whose memory is compared."""
TARGET = Target("log_probability", "first")


def examples(bench: Bench, count: int) -> list[Example]:
    """Rows of the test split whose last token counts as the answer."""
    rows = [row.ids for row in bench.rows[:count]]
    return [Example(tuple(ids[:-1]), tuple(ids[-1:])) for ids in rows]


def measure_influence(bench: Bench) -> list[dict[str, Any]]:
    """GradSAE and exact ablation, for a dictionary of one site and for a routed one."""
    lines = []
    for end, source in DICTIONARIES.items():
        dictionary = load_dictionary(source, device=bench.device, lm=bench.lm)
        lines += [_gradsae(bench, dictionary, end), _ablation(bench, dictionary, end)]
    return lines


def _gradsae(bench: Bench, dictionary: Dictionary, end: str) -> dict[str, Any]:
    ids, given = bench.ids(0, EXAMPLES), examples(bench, EXAMPLES)

    def bare() -> None:
        with torch.no_grad():
            bench.lm.model(input_ids=ids[:, :-1], use_cache=False, logits_to_keep=1)

    def ours() -> None:
        GradSae().scores(splice(bench.lm, dictionary, given, TARGET, keep_error=False))

    seconds = alternate(bench, {"bare": bare, "gradsae": ours})
    tokens = ids.numel()
    return compared(
        bench,
        f"gradsae{end}",
        seconds["bare"],
        seconds["gradsae"],
        tokens_per_second=rate(tokens, seconds["gradsae"]),
        bare_tokens_per_second=rate(tokens, seconds["bare"]),
        note=f"the splice and GradSAE's scores of {EXAMPLES} examples of {CONTEXT} tokens in one batch, "
        f"{dictionary.card.name} / a bare forward of the same batch with the last token's logits",
    )


def _ablation(bench: Bench, dictionary: Dictionary, end: str) -> dict[str, Any]:
    (given,) = examples(bench, 1)
    spliced = splice(bench.lm, dictionary, [given], TARGET, keep_error=True)
    active = torch.unique(spliced.codes.latents)
    latents = active[torch.linspace(0, len(active) - 1, min(ABLATED, len(active))).long()]
    found: dict[str, Tensor] = {}

    def batched() -> None:
        found["batched"] = ExactAblation().effects(spliced, latents)

    def loop() -> None:
        found["loop"] = _one_by_one(bench, dictionary, spliced, latents)

    seconds = alternate(bench._replace(repeats=min(3, bench.repeats)), {"loop": loop, "batched": batched})
    torch.testing.assert_close(found["batched"].cpu(), found["loop"].cpu(), rtol=1e-2, atol=1e-3)
    tokens = len(latents) * CONTEXT
    return compared(
        bench,
        f"ablation{end}",
        seconds["loop"],
        seconds["batched"],
        tokens_per_second=rate(tokens, seconds["batched"]),
        bare_tokens_per_second=rate(tokens, seconds["loop"]),
        note=f"exact effects of {len(latents)} of {len(active)} active latents of {CONTEXT} tokens, "
        f"{dictionary.card.name}, "
        "batched from the first written site on / a whole forward for each latent; both give the same effects",
    )


def _one_by_one(bench: Bench, dictionary: Dictionary, spliced: Spliced, latents: Tensor) -> Tensor:
    """`Float64[Tensor, "latent"]`: effects from one whole forward for each latent, by another code path."""
    none = torch.zeros(0, dtype=torch.int64)
    changes = [LatentChange(latent[None].cpu(), none, torch.zeros(0)) for latent in latents]
    (wanted,) = spliced.wanted

    def value(change: LatentChange) -> Tensor:
        edits = latent_edits(dictionary, [change], keep_error=True)
        logits = bench.lm.forward(spliced.tokens, edits=edits, last_logits=1).logits
        assert logits is not None
        return logits[0, -1].double().log_softmax(dim=-1)[wanted[0]]

    whole = value(LatentChange.none())
    return torch.stack([whole - value(change) for change in changes])


def gradient_child(bench: Bench, latents: int) -> None:
    """Print the bytes by which the peak of one gradient rises over what the splice holds."""
    site, width = Site("resid_post", bench.lm.n_layers * 2 // 3), bench.lm.d_model
    dictionary = random_sae(d_model=width, n_latents=latents, site=site, gate=TopKGate(64, rectify=True))
    spliced = splice(bench.lm, dictionary, examples(bench, EXAMPLES), TARGET, keep_error=True)
    before = peak_bytes(reset=True)
    products = spliced.codes.values.double() * spliced.gradient()
    after = peak_bytes()
    assert products.shape == (64 * EXAMPLES * (CONTEXT - 2),), "one gradient for each stored value"
    print(json.dumps(None if before is None or after is None else after - before))


def measure_gradient_memory(lm: str) -> list[dict[str, Any]]:
    """Peak memory of a gradient through few and through many latents, each in a process of its own."""
    rises = [_rise(lm, latents) for latents in (NARROW, WIDE)]
    narrow, wide = rises
    dense = EXAMPLES * CONTEXT * WIDE * 4 / MEBIBYTE
    growth = None if narrow is None or wide is None else round(wide - narrow, 1)
    return [
        {
            "name": "gradient_memory",
            "growth_mebibytes": growth,
            "limit_mebibytes": dense / 4,
            "dense_mebibytes": dense,
            "peak_over_start_mebibytes": rises,
            "latents": [NARROW, WIDE],
            "met": None if growth is None else growth < dense / 4,
            "note": f"rise of the peak resident memory in the gradient of {EXAMPLES} examples of {CONTEXT} tokens; the "
            "limit is a quarter of a [token, latent] tensor",
        }
    ]


def _rise(lm: str, latents: int) -> float | None:
    command = [sys.executable, str(Path(__file__).with_name("run.py")), "--lm", lm]
    done = subprocess.run(
        [*command, "--gradient-child", str(latents)], check=True, stdout=subprocess.PIPE, text=True
    )
    value = json.loads(done.stdout)
    return None if value is None else round(value / MEBIBYTE, 1)
