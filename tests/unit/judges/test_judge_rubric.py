"""Rubrics: the shipped ones are sound, and a broken one is named."""

from __future__ import annotations

from pathlib import Path

import pytest

import latentbench_judges
from latentbench.errors import UserError
from latentbench.registry import RUBRICS
from latentbench_judges import load_rubric, rubric_names

SHIPPED = Path(latentbench_judges.__file__).parent / "rubrics"


@pytest.mark.parametrize("name", rubric_names())
def test_a_shipped_rubric_reasons_first_and_agrees_with_its_menu(name: str) -> None:
    rubric = load_rubric(name)
    assert rubric.name == name
    assert list(rubric.schema_["properties"])[-1] == rubric.verdict
    assert rubric.kind == "text" or len(rubric.menu) >= 2
    assert rubric.schema_["additionalProperties"] is False
    assert set(rubric.schema_["required"]) == set(rubric.schema_["properties"])


def test_an_unknown_rubric_names_the_nearest() -> None:
    with pytest.raises(UserError, match="monosemanticity"):
        load_rubric("monosemantic")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{contexts}", "none", "place holders"),
        ("menu = [1, 2, 3, 4, 5]", "menu = [1, 2, 3]", "they must be the same"),
        ("scale = [1, 5]", "scale = [1, 4]", "outside the scale 1 to 4"),
        ("score = 4", "score = 7", "the example is no answer of this schema"),
        ('verdict = "score"', 'verdict = "category"', "must come last"),
        ('enum = ["low_level", "high_level", "undiscernible"]', "enum = 3", "no JSON schema"),
        ("[schema]", "[sche", "is not TOML"),
        ('kind = "choice"', 'kind = "guess"', "kind"),
    ],
)
def test_a_broken_rubric_says_what_is_wrong(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = (SHIPPED / "monosemanticity.toml").read_text(encoding="utf-8")
    assert old in text
    broken = tmp_path / "broken.toml"
    broken.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(UserError, match=message):
        load_rubric(broken)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('required = ["n", "value"]', 'required = ["value"]', "required properties n and value"),
        ("scale = [0, 10]", "", "ratings need a scale"),
        ("scale = [0, 10]", "scale = [0, 9]", "outside the scale 0 to 9"),
        ("properties.value]\nenum = [0, 1,", "properties.value]\nenum = [1,", "they must be the same"),
        ("n = 3, value = 9", "n = 3, value = 19", "the example is no answer of this schema"),
        ('kind = "ratings"', 'kind = "flags"', "they must be the same"),
    ],
)
def test_a_broken_rubric_of_ratings_says_what_is_wrong(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    text = (SHIPPED / "simulation.toml").read_text(encoding="utf-8")
    assert old in text
    broken = tmp_path / "broken.toml"
    broken.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(UserError, match=message):
        load_rubric(broken)


def test_a_rubric_of_another_package_is_found_by_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = (SHIPPED / "monosemanticity.toml").read_text(encoding="utf-8")
    path = tmp_path / "mine.toml"
    path.write_text(text.replace('name = "monosemanticity"', 'name = "mine"'), encoding="utf-8")
    monkeypatch.setattr(RUBRICS, "names", lambda: ["mine", "monosemanticity"])
    monkeypatch.setattr(RUBRICS, "load", lambda _name: str(path))
    assert load_rubric("mine").name == "mine"
    assert "mine" in rubric_names()
    assert load_rubric("monosemanticity").name == "monosemanticity"  # nobody takes a name of ours


def test_every_change_of_a_rubric_changes_its_hash() -> None:
    rubric = load_rubric("monosemanticity")
    changed = rubric.model_copy(update={"user": rubric.user + " "})
    assert type(rubric).model_validate(changed.model_dump()).sha256 != rubric.sha256
