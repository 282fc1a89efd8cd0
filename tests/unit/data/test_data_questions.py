"""Fact sheets and SQuAD files."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from latentbench.data import fact_sheets, load_squad
from latentbench.errors import UserError


def test_sheets_follow_from_the_seed_and_grow_at_the_end() -> None:
    assert fact_sheets(5, seed=3) == fact_sheets(9, seed=3)[:5]
    assert fact_sheets(5, seed=3) != fact_sheets(5, seed=4)


def test_every_answer_is_in_its_context_next_to_the_name_asked_for() -> None:
    for sheet in fact_sheets(200):
        assert len(sheet.questions) == len({question.text for question in sheet.questions}) == 5
        for question in sheet.questions:
            (answer,) = question.answers
            (told,) = [fact for fact in sheet.context.split(". ") if answer in fact.rstrip(".").split()]
            assert told.split()[0].removesuffix("'s") in question.text


def test_another_person_has_another_value_of_the_same_kind() -> None:
    """So that reading off any value of the right kind is right half of the time at most."""
    sheets = fact_sheets(200, questions=6)
    for sheet in sheets:
        names = {fact.split()[0].removesuffix("'s") for fact in sheet.context.split(". ")}
        kinds = Counter(
            next(question.text.replace(name, "X") for name in names if name in question.text)
            for question in sheet.questions
        )
        assert set(kinds.values()) == {2}
        assert len({question.answers for question in sheet.questions}) == 6


def test_no_value_is_much_more_frequent_than_another_of_its_kind() -> None:
    counts = Counter(question.answers[0] for sheet in fact_sheets(3000) for question in sheet.questions)
    assert len(counts) == 96
    mean = sum(counts.values()) / len(counts)
    assert max(counts.values()) < 1.35 * mean
    assert min(counts.values()) > 0.7 * mean


def test_impossible_numbers_of_questions_are_refused() -> None:
    with pytest.raises(ValueError, match="1 to 6"):
        fact_sheets(1, questions=7)


def squad(tmp_path: Path, value: object) -> Path:
    path = tmp_path / "squad.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def test_a_squad_file_is_read(tmp_path: Path) -> None:
    ann = {"text": "Ann", "answer_start": 0}
    qas = [
        {"question": " Who? ", "id": "1", "answers": [ann, ann]},
        {"question": "Why?", "id": "2", "answers": [], "is_impossible": True},
    ]
    path = squad(tmp_path, {"data": [{"title": "t", "paragraphs": [{"context": "Ann did.", "qas": qas}]}]})
    (sheet,) = load_squad(path)
    assert sheet.context == "Ann did."
    assert [(question.text, question.answers) for question in sheet.questions] == [("Who?", ("Ann",))]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ([], "not in the format of SQuAD"),
        ({"data": [{"paragraphs": [{"qas": []}]}]}, "no context|'context'"),
        ({"data": [{"paragraphs": [{"context": "a", "qas": [{"question": "b"}]}]}]}, "KeyError: 'answers'"),
        ({"data": []}, "no context with an answered question"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path: Path, value: object, told: str) -> None:
    with pytest.raises(UserError, match=told):
        load_squad(squad(tmp_path, value))


def test_a_missing_file_and_one_that_is_no_json_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="can't be read: No such file"):
        load_squad(tmp_path / "none.json")
    (tmp_path / "text").write_text("hello", encoding="utf-8")
    with pytest.raises(UserError, match="is not JSON"):
        load_squad(tmp_path / "text")


def test_the_hub_s_parquet_is_read_as_its_json(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [
        {
            "context": "Ann ran.",
            "question": "Who?",
            "answers": {"text": ["Ann", "Ann"], "answer_start": [0, 0]},
        },
        {"context": "Bo sat.", "question": "Who?", "answers": {"text": ["Bo"], "answer_start": [0]}},
        {"context": "Ann ran.", "question": "What?", "answers": {"text": ["ran"], "answer_start": [4]}},
        {"context": "Ann ran.", "question": "Why?", "answers": {"text": [], "answer_start": []}},
    ]
    path = tmp_path / "validation.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    first, second = load_squad(path)
    assert [(one.text, one.answers) for one in first.questions] == [("Who?", ("Ann",)), ("What?", ("ran",))]
    assert second.context == "Bo sat."
    path.write_bytes(b"PAR1 no table")
    with pytest.raises(UserError, match="is not PARQUET"):
        load_squad(path)
