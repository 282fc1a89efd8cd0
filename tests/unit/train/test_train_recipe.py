"""Recipes and learning-rate schedules."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
from pydantic import ValidationError

from latentbench.errors import UserError
from latentbench.train import Recipe, TraineeSpec, load_recipe, multiplier

GOOD = 'name = "mine"\nlm = "toy"\ntokens = 1000\n[[trainees]]\nname = "a"\nkind = "topk"\n'


@pytest.mark.parametrize(
    ("done", "share"),
    [(0.01, 0.2), (0.025, 0.5), (0.05, 1.0), (0.5, 1.0), (0.8, 1.0), (0.9, 0.5), (0.95, 0.25), (1.0, 0.0)],
)
def test_paper_schedule(done: float, share: float) -> None:
    """Warm-up over 5 %, constant, decay over the last 20 % (arXiv 2503.08200v3, section 4.1)."""
    assert multiplier(done, "paper") == pytest.approx(share)


@pytest.mark.parametrize(
    ("done", "share"),
    [(0.025, 0.5), (0.05, 1.0), (0.79, 1.0), (0.8, 0.2), (0.875, 0.1), (0.95, 0.0), (0.97, 0.0), (1.0, 0.0)],
)
def test_schedule_of_the_code(done: float, share: float) -> None:
    """The drop from 1 to 0.2 at 80 %, and 0 from 95 % on, are what GitHub swei2001/RouteSAEs did."""
    assert multiplier(done, "as-run-2025") == pytest.approx(share)


def test_a_recipe_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD, encoding="utf-8")
    recipe = load_recipe(str(path))
    assert (recipe.name, recipe.tokens, recipe.trainees[0].kind) == ("mine", 1000, "topk")


def test_the_shipped_recipe_trains_at_least_half_a_million_tokens() -> None:
    recipe = load_recipe("zoo-smollm2")
    assert recipe.tokens >= 500_000
    kinds = ["topk", "routesae", "random", "relu", "gated", "jumprelu", "mlsae"]
    assert [trainee.kind for trainee in recipe.trainees] == kinds


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("tokens = 1000", "token = 1000", r"did you mean 'tokens'"),
        (
            'kind = "topk"',
            'kind = "topk"\npoolling = "mean"',
            r"trainees\.0\.poolling.*did you mean 'pooling'",
        ),
        ('kind = "topk"', 'kind = "topkk"', r"trainees\.0\.kind"),
        ("tokens = 1000", "tokens = 0", r"tokens: .*greater than 0"),
        ("tokens = 1000", "tokens = 1000\nk = 64\nlatents = 32", "k = 64 is more than latents = 32"),
        ("tokens = 1000", "tokens = ", "is not TOML"),
    ],
)
def test_what_is_wrong_with_a_recipe_is_named(tmp_path: Path, old: str, new: str, told: str) -> None:
    assert old in GOOD
    path = tmp_path / "mine.toml"
    path.write_text(GOOD.replace(old, new), encoding="utf-8")
    with pytest.raises(UserError, match=told):
        load_recipe(str(path))


def test_a_missing_recipe_names_the_shipped_ones() -> None:
    with pytest.raises(UserError, match="zoo-smollm2"):
        load_recipe("zoo-smollm3")


def test_a_trainee_stands_for_one_dictionary_of_each_k_and_seed(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD + "k = [8, 16]\nseeds = [3, 4]\n", encoding="utf-8")
    units = load_recipe(str(path)).units()
    assert [(unit.name, unit.k, unit.seed) for unit in units] == [
        ("a-k8-s3", 8, 3),
        ("a-k8-s4", 8, 4),
        ("a-k16-s3", 16, 3),
        ("a-k16-s4", 16, 4),
    ]


def test_what_a_trainee_leaves_out_is_the_recipe_s(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD, encoding="utf-8")
    recipe = load_recipe(str(path))
    assert [(unit.name, unit.k, unit.seed) for unit in recipe.units()] == [("a", recipe.k, recipe.seed)]


def test_units_that_end_up_with_one_name_are_refused() -> None:
    clash = (
        TraineeSpec(name="a", kind="topk", seeds=(0, 1)),
        TraineeSpec(name="a-s1", kind="topk"),
    )
    with pytest.raises(ValidationError, match="two trainees have one name"):
        Recipe(name="mine", lm="toy", tokens=10, trainees=clash)


def test_a_k_above_the_width_is_refused_for_any_trainee() -> None:
    wide = TraineeSpec(name="a", kind="topk", k=(8, 65))
    with pytest.raises(ValidationError, match="k = 65 is more than latents = 64"):
        Recipe(name="mine", lm="toy", tokens=10, latents=64, trainees=(wide,))


def test_the_study_has_eight_families_with_three_seeds_and_a_sweep() -> None:
    units = load_recipe("study-smollm2").units()
    by_kind: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for unit in units:
        if unit.spec.site == -1:
            by_kind[unit.spec.kind].add((unit.k, unit.seed))
    assert len(by_kind) == 8
    for kind in ("routesae", "topk", "random"):
        assert by_kind[kind] >= {(k, seed) for k in (32, 64, 96) for seed in (0, 1, 2)}
    assert all(found >= {(64, 0), (64, 1), (64, 2)} for found in by_kind.values())
    assert {seed for k, seed in by_kind["routesae"] if k == 64} == set(range(10))
    assert {unit.spec.site for unit in units} == {-1, 0, 11, 13}


def test_two_trainees_of_one_name_are_refused() -> None:
    twice = (TraineeSpec(name="a", kind="topk"), TraineeSpec(name="a", kind="routesae"))
    with pytest.raises(ValidationError, match="two trainees have one name"):
        Recipe(name="mine", lm="toy", tokens=10, trainees=twice)
