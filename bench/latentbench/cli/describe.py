"""`latentbench describe`."""

from __future__ import annotations

import importlib
import textwrap
from collections.abc import Mapping
from typing import Any

import click

from latentbench.cli._checkpoint import CheckpointFacts, checkpoint_options
from latentbench.cli._listing import KINDS, Kind, find_kind, find_row
from latentbench.cli._output import echo_json, human_size, terminal_width

__all__ = ["describe"]


@click.command()
@click.argument("kind", metavar="[" + "|".join(kind.singular for kind in KINDS) + "]")
@click.argument("name")
@checkpoint_options
@click.option("--options", is_flag=True, help="Of a task: its options and their defaults. Imports torch.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def describe(
    kind: str,
    name: str,
    site: str | None,
    k: int | None,
    architecture: str | None,
    pooling: str | None,
    n_layers: int | None,
    prefix: int | None,
    mode: str | None,
    options: bool,
    as_json: bool,
) -> None:
    """Explain one thing that `latentbench ls` lists, or the dictionary at a path: `describe dict PATH`.

    Of a path it says which format it is of, and why. The options but --json are for what a checkpoint doesn't say.
    """
    found = find_kind(kind)
    facts = CheckpointFacts(site, k, architecture, pooling, n_layers, prefix, mode)
    if found.singular == "dictionary" and (any(facts) or name not in _listed(found)):
        # By name, so that nothing that lists things comes to depend on torch.
        row = importlib.import_module("latentbench.cli._describe_dict").checkpoint_row(name, facts)
    else:
        row = find_row(found, name)
    if options and found.singular == "task":
        defaults = importlib.import_module("latentbench.cli._describe_task").options_of(row["name"])
        row = {**row, "defaults": defaults}
    if as_json:
        echo_json(row)
        return
    head = f"{found.singular} {row['name']}" + (f" (version {row['version']})" if row.get("version") else "")
    click.echo(click.style(head, bold=True))
    if row.get("title"):
        click.echo(row["title"])
    details = dict(row)
    for shown in ("name", "title", "version", "aliases"):
        details.pop(shown, None)
    metrics = details.pop("metric", {})
    inner = {
        key: details.pop(key)
        for key in ("card", "suite", "defaults")
        if isinstance(details.get(key), Mapping)
    }
    _echo_details(details)
    for key, value in inner.items():
        click.echo("\n" + click.style("options and their defaults", bold=True) if key == "defaults" else "")
        _echo_details(value)
    if metrics:
        _echo_metrics(metrics)


def _listed(kind: Kind) -> set[str]:
    return {name for row in kind.rows() for name in (row["name"], *row.get("aliases", ()))}


def _echo_metrics(metrics: Mapping[str, Mapping[str, Any]]) -> None:
    click.echo("\n" + click.style("metrics", bold=True))
    for name, metric in metrics.items():
        better = {"higher": ", higher is better", "lower": ", lower is better"}.get(
            str(metric.get("direction")), ""
        )
        headline = " [headline]" if metric.get("headline") else ""
        click.echo(f"  {name}: {metric.get('title', name)} ({metric.get('unit', '')}{better}){headline}")
        _echo_wrapped(str(metric.get("definition", "")), 6)
        if metric.get("law"):
            _echo_wrapped(f"Law: {metric['law']}", 6)
        if metric.get("chance"):
            _echo_wrapped(f"By chance: {metric['chance']}", 6)


def _echo_details(details: Mapping[str, Any], indent: int = 2) -> None:
    for key, value in details.items():
        if value in (None, "", [], {}):
            continue
        label = f"{' ' * indent}{key}: "
        if isinstance(value, Mapping):
            click.echo(label.rstrip())
            _echo_details(value, indent + 2)
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            click.echo(label.rstrip())
            for item in value:
                click.echo(" " * (indent + 2) + ", ".join(f"{k} = {v}" for k, v in item.items()))
        else:
            _echo_wrapped(key + ": " + _text(key, value), indent)


def _text(key: str, value: Any) -> str:
    if key == "size" and isinstance(value, int):
        return human_size(value)
    if isinstance(value, list):
        shown = ", ".join(str(item) for item in value[:12])
        return shown + (f", ... ({len(value)} in all)" if len(value) > 12 else "")
    return str(value)


def _echo_wrapped(text: str, indent: int) -> None:
    for line in textwrap.wrap(text, terminal_width() - indent, subsequent_indent="  "):
        click.echo(" " * indent + line)
