"""Laws of the steering metrics, on made-up items."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from latentbench.store import Curve, Metric
from latentbench_tasks.steering.metrics import summarise, units
from latentbench_tasks.steering.task import SteeringConfig

Score = Callable[[str, float, str, int], float | None]
"""Concept probability by (concept, factor, half, prompt); None for an empty text."""
FACTORS = (1.0, 2.0, 4.0)


def config(**changes: Any) -> dict[str, Any]:
    return SteeringConfig(factors=FACTORS, **changes).model_dump(mode="json")


def text(score: float | None, fluency: float = -1.0, distinct: float = 1.0) -> dict[str, Any]:
    said = score is not None
    return {"fluency": fluency if said else None, "distinct_2": distinct if said else None}


def cell(
    concepts: list[str],
    score: Score,
    *,
    prompts: int = 4,
    factors: tuple[float, ...] = FACTORS,
    method: str = "contrast",
    form: dict[str, float] | None = None,
) -> list[dict[str, Any]]:
    """A complete cell: unsteered texts score 0.1, thresholds are 0.5."""
    items: list[dict[str, Any]] = []
    for half in ("select", "test"):
        for prompt in range(prompts):
            scores = dict.fromkeys(concepts, 0.1)
            hits = dict.fromkeys(concepts, 0)
            about = {"id": f"u{half}{prompt}", "split": half}
            items.append(
                {"kind": "unsteered", **about, **text(0.1), "concept_scores": scores, "lexicon_hits": hits}
            )
    for concept in concepts:
        items.append({"kind": "scorer", "concept": concept, "kept": True, "auroc": 0.9, "threshold": 0.5})
        items.append({"kind": "choice", "method": method, "concept": concept, "latents": [0], "reason": None})
        for factor in factors:
            for half in ("select", "test"):
                for prompt in range(prompts):
                    found = score(concept, factor, half, prompt)
                    items.append(
                        {
                            "kind": "generation",
                            "id": f"{method}{concept}{factor}{half}{prompt}",
                            "concept": concept,
                            "method": method,
                            "factor": factor,
                            "split": half,
                            "concept_score": found,
                            "lexicon_hits": 1,
                            **text(found, **(form or {})),
                        }
                    )
    return items


def run(items: list[dict[str, Any]], seed: int = 0, **changes: Any) -> dict[str, Metric]:
    metrics, _, _ = summarise(items, config(**changes), np.random.default_rng(seed))
    assert len({metric.name for metric in metrics}) == len(metrics)
    return {metric.name: metric for metric in metrics}


def names(count: int) -> list[str]:
    return [f"c{index}" for index in range(count)]


def value(metrics: dict[str, Metric], name: str) -> float:
    found = metrics[name].value
    assert found is not None
    return found


def test_the_factor_is_chosen_on_one_half_and_scored_on_the_other() -> None:
    def score(_concept: str, factor: float, half: str, _prompt: int) -> float:
        best = {"select": 2.0, "test": 4.0}[half]
        return 0.9 if factor == best else 0.2

    found = run(cell(names(3), score))
    assert value(found, "success_on_selection") == 1.0
    assert (
        value(found, "success") == 0.0
    )  # 4 would have been right on the test half, but nobody may know that
    assert value(found, "selection_gap") == 1.0
    assert value(found, "boundary_share") == 0.0


def test_ties_go_to_the_smaller_factor() -> None:
    found = run(cell(names(2), lambda *_: 0.7))
    assert value(found, "boundary_share") == 1.0
    assert "factor 1" in found["success_fixed_factor"].note


@pytest.mark.parametrize(
    ("form", "success"),
    [
        ({}, 1.0),
        ({"fluency": -3.0}, 1.0),
        ({"fluency": -3.1}, 0.0),
        ({"distinct": 0.5}, 1.0),
        ({"distinct": 0.4}, 0.0),
    ],
)
def test_all_three_thresholds_have_to_be_met(form: dict[str, float], success: float) -> None:
    found = run(cell(names(2), lambda *_: 0.9, form=form), fluency_margin=2.0, min_distinct_2=0.5)
    assert value(found, "success") == success
    below = run(cell(names(2), lambda *_: 0.49, form=form))
    assert value(below, "success") == 0.0
    assert value(below, "concept_gain") == pytest.approx(0.39)


def test_an_empty_text_is_no_success_and_has_no_scores() -> None:
    def score(_concept: str, _factor: float, _half: str, prompt: int) -> float | None:
        return None if prompt == 0 else 0.9

    items = cell(names(2), score)
    found = run(items)
    assert value(found, "success") == 0.75
    assert value(found, "concept_gain") == pytest.approx(0.8)  # over the texts that say something
    assert summarise(items, config(), np.random.default_rng(0))[2]["empty_generations"] == 2 * 3 * 2


def test_a_random_scorer_is_at_chance_on_the_test_half_and_inflated_on_the_selection_half() -> None:
    rng = np.random.default_rng(0)
    chance = 0.3

    def noise(*_: object) -> float:
        return float(rng.random() < chance)

    factors = tuple(float(factor) for factor in range(1, 9))
    items = cell(names(400), noise, prompts=5, factors=factors)
    metrics, _, _ = summarise(items, {**config(), "factors": factors}, np.random.default_rng(0))
    found = {metric.name: metric for metric in metrics}
    test, select = found["success"], found["success_on_selection"]
    assert test.interval is not None
    assert test.interval.low <= chance <= test.interval.high
    assert abs(value(found, "success") - chance) < 0.03
    assert value(found, "success_on_selection") > chance + 0.25
    assert select.interval is not None
    assert select.interval.low > test.interval.high
    fixed = value(found, "success_fixed_factor")
    assert abs(fixed - chance) < 0.04


def test_the_interval_covers_and_its_unit_is_the_concept() -> None:
    rng = np.random.default_rng(1)
    chances = {name: float(rng.random()) for name in names(40)}
    found = run(cell(names(40), lambda concept, *_: float(rng.random() < chances[concept]), prompts=10))[
        "success"
    ]
    assert (found.n, found.resampling_unit, found.headline) == (40, "concept", True)
    assert found.interval is not None
    width = found.interval.high - found.interval.low
    assert 0.1 < width < 0.3  # the spread between concepts, not 1 / sqrt(400 texts)


def test_one_concept_has_a_value_without_an_interval_and_none_has_a_reason() -> None:
    one = run(cell(names(1), lambda *_: 0.9))["success"]
    assert (one.value, one.interval, one.n) == (1.0, None, 1)
    nothing = run([])["success"]
    assert nothing.value is None
    assert nothing.reason
    assert nothing.n == 0


def test_concepts_left_out_are_counted_and_shown_as_coverage() -> None:
    items = cell(names(4), lambda *_: 0.9)
    items = [item for item in items if not (item.get("concept") in ("c2", "c3") and item["kind"] != "scorer")]
    items.append({"kind": "choice", "method": "contrast", "concept": "c2", "latents": [], "reason": "none"})
    for item in items:
        if item["kind"] == "scorer" and item["concept"] == "c3":
            item.update(kept=False, auroc=0.6)
    metrics, _, counts = summarise(items, config(), np.random.default_rng(0))
    found = {metric.name: metric for metric in metrics}
    assert value(found, "success") == 1.0
    assert value(found, "coverage") == pytest.approx(2 / 3)
    assert value(found, "success_all_concepts") == pytest.approx(2 / 3)
    assert value(found, "scorer_auroc") == pytest.approx((3 * 0.9 + 0.6) / 4)
    assert counts["concepts"] == 2
    assert counts["concepts_excluded_by_scorer"] == 1
    assert counts["concepts_without_latent"] == 1


def test_the_fixed_factor_is_not_one_at_which_a_selection_text_broke() -> None:
    """What is left of a factor's texts can be the best there is, and would be chosen for all concepts."""

    def score(_concept: str, factor: float, _half: str, _prompt: int) -> float:
        return 0.9 if factor == 4.0 else 0.6

    items = cell(names(3), score)
    broken = 0
    for item in items:
        if item["kind"] == "generation" and item["factor"] == 4.0 and item["id"] == "contrastc14.0select0":
            item.update(
                status="broken: logits were not finite at new token 1", concept_score=None, **text(None)
            )
            broken += 1
    assert broken == 1
    assert run(items)["success_fixed_factor"].note.endswith("factor 1")
    assert value(run(items), "success_fixed_factor") == 1.0


def test_the_random_direction_goes_through_the_same_choice() -> None:
    steered = cell(names(3), lambda *_: 0.9)
    control = [
        item
        for item in cell(
            names(3), lambda _c, _f, half, _p: 0.9 if half == "select" else 0.2, method="random_direction"
        )
        if item["kind"] in ("generation", "choice")
    ]
    found = run([*steered, *control], methods=("contrast", "random_direction"))
    assert value(found, "success") == 1.0
    assert value(found, "success_random_direction") == 0.0
    assert value(found, "lift_over_random_direction") == 1.0
    assert "success_random_direction" not in run(steered)


def test_curves_start_at_the_unsteered_model() -> None:
    items = cell(names(3), lambda _c, factor, *_: factor / 5)
    _, curves, _ = summarise(items, config(), np.random.default_rng(0))
    curve: dict[str, Curve] = {curve.name: curve for curve in curves}
    assert [point.x for point in curve["probability_over_factor"].points] == [0.0, *FACTORS]
    assert [point.value for point in curve["probability_over_factor"].points] == pytest.approx(
        [0.1, 0.2, 0.4, 0.8]
    )
    assert [point.value for point in curve["success_over_factor"].points] == [0.0, 0.0, 0.0, 1.0]


def test_units_are_all_usable_concepts_and_give_the_published_means() -> None:
    items = cell(
        names(4), lambda concept, factor, _half, prompt: 0.9 if prompt < int(concept[1]) * factor / 2 else 0.2
    )
    items += [
        {"kind": "scorer", "concept": "without latent", "kept": True, "auroc": 0.9, "threshold": 0.5},
        {
            "kind": "choice",
            "method": "contrast",
            "concept": "without latent",
            "latents": [],
            "reason": "none found",
        },
    ]
    for item in items:
        if item["kind"] == "unsteered":
            item["concept_scores"]["without latent"] = 0.1
            item["lexicon_hits"]["without latent"] = 0
    other = [
        item
        for item in cell(names(4), lambda *_: 0.3, method="random_direction")
        if item["kind"] in ("generation", "choice")
    ]
    items += other
    methods = ("contrast", "random_direction")
    by_unit, found = units(items, [], config(methods=methods)), run(items, methods=methods)
    assert by_unit is not None
    assert {"success", "success_random_direction"} <= set(by_unit.values())
    assert set(by_unit.names) == {*names(4), "without latent"}
    measured = {name: value for name, value in by_unit.values().items() if np.isfinite(value)}
    assert {name: found[name].value for name in measured} == pytest.approx(measured)
    assert units([], [], config()) is None


def test_items_written_twice_count_once() -> None:
    items = cell(names(2), lambda *_: 0.9)
    once, twice = (summarise(rows, config(), np.random.default_rng(0)) for rows in (items, items + items))
    assert once == twice


def test_success_follows_the_stored_scores_under_new_thresholds() -> None:
    items = cell(names(2), lambda *_: 0.6)
    assert value(run(items), "success") == 1.0
    for item in items:
        if item["kind"] == "scorer":
            item["threshold"] = 0.7
    assert value(run(items), "success") == 0.0


def test_the_metrics_load_without_torch() -> None:
    code = (
        "import sys, latentbench_tasks.steering.metrics; "
        "sys.exit('torch' in sys.modules or 'sklearn' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
