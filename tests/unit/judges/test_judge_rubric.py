"""Rubrics: the shipped ones are sound, and a broken one is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from latentbench.errors import UserError
from latentbench_judges.rubric import load_rubric, rubric_names


@pytest.mark.parametrize("name", rubric_names())
def test_a_shipped_rubric_asks_about_the_contexts_and_scores_last(name: str) -> None:
    rubric = load_rubric(name)
    assert "{0} [[5]] {contexts}" in rubric.ask("{0} [[5]] {contexts}")
    assert list(rubric.schema_["properties"])[-1] == "score"
    low, high = rubric.scale
    assert low < high


def test_an_unknown_rubric_names_the_nearest() -> None:
    with pytest.raises(UserError, match="monosemanticity"):
        load_rubric("monosemantic")


def test_a_rubric_without_a_place_for_contexts_is_refused(tmp_path: Path) -> None:
    text = Path(load_rubric.__code__.co_filename).parent.joinpath("rubrics/monosemanticity.toml").read_text()
    broken = tmp_path / "broken.toml"
    broken.write_text(text.replace("{contexts}", "none"))
    with pytest.raises(UserError, match="exactly once"):
        load_rubric(broken)
