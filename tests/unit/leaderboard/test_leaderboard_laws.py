"""Laws of the task cards: each is held by tests that are there, and stands on the page of metrics."""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from pathlib import Path

import pytest

from latentbench.registry import TASKS
from latentbench_leaderboard._cards import task_card
from latentbench_leaderboard._method import meanings_of
from latentbench_leaderboard._subjects import load_subjects

TESTS = Path(__file__).parents[2]
CORE, METRICS = "property/test_core_laws.py", "property/test_metric_laws.py"
FEATURES, FLOW = "unit/tasks/test_feature_count.py", "unit/tasks/test_feature_count_flow.py"
INTERPRETABILITY = "unit/tasks/test_interpretability.py"
CAPABILITY = "unit/tasks/test_capability_metrics.py"
JUDGED, SIMULATED = "unit/tasks/test_judged_tasks.py", "unit/tasks/test_autointerp_simulation.py"
FIDELITY, STEERING = "unit/tasks/test_influence_fidelity.py", "unit/tasks/test_steering_metrics.py"

MEAN = f"{CORE}::test_predicting_the_mean_explains_no_variance"
ZERO = f"{CORE}::test_predicting_zero_recovers_no_loss_and_has_normalised_error_one"
PERFECT = f"{CORE}::test_a_perfect_dictionary_explains_everything_and_costs_nothing"
IDENTITY = f"{CORE}::test_the_identity_is_exact"
BOUNDS = f"{METRICS}::test_metrics_keep_their_bounds_whatever_the_dictionary"
NO_CHANGE = f"{CAPABILITY}::test_no_change_is_exactly_zero"
SWAPPED = f"{CAPABILITY}::test_swapping_the_conditions_turns_the_sign"
KNOWS_ALL = f"{JUDGED}::test_a_judge_that_knows_all_gets_all_and_controls_stay_at_chance"
KNOWS_NOTHING = f"{JUDGED}::test_a_judge_that_knows_nothing_is_at_chance"
NEVER_FALLS = f"{FEATURES}::test_the_count_without_a_limit_never_falls"
PLANTED = f"{INTERPRETABILITY}::test_planted_latents_score_near_one_and_meaningless_ones_near_a_half"
HALVES = f"{STEERING}::test_a_random_scorer_is_at_chance_on_the_test_half_and_inflated_on_the_selection_half"

HELD: dict[str, dict[str, tuple[str, ...]]] = {
    "core": {
        "": (
            f"{CORE}::test_no_item_depends_on_batching_or_on_who_shares_the_pass",
            f"{METRICS}::test_no_number_depends_on_the_order_of_rows_or_on_padding",
        ),
        "l0": (MEAN, IDENTITY),
        "explained_variance": (MEAN, PERFECT, BOUNDS),
        "normalised_mse": (ZERO, BOUNDS),
        "cosine": (PERFECT, BOUNDS),
        "l2_ratio": (PERFECT,),
        "ce_recovered": (ZERO, PERFECT),
        "ce_increase": (IDENTITY,),
        "kl": (PERFECT, BOUNDS),
        "dead_latents": (MEAN,),
    },
    "feature_count": {
        "": (f"{FLOW}::test_items_do_not_depend_on_how_rows_are_batched",),
        "features_at_10": (
            NEVER_FALLS,
            f"{FLOW}::test_a_subset_of_documents_counts_as_if_the_others_had_not_been_watched",
        ),
        **{f"unlimited_at_{least}": (NEVER_FALLS,) for least in ("7.5", "10", "15", "20")},
    },
    "interpretability": {
        "": ("unit/tasks/test_interpretability_choose.py::test_items_do_not_depend_on_how_rows_are_batched",),
        "auroc": (PLANTED,),
        "balanced_accuracy": (PLANTED,),
        "auroc_shuffled": (PLANTED,),
    },
    "steering": {
        "success": (HALVES, f"{STEERING}::test_an_empty_text_is_no_success_and_has_no_scores"),
        "success_on_selection": (HALVES,),
    },
    "capability": {
        "": (f"{CAPABILITY}::test_the_order_of_items_changes_nothing",),
        "acc_change_spliced": (NO_CHANGE, SWAPPED),
        "margin_change_spliced": (NO_CHANGE, SWAPPED),
        "loss_change_spliced": (NO_CHANGE, SWAPPED),
    },
    "influence_fidelity": {
        "overlap": (f"{FIDELITY}::test_overlap_is_between_the_largest_of_both",),
        "explained": (f"{FIDELITY}::test_the_curve_of_the_exact_ranking_is_the_highest_and_none_falls",),
    },
    "autointerp": {
        "detection": (f"{JUDGED}::test_answering_always_the_same_is_chance", KNOWS_ALL, KNOWS_NOTHING),
        "detection_shuffled": (KNOWS_ALL,),
        "fuzzing": (KNOWS_ALL, KNOWS_NOTHING),
        "intruder": (KNOWS_ALL, KNOWS_NOTHING),
        "simulation": (f"{SIMULATED}::test_a_judge_that_knows_nothing_is_at_zero",),
    },
    "monosemanticity": {
        "score_above_mixed": (f"{JUDGED}::test_chance_s_rating_is_not_above_its_rating_of_nothing",),
    },
}
"""The tests that hold a law, by task and metric; those of "" are for all numbers of the task."""


@cache
def names_in(file: str) -> set[str]:
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def laws_of(task: str) -> set[str]:
    card = tomllib.loads((TASKS.folder(task) / "card.toml").read_text(encoding="utf-8"))
    names = {name for name, table in card["metric"].items() if "law" in table}
    return names | ({""} if "law" in card else set())


@pytest.mark.parametrize("task", [name for name in TASKS.names() if task_card(name).installed])
def test_every_law_is_held_by_tests_that_are_there(task: str) -> None:
    held = HELD.get(task, {})
    assert laws_of(task) == held.keys()
    for named in held.values():
        assert named
        for file, name in (test.split("::") for test in named):
            assert name in names_in(file), f"{file} has no {name}"


def test_the_page_of_metrics_states_them(results: Path, site: Path) -> None:
    text = (site / "metrics.html").read_text(encoding="utf-8")
    assert (
        "Law: <bdi>Predicting the mean scores 0, perfect reconstruction 1; nothing scores more.</bdi>" in text
    )
    (core,) = [task for task in meanings_of(load_subjects(results)[0], []) if task.name == "core"]
    assert core.law
    assert f"Law: <bdi>{core.law}</bdi>" in text
