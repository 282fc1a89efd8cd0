"""Contexts with questions: made-up fact sheets, and files in the format of SQuAD. No torch."""

from __future__ import annotations

import json
import random
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from latentbench.errors import UserError
from latentbench.identity import sha256_text

__all__ = ["Question", "Sheet", "fact_sheets", "load_squad", "squad_from_hub"]

_MATERIAL = Path(__file__).parent / "fact_sheets.toml"
_ATTRIBUTES = 3
"""Attributes of a sheet; each is told of two of its three people."""


class Question(NamedTuple):
    """A question that its context answers."""

    text: str
    """The question."""
    answers: tuple[str, ...]
    """Accepted answers; the first one is the one that targets are made of."""


class Sheet(NamedTuple):
    """A context and its questions."""

    id: str
    """Hash of the context; questions of one context are no independent examples."""
    context: str
    """The text that the answers are in."""
    questions: tuple[Question, ...]
    """Its questions."""


def fact_sheets(count: int, seed: int = 0, questions: int = 5, attributes: int = _ATTRIBUTES) -> list[Sheet]:
    """Made-up sheets about three people each; they follow from the seed alone.

    Every attribute (town, work, pet, ...) is told of two people with different values, so naming a value of the right
    kind is not enough, and names and values are drawn independently of each other, so that without the context a guess
    is right as often as one value in twelve.

    Args:
        count: sheets; a smaller count gives the first ones of a larger.
        seed: of the draws.
        questions: questions of each sheet, at most two for each attribute.
        attributes: attributes of each sheet.
    """
    if not 1 <= questions <= 2 * attributes:
        raise ValueError(
            f"questions is {questions}; a sheet of {attributes} attributes has 1 to {2 * attributes}"
        )
    material = tomllib.loads(_MATERIAL.read_text(encoding="utf-8"))
    rng = random.Random(f"fact-sheets/{seed}")
    return [_sheet(material, rng, questions, attributes) for _ in range(count)]


def _sheet(material: dict[str, Any], rng: random.Random, questions: int, attributes: int) -> Sheet:
    people = rng.sample(material["names"], 3)
    facts: list[tuple[str, Question]] = []
    for name in rng.sample(sorted(material["attributes"]), attributes):
        attribute = material["attributes"][name]
        pairs = zip(rng.sample(people, 2), rng.sample(attribute["values"], 2), strict=True)
        for person, value in pairs:
            asked = Question(attribute["question"].format(name=person), (value,))
            facts.append((attribute["statement"].format(name=person, value=value), asked))
    rng.shuffle(facts)
    context = " ".join(statement for statement, _ in facts)
    chosen = rng.sample([asked for _, asked in facts], questions)
    return Sheet(sha256_text(context), context, tuple(chosen))


def load_squad(path: Path) -> list[Sheet]:
    """Contexts of a file in the format of SQuAD 1.1.

    That is its JSON (`data`, `paragraphs`, `qas`, `answers`), or the parquet of the data set on the hub (`context`,
    `question`, `answers`). Questions without an answer (SQuAD 2.0) are left out.

    Raises:
        UserError: the file is missing, or not of that form.
    """
    try:
        found = _parquet(path) if path.suffix == ".parquet" else json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} can't be read: {error.strerror or error}") from error
    except ValueError as error:
        raise UserError(f"{path} is not {path.suffix.lstrip('.').upper() or 'JSON'}: {error}") from error
    try:
        sheets = list(_paragraphs(found))
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} is not in the format of SQuAD: expected data[].paragraphs[].(context, qas[].(question, "
            f"answers[].text)), or columns context, question and answers; {type(error).__name__}: {error}"
        ) from error
    if not sheets:
        raise UserError(f"{path} holds no context with an answered question")
    return sheets


def squad_from_hub(repository: str) -> Path:
    """The validation split of a SQuAD data set on the hub, in the hub's own cache.

    Raises:
        UserError: it can't be had.
    """
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        names = HfApi().list_repo_files(repository, repo_type="dataset")
        file = next(name for name in sorted(names) if "validation" in name and name.endswith(".parquet"))
        return Path(hf_hub_download(repository, file, repo_type="dataset"))
    except (HfHubHTTPError, OSError, ValueError, StopIteration) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{repository} can't be had from the hub ({first}): without network, give the path of a file in SQuAD's "
            "format, or use 'fact-sheets'"
        ) from error


def _parquet(path: Path) -> dict[str, Any]:
    """The rows of the hub's table as SQuAD's own JSON has them."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise UserError(f"reading {path} needs pyarrow: pip install pyarrow") from error
    try:
        rows = parquet.read_table(path).to_pylist()
    except pyarrow.ArrowInvalid as error:
        raise ValueError(str(error)) from error
    by_context: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        texts = [{"text": text} for text in row["answers"]["text"]]
        by_context.setdefault(row["context"], []).append({"question": row["question"], "answers": texts})
    paragraphs = [{"context": context, "qas": qas} for context, qas in by_context.items()]
    return {"data": [{"paragraphs": paragraphs}]}


def _paragraphs(found: dict[str, Any]) -> Iterator[Sheet]:
    for article in found["data"]:
        for paragraph in article["paragraphs"]:
            asked = tuple(
                Question(
                    qa["question"].strip(), tuple(dict.fromkeys(answer["text"] for answer in qa["answers"]))
                )
                for qa in paragraph["qas"]
                if qa["answers"]
            )
            if asked:
                yield Sheet(sha256_text(paragraph["context"]), paragraph["context"], asked)
