"""Templates to pages. Every value is escaped but the charts, which escape their own texts."""

from __future__ import annotations

import json
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from latentbench_leaderboard._dictionary import metric_anchor
from latentbench_leaderboard._format import number, plain, sites_text
from latentbench_leaderboard._method import metric_id

__all__ = ["page", "templates"]


def templates() -> Environment:
    """The environment that all pages are rendered in: autoescaped, and an unknown name is an error."""
    environment = Environment(
        loader=PackageLoader("latentbench_leaderboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    environment.filters["plain"] = plain
    environment.filters["sites"] = sites_text
    environment.filters["json"] = lambda value: json.dumps(value, ensure_ascii=True, allow_nan=False)
    environment.globals["metric_anchor"] = metric_anchor
    environment.globals["metric_id"] = metric_id
    return environment


def page(environment: Environment, template: str, root: str, values: dict[str, Any]) -> bytes:
    """One page.

    Args:
        environment: see `templates`.
        template: file name of the template.
        root: relative path from the page to the site's folder, "" or "../".
        values: what the template shows.
    """
    text = environment.get_template(template).render(root=root, **values)
    # Texts of models can hold lone surrogates, which no file can.
    return text.encode("utf-8", errors="replace")
