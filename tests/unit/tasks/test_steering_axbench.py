"""Concepts in AxBench's format: what is read, what is refused, and that contents name the measurement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from latentbench.errors import UserError
from latentbench_tasks.steering._axbench import axbench_concepts, axbench_sha256
from latentbench_tasks.steering.task import SteeringConfig, SteeringTask

RENTAL = "references to rental services and associated equipment"
CODE = "C/C++ programming syntax elements"


def concept_row(number: Any, name: str, **more: Any) -> dict[str, Any]:
    ref = f"https://www.neuronpedia.org/gemma-2-2b/20-gemmascope-res-16k/{number}"
    return {"concept_id": number, "concept": name, "ref": ref, "concept_genres_map": {name: ["text"]}, **more}


def text_row(number: int, output: str, category: str = "positive", **more: Any) -> dict[str, Any]:
    found = {"input": "Tell me.", "output": output, "concept_id": number, "category": category, **more}
    return {"dataset_category": "instruction", **found}


METADATA = [concept_row(0, RENTAL), concept_row(7, CODE)]


def config(**options: Any) -> SteeringConfig:
    return SteeringConfig(**options)


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_metadata_alone_gives_concepts_without_texts(tmp_path: Path) -> None:
    rental, code = axbench_concepts(write(tmp_path / "metadata.jsonl", METADATA))
    assert (rental.id, rental.name) == ("axbench_0", RENTAL)
    assert rental.lexicon == ("rental", "services", "equipment")
    assert not rental.positives
    assert not rental.examples
    assert (code.id, code.lexicon) == ("axbench_7", ("c", "programming", "syntax", "elements"))


def test_a_lexicon_of_the_file_wins_and_names_without_words_stand_for_themselves(tmp_path: Path) -> None:
    rows = [
        concept_row(0, RENTAL, lexicon=["rent", "hire", "rent"]),
        concept_row(1, "{"),
        concept_row(2, "of the"),
        concept_row(3, "people talking about lawns"),  # prompts hold the first two words
    ]
    found = axbench_concepts(write(tmp_path / "metadata.jsonl", rows))
    assert [concept.lexicon for concept in found] == [("rent", "hire"), ("{",), ("of", "the"), ("lawns",)]


def test_spaces_around_a_concept_are_no_part_of_its_name(tmp_path: Path) -> None:
    rows = [concept_row(0, f" {RENTAL} "), text_row(0, "cars for hire", output_concept=f" {RENTAL} ")]
    (found,) = axbench_concepts(write(tmp_path / "metadata.jsonl", rows))
    assert (found.name, [example.text for example in found.examples]) == (RENTAL, ["cars for hire"])


def test_texts_beside_the_file_become_labelled_examples(tmp_path: Path) -> None:
    path = write(tmp_path / "metadata.jsonl", METADATA)
    train = [text_row(0, f"We rent out van {n}.", output_concept=RENTAL) for n in range(60)]
    train += [text_row(-1, f"A common text {n}.", "negative", output_concept="EEEEE") for n in range(90)]
    train += [train[0]]  # said twice, counts once
    evaluation = [text_row(0, "Hire this.", sae_link="x"), text_row(0, "His rent is due.", "hard negative")]
    write(tmp_path / "train_data.jsonl", train)
    write(tmp_path / "latent_eval_data.jsonl", evaluation)
    rental, code = axbench_concepts(path)
    texts = [example.text for example in rental.examples]
    assert len(set(texts)) == len(texts) == 61 + 61 + 1
    assert sum(example.positive for example in rental.examples) == 61
    assert {e.positive for e in rental.examples if e.text == "His rent is due."} == {False}
    select = sum(example.split == "select" for example in rental.examples)
    assert 0.15 < select / len(texts) < 0.45
    assert code.examples == ()  # no positive, so no shared negative
    (tmp_path / "one").mkdir()
    together = write(tmp_path / "one" / "all.jsonl", [*METADATA, *train, *evaluation])
    assert axbench_concepts(together) == (rental, code)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([METADATA[0], METADATA[0]], r"line 2: concept_id 0 is already in .*line 1"),
        ([concept_row(-1, "x")], "line 1: concept_id is -1"),
        ([concept_row(True, "x")], "concept_id is True"),
        ([concept_row("7", "x")], "concept_id is '7'"),
        ([concept_row(10**30, "x")], "concept_id is 1000"),
        ([{"concept_id": 3}], "line 1: 'concept' is None"),
        ([concept_row(3, "  ")], "'concept' is '  '"),
        ([concept_row(3, "x", lexicon=[])], r"lexicon is \[\]"),
        ([concept_row(3, "x", lexicon=["a", 3])], "lexicon is"),
        ([METADATA[0], [1, 2]], r"line 2: \[1, 2\] is no row"),
        ([METADATA[0], text_row(0, "x", "maybe")], "line 2: category is 'maybe'"),
        ([METADATA[0], text_row(0, "x", ["positive"])], "category is"),  # type: ignore[arg-type]
        ([METADATA[0], text_row(5, "x")], "concept_id 5, which no row describes"),
        ([METADATA[0], text_row(-1, "x")], "positive text of concept_id -1"),
        ([METADATA[0], text_row(0, "")], "'output' is ''"),
        ([METADATA[0], text_row(0, "half \ud83d")], "line 2: 'output' is"),
        ([METADATA[0], text_row(0, "x", output_concept="cats")], "output_concept is 'cats'"),
        ([METADATA[0], text_row(0, "x"), text_row(0, " x", "negative")], "line 3: this text is both"),
        ([], "holds no concept"),
    ],
)
def test_rows_that_can_not_be_used_are_named(tmp_path: Path, rows: list[Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        axbench_concepts(write(tmp_path / "metadata.jsonl", rows))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"concept_id": 0, "concept": "x"}\n{"concept_id": 1,', "line 2: not JSON"),
        (b"\xff\xfe\n", "line 1: not JSON"),
        (b"[" * 200_000, "line 1: not JSON"),
        (
            b'{"concept_id": 0, "concept": "x"}\n\n{"concept": "' + b"a" * 1_000_000 + b'"}\n',
            "line 3: longer than",
        ),
    ],
    ids=["torn", "bytes", "nested", "long"],
)
def test_bad_and_hostile_lines_are_named(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "metadata.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError, match=said):
        axbench_concepts(path)


def test_parquet_is_refused_with_the_way_to_convert_it(tmp_path: Path) -> None:
    path = write(tmp_path / "metadata.jsonl", METADATA)
    (tmp_path / "train_data.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"train_data\.parquet.*to_json\('train_data\.jsonl'"):
        axbench_concepts(path)
    write(tmp_path / "train_data.jsonl", [text_row(0, "We rent.")])
    assert len(axbench_concepts(path)[0].examples) == 1
    with pytest.raises(UserError, match=r"read_parquet\('steering_data\.parquet'\)"):
        axbench_concepts(tmp_path / "steering_data.parquet")
    with pytest.raises(UserError, match="no concepts file"):
        axbench_concepts(tmp_path / "metdata.jsonl")


def test_contents_name_the_measurement(tmp_path: Path) -> None:
    path = write(tmp_path / "metadata.jsonl", METADATA)
    first = config(concepts_file=str(path))
    assert first.concepts_sha256 == axbench_sha256(path)
    write(tmp_path / "train_data.jsonl", [text_row(0, "We rent.")])
    second = config(concepts_file=str(path))
    dumps = [made.model_dump(mode="json") for made in (first, second)]
    assert dumps[0]["concepts_sha256"] != dumps[1]["concepts_sha256"]
    with pytest.raises(UserError, match="were changed"):
        SteeringTask(first).tokens()
    assert SteeringTask(second).tokens() > 0
    path.unlink()
    stored = SteeringConfig.model_validate(dumps[1])  # loads where the file is not, to summarise again
    assert stored == second
    with pytest.raises(UserError, match="no concepts file"):
        config(concepts_file=str(path))


def test_without_a_file_the_configuration_is_what_it_was() -> None:
    dump = config().model_dump(mode="json")
    assert not {"concepts_file", "concepts_sha256"} & set(dump)
    assert SteeringConfig.model_validate(dump) == config()


def test_ids_choose_among_the_concepts_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "metadata.jsonl", METADATA)
    costs = [
        SteeringTask(config(concepts_file=str(path), concepts=ids)).tokens() for ids in ((), ("axbench_7",))
    ]
    assert costs[1] < costs[0]
    with pytest.raises(UserError, match="unknown steering concept 'sport'"):
        SteeringTask(config(concepts_file=str(path), concepts=("sport",))).tokens()
