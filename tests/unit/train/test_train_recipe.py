"""Recipes and learning-rate schedules."""

from __future__ import annotations

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
    assert {trainee.kind for trainee in recipe.trainees} == {"topk", "routesae", "random"}


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("tokens = 1000", "token = 1000", r"did you mean 'tokens'"),
        (
            'kind = "topk"',
            'kind = "topk"\npoolling = "mean"',
            r"trainees\.0\.poolling.*did you mean 'pooling'",
        ),
        ('kind = "topk"', 'kind = "relu"', r"trainees\.0\.kind"),
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


def test_two_trainees_of_one_name_are_refused() -> None:
    twice = (TraineeSpec(name="a", kind="topk"), TraineeSpec(name="a", kind="routesae"))
    with pytest.raises(ValidationError, match="two trainees have one name"):
        Recipe(name="mine", lm="toy", tokens=10, trainees=twice)
