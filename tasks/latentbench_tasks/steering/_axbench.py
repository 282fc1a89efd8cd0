"""Concepts in the format of AxBench (arXiv 2501.17148): `metadata.jsonl` and the texts beside it.

A row of `metadata.jsonl` is a concept: `concept_id`, `concept`, perhaps `ref` and `concept_genres_map`. A row
with an `output` is a text: `output`, `concept_id`, `category`, perhaps `input` and `output_concept`. Texts may
stand in the same file, or in the same folder as `train_data.jsonl` and `latent_eval_data.jsonl`, which AxBench
writes as parquet.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from latentbench.errors import UserError
from latentbench.identity import sha256_file, sha256_json, sha256_text
from latentbench_tasks.steering._concepts import Concept, Example, all_prompts

__all__ = ["axbench_concepts", "axbench_sha256"]

_TEXT_FILES = ("train_data", "latent_eval_data")
_LINE_BYTES = 1_000_000
"""Longest line that is read; AxBench's have a few thousand bytes."""
_MOST_IDS = 10**9
_SHARED = -1
"""`concept_id` of negatives that serve every concept."""
_CATEGORIES = {"positive": True, "negative": False, "hard negative": False}
_SELECT_SHARE = 0.3
"""Share of the texts, by hash, that latents are chosen on; classifiers, which need more, take the others."""
_CONVERT = (
    "convert it with python -c \"import pandas; pandas.read_parquet('{0}.parquet').to_json('{0}.jsonl', "
    "orient='records', lines=True)\""
)
_STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a about across after all also an and any are as associated at be between both but by can certain "
        "common concept concepts containing contains context contexts describing different do does during "
        "each either especially etc expressing expressions for from general has have how if in including "
        "indicate indicating instances into involving is it its like may mention mentions more most not "
        "occurrences of often on one or other others particular particularly phrases such reference "
        "references refer referring regarding related relating relation several some specific specifically "
        "statements such term terms than that the their them these they this those through to types under up "
        "used various was were what when where which while who whose will with within word words ",
    )
)
"""Function words, and those that descriptions of latents are made of whatever they are about."""


class _Line(NamedTuple):
    where: str
    row: dict[str, Any]


def axbench_concepts(path: Path, sha256: str | None = None) -> tuple[Concept, ...]:
    """The concepts of a file in AxBench's format, with the ids `axbench_<concept_id>`, in the file's order.

    A concept's own texts are the `output` of its rows: without the `input`, since the task continues plain
    text, too. A part of them by hash serves the choice of latents, the rest the text classifier. Negatives
    under `concept_id` -1 serve every concept, as many as it has positives. A text that stands twice on the same
    side of a concept counts once.

    A row may give a `lexicon` (a list of words). Without one, the words of the concept's name make it, less
    function words, filler ("references to ...") and words of the prompts: a rough stand-in, so look at the
    keyword rate of unsteered text next to it.

    Args:
        path: the file with the concepts.
        sha256: what `axbench_sha256` said earlier; None takes the file as it is.

    Raises:
        UserError: there is no such file, it is parquet, it was changed, or a row can't be used (with its line).
    """
    return _read(path, sha256 or axbench_sha256(path))


@cache
def _read(path: Path, sha256: str) -> tuple[Concept, ...]:
    if axbench_sha256(path) != sha256:
        raise UserError(
            f"concepts file {path} or the texts beside it were changed after their checksum {sha256[:12]} was "
            "taken: put them back, or plan the suite anew"
        )
    lines = [line for file in _files(path) for line in _lines(file)]
    rows: dict[int, _Line] = {}
    for line in lines:
        if "output" not in line.row:
            number = _number(line, lowest=0)
            if number in rows:
                raise UserError(f"{line.where}: concept_id {number} is already in {rows[number].where}")
            rows[number] = line
    if not rows:
        raise UserError(f"{path} holds no concept: rows need a 'concept_id' and a 'concept'")
    names = {number: _text(line, "concept") for number, line in rows.items()}
    texts = _texts(lines, names)
    return tuple(
        Concept(
            id=f"axbench_{number}",
            name=name,
            description=f"Text about: {name}",
            lexicon=_lexicon(rows[number], name),
            examples=_examples(number, texts),
        )
        for number, name in names.items()
    )


def axbench_sha256(path: Path) -> str:
    """Checksum of a concepts file and of the files of texts beside it.

    Raises:
        UserError: see `axbench_concepts`.
    """
    return sha256_json({file.name: sha256_file(file) for file in _files(path)})


def _files(path: Path) -> list[Path]:
    """The concepts file and those of its texts that are there."""
    if path.suffix == ".parquet":
        raise UserError(
            f"concepts file {path} is parquet: {_CONVERT.format(path.stem)} and name the new file"
        )
    if not path.is_file():
        raise UserError(
            f"no concepts file {path}: name a file of JSON lines, such as AxBench's metadata.jsonl"
        )
    found = [path]
    for name in _TEXT_FILES:
        texts = path.with_name(f"{name}.jsonl")
        if texts.is_file():
            found += [texts] if texts != path else []
        elif texts.with_suffix(".parquet").is_file():
            raise UserError(
                f"{texts.with_suffix('.parquet')} holds the concepts' texts as parquet, which is not read: "
                f"{_CONVERT.format(name)} in its folder"
            )
    return found


def _lines(path: Path) -> Iterator[_Line]:
    with path.open("rb") as stream:
        number = 0
        while line := stream.readline(_LINE_BYTES + 1):
            number += 1
            where = f"{path}, line {number}"
            if len(line) > _LINE_BYTES:
                raise UserError(f"{where}: longer than {_LINE_BYTES:,} bytes, which no row of AxBench is")
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UserError(f"{where}: not JSON ({error}); every line is one row") from error
            if not isinstance(row, dict):
                raise UserError(f"{where}: {_shown(row)} is no row; write JSON objects")
            yield _Line(where, row)


def _number(line: _Line, lowest: int) -> int:
    found = line.row.get("concept_id")
    if isinstance(found, bool) or not isinstance(found, int) or not lowest <= found < _MOST_IDS:
        raise UserError(
            f"{line.where}: concept_id is {_shown(found)}, and has to be a whole number from {lowest}"
        )
    return found


def _text(line: _Line, key: str) -> str:
    found = line.row.get(key)
    if not isinstance(found, str) or not found.strip() or re.search("[\ud800-\udfff]", found):
        raise UserError(
            f"{line.where}: {key!r} is {_shown(found)}, and has to be a text"
        )  # or half a character
    return found.strip()


def _texts(lines: list[_Line], names: dict[int, str]) -> dict[int, dict[str, bool]]:
    """Whether each text carries the concept, by concept and text."""
    found: dict[int, dict[str, bool]] = {}
    for line in lines:
        if "output" not in line.row:
            continue
        number, category = _number(line, lowest=_SHARED), line.row.get("category")
        if not isinstance(category, str) or category not in _CATEGORIES:
            raise UserError(
                f"{line.where}: category is {_shown(category)}, and has to be one of {', '.join(_CATEGORIES)}"
            )
        positive = _CATEGORIES[category]
        if number not in names and (number != _SHARED or positive):
            raise UserError(f"{line.where}: a {category} text of concept_id {number}, which no row describes")
        meant = line.row.get("output_concept")
        if positive and meant is not None and _text(line, "output_concept") != names[number]:
            raise UserError(
                f"{line.where}: output_concept is {_shown(meant)}, but concept_id {number} is "
                f"{_shown(names[number])}: texts and concepts are of two different lists"
            )
        text = _text(line, "output")
        if found.setdefault(number, {}).setdefault(text, positive) != positive:
            raise UserError(
                f"{line.where}: this text is both a positive and a negative of concept_id {number}"
            )
    return found


def _examples(number: int, texts: dict[int, dict[str, bool]]) -> tuple[Example, ...]:
    own = texts.get(number, {})
    positives = sum(own.values())
    shared = sorted(
        (text for text in texts.get(_SHARED, {}) if text not in own),
        key=lambda text: sha256_text(f"{number}:{text}"),
    )
    chosen = {**own, **dict.fromkeys(shared[:positives], False)}
    return tuple(
        Example(text=text, positive=positive, split="select" if _selects(text) else "classifier")
        for text, positive in chosen.items()
    )


def _selects(text: str) -> bool:
    return int(sha256_text(f"axbench:{text}")[:8], 16) < _SELECT_SHARE * 2**32


def _lexicon(line: _Line, name: str) -> tuple[str, ...]:
    given = line.row.get("lexicon")
    if given is not None:
        if (
            not isinstance(given, list)
            or not given
            or not all(isinstance(w, str) and w.strip() for w in given)
        ):
            raise UserError(f"{line.where}: lexicon is {_shown(given)}, and has to be a list of words")
        return tuple(dict.fromkeys(word.strip() for word in given))
    words = dict.fromkeys(re.findall(r"[^\W_]+(?:['\u2019-][^\W_]+)*", name.lower()))
    said = {word for prompt in all_prompts() for word in re.findall(r"\w+", prompt.text.lower())}
    telling = [word for word in words if word not in _STOP_WORDS and word not in said]
    return tuple(telling or words or [name])  # a name such as "{" has no words


def _shown(found: Any) -> str:
    said = repr(found)
    return said if len(said) <= 60 else f"{said[:57]}..."
