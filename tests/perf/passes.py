"""Passes over the model: watching, `core`, steered generation, and the memory of watching."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from timing import CONTEXT, MEBIBYTE, ROWS, Bench, alternate, clock, compared, peak_bytes, rate
from torch import nn

from latentbench.adapters import Codes, Dictionary, TopKGate, load_dictionary, steering_edits
from latentbench.data import TokenRow, load_corpus
from latentbench.lm import LM, AddVector, Site
from latentbench.run import CellSetup, Item, Shared, TokenPolicy, WatchedBatch, Watcher
from latentbench.run._pass import Fed, run_pass
from latentbench.testing import random_sae
from latentbench_tasks.core.task import CoreConfig, CoreTask

POLICY = TokenPolicy(context=CONTEXT, batch_rows=ROWS)
TOPK, ROUTESAE = "zoo:smollm2-topk-r21-k64", "zoo:smollm2-routesae-k64"


class Idle(Watcher):
    """Watches and keeps nothing: what remains is the cost of the pass itself."""

    def __init__(self, tokens: int) -> None:
        self.budget_tokens = tokens

    def watch(self, batch: WatchedBatch, codes: Codes) -> list[Item]:
        return []


@contextmanager
def first_blocks(lm: LM, count: int) -> Iterator[Any]:
    """The bare Hugging Face model without its head, cut after some blocks."""
    path, _, name = lm.layout.blocks.rpartition(".")
    body: Any = lm.model.get_submodule(path)
    whole = getattr(body, name)
    setattr(body, name, nn.ModuleList(list(whole)[:count]))
    try:
        yield body
    finally:
        setattr(body, name, whole)


def feed(dictionary: Dictionary, watcher: Watcher, rows: Sequence[TokenRow], take: list[Item]) -> Fed:
    """A watcher in a shared pass that stops at the first error."""

    def fail(error: Exception) -> None:
        raise error

    return Fed(dictionary, watcher, rows, set(), take.extend, fail)


def watch_once(bench: Bench, dictionary: Dictionary, rows: Sequence[TokenRow]) -> None:
    """A shared pass with one watcher: capture and encode."""
    run_pass(bench.lm, POLICY, [feed(dictionary, Idle(len(rows) * CONTEXT), rows, [])])


def measure_watching(bench: Bench) -> list[dict[str, Any]]:
    """Capture and encode for one dictionary against the bare model to the same depth."""
    dictionary = load_dictionary(TOPK, device=bench.device, lm=bench.lm)
    depth = (dictionary.reads[0].layer or 0) + 1
    rows, ids = bench.rows[:ROWS], bench.ids(0, ROWS)

    def bare() -> None:
        with first_blocks(bench.lm, depth) as body, torch.no_grad():
            body(input_ids=ids, use_cache=False)

    seconds = alternate(bench, {"bare": bare, "watch": lambda: watch_once(bench, dictionary, rows)})
    tokens = ROWS * CONTEXT
    return [
        compared(
            bench,
            "watching",
            seconds["bare"],
            seconds["watch"],
            tokens_per_second=rate(tokens, seconds["watch"]),
            bare_tokens_per_second=rate(tokens, seconds["bare"]),
            note=f"run_pass with capture and encode at {dictionary.reads[0]} / bare model of {depth} blocks, no head",
        )
    ]


def measure_core(bench: Bench) -> list[dict[str, Any]]:
    """The core task for 8 dictionaries in one shared pass against the bare model's full forward."""
    site, count = Site("resid_post", min(20, bench.lm.n_layers - 1)), 8
    gate = TopKGate(64, rectify=True)
    task, shared = CoreTask(CoreConfig()), Shared()
    rows, ids = bench.rows[:ROWS], bench.ids(0, ROWS)
    items: list[Item] = []
    fed = []
    for seed in range(count):
        made = random_sae(d_model=bench.lm.d_model, n_latents=4608, site=site, gate=gate, seed=seed)
        dictionary = made.to(device=bench.device)
        watcher = task.watcher(cell_setup(bench, dictionary, shared))
        fed.append(feed(dictionary, watcher, rows, items))

    def bare() -> None:
        with torch.no_grad():
            bench.lm.model(input_ids=ids, use_cache=False)

    first = clock(bench, lambda: run_pass(bench.lm, POLICY, fed))
    seconds = alternate(bench, {"bare": bare, "core": lambda: run_pass(bench.lm, POLICY, fed)}, warm=False)
    assert len(items) == count * ROWS * (len(seconds["core"]) + 1)
    assert all(math.isfinite(item["kl"]) and item["ce_mean"] > 0 for item in items)
    per_batch, tokens = statistics.median(seconds["core"]), ROWS * CONTEXT
    budget = CoreConfig().budget_tokens
    once = max(0.0, first - per_batch)
    whole = once + per_batch * budget / tokens
    return [
        compared(
            bench,
            "core",
            seconds["bare"],
            seconds["core"],
            count,
            dictionary_tokens_per_second=rate(count * tokens, seconds["core"]),
            bare_tokens_per_second=rate(tokens, seconds["bare"]),
            first_batch_extra_seconds=round(once, 2),
            ratio_with_mean_pass=round(
                count * budget / whole / (tokens / statistics.median(seconds["bare"])), 3
            ),
            note=f"{count} TopK dictionaries of 4,608 latents at {site}, zero and mean ablation included; the "
            f"mean-activation pass, once a run, is in ratio_with_mean_pass only (budget {budget:,} tokens)",
        )
    ]


def cell_setup(bench: Bench, dictionary: Dictionary, shared: Shared) -> CellSetup:
    return CellSetup(
        lm=bench.lm,
        dictionary=dictionary,
        corpus=bench.corpus,
        load_split=lambda split: load_corpus(bench.corpus.name, split=split),
        tokens=POLICY,
        seed=0,
        cache=Path(tempfile.gettempdir()),
        shared=shared,
    )


def measure_steering(bench: Bench) -> list[dict[str, Any]]:
    """32 rows with 32 different vectors against the same rows without."""
    rows, new = 32, 20
    topk = load_dictionary(TOPK, device=bench.device, lm=bench.lm)
    routed = load_dictionary(ROUTESAE, mode="corrected", device=bench.device, lm=bench.lm)
    latents = list(range(0, 8 * rows, 8))
    vectors = 8.0 * topk.write_vectors(latents)[topk.writes[0]]
    routed_vectors = 8.0 * routed.write_vectors(latents)[routed.writes[0]]
    prompts = bench.ids(0, rows, 16).tolist()

    def text(edits: Sequence[Any]) -> Callable[[], object]:
        return lambda: bench.lm.generate(prompts, max_new_tokens=new, edits=edits, stop_ids=())

    seconds = alternate(
        bench,
        {
            "unsteered": text([]),
            "steered": text(steering_edits(topk, vectors)),
            "added": text([AddVector(topk.writes[0], vectors)]),
            "routed": text(steering_edits(routed, routed_vectors)),
        },
    )
    base, tokens = seconds["unsteered"], rows * new
    what = f"{rows} rows, {rows} vectors, 16 prompt and {new} new tokens, / unsteered generation of the same rows"
    lines = [
        ("steering", "steered", f"steering_edits at {topk.writes[0]}: {what}"),
        ("steering_add_vector", "added", f"AddVector at {topk.writes[0]}: {what}"),
        ("steering_routed", "routed", f"RouteSAE corrected, shadow pass included: {what}"),
    ]
    return [
        compared(
            bench,
            name,
            base,
            seconds[key],
            tokens_per_second=rate(tokens, seconds[key]),
            bare_tokens_per_second=rate(tokens, base),
            note=note,
        )
        for name, key, note in lines
    ]


def memory_child(bench: Bench, batches: int) -> None:
    """Print the bytes by which the peak of a watching pass rises over what was held before it."""
    dictionary = load_dictionary(TOPK, device=bench.device, lm=bench.lm)
    rows = bench.rows[: batches * ROWS]
    assert len(rows) == batches * ROWS, "the test split is too small for this measurement"
    watch_once(bench, dictionary, bench.rows[: 2 * ROWS])
    # The peak of loading the model is higher than that of the pass and would hide it, so it is reset.
    before = peak_bytes(reset=True)
    watch_once(bench, dictionary, rows)
    after = peak_bytes()
    print(json.dumps(None if before is None or after is None else after - before))


def measure_memory(lm: str) -> list[dict[str, Any]]:
    """Peak memory of a watching pass over N and over 4 N tokens, each in a process of its own."""
    small, factor = 4, 4
    tokens = [small * ROWS * CONTEXT, factor * small * ROWS * CONTEXT]
    peaks: list[float | None] = []
    for batches in (small, factor * small):
        command = [
            sys.executable,
            str(Path(__file__).with_name("run.py")),
            "--lm",
            lm,
            "--memory-child",
            str(batches),
        ]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        value = json.loads(done.stdout)
        peaks.append(None if value is None else round(value / MEBIBYTE, 1))
    kept = (tokens[1] - tokens[0]) * 576 * 4 / MEBIBYTE  # what keeping one site's activations would add
    few, many = peaks
    growth = None if few is None or many is None else round(many - few, 1)
    return [
        {
            "name": "memory",
            "growth_mebibytes": growth,
            "limit_mebibytes": round(kept / 4, 1),
            "peak_over_start_mebibytes": peaks,
            "tokens": tokens,
            "met": None if growth is None else growth < kept / 4,
            "note": "rise of the peak resident memory during a watching pass; the limit is a quarter of what keeping "
            "the activations of one site would add",
        }
    ]
