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
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def plan(
    chosen: Chosen,
    device: str,
    dict_device: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Show the cells of a SUITE, what is stored already, and what the rest costs in tokens, minutes and judge calls.

    Loads the model and the dictionaries, since their checksums are part of what a cell is; measures nothing but the
    model's speed on one batch.
    """
    loaded = chosen.load()
    from latentbench.run import make_plan

    made = make_plan(loaded, device=device, dictionary_device=dict_device)
    done = made.finished(out) if out is not None else set()
    rows = []
    for cell in made.cells:
        cost = made.cost(cell)
        rows.append(
            {
                "dictionary": cell.labels["dictionary"],
                "task": cell.task.name,
                "seed": cell.seed,
                "key": cell.key,
                "stored": cell.key in done,
                "tokens": cost.tokens,
                "judge_calls": cost.judge_calls,
                "judge_tokens": cost.judge_tokens,
                "dollars": cost.dollars,
                "texts": cost.texts,
            }
        )
    speed = made.speed() if len(done) < len(rows) else None
    if as_json:
        echo_json({"suite": loaded.model_dump(mode="json"), "cells": rows, "tokens_per_second": speed})
        return
    echo_table(
        ("KEY", "STATE", "TOKENS", "TEXTS", "JUDGE CALLS", "SEED", "TASK", "DICTIONARY"),
        [
            (
                str(row["key"])[:10],
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
    tokens = sum(int(row["tokens"]) for row in missing)
    calls = sum(int(row["judge_calls"]) for row in missing)
    texts = sum(int(row["texts"]) for row in missing)
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
