"""`latentbench run`."""

from __future__ import annotations

from pathlib import Path

import click

from latentbench.cli._options import Chosen, suite_options
from latentbench.cli._output import echo_json
from latentbench.cli._progress import listening

__all__ = ["run"]


@click.command()
@suite_options
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="Results folder; made if missing."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Events as JSON lines, then one line with the records' keys."
)
def run(
    chosen: Chosen,
    device: str,
    dict_device: str | None,
    out: Path,
    as_json: bool,
) -> int:
    """Measure dictionaries: a SUITE by name or file, or what --lm, --dict and --task name.

    The same command again does only what is missing. Exit code 0: every cell is ok; 1: some failed (their errors
    are in the records); 2: wrong input, nothing was run.
    """
    loaded = chosen.load()
    if out.exists() and not out.is_dir():
        raise click.UsageError(f"--out {str(out)!r} is a file; name a folder")
    from latentbench.run import execute, make_plan

    plan = make_plan(loaded, device=device, dictionary_device=dict_device)
    with listening(as_json=as_json) as listener:
        records = execute(plan, out, listener)
    failed = [record for record in records if record.status != "ok"]
    if as_json:
        echo_json(
            {"records": [record.key for record in records], "failed": [record.key for record in failed]},
            line=True,
        )
    return 1 if failed else 0
