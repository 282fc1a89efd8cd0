"""How far the documents alone could move the ratio of two feature counts, from the items of their cells."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from functools import lru_cache

from latentbench.stats import generator, paired_ratio
from latentbench.store import CellFolder
from latentbench_tasks.feature_count.metrics import Events, kept_counter, read_events
from latentbench_tasks.feature_count.task import FeatureCountConfig

__all__ = ["document_log_error"]

_COUNTED = re.compile(r"(features|unlimited)_at_([\d.]+)")
_DRAWS = 200


def document_log_error(pairs: Sequence[tuple[CellFolder, CellFolder]], metric: str) -> float | None:
    """Standard error over documents of the log ratio of a count, mean over pairs of cells on the same documents.

    Args:
        pairs: cells of either dictionary; at most three are used.
        metric: such as `features_at_15`.

    Returns:
        None for other metrics, where a cell's items are not there, or where a count is 0 on some draw.
    """
    counted = _COUNTED.fullmatch(metric)
    if counted is None:
        return None
    errors = [_log_error(one, other, counted[1], float(counted[2])) for one, other in pairs[:3]]
    known = [error for error in errors if error is not None]
    return statistics.fmean(known) if known and len(known) == len(errors) else None


def _log_error(one: CellFolder, other: CellFolder, prefix: str, threshold: float) -> float | None:
    identity = one.identity()
    if identity is None or not all((cell.path / "items.jsonl").is_file() for cell in (one, other)):
        return None
    rule = FeatureCountConfig.model_validate(identity.task["config"]).rule
    if prefix == "unlimited":
        rule = rule._replace(max_classes=None)
    events = [_events(cell) for cell in (one, other)]
    if len(events[0].sizes) != len(events[1].sizes):
        return None
    first, second = (kept_counter(found, threshold, rule) for found in events)
    rng = generator(f"compare/{one.key}/{other.key}/{prefix}/{threshold}")
    return paired_ratio(len(events[0].sizes), first, second, rng, draws=_DRAWS).log_error


@lru_cache(maxsize=32)
def _events(cell: CellFolder) -> Events:
    identity = cell.identity()
    assert identity is not None
    lowest = min(FeatureCountConfig.model_validate(identity.task["config"]).thresholds)
    return read_events(list(cell.items(kind="row")), lowest)
