"""What the records accept, refuse and are stored as; and that every field of an identity is in the key."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from records_for_tests import cell, failed, record

from latentbench.stats import generator, mean, unscored, wilson
from latentbench.store import (
    CellIdentity,
    Curve,
    CurvePoint,
    ErrorRecord,
    Interval,
    Metric,
    RunRecord,
    differences,
    utc_now,
)

GOLDEN = Path(__file__).parent / "golden" / "run_v1.json"
METRIC: dict[str, Any] = {
    "name": "m",
    "value": 0.5,
    "n": 10,
    "resampling_unit": "document",
    "unit": "share",
    "direction": "higher",
}


def test_golden_record_of_format_1_still_loads_and_is_written_the_same() -> None:
    text = GOLDEN.read_text(encoding="utf-8")
    loaded = RunRecord.model_validate_json(text)
    assert loaded == record()
    assert loaded.to_json() == text
    assert loaded.metrics[0].value == 0.30000000000000004


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinities_are_refused_everywhere(bad: float) -> None:
    for build in (
        lambda: Metric(**METRIC | {"value": bad}),
        lambda: Interval(low=bad, high=1.0, method="t"),
        lambda: Interval(low=0.0, high=bad, method="t"),
        lambda: CurvePoint(x=bad, value=1.0),
        lambda: CurvePoint(x=0.0, value=bad),
        lambda: cell(task={"name": "core", "config": {"deep": [1.0, {"er": bad}]}}),
        lambda: record(labels={"x": bad}),
        lambda: record(labels={"x": "\ud800"}),
    ):
        with pytest.raises(ValidationError):
            build()


def test_nan_is_refused_when_a_stored_record_is_read() -> None:
    text = record().to_json().replace("0.30000000000000004", "NaN")
    assert "NaN" in text
    with pytest.raises(ValidationError):
        RunRecord.model_validate_json(text)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"value": None}, "needs a reason"),
        (
            {"value": None, "reason": "x", "interval": {"low": 0, "high": 1, "method": "t"}},
            "can't have an interval",
        ),
        ({"reason": "why not"}, "has a value and a reason"),
        ({"n": 1, "interval": {"low": 0, "high": 1, "method": "t"}}, "fewer than 2 units"),
        ({"interval": {"low": 1, "high": 0, "method": "t"}}, "upside down"),
        ({"n": -1}, "greater than or equal to 0"),
        ({"direction": "up"}, "'higher', 'lower' or 'none'"),
        ({"colour": "red"}, "Extra inputs"),
    ],
)
def test_a_metric_refuses_what_would_mislead(wrong: dict[str, Any], message: str) -> None:
    Metric.model_validate(METRIC)
    with pytest.raises(ValidationError, match=message):
        Metric.model_validate(METRIC | wrong)


def test_metrics_come_from_estimates() -> None:
    scored = Metric.from_estimate(
        "share", wilson(8, 10), resampling_unit="latent", unit="share", direction="higher", headline=True
    )
    assert scored.interval is not None
    assert scored.interval.method == "wilson"
    assert (scored.value, scored.n, scored.reason, scored.headline) == (0.8, 10, None, True)
    one = Metric.from_estimate(
        "l0", mean([3.0]), resampling_unit="document", unit="latents", direction="none"
    )
    assert (one.value, one.interval) == (3.0, None)
    none = Metric.from_estimate(
        "l0", unscored("no units", 0), resampling_unit="document", unit="latents", direction="none"
    )
    assert (none.value, none.reason) == (None, "no units")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"key": "0" * 64}, "keys are not those of its cell"),
        ({"measurement_key": "0" * 64}, "keys are not those of its cell"),
        ({"status": "failed"}, "a failed record has its error"),
        ({"error": {"type": "X", "message": "m"}}, "a failed record has its error"),
        ({"status": "failed", "error": {"type": "X", "message": "m"}}, "holds no metrics"),
        ({"metrics": [METRIC, METRIC]}, "share a name"),
        ({"finished": "2026-01-02T03:04:04+00:00"}, "before it started"),
        ({"started": "yesterday"}, "not an ISO 8601 time"),
        ({"started": "2026-01-02T03:04:05+02:00"}, "not in UTC"),
        ({"started": "2026-01-02T03:04:05"}, "not in UTC"),
        ({"schema_version": 2}, "Input should be 1"),
    ],
)
def test_a_record_refuses_what_would_mislead(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        record(**wrong)


def test_curve_points_have_whole_bands() -> None:
    for wrong in ({"low": 0.0}, {"value": None, "low": 0.0, "high": 1.0}, {"low": 2.0, "high": 1.0}):
        with pytest.raises(ValidationError, match="band"):
            CurvePoint.model_validate({"x": 1.0, "value": 1.0} | wrong)
    assert Curve(name="c", x_name="x", x_unit="", unit="", points=[]).points == []


def test_records_are_frozen_and_find_their_metrics() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        record().status = "failed"
    assert record().metric("explained_variance") == record().metrics[0]
    assert record().metric("no such") is None
    assert failed().error is not None
    assert record(started=utc_now(), finished=utc_now()).status == "ok"


def test_an_exception_becomes_a_record_whatever_its_text() -> None:
    try:
        raise OSError(f"bad text \ud800 in {Path('~/secret').expanduser()}")
    except OSError as error:
        made = ErrorRecord.from_exception(error)
    assert made.type == "OSError"
    assert made.message.startswith("bad text \\ud800 in ")
    assert "test_store_records.py" in made.traceback
    assert str(Path("~").expanduser()) not in made.traceback
    assert failed().model_copy(update={"error": made}).to_json().encode("utf-8")


def paths(value: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every leaf of a JSON value."""
    if isinstance(value, dict) and value:
        return [path for key, inner in value.items() for path in paths(inner, (*prefix, key))]
    if isinstance(value, list) and value:
        return [path for i, inner in enumerate(value) for path in paths(inner, (*prefix, i))]
    return [prefix]


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)
configs = st.dictionaries(st.text(min_size=1), values, min_size=1, max_size=4)


@given(
    st.fixed_dictionaries(
        {
            "lm": configs,
            "dictionary": configs,
            "task": configs,
            "judge": configs,
            "corpus": configs,
            "token_policy": configs,
            "sparsity": configs,
            "seed": st.integers(0, 99),
        }
    ),
    st.data(),
)
def test_the_key_changes_with_every_field_and_only_then(fields: dict[str, Any], data: st.DataObject) -> None:
    one = CellIdentity.model_validate(fields)
    assert CellIdentity.model_validate_json(json.dumps(fields)).key() == one.key()
    path = data.draw(st.sampled_from(paths(fields)))
    changed = copy.deepcopy(fields)
    inner: Any = changed
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = 100 if path == ("seed",) else ["changed", inner[path[-1]]]
    other = CellIdentity.model_validate(changed)
    assert other.key() != one.key()
    assert (other.measurement_key() == one.measurement_key()) == (path[0] == "judge")
    assert differences(one, one) == []
    assert {step.field.partition(".")[0] for step in differences(one, other)} == {path[0]}


def test_a_judge_is_in_the_key_but_not_in_the_measurement_key() -> None:
    with_judge, without = cell(), cell(judge=None)
    assert with_judge.key() != without.key()
    assert with_judge.measurement_key() == without.measurement_key()
    assert len({with_judge.key(), with_judge.measurement_key(), without.key()}) == 3


def test_seeds_of_metrics_derive_from_the_key() -> None:
    one, other = (generator(f"{cell(seed=seed).key()}/ev").random() for seed in (0, 1))
    assert one != other
