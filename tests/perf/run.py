"""Speed of latentbench against plain PyTorch on a real model: what `make perf` runs.

Every ratio compares two things that are timed in turn in one process (A B, B A, A B, ...), so a machine that
other work slows down slows both. A ratio is the median over the turns; its smallest and largest are reported
beside it. JSON goes to stdout, a table for people to stderr. Exit code 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from latentbench.adapters import Codes, Dictionary, TopKGate, load_dictionary, steering_edits
from latentbench.data import Corpus, TokenRow, load_corpus, token_rows
from latentbench.lm import LM, AddVector, Site, load_lm
from latentbench.run import CellSetup, Item, Shared, TokenPolicy, WatchedBatch, Watcher
from latentbench.run._pass import Fed, run_pass
from latentbench.testing import random_sae
from latentbench.train import Recipe, TraineeSpec, train
from latentbench_tasks.core.task import CoreConfig, CoreTask

ROWS, CONTEXT = 4, 128
"""The batch of the targets."""
POLICY = TokenPolicy(context=CONTEXT, batch_rows=ROWS)
TOPK, ROUTESAE = "zoo:smollm2-topk-r21-k64", "zoo:smollm2-routesae-k64"
TARGETS = {"watching": 0.85, "core": 1.1, "steering": 0.9, "steering_add_vector": 0.9}
"""Smallest acceptable ratios on a CPU."""
MEASURES = ("watching", "core", "steering", "memory")
"""What is measured unless asked otherwise."""
BUDGET_SECONDS = 45.0
"""Time after which a comparison takes no further turn, if it has had two: on a crowded machine."""
MEBIBYTE = 2**20


class Bench(NamedTuple):
    """What all measurements share."""

    lm: LM
    rows: list[TokenRow]
    """Rows of exactly `CONTEXT` tokens of the test split."""
    corpus: Corpus
    device: str
    repeats: int

    def ids(self, first: int, rows: int, columns: int = CONTEXT) -> Tensor:
        """`Int64[Tensor, "row pos"]`: token ids of some rows."""
        chosen = [row.ids[:columns] for row in self.rows[first : first + rows]]
        return torch.tensor(chosen, device=self.lm.device)

    def sync(self) -> None:
        """Wait for the device: CUDA calls return before they are done."""
        if self.lm.device.type == "cuda":
            torch.cuda.synchronize(self.lm.device)


class Idle(Watcher):
    """Watches and keeps nothing: what remains is the cost of the pass itself."""

    def __init__(self, tokens: int) -> None:
        self.budget_tokens = tokens

    def watch(self, batch: WatchedBatch, codes: Codes) -> list[Item]:
        return []


def alternate(
    bench: Bench, calls: Mapping[str, Callable[[], object]], *, warm: bool = True
) -> dict[str, list[float]]:
    """Seconds of each call in each turn; the order is turned round every time."""
    for call in calls.values() if warm else ():
        call()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    started = time.perf_counter()
    for turn in range(bench.repeats):
        if turn >= 2 and time.perf_counter() - started > BUDGET_SECONDS:
            break
        for name in list(calls) if turn % 2 == 0 else reversed(list(calls)):
            seconds[name].append(clock(bench, calls[name]))
    return seconds


def clock(bench: Bench, call: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    bench.sync()
    start = time.perf_counter()
    call()
    bench.sync()
    return time.perf_counter() - start


def compared(
    bench: Bench, name: str, base: Sequence[float], ours: Sequence[float], scale: float = 1.0, **detail: Any
) -> dict[str, Any]:
    """One line of the report: how many times as fast as the base, times `scale`."""
    ratios = [scale * slow / fast for slow, fast in zip(base, ours, strict=True)]
    target = TARGETS.get(name) if bench.lm.device.type == "cpu" else None
    return {
        "name": name,
        "ratio": round(statistics.median(ratios), 3),
        "min": round(min(ratios), 3),
        "max": round(max(ratios), 3),
        "turns": len(ratios),
        "target": target,
        "met": None if target is None else statistics.median(ratios) >= target,
        **detail,
    }


def rate(tokens: float, seconds: Sequence[float]) -> float:
    """Tokens per second at the median."""
    return round(tokens / statistics.median(seconds), 1)


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
            train(bench.lm, corpus, held_out, recipe, Path(folder), device=bench.device)

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


def peak_bytes(*, reset: bool = False) -> int | None:
    """Peak resident memory since the last reset, or None where the system can't tell (needs Linux)."""
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return None
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


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


def measure_memory(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Peak memory of a watching pass over N and over 4 N tokens, each in a process of its own."""
    small, factor = 4, 4
    tokens = [small * ROWS * CONTEXT, factor * small * ROWS * CONTEXT]
    peaks: list[float | None] = []
    for batches in (small, factor * small):
        command = [sys.executable, __file__, "--lm", arguments.lm, "--memory-child", str(batches)]
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


def prepare(arguments: argparse.Namespace) -> Bench:
    """Load the model and the rows."""
    if arguments.device == "cpu":
        torch.set_num_threads(
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        )
    lm = load_lm(arguments.lm, device=arguments.device, dtype=arguments.dtype)
    corpus = load_corpus("probe-texts", split="test")
    rows = token_rows(corpus, lm, context=CONTEXT, budget_tokens=30_000)
    full = [row for row in rows if len(row.ids) == CONTEXT]
    return Bench(lm, full, corpus, arguments.device, arguments.repeats)


def report(
    bench: Bench, arguments: argparse.Namespace, measured: list[dict[str, Any]], took: float
) -> dict[str, Any]:
    """The JSON."""
    names = ("latentbench", "torch", "transformers", "numpy")
    return {
        "schema_version": 1,
        "lm": bench.lm.identity(),
        "device": arguments.device
        if bench.lm.device.type == "cpu"
        else f"{arguments.device} ({torch.cuda.get_device_name(bench.lm.device)})",
        "threads": torch.get_num_threads(),
        "batch": [ROWS, CONTEXT],
        "versions": {"python": platform.python_version(), **{name: version(name) for name in names}},
        "load_average": round(os.getloadavg()[0], 2),
        "seconds": round(took, 1),
        "measures": measured,
    }


def table(measured: Sequence[Mapping[str, Any]]) -> str:
    """The report as text."""
    lines = [f"{'measure':<22}{'ratio':>8}{'min':>8}{'max':>8}{'target':>8}{'tokens/s':>11}{'bare':>11}"]
    for one in measured:
        if one["name"] == "memory":
            text = (
                f"{one['growth_mebibytes']} MiB more for 4 times the tokens (limit {one['limit_mebibytes']})"
            )
            lines.append(f"{'memory':<22}  {text}")
            continue
        speed = one.get("dictionary_tokens_per_second", one.get("tokens_per_second"))
        target = "-" if one["target"] is None else f"{one['target']:g}"
        numbers = f"{one['ratio']:>8}{one['min']:>8}{one['max']:>8}{target:>8}"
        lines.append(f"{one['name']:<22}{numbers}{speed:>11}{one['bare_tokens_per_second']:>11}")
    missed = [str(one["name"]) for one in measured if one["met"] is False]
    return "\n".join([*lines, f"missed: {', '.join(missed)}" if missed else "no target missed"])


def main() -> int:
    """Measure, print, and say whether a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--lm", default="smollm2-135m-q4")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each comparison")
    parser.add_argument(
        "--measure",
        action="append",
        choices=[*MEASURES, "training"],
        help="may be given several times; default all but training",
    )
    parser.add_argument("--memory-child", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    started = time.perf_counter()
    if arguments.memory_child:
        memory_child(prepare(arguments), arguments.memory_child)
        return 0
    wanted = arguments.measure or list(MEASURES)
    measured = measure_memory(arguments) if "memory" in wanted else []
    bench = prepare(arguments)
    for name, measure in (
        ("watching", measure_watching),
        ("core", measure_core),
        ("steering", measure_steering),
        ("training", measure_training),
    ):
        if name in wanted:
            print(f"measuring {name} ...", file=sys.stderr)
            measured += measure(bench)
    print(json.dumps(report(bench, arguments, measured, time.perf_counter() - started), indent=2))
    print(table(measured), file=sys.stderr)
    return 1 if any(one["met"] is False for one in measured) else 0


if __name__ == "__main__":
    sys.exit(main())
