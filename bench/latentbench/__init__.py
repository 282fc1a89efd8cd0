"""A benchmark for sparse dictionaries of language models.

The public names below are loaded when they are first used, so that `import latentbench` stays quick and needs
no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from latentbench.adapters import load_dictionary as load_dictionary
    from latentbench.lm import load_lm as load_lm
    from latentbench.run import run as run
    from latentbench.store import load_records as load_records

__all__ = ["__version__", "load_dictionary", "load_lm", "load_records", "run"]

__version__ = "0.1.0"

_HOMES = {
    "load_dictionary": "latentbench.adapters",
    "load_lm": "latentbench.lm",
    "load_records": "latentbench.store",
    "run": "latentbench.run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
