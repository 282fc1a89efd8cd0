"""Timing two things in turn, and what all measurements share."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from latentbench.data import Corpus, TokenRow
from latentbench.lm import LM

ROWS, CONTEXT = 4, 128
"""The batch of the targets."""
TARGETS = {
    "watching": 0.85,
    "core": 1.1,
    "steering": 0.9,
    "steering_add_vector": 0.9,
    "steering_grid": 0.9,
    "steering_grid_axbench": 2.5,
    "sparse_decode": 20.0,
    "routesae_training": 1 / 1.15,
    "gradsae": 1 / 3,
    "gradsae_routed": 1 / 3,
    "ablation": 3.0,
    "ablation_routed": 3.0,
    "judging": 0.7,
}
"""Smallest acceptable ratios on a CPU."""
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


def peak_bytes(*, reset: bool = False) -> int | None:
    """Peak resident memory since the last reset, or None where the system can't tell (needs Linux)."""
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return None
    return int(status.split("VmHWM:")[1].split()[0]) * 1024
