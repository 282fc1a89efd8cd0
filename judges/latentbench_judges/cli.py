"""`latentbench judge`: calibrate one, write a sheet for people, look at what was spent and at what waits."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from latentbench.cli import echo_json, echo_table

if TYPE_CHECKING:
    from latentbench_judges._batch_store import Batch
    from latentbench_judges.calibrate import Calibration

__all__ = ["judge"]


@click.group()
def judge() -> None:
    """Prove a judge, write a sheet for people to judge, see what judging cost."""


@judge.command("calibrate")
@click.argument("name")
@click.option("--judge-url", metavar="URL", help="Base URL of the judge 'openai'.")
@click.option(
    "--judge-option", "options", multiple=True, metavar="JUDGE.KEY=VALUE", help="Option; repeatable."
)
@click.option(
    "--rubric", "rubrics", multiple=True, help="Rubric; repeatable. [default: all that have anchors]"
)
@click.option("--seed", default=0, show_default=True, help="Of the anchors' mixture.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Results folder: its boards then show the calibration."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def calibrate_command(
    name: str,
    judge_url: str | None,
    options: tuple[str, ...],
    rubrics: tuple[str, ...],
    seed: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Ask the judge NAME, such as openai:MODEL or offline, about anchors whose right verdict is certain."""
    from latentbench.cli._options import parsed_options
    from latentbench.errors import UserError, unknown_name
    from latentbench.judging import make_judge
    from latentbench.store import pretty_json
    from latentbench_judges.calibrate import RUBRICS, calibrate

    for rubric in rubrics:
        if rubric not in RUBRICS:
            raise unknown_name("rubric with anchors", rubric, RUBRICS)
    given, kind = parsed_options(options), name.partition(":")[0]
    if judge_url:
        given.setdefault("openai", {})["url"] = judge_url
    if stray := set(given) - {kind}:
        raise UserError(f"options are given for {sorted(stray)}, and the judge is {kind!r}")
    made = make_judge(name, given.get(kind))
    if made.role != "rubric":
        raise UserError(
            f"judge {name!r} has the role {made.role!r}; anchors are for judges of the role 'rubric'"
        )
    if hasattr(made, "preflight"):
        made.preflight()
    found = calibrate(made, rubrics or RUBRICS, seed)
    if out is not None:
        path = out / "calibration" / f"{found.judge_sha256}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(pretty_json(found.model_dump(mode="json")), encoding="utf-8")
    if as_json:
        echo_json(found.model_dump(mode="json"))
        return
    _show(found)


def _show(found: Calibration) -> None:
    rows = []
    for one in found.rubrics:
        rows.append(
            (
                one.rubric,
                "good" if one.good else "not good",
                _number(one.kappa, one.kappa_interval),
                _number(one.spearman, one.spearman_interval),
                "-" if one.exact is None else f"{one.exact:.0%}",
                f"{sum(one.unscored.values())} of {one.anchors}",
                one.retest,
                one.turned,
                one.canaries,
            )
        )
    echo_table(
        ("RUBRIC", "", "KAPPA", "SPEARMAN", "EXACT", "UNSCORED", "ASKED AGAIN", "TURNED ROUND", "CANARIES"),
        rows,
    )
    cost = "" if found.dollars is None else f", {found.dollars:.4f} dollars"
    click.echo(
        f"{found.calls:,} questions, {found.tokens:,} tokens{cost}; model {', '.join(found.models) or 'unknown'}"
    )
    for one in found.rubrics:
        means = ", ".join(f"{kind} {mean:.2f}" for kind, mean in one.mean_by_kind.items())
        false = ", ".join(f"{kind} {count}" for kind, count in one.false_positives.items())
        click.echo(
            f"{one.rubric}: mean verdict by kind (truth): {means}; rated too high at the lowest truth: {false}"
        )


def _number(value: float | None, interval: tuple[float, float] | None) -> str:
    if value is None:
        return "none"
    return f"{value:.2f}" + (f" ({interval[0]:.2f} to {interval[1]:.2f})" if interval else "")


@judge.command("sheet")
@click.argument("results", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("key")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="CSV file to write.")
@click.option("--seed", default=0, show_default=True, help="Of the order.")
def sheet(results: Path, key: str, out: Path, seed: int) -> None:
    """Write the questions of a measured cell in RESULTS as a blind, shuffled sheet for a person.

    KEY is the cell's key or the beginning of it. Fill in the column `verdict` and judge with `--judge human:FILE`.
    """
    from latentbench.errors import UserError
    from latentbench.registry import TASKS
    from latentbench.stats import generator
    from latentbench.store import ResultsFolder, read_lines
    from latentbench_judges.human import write_sheet

    cells = [cell for cell in ResultsFolder(results).cells() if cell.key.startswith(key)]
    if len(cells) != 1:
        raise UserError(
            f"{len(cells)} cells of {str(results)!r} have a key that begins with {key!r}; one is needed"
        )
    identity = cells[0].identity()
    if identity is None:
        raise UserError(f"the cell {cells[0].key[:10]} has no cell.json")
    name = str(identity.task["name"])
    made = TASKS.load(name)
    task = made(made.Config.model_validate(identity.task["config"]))
    if task.judge_role != "rubric":
        raise UserError(f"task {name!r} asks no rubric: there is nothing for a person to fill in")
    items = [*cells[0].items(), *read_lines(cells[0].path / "texts.jsonl")]
    asker = _Collector()
    for _ in task.judge(items, asker, generator(f"{identity.measurement_key()}/judge")):
        pass
    rows = write_sheet(asker.asked, out, seed)
    click.echo(f"{rows} questions in {out}")


class _Collector:
    """A judge that answers nothing and remembers what it was asked."""

    role = "rubric"

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def identity(self) -> dict[str, Any]:
        return {"name": "collector"}

    def answers(self, questions: Any) -> Any:
        from latentbench_judges._answer import Answer

        for question in questions:
            self.asked.append(question)
            yield Answer(question.id, question.key, "missing", reason="not asked yet")


@judge.command("ledger")
@click.option(
    "--ledger", type=click.Path(path_type=Path), help="File. [default: the one in the cache folder]"
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ledger(ledger: Path | None, as_json: bool) -> None:
    """Sum up the calls to LLM judges by day, server and model."""
    from latentbench.data import cache_root
    from latentbench_judges._spending import Ledger

    sums: dict[tuple[str, str, str], dict[str, Any]] = {}
    for entry in Ledger(ledger or cache_root() / "judges" / "ledger.jsonl").entries():
        place = (entry["time"][:10], entry["url"], entry["model"])
        row = sums.setdefault(place, {"calls": 0, "failed": 0, "prompt": 0, "completion": 0, "dollars": 0.0})
        row["calls"] += 1
        row["failed"] += entry["outcome"] != "answered"
        row["prompt"] += entry["prompt"]
        row["completion"] += entry["completion"]
        row["dollars"] += entry["dollars"] or 0.0
    rows = [
        {"day": day, "url": url, "model": model, **sums[day, url, model]} for day, url, model in sorted(sums)
    ]
    if as_json:
        echo_json(rows)
        return
    echo_table(
        ("DAY", "CALLS", "FAILED", "TOKENS READ", "WRITTEN", "DOLLARS", "MODEL", "SERVER"),
        [
            (
                row["day"], f"{row['calls']:,}", f"{row['failed']:,}", f"{row['prompt']:,}", f"{row['completion']:,}",
                f"{row['dollars']:.4f}", row["model"], row["url"],
            )
            for row in rows
        ],
    )  # fmt: skip


@judge.command("batches")
@click.option(
    "--cache",
    type=click.Path(path_type=Path),
    help="The judge's file of replies, beside which batches are noted. [default: the one in the cache folder]",
)
@click.option(
    "--forget", metavar="ID", help="Forget a batch: its questions will be asked, and paid for, again."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def batches(cache: Path | None, forget: str | None, as_json: bool) -> None:
    """List the batches that wait to be collected, with their state when they were last looked at.

    The command that sent a batch collects it. Nothing is asked of a server here.
    """
    from latentbench.data import cache_root
    from latentbench.errors import UserError
    from latentbench_judges._batch_store import BatchStore, store_path

    path = store_path(cache or cache_root() / "judges" / "replies.sqlite")
    found = []
    if path.is_file():
        with BatchStore(path) as store:
            if forget is not None:
                for one in store.batches():
                    if forget in (one.id, one.token):
                        store.forget(one.token)
                        click.echo(f"forgotten: {forget}, {one.waiting:,} questions")
                        return
            found = store.batches()
    if forget is not None:
        raise UserError(
            f"no batch {forget!r} is noted in {path}: `latentbench judge batches` lists those that are"
        )
    rows = [_batch_row(one) for one in found]
    if as_json:
        echo_json(rows)
        return
    echo_table(
        ("BATCH", "STATE", "QUESTIONS", "WAITING", "AGE", "MODEL", "SERVER"),
        [
            (
                row["batch"], row["state"], f"{row['questions']:,}", f"{row['waiting']:,}",
                f"{row['age_seconds'] / 3600:.1f} h", row["model"], row["url"],
            )
            for row in rows
        ],
    )  # fmt: skip


def _batch_row(one: Batch) -> dict[str, Any]:
    """A batch as the command shows it; one that no server has confirmed goes by our own token."""
    age = datetime.now(UTC) - datetime.fromisoformat(one.submitted)
    return {
        "batch": one.id or one.token,
        "state": one.state,
        "questions": one.questions,
        "waiting": one.waiting,
        "submitted": one.submitted,
        "age_seconds": max(0, round(age.total_seconds())),
        "model": one.model,
        "url": one.url,
    }
