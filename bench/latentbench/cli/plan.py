"""`latentbench plan`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from latentbench.cli._options import Chosen, suite_options
from latentbench.cli._output import echo_json, echo_table

__all__ = ["plan"]


@click.command()
@suite_options
@click.option(
    "--out", type=click.Path(path_type=Path), help="Results folder, to tell what is stored already."
)
@click.option(
    "--estimate",
    "from_file",
    is_flag=True,
    help="Load nothing: for models and dictionaries that are not on this machine.",
)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def plan(
    chosen: Chosen,
    device: str,
    dict_device: str | None,
    out: Path | None,
    from_file: bool,
    as_json: bool,
) -> None:
    """Show the cells of a SUITE, what is stored already, and what the rest costs in tokens, minutes and judge calls.

    Loads the model and the dictionaries, since their checksums are part of what a cell is; measures nothing but the
    model's speed on one batch.
    """
    loaded = chosen.load()
    if from_file:
        rows, memory = _estimated(loaded)
        speed = None
    else:
        rows, speed = _planned(loaded, device, dict_device, out)
        memory = None
    if as_json:
        found = {"suite": loaded.model_dump(mode="json"), "cells": rows, "tokens_per_second": speed}
        echo_json(found | ({"model_bytes": memory} if from_file else {}))
        return
    _show(rows, speed)
    if memory is not None:
        click.echo(
            f"the model's weights take {memory / 2**30:.1f} GiB as {loaded.dtype}; activations, the cache of keys and "
            "values and the dictionaries come on top"
        )


def _planned(
    suite: Any, device: str, dict_device: str | None, out: Path | None
) -> tuple[list[dict[str, Any]], float | None]:
    """The cells as rows, and the model's speed if there is something to do."""
    from latentbench.run import make_plan

    made = make_plan(suite, device=device, dictionary_device=dict_device)
    done = made.finished(out) if out is not None else set()
    rows = [
        _row(cell.labels["dictionary"], cell.task.name, cell.seed, made.cost(cell))
        | {"key": cell.key, "stored": cell.key in done}
        for cell in made.cells
    ]
    return rows, made.speed() if len(done) < len(rows) else None


def _estimated(suite: Any) -> tuple[list[dict[str, Any]], float | None]:
    from latentbench.run import estimate

    found = estimate(suite)
    rows = [_row(*cell) | {"key": "", "stored": False} for cell in found.cells]
    return rows, found.model_bytes


def _row(dictionary: str, task: str, seed: int, cost: Any) -> dict[str, Any]:
    return {
        "dictionary": dictionary,
        "task": task,
        "seed": seed,
        "tokens": cost.tokens,
        "judge_calls": cost.judge_calls,
        "judge_tokens": cost.judge_tokens,
        "dollars": cost.dollars,
        "texts": cost.texts,
    }


def _show(rows: Sequence[Mapping[str, Any]], speed: float | None) -> None:
    echo_table(
        ("KEY", "STATE", "TOKENS", "TEXTS", "JUDGE CALLS", "SEED", "TASK", "DICTIONARY"),
        [
            (
                str(row["key"])[:10] or "-",
                "stored" if row["stored"] else "to do",
                f"{row['tokens']:,}",
                f"{row['texts']:,}",
                f"{row['judge_calls']:,}",
                str(row["seed"]),
                str(row["task"]),
                str(row["dictionary"]),
            )
            for row in rows
        ],
    )
    missing = [row for row in rows if not row["stored"]]
    tokens, calls, texts = (
        sum(int(row[name]) for row in missing) for name in ("tokens", "judge_calls", "texts")
    )
    click.echo(
        f"{len(missing)} of {len(rows)} cells to do: at most {tokens:,} tokens through the model (passes that cells "
        f"share are counted at each), {texts:,} texts to write, and {calls:,} judge calls{_judging(missing)}"
    )
    if speed is not None:
        minutes = tokens / speed / 60
        click.echo(
            f"{minutes:,.0f} minutes at {speed:,.0f} tokens a second, as one batch ran just now; texts take longer"
        )


def _judging(rows: Sequence[Mapping[str, Any]]) -> str:
    """What the judge's calls come to, where a language model judges."""
    tokens = sum(int(row["judge_tokens"]) for row in rows)
    if not tokens:
        return ""
    known = [row["dollars"] for row in rows if row["judge_tokens"]]
    priced = [dollars for dollars in known if dollars is not None]
    cost = (
        f"about {sum(priced):.2f} dollars" if len(priced) == len(known) else "no price of the judge is known"
    )
    return f" of about {tokens:,} tokens ({cost})"
