"""The leaderboard: a static site from a results folder. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from latentbench_leaderboard._build import SITE_VERSION, BuildOptions, SiteReport, build_site

__all__ = ["SITE_VERSION", "BuildOptions", "SiteReport", "build_site"]


def __getattr__(name: str) -> Any:
    # The command line imports this package for its help, which needs no templates and no records.
    if name in __all__:
        from latentbench_leaderboard import _build

        return getattr(_build, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
