"""What tasks, judges, formats, suites and dictionaries there are, read from files without imports."""

from __future__ import annotations

import ast
import json
import tomllib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from latentbench.errors import UserError, unknown_name
from latentbench.registry import FORMATS, JUDGES, TASKS, Registry

__all__ = ["KINDS", "Kind", "find_kind", "find_row"]

Row = dict[str, Any]


class Kind(NamedTuple):
    """One kind of thing that can be listed."""

    singular: str
    """As in `describe`."""
    plural: str
    """As in `ls`."""
    rows: Callable[[], list[Row]]
    """Everything of the kind; each row has `name` and `title`."""
    columns: tuple[str, ...]
    """Keys shown in the list, the title last."""


def find_kind(name: str) -> Kind:
    """A kind by its singular or plural; "dict" is short for a dictionary.

    Raises:
        UserError: there is no such kind.
    """
    name = {"dict": "dictionary", "dicts": "dictionaries"}.get(name, name)
    for kind in KINDS:
        if name in (kind.singular, kind.plural):
            return kind
    raise unknown_name("kind of thing", name, [kind.singular for kind in KINDS])


def find_row(kind: Kind, name: str) -> Row:
    """The entry of that name.

    Raises:
        UserError: there is none; the nearest are named.
    """
    rows = kind.rows()
    for row in rows:
        if name in (row["name"], *row.get("aliases", ())):
            return row
    raise unknown_name(kind.singular, name, [row["name"] for row in rows])


def _tasks() -> list[Row]:
    return [_task(name) for name in TASKS.names()]


def _task(name: str) -> Row:
    row: Row = {"name": name, "title": "", "version": "", "origin": TASKS.origin(name)}
    try:
        card = TASKS.folder(name) / "card.toml"
        return row | _read_toml(card) | {"name": name, "card": str(card)}
    except UserError as error:  # one broken package must not hide the others
        return row | {"title": f"(no card: {error})"}


def _modules(registry: Registry) -> Callable[[], list[Row]]:
    return lambda: [_module(registry, name) for name in registry.names()]


def _module(registry: Registry, name: str) -> Row:
    row: Row = {"name": name, "title": "", "about": "", "origin": registry.origin(name)}
    try:
        text = ast.get_docstring(ast.parse(registry.source(name).read_text(encoding="utf-8"))) or ""
    except (UserError, OSError, SyntaxError) as error:  # one broken package must not hide the others
        return row | {"title": f"({error})"}
    first, _, rest = text.partition("\n\n")
    return row | {"title": " ".join(first.split()), "about": rest.strip()}


def _suites() -> list[Row]:
    rows = []
    for path in _files("latentbench_tasks", "suites", "*.toml"):
        suite = _read_toml(path)
        title = str(suite.get("title") or suite.get("description") or "")
        rows.append({"name": path.stem, "title": title, "path": str(path), "suite": suite})
    return rows


def _dictionaries() -> list[Row]:
    rows = []
    for path in _files("latentbench", "zoo", "*.json"):
        card = _read_json(path)
        title = str(card.get("title") or card.get("about") or "")
        weights = path.with_suffix(".safetensors")
        size = weights.stat().st_size if weights.is_file() else None
        rows.append(
            {
                "name": f"zoo:{path.stem}",
                "aliases": [path.stem],
                "title": title or _dictionary_title(card),
                "family": str(card.get("family", "")),
                "latents": str(card.get("n_latents", "")),
                "size": size,
                "path": str(weights),
                "card": card,
            }
        )
    return rows


def _dictionary_title(card: Row) -> str:
    reads = [str(site) for site in card.get("reads", [])]
    where = ", ".join(reads) if len(reads) <= 2 else f"{reads[0]} to {reads[-1]}"
    return f"reads {where}" if where else ""


_CONTROLS = {
    "identity:SITE": "Every coordinate is a latent: perfect reconstruction, no sparsity.",
    "mean:SITE": "No latents; predicts the mean activation of the calibration split.",
    "pca:SITE:RANK[:K]": "Principal components of the calibration split, all or each token's K largest.",
    "random-directions:SITE:WIDTH:K": "Random directions, each token's K largest projections.",
    "random-codes:SOURCE": "As many latents per token as SOURCE, with its values and decoder, but drawn at random.",
    "permuted-decoder:SOURCE": "SOURCE's latents, each writing another latent's direction.",
    "random-decoder:SOURCE": "SOURCE's latents, each writing a random direction.",
    "untrained:SOURCE": "SOURCE before training, at its L0.",
}
"""Forms of `latentbench.adapters.CONTROL_SCHEMES`, told here because a list must not import torch."""


def _controls() -> list[Row]:
    return [
        {"name": form, "aliases": [form.partition(":")[0]], "title": title}
        for form, title in _CONTROLS.items()
    ]


def _assets() -> list[Row]:
    from latentbench.cli.assets import asset_row
    from latentbench.data.assets import catalogue

    return [asset_row(spec) for spec in catalogue().values()]


def _files(package: str, folder: str, pattern: str) -> list[Path]:
    spec = find_spec(package)
    roots = list(spec.submodule_search_locations or []) if spec is not None else []
    return sorted(path for root in roots for path in (Path(root) / folder).glob(pattern))


def _read_toml(path: Path) -> Row:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{path} can't be read: {error}") from error


def _read_json(path: Path) -> Row:
    try:
        value: Row = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} can't be read: {error}") from error
    return value


KINDS = (
    Kind("task", "tasks", _tasks, ("name", "version", "origin", "title")),
    Kind("judge", "judges", _modules(JUDGES), ("name", "origin", "title")),
    Kind("format", "formats", _modules(FORMATS), ("name", "origin", "title")),
    Kind("suite", "suites", _suites, ("name", "title")),
    Kind("dictionary", "dictionaries", _dictionaries, ("name", "family", "latents", "title")),
    Kind("control", "controls", _controls, ("name", "title")),
    Kind("asset", "assets", _assets, ("name", "state", "title")),
)
"""Everything `ls` and `describe` know, in the order shown."""
