"""`latentbench doctor`: the conformance kits on the command line."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from latentbench.cli._checkpoint import CheckpointFacts, checkpoint_options
from latentbench.cli._output import echo_json, echo_table, terminal_width
from latentbench.errors import UserError
from latentbench.judging import make_judge
from latentbench.registry import TASKS

if TYPE_CHECKING:
    from latentbench.adapters import Dictionary
    from latentbench.testing import CheckResult

__all__ = ["doctor"]


@click.group()
def doctor() -> None:
    """Examine a dictionary, a task or a judge, and name what is likely to be wrong.

    Exits with 1 if a check fails.
    """


@doctor.command("dict")
@click.argument("source")
@click.option(
    "--lm", "lm_name", required=True, help="Language model it was made for: asset, hub id or folder."
)
@checkpoint_options
@click.option(
    "--tokens", type=click.IntRange(min=64), default=2048, show_default=True, help="Tokens to look at."
)
@click.option(
    "--context", type=click.IntRange(min=2), default=128, show_default=True, help="Tokens in a row."
)
@click.option(
    "--texts",
    "texts_file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="A text file, paragraphs divided by empty lines; by default passages that ship with the package.",
)
@click.option("--device", default="cpu", show_default=True, help="Device of model and dictionary.")
@click.option("--dtype", default="float32", show_default=True, help="Type of model and dictionary.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor_dict(
    source: str,
    lm_name: str,
    site: str | None,
    k: int | None,
    architecture: str | None,
    pooling: str | None,
    n_layers: int | None,
    prefix: int | None,
    mode: str | None,
    tokens: int,
    context: int,
    texts_file: Path | None,
    device: str,
    dtype: str,
    as_json: bool,
) -> None:
    """Check the dictionary SOURCE on a model's own activations.

    It is tried at other sites, under other normalisations, with and without a pre-bias and transposed; what
    reconstructs much better than the declared setting is named as the likely cause.
    """
    from latentbench.adapters import LoadOptions, load_dictionary
    from latentbench.lm import load_lm
    from latentbench.testing import check_adapter

    facts = CheckpointFacts(site, k, architecture, pooling, n_layers, prefix, mode)
    options = LoadOptions(**facts._asdict())
    dictionary = load_dictionary(source, k=k, options=options, device=device, dtype=dtype)
    click.echo(f"loading {lm_name} ...", err=True)
    lm = load_lm(lm_name, device=device, dtype=dtype)
    click.echo(f"looking at {tokens:,} tokens at most ...", err=True)
    texts = None if texts_file is None else _paragraphs(texts_file)
    results = check_adapter(dictionary, lm, texts=texts, max_tokens=tokens, context=context)
    head = {"dictionary": dictionary.card.name, "source": source, "lm": lm.identity(), **_card(dictionary)}
    _report(f"{dictionary.card.name} on {lm.name}", head, results, as_json)


@doctor.command("task")
@click.argument("name")
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    help="An option of the task, as JSON; repeatable.",
)
@click.option("--judge", help="Judge to ask; by default a toy one of the role 'similarity'.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor_task(name: str, options: tuple[str, ...], judge: str | None, as_json: bool) -> None:
    """Check the task NAME by running it on a toy model."""
    import json

    from latentbench.testing import check_task

    chosen: dict[str, Any] = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals:
            raise UserError(f"--option {option!r}: write KEY=VALUE")
        try:
            chosen[key] = json.loads(value)
        except ValueError:
            chosen[key] = value
    made = TASKS.load(name)
    try:
        config = made.Config.model_validate(chosen)
    except ValueError as error:  # pydantic's ValidationError is one
        raise UserError(f"task {name!r}: {error}") from error
    results = check_task(made(config), judge=make_judge(judge) if judge else None)
    _report(f"task {name}", {"task": name, "options": chosen}, results, as_json)


@doctor.command("judge")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor_judge(name: str, as_json: bool) -> None:
    """Check the judge NAME by asking it."""
    from latentbench.testing import check_judge

    _report(f"judge {name}", {"judge": name}, check_judge(make_judge(name)), as_json)


def _card(dictionary: Dictionary) -> dict[str, Any]:
    card = dictionary.card
    return {
        "family": card.family,
        "reads": list(card.reads),
        "writes": list(card.writes),
        "sha256": card.sha256,
    }


def _paragraphs(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--texts {path}: {error}; it has to be a text file in UTF-8") from error
    found = [part.strip("\n") for part in text.split("\n\n") if part.strip()]
    if not found:
        raise UserError(f"--texts {path}: the file holds no text")
    return found


def _report(title: str, head: dict[str, Any], results: Sequence[CheckResult], as_json: bool) -> None:
    failed = [result for result in results if result.passed is False]
    causes = list(dict.fromkeys(result.cause for result in failed if result.cause))
    if as_json:
        rows = [{**asdict(result), "state": result.state} for result in results]
        echo_json({**head, "passed": not failed, "likely_causes": causes, "checks": rows})
    else:
        click.echo(click.style(title, bold=True))
        echo_table(["", "CHECK", "FOUND"], [[result.state, result.name, result.found] for result in results])
        for result in failed:
            click.echo("")
            cause = f" - likely cause: {result.cause}" if result.cause else ""
            click.echo(click.style(f"{result.name}{cause}", bold=True))
            for text in (result.why, result.instead):
                for line in textwrap.wrap(text, terminal_width() - 2):
                    click.echo(f"  {line}")
        click.echo("")
        click.echo(_summary(results))
    if failed:
        click.get_current_context().exit(1)


def _summary(results: Sequence[CheckResult]) -> str:
    counts = {
        state: sum(result.state == state for result in results) for state in ("passed", "failed", "skipped")
    }
    return ", ".join(f"{count} {state}" for state, count in counts.items() if count or state == "failed")
