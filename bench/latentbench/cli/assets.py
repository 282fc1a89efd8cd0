"""`latentbench assets`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from latentbench.cli._output import echo_json, echo_table, human_size
from latentbench.data import assets as store
from latentbench.errors import UserError

__all__ = ["assets"]

F = TypeVar("F", bound=Callable[..., Any])


def _options(command: F) -> F:
    """The options that every subcommand has."""
    command = click.option(
        "--cache-dir",
        type=click.Path(path_type=Path, file_okay=False),
        help="The cache; by default LATENTBENCH_CACHE or ~/.cache/latentbench.",
    )(command)
    command = click.option(
        "--catalogue",
        "extra",
        type=click.Path(path_type=Path, dir_okay=False),
        help="A TOML file with more assets; by default the one LATENTBENCH_CATALOGUE names.",
    )(command)
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


@click.group()
def assets() -> None:
    """Download, check and find weights and texts by name."""


@assets.command("ls")
@_options
def list_assets(cache_dir: Path | None, extra: Path | None, as_json: bool) -> None:
    """List the assets there are and which of them are in the cache."""
    rows = [asset_row(spec, cache_dir, extra) for spec in store.catalogue(extra).values()]
    if as_json:
        echo_json(rows)
        return
    echo_table(
        ["NAME", "STATE", "SIZE", "LICENCE", "WHAT"],
        [
            [row["name"], row["state"], human_size(row["size"]), row["licence"].split(";")[0], row["title"]]
            for row in rows
        ],
    )


@assets.command()
@click.argument("names", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every asset of the catalogue.")
@click.option("--force", is_flag=True, help="Fetch again what is already there.")
@_options
def pull(
    names: tuple[str, ...],
    everything: bool,
    force: bool,
    cache_dir: Path | None,
    extra: Path | None,
    as_json: bool,
) -> None:
    """Download the assets NAMES, check them, and put them into the cache."""
    specs = _chosen(names, everything, extra)
    pulled = {}
    for spec in specs:
        with _progress(spec.name, quiet=as_json) as progress:
            path = store.pull(spec.name, cache_dir=cache_dir, extra=extra, force=force, progress=progress)
        pulled[spec.name] = str(path)
        if not as_json:
            click.echo(f"{spec.name}: ready in {path}")
    if as_json:
        echo_json(pulled)


@assets.command()
@click.argument("names", nargs=-1)
@_options
def verify(names: tuple[str, ...], cache_dir: Path | None, extra: Path | None, as_json: bool) -> None:
    """Check the files of the assets NAMES (by default all that are in the cache) against their checksums.

    Exits with 1 if one of them is damaged, or was named and is missing.
    """
    specs = _chosen(names, not names, extra)
    found = [store.verify(spec.name, cache_dir, extra) for spec in specs]
    found = [status for status in found if names or status.state != "missing"]
    if as_json:
        echo_json([_status_row(status) for status in found])
    else:
        echo_table(["NAME", "STATE", "DETAIL"], [[s.name, s.state, s.detail or str(s.path)] for s in found])
    if any(status.state != "present" for status in found):
        if not as_json:
            click.echo("Fetch damaged or missing ones with 'latentbench assets pull --force NAME'.", err=True)
        click.get_current_context().exit(1)


@assets.command()
@click.argument("name")
@_options
def path(name: str, cache_dir: Path | None, extra: Path | None, as_json: bool) -> None:
    """Print the folder that holds the files of the asset NAME."""
    found = store.asset_path(name, cache_dir, extra)
    if as_json:
        echo_json({"name": name, "path": str(found)})
    else:
        click.echo(found)


def asset_row(
    spec: store.AssetSpec, cache_dir: Path | None = None, extra: Path | None = None
) -> dict[str, Any]:
    """What is known of an asset, as JSON."""
    status = store.status(spec.name, cache_dir, extra)
    return {
        "name": spec.name,
        "aliases": list(spec.aliases),
        "title": spec.title,
        "about": spec.about,
        "licence": spec.licence,
        "source": spec.source.describe(),
        "files": sorted(spec.lock) if spec.lock is not None else None,
        "size": spec.size() or status.size or None,
        "state": status.state,
        "path": str(status.path),
        "detail": status.detail,
    }


def _status_row(status: store.AssetStatus) -> dict[str, Any]:
    return {"name": status.name, "state": status.state, "path": str(status.path), "detail": status.detail}


def _chosen(names: tuple[str, ...], everything: bool, extra: Path | None) -> list[store.AssetSpec]:
    if everything:
        return list(store.catalogue(extra).values())
    if not names:
        raise UserError("no asset was named: give names from 'latentbench assets ls', or --all")
    return list({spec.name: spec for spec in (store.asset_spec(name, extra) for name in names)}.values())


@contextmanager
def _progress(name: str, *, quiet: bool) -> Iterator[store.Progress]:
    """A bar on a terminal; elsewhere one line when the download starts."""
    if quiet:
        yield lambda _step, _done, _total: None
        return
    if not sys.stderr.isatty():
        yield _line_progress(name)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None)

        def show(step: str, done: int, total: int) -> None:
            bar.update(task, description=f"{name}: {step}", completed=done, total=total or None)

        yield show


def _line_progress(name: str) -> store.Progress:
    seen: set[str] = set()

    def show(step: str, _done: int, total: int) -> None:
        if step not in seen:
            seen.add(step)
            click.echo(f"{name}: {step}" + (f" ({human_size(total)})" if total else ""), err=True)

    return show
