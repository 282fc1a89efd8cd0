"""Speed of latentbench against plain PyTorch on a real model: what `make perf` runs.

Every ratio compares two things that are timed in turn in one process (A B, B A, A B, ...), so a machine that
other work slows down slows both. A ratio is the median over the turns; its smallest and largest are reported
beside it. JSON goes to stdout, a table for people to stderr. Exit code 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import torch
from dictionaries import encoding_child, measure_decoding, measure_encoding, measure_routing, measure_training
from influence import gradient_child, measure_gradient_memory, measure_influence
from judging import measure_judging
from passes import measure_core, measure_memory, measure_steering, measure_watching, memory_child
from steering import measure_grid
from timing import CONTEXT, ROWS, Bench

from latentbench.data import load_corpus, token_rows
from latentbench.lm import load_lm

BENCHED = {
    "watching": measure_watching,
    "core": measure_core,
    "steering": measure_steering,
    "grid": measure_grid,
    "decoding": measure_decoding,
    "routing": measure_routing,
    "training": measure_training,
    "influence": measure_influence,
    "judging": measure_judging,
}
"""Measurements with the model at hand, by name."""
MEASURES = (
    "watching",
    "core",
    "steering",
    "grid",
    "decoding",
    "routing",
    "influence",
    "judging",
    "memory",
    "encoding",
    "gradient",
)
"""What is measured unless asked otherwise."""
GROWTHS = {
    "memory": "for 4 times the tokens",
    "encoding_memory": "over weights and activations",
    "gradient_memory": "for 28 times the latents",
}
"""What a growth of memory is compared with."""


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
        if "growth_mebibytes" in one:
            what = GROWTHS[str(one["name"])]
            text = f"{one['growth_mebibytes']} MiB more {what} (limit {one['limit_mebibytes']:g})"
            lines.append(f"{one['name']:<22}  {text}")
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
        choices=sorted({*MEASURES, *BENCHED}),
        help="may be given several times; default all but training",
    )
    parser.add_argument("--memory-child", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--gradient-child", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--encoding-child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    started = time.perf_counter()
    if arguments.memory_child:
        memory_child(prepare(arguments), arguments.memory_child)
        return 0
    if arguments.gradient_child:
        gradient_child(prepare(arguments), arguments.gradient_child)
        return 0
    if arguments.encoding_child:
        encoding_child()
        return 0
    wanted = arguments.measure or list(MEASURES)
    measured = measure_memory(arguments.lm) if "memory" in wanted else []
    measured += measure_encoding() if "encoding" in wanted else []
    measured += measure_gradient_memory(arguments.lm) if "gradient" in wanted else []
    bench = prepare(arguments)
    for name, measure in BENCHED.items():
        if name in wanted:
            print(f"measuring {name} ...", file=sys.stderr)
            measured += measure(bench)
    print(json.dumps(report(bench, arguments, measured, time.perf_counter() - started), indent=2))
    print(table(measured), file=sys.stderr)
    return 1 if any(one["met"] is False for one in measured) else 0


if __name__ == "__main__":
    sys.exit(main())
