"""The differing fields, by name."""

from __future__ import annotations

from records_for_tests import cell

from latentbench.store import ABSENT, Difference, differences


def test_equal_things_do_not_differ() -> None:
    assert differences(cell(), cell()) == []
    assert differences({"a": (1, 2)}, {"a": [1, 2]}) == []


def test_two_cells_differ_in_named_fields() -> None:
    other = cell(
        lm={"name": "toy", "revision": "r2", "dtype": "float32", "attention": "sdpa"},
        task={"name": "core", "version": "1.0", "config": {"thresholds": [0.1, 0.25, 0.3]}},
        seed=3,
    )
    assert differences(cell(), other) == [
        Difference("lm.revision", "r1", "r2"),
        Difference("seed", 0, 3),
        Difference("task.config.thresholds[1]", 0.2, 0.25),
        Difference("task.config.thresholds[2]", ABSENT, 0.3),
    ]


def test_missing_fields_and_types_show() -> None:
    assert differences(cell(), cell(judge=None)) == [Difference("judge", cell().judge, None)]
    assert differences({"k": 64}, {}) == [Difference("k", 64, ABSENT)]
    assert differences({"k": 1}, {"k": 1.0}) == [Difference("k", 1, 1.0)]
    assert differences({"k": None}, {}) == [Difference("k", None, ABSENT)]
