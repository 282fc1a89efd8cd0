"""`latentbench export`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from latentbench.errors import UserError

if TYPE_CHECKING:
    from latentbench.store import RunRecord
    from latentbench_leaderboard.exports import NeuronpediaOptions

__all__ = ["export"]

_TEXTS = ("csv", "md", "latex")
_FORMATS = ("csv", "parquet", "md", "latex", "eee", "hf", "neuronpedia")


@click.command()
@click.argument("kind", metavar="FORMAT", type=click.Choice(_FORMATS))
@click.argument("results", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="File to write; for eee, hf and neuronpedia a folder. By default csv, md and latex are printed.",
)
@click.option(
    "--dataset",
    metavar="ID",
    help="For hf: id on the Hub of the benchmark's data set, such as somebody/latentbench.",
)
@click.option("--source-url", metavar="URL", help="For hf: where the numbers can be looked up.")
@click.option(
    "--source-set", metavar="NAME", help="For neuronpedia: source set of the dictionaries (mylab-res-2k)."
)
@click.option("--model-id", metavar="ID", help="For neuronpedia: the language model's id there (gemma-2-2b).")
@click.option(
    "--layers",
    type=click.IntRange(min=1),
    help="For neuronpedia: layers of the language model, for a host that does not have it yet.",
)
@click.option("--creator", metavar="NAME", help="For neuronpedia: who made the dictionaries.")
@click.option(
    "--creator-id", metavar="ID", help="For neuronpedia: the host's user that they are imported for."
)
@click.option(
    "--dictionary",
    "dictionaries",
    metavar="NAME",
    multiple=True,
    help="For neuronpedia: a dictionary to export; may be repeated. By default all.",
)
@click.option(
    "--local-texts",
    is_flag=True,
    help="For neuronpedia: take texts from texts.jsonl too, which are not for publication.",
)
def export(
    *,
    kind: str,
    results: Path,
    out: Path | None,
    dataset: str | None,
    source_url: str | None,
    source_set: str | None,
    model_id: str | None,
    layers: int | None,
    creator: str | None,
    creator_id: str | None,
    dictionaries: tuple[str, ...],
    local_texts: bool,
) -> None:
    """Write RESULTS for other programs.

    csv and parquet hold one row per metric; md and latex are tables of headline metrics with intervals; eee is the
    schema of Every Eval Ever; hf is .eval_results/*.yaml of the Hugging Face Hub; neuronpedia is what Neuronpedia's
    admin import reads: latents with density, largest strength, contexts and explanations, as far as measured.
    """
    hub = {"--dataset": dataset, "--source-url": source_url}
    pedia = {
        "--source-set": source_set,
        "--model-id": model_id,
        "--layers": layers,
        "--creator": creator,
        "--creator-id": creator_id,
        "--dictionary": dictionaries,
        "--local-texts": local_texts,
    }
    _only("hf", kind, hub)
    _only("neuronpedia", kind, pedia)
    if kind == "neuronpedia":
        from latentbench_leaderboard.exports import NEURONPEDIA_CREATOR, NeuronpediaOptions

        _neuronpedia(
            results,
            _named(out, kind),
            NeuronpediaOptions(
                source_set,
                model_id,
                layers,
                creator or "unknown",
                creator_id or NEURONPEDIA_CREATOR,
                dictionaries,
                local_texts,
            ),
        )
        return
    from latentbench.store import load_records

    records = load_records(results)
    if not records:
        raise UserError(f"{results} holds no finished cell, so there is nothing to export")
    if kind in _TEXTS:
        _text(kind, records, out)
        return
    if kind == "parquet":
        from latentbench_leaderboard.exports import rows_of, write_parquet

        path = _named(out, kind)
        write_parquet(rows_of(records), path)
        click.echo(str(path))
        return
    _write_all(_files(kind, records, dataset, source_url), _named(out, kind))


def _only(owner: str, kind: str, options: Mapping[str, object]) -> None:
    if kind != owner and any(options.values()):
        from latentbench_leaderboard._format import listing

        raise UserError(f"{listing(list(options))} are for {owner}, not for {kind}")


def _named(out: Path | None, kind: str) -> Path:
    if out is None:
        raise UserError(f"{kind} is not for a terminal: name what to write with --out")
    return out


def _neuronpedia(results: Path, out: Path, options: NeuronpediaOptions) -> None:
    from latentbench_leaderboard._subjects import load_subjects
    from latentbench_leaderboard.exports import neuronpedia_files

    subjects, _ = load_subjects(results)
    made = neuronpedia_files(subjects, options)
    _write_all(made.files, out)
    for one in made.exported:
        click.echo(
            f"{one.source}: {one.dictionary}: {one.features} latents, {one.activations} contexts, "
            f"{one.explanations} explanations"
        )
        if one.without_density:
            click.echo(
                f"  {one.without_density} latents without a density: the host will show its default, 0"
            )
        for reason, count in one.left_out.items():
            click.echo(f"  {count} contexts left out: {reason}")
    for name, reason in made.refused:
        click.echo(f"Left out {name}: {reason}", err=True)
    if options.local_texts:
        click.echo("The files hold texts that are not for publication: import them on this machine only.")


def _text(kind: str, records: list[RunRecord], out: Path | None) -> None:
    from latentbench_leaderboard.exports import csv_text, latex_text, markdown_text, rows_of

    make = {"csv": csv_text, "md": markdown_text, "latex": latex_text}[kind]
    text = make(rows_of(records))
    if out is None:
        click.echo(text, nl=False)
        return
    out.write_bytes(text.encode("utf-8"))
    click.echo(str(out))


def _files(
    kind: str, records: list[RunRecord], dataset: str | None, source_url: str | None
) -> Mapping[str, str]:
    from latentbench_leaderboard.exports import eee_files, hf_files, rows_of

    if kind == "eee":
        return eee_files(records)
    if dataset is None:
        raise UserError(
            "the Hub shows results under a benchmark's data set: name yours with --dataset OWNER/NAME"
        )
    return hf_files(rows_of(records), dataset, source_url)


def _write_all(files: Mapping[str, str | bytes], out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is there and is not an empty folder: nothing is overwritten; name another")
    for name, text in files.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    click.echo(f"{len(files)} files in {out}")
