"""The process that computes summaries: a request a line, an answer a line; see `_recompute`."""

from __future__ import annotations

import json
import sys

from latentbench_leaderboard.bundles._recompute import _CPU_SECONDS, _MEMORY_BYTES, recompute_cell

__all__ = ["main"]


def main() -> None:
    """Answer requests until there are no more."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # a task that prints must not spoil the answers
    _limit_memory()
    for line in sys.stdin:
        _limit_time()
        answers.write(json.dumps(recompute_cell(json.loads(line))) + "\n")
        answers.flush()


def _limit_memory() -> None:
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _limit_time() -> None:
    """Give the next summary its time, beyond what was used so far."""
    if sys.platform != "win32":
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        soft = int(used.ru_utime + used.ru_stime) + _CPU_SECONDS
        resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))


if __name__ == "__main__":
    main()
