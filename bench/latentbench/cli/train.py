"""`latentbench train`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from latentbench.cli._output import echo_json

__all__ = ["train"]


@click.command()
@click.argument("recipe")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for weights and cards.")
@click.option("--device", default="cpu", show_default=True, help="Device of the language model.")
@click.option("--dict-device", help="Device of the dictionaries, if another.")
@click.option("--dtype", default="float32", show_default=True, help="Type of the language model's numbers.")
@click.option("--json", "as_json", is_flag=True, help="The report as JSON.")
def train(recipe: str, out: Path, device: str, dict_device: str | None, dtype: str, as_json: bool) -> None:
    """Train the dictionaries of a RECIPE (a TOML file, or a shipped name such as zoo-smollm2) side by side.

    An interrupted run goes on from its last checkpoint when the same command is given again.
    """
    from latentbench.data import load_corpus
    from latentbench.lm import load_lm
    from latentbench.train import load_recipe
    from latentbench.train import train as run_training

    loaded = load_recipe(recipe)
    lm = load_lm(loaded.lm, device=device, dtype=dtype)
    started = time.monotonic()

    def progress(done: int, total: int, losses: dict[str, float]) -> None:
        rate = done / (time.monotonic() - started)
        shown = ", ".join(f"{name} {loss:.4f}" for name, loss in losses.items())
        left = (total - done) / rate / 60 if rate else 0.0
        end = "\r" if sys.stderr.isatty() else "\n"
        click.echo(
            f"{done:,} of {total:,} tokens, {left:.0f} min left; loss {shown}{end}", err=True, nl=False
        )

    report = run_training(
        lm,
        load_corpus(loaded.corpus, split="train"),
        load_corpus(loaded.corpus, split="calibrate"),
        loaded,
        out,
        device=dict_device or device,
        progress=progress,
    )
    if as_json:
        files = [file.name for file in report.files]
        echo_json({"tokens": report.tokens, "held_out_normalised_mse": report.held_out, "files": files})
        return
    click.echo(f"trained on {report.tokens:,} tokens; held-out normalised MSE:")
    for name, error in report.held_out.items():
        click.echo(f"  {name}: {error:.4f}")
