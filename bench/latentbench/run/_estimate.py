"""What a suite will cost, from its file alone: nothing is loaded, so the model need not be on this machine."""

from __future__ import annotations

from typing import NamedTuple

from latentbench.judging import judge_price
from latentbench.run._plan import Cost, chosen_judges, cost_of, made_task
from latentbench.run._suite import Suite

__all__ = ["Estimate", "estimate"]

_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


class Estimate(NamedTuple):
    """The cells of a suite and what they take."""

    cells: list[tuple[str, str, int, Cost]]
    """Dictionary, task, seed and cost of each."""
    model_bytes: float | None
    """Size of the model's weights; None if the suite doesn't say how many it has. Activations, the cache of keys and
    values and the dictionaries come on top."""


def estimate(suite: Suite) -> Estimate:
    """Costs by the tasks' own estimates, at the prices of the suite's judges.

    Raises:
        UserError: a task or judge is unknown, or an option of it.
    """
    tasks = [made_task(spec) for spec in suite.tasks]
    prices = {
        role: judge_price(spec, suite.judge_options.get(spec.partition(":")[0]))
        for role, spec in chosen_judges(suite, tasks).items()
    }
    cells = [
        (spec.name or spec.source, task.name, seed, cost_of(task, prices.get(task.judge_role or "")))
        for seed in suite.seeds
        for spec in suite.dictionaries
        for task in tasks
    ]
    known = suite.lm_parameters
    return Estimate(cells, None if known is None else known * _BYTES.get(suite.dtype, 4))
