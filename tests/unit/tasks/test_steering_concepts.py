"""The concepts and prompts that ship with the steering task."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from importlib import resources

import pytest
from pydantic import ValidationError

from latentbench.data import load_corpus
from latentbench.errors import UserError
from latentbench_tasks.steering._concepts import (
    Concept,
    all_concepts,
    all_prompts,
    background_sets,
    concepts,
    neutral_prompts,
    prompts,
)

FIRST = re.findall(
    r"\w+",
    "sport world_affairs business restaurant medicine court technology python_code c_code html_markup "
    "magnetism genetics human_rights mental_health china clickbait spam film_review help_desk complaint ",
)
WRITTEN = [concept for concept in all_concepts() if concept.examples]


def test_there_are_enough_concepts_and_prompts_with_names_of_their_own() -> None:
    names = [concept.id for concept in all_concepts()]
    assert len(names) >= 56
    for found in (names, [concept.name for concept in all_concepts()]):
        assert len(set(found)) == len(found)
    assert names[: len(FIRST)] == FIRST  # suites name them, and demos took the first ones
    for found in ([p.id for p in all_prompts()], [p.text for p in all_prompts()]):
        assert len(set(found)) == len(found)
    halves = [prompt.half for prompt in all_prompts()]
    assert halves.count("select") == halves.count("test") >= 20
    assert len(neutral_prompts()) >= 16
    openings = [tuple(re.findall(r"\w+", prompt.text.lower())[:2]) for prompt in all_prompts()]
    assert len(set(openings)) == len(openings)


def test_every_concept_has_a_lexicon_and_either_labelled_texts_or_examples() -> None:
    for concept in all_concepts():
        assert len({word.lower() for word in concept.lexicon}) == len(concept.lexicon) >= 8, concept.id
        assert concept.description.endswith("."), concept.id
        assert bool(concept.positives) != bool(concept.examples), concept.id


@pytest.mark.parametrize("concept", WRITTEN, ids=lambda concept: concept.id)
def test_examples_are_many_short_sentences_without_a_phrase_in_common(concept: Concept) -> None:
    texts = [example.text for example in concept.examples if example.positive]
    assert len(set(texts)) == len(texts) >= 16
    assert all(8 <= len(text.split()) <= 20 for text in texts), [
        t for t in texts if not 8 <= len(t.split()) <= 20
    ]
    assert all(example.split == "select" for example in concept.examples)
    plain = [example.text for example in concept.examples if not example.positive]
    assert len(set(plain)) == len(plain) >= 16
    assert all(8 <= len(text.split()) <= 20 and not concept.lexicon_hits(text) for text in plain)
    tokens = [re.findall(r"[\w']+", text.lower()) for text in texts]
    triples = Counter(
        triple for found in tokens for triple in {*zip(found, found[1:], found[2:], strict=False)}
    )
    assert max(triples.values()) <= 2
    begins = Counter(found[0] for found in tokens)
    assert max(begins.values()) <= len(texts) / 2
    told = sum(concept.lexicon_hits(text) > 0 for text in texts)
    assert len(texts) / 4 <= told < len(texts)  # the lexicon tells of them, and is not all there is


def test_no_example_serves_two_concepts() -> None:
    texts = [example.text for concept in WRITTEN for example in concept.examples if example.positive]
    assert len(set(texts)) == len(texts)


def test_a_plain_example_is_a_positive_and_dumps_hold_a_checksum_of_it() -> None:
    about = {"id": "a", "name": "A", "description": "A.", "lexicon": ["x"]}
    made = Concept.model_validate({**about, "examples": ["one", {"text": "two", "positive": False}]})
    assert [(example.text, example.positive) for example in made.examples] == [("one", True), ("two", False)]
    other = made.model_copy(update={"examples": made.examples[:1]})
    dumps = [concept.model_dump(mode="json")["examples"] for concept in (made, other)]
    assert dumps[0] != dumps[1]
    assert "one" not in dumps[0]
    assert concepts(["sport"])[0].model_dump(mode="json")["examples"] == ""
    with pytest.raises(ValidationError):
        Concept.model_validate({**about, "examples": [""]})


@pytest.mark.parametrize("concept", all_concepts(), ids=lambda concept: concept.id)
def test_no_prompt_mentions_a_concept(concept: Concept) -> None:
    telling = concept.model_copy(update={"lexicon": (*concept.lexicon, *concept.name.split())})
    common = {"it", "and", "their", "field", "fields", "out", "a", "an", "of", "the", "in", "for"}
    telling = telling.model_copy(
        update={"lexicon": tuple(word for word in telling.lexicon if word.lower() not in common)}
    )
    assert [prompt.text for prompt in all_prompts() if telling.lexicon_hits(prompt.text)] == []


def test_a_lexicon_word_counts_once_and_only_as_a_whole_word() -> None:
    sport = concepts(["sport"])[0]
    assert sport.lexicon_hits("A GAME, a game and the gamekeeper") == 1
    assert sport.lexicon_hits("the team lost the game") == 2
    assert sport.lexicon_hits("teamwork") == 0


def test_what_a_concept_avoids_is_background() -> None:
    for concept in all_concepts():
        assert set(concept.avoid) <= set(background_sets()), concept.id
        own = {group.set for group in concept.positives} & set(background_sets())
        assert own <= set(concept.avoid), concept.id


def test_an_unknown_concept_names_the_nearest() -> None:
    with pytest.raises(UserError, match="medicine"):
        concepts(["medicin"])
    with pytest.raises(UserError, match="twice"):
        concepts(["sport", "sport"])


def test_prompts_come_half_and_half_and_longer_lists_begin_with_shorter_ones() -> None:
    eight = prompts(8)
    assert [prompt.half for prompt in eight].count("select") == 4
    assert {prompt.id for prompt in eight} <= {prompt.id for prompt in prompts(16)}
    for count in (7, 0, 1000):
        with pytest.raises(UserError, match="even number"):
            prompts(count)


def test_the_card_describes_every_metric() -> None:
    from latentbench_tasks.steering import metrics
    from latentbench_tasks.steering.task import SteeringTask

    card = tomllib.loads(resources.files("latentbench_tasks.steering").joinpath("card.toml").read_text())
    assert (card["name"], card["version"]) == (SteeringTask.name, SteeringTask.version)
    extra = {"success_fixed_factor", "coverage", "success_all_concepts", "scorer_auroc"}
    assert set(card["metric"]) == set(metrics._SPECS) | extra | {"success_degenerate", "lift_over"}
    for name, spec in metrics._SPECS.items():
        assert card["metric"][name]["direction"] == spec.direction, name
        assert card["metric"][name]["unit"] == spec.unit, name
        assert card["metric"][name].get("headline", False) == spec.headline, name


@pytest.mark.slow
def test_every_class_exists_in_the_probing_texts() -> None:
    corpora = [load_corpus("probe-texts", split=split) for split in ("select", "classifier")]
    for corpus in corpora:
        for concept in all_concepts():
            for group in concept.positives:
                for target in group.targets or (None,):
                    assert len(corpus.labelled(group.set, target)) >= 20, (concept.id, group, target)
        for name in background_sets():
            assert corpus.labelled(name), name
