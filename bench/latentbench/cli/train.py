"""`latentbench train`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING

import click

from latentbench.cli._output import echo_json

if TYPE_CHECKING:
    from latentbench.train import TrainingReport

__all__ = ["train"]


@click.command()
@click.argument("recipe", required=False)
@click.option(
    "--recipe", "named", help="The recipe, as an option; saelens is the shipped one for its trainers."
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for weights and cards.")
@click.option("--only", default="*", show_default=True, help="Pattern of the dictionaries to train.")
@click.option("--one-by-one", is_flag=True, help="One dictionary after the other; best with --cache.")
@click.option(
    "--cache", type=click.Path(path_type=Path), help="Folder that keeps activations in half precision."
)
@click.option("--device", default="cpu", show_default=True, help="Device of the language model.")
@click.option("--dict-device", help="Device of the dictionaries, if another.")
@click.option("--dtype", default="float32", show_default=True, help="Type of the language model's numbers.")
@click.option("--json", "as_json", is_flag=True, help="The report as JSON.")
def train(
    recipe: str | None,
    named: str | None,
    out: Path,
    only: str,
    one_by_one: bool,
    cache: Path | None,
    device: str,
    dict_device: str | None,
    dtype: str,
    as_json: bool,
) -> None:
    """Train the dictionaries of a RECIPE (a TOML file, or a shipped name such as zoo-smollm2) side by side.

    An interrupted run goes on from its last checkpoint when the same command is given again; dictionaries that
    are in the folder already are not trained again.
    """
    from latentbench.data import load_corpus
    from latentbench.lm import load_lm
    from latentbench.train import TrainOptions, choose_units, load_recipe
    from latentbench.train import train as run_training

    source = recipe or named
    if source is None or (recipe and named):
        raise click.UsageError("name one recipe: a TOML file, or a shipped one such as zoo-smollm2")
    loaded = load_recipe(source)
    units = choose_units(loaded, only)
    lm = load_lm(loaded.lm, device=device, dtype=dtype)
    corpus, held_out = (load_corpus(loaded.corpus, split=split) for split in ("train", "calibrate"))
    reports: list[TrainingReport] = []
    for pattern in [escape(unit.name) for unit in units] if one_by_one else [only]:
        options = TrainOptions(
            device=dict_device or device, cache=cache, only=pattern, prefetch=not device.startswith("cpu")
        )
        reports.append(run_training(lm, corpus, held_out, loaded, out, options=options, progress=_progress()))
    _tell(reports, as_json=as_json)


def _progress() -> Callable[[int, int, dict[str, float]], None]:
    """Prints how far a run is, with an estimate that starts at the first block of this sitting."""
    started: list[tuple[float, int]] = []

    def progress(done: int, total: int, losses: dict[str, float]) -> None:
        started.append((time.monotonic(), done))
        seconds, tokens = started[-1][0] - started[0][0], done - started[0][1]
        left = f", {(total - done) * seconds / tokens / 60:.0f} min left" if tokens else ""
        shown = ", ".join(f"{name} {loss:.4f}" for name, loss in losses.items())
        end = "\r" if sys.stderr.isatty() else "\n"
        click.echo(f"{done:,} of {total:,} tokens{left}; loss {shown}{end}", err=True, nl=False)

    return progress


def _tell(reports: list[TrainingReport], *, as_json: bool) -> None:
    held_out = {name: error for report in reports for name, error in report.held_out.items()}
    speeds = [report.speed for report in reports if report.speed is not None]
    if as_json:
        echo_json(
            {
                "tokens": reports[0].tokens,
                "held_out_normalised_mse": held_out,
                "files": [file.name for report in reports for file in report.files],
                "tokens_per_second": [speed._asdict() for speed in speeds],
            }
        )
        return
    click.echo(f"trained on {reports[0].tokens:,} tokens; held-out normalised MSE:")
    for name, error in held_out.items():
        click.echo(f"  {name}: {error:.4f}")
    for speed in speeds:
        lm = "activations from the cache" if speed.lm is None else f"model {speed.lm:,.0f}"
        click.echo(f"tokens/s: {lm}, dictionaries {speed.training:,.0f}, both together {speed.both:,.0f}")
