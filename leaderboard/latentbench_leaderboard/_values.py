"""Values from records and items that anybody may have written: of the expected kind, or nothing."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["as_list", "real", "whole"]


def as_list(value: object) -> list[Any]:
    """A list or tuple as a list; empty for anything else."""
    return list(value) if isinstance(value, (list, tuple)) else []


def real(value: object) -> float | None:
    """A finite number as a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) <= sys.float_info.max else None  # false for NaN, and no overflow


def whole(value: object) -> int | None:
    """An integer; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
