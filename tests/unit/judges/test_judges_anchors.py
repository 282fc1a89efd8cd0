from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from latentbench_judges import anchors
from latentbench_judges._marked import MarkedText
from latentbench_judges.anchors import ContextAnchor, TextAnchor, context_anchors, text_anchors

SEEDS = [0, 1, 7]


def bare(sentence: str) -> str:
    return sentence.replace("[", "").replace("]", "")


def mark(sentence: str) -> str:
    return sentence.partition("[")[2].partition("]")[0]


def words_of(sentence: str) -> set[str]:
    return set(re.findall(r"\w+", sentence.casefold()))


BANK: dict[str, Any] = tomllib.loads(Path(anchors.__file__).with_suffix(".toml").read_text(encoding="utf-8"))
TOPIC_OF = {bare(sentence): topic["name"] for topic in BANK["topics"] for sentence in topic["sentences"]}
WORD_OF = {bare(sentence): word["word"] for word in BANK["words"] for sentence in word["sentences"]}
PLAIN = {bare(sentence) for sentence in BANK["plain"]}
SENTENCES = [
    *(sentence for group in BANK["topics"] + BANK["words"] for sentence in group["sentences"]),
    *BANK["plain"],
]


def marked(context: MarkedText) -> str:
    (token,) = (
        token for token, strength in zip(context.tokens, context.strengths, strict=True) if strength > 0
    )
    return token


def cases(*kinds: str) -> list[ContextAnchor]:
    found = [anchor for seed in SEEDS for anchor in context_anchors(seed) if anchor.kind in kinds]
    assert found
    return found


def texts(aspect: str, truth: int) -> list[TextAnchor]:
    found = [
        anchor
        for seed in SEEDS
        for anchor in text_anchors(seed)
        if (anchor.aspect, anchor.truth) == (aspect, truth)
    ]
    assert found
    return found


def topics_of(text: str) -> list[str]:
    return [TOPIC_OF[sentence] for sentence in re.split(r"(?<=\.) ", text)]


def topic_with(field: str, value: str) -> str:
    (name,) = (topic["name"] for topic in BANK["topics"] if topic[field] == value)
    return str(name)


def test_bank_is_large_enough_and_has_no_sentence_twice() -> None:
    assert len(BANK["topics"]) >= 12
    assert len(BANK["words"]) >= 14
    assert len(BANK["plain"]) >= 40
    assert all(len(topic["sentences"]) >= 12 for topic in BANK["topics"])
    assert all(len(word["sentences"]) >= 10 for word in BANK["words"])
    assert len({bare(sentence) for sentence in SENTENCES}) == len(SENTENCES)


def test_every_sentence_has_one_marked_word_and_a_fair_length() -> None:
    one_mark = re.compile(r"[^\[\].]*\[\w+\][^\[\].]*\.")
    assert [s for s in SENTENCES if not one_mark.fullmatch(s)] == []
    assert [s for s in SENTENCES if not 8 <= len(s.split()) <= 16] == []


def test_words_occur_once_in_their_sentences_and_not_in_plain_ones() -> None:
    for word in BANK["words"]:
        for sentence in word["sentences"]:
            assert mark(sentence) == word["word"]
            assert re.findall(r"\w+", bare(sentence)).count(word["word"]) == 1
        assert not [s for s in BANK["plain"] if word["word"].casefold() in words_of(s)]


def test_no_marked_word_is_shared_between_subjects() -> None:
    marks = [mark(s) for topic in BANK["topics"] for s in topic["sentences"]]
    marks += [mark(s) for s in BANK["plain"]] + [word["word"] for word in BANK["words"]]
    assert [word for word, count in Counter(map(str.casefold, marks)).items() if count > 1] == []


def test_marked_words_of_a_topic_occur_in_no_other_topic_and_in_no_plain_sentence() -> None:
    for topic in BANK["topics"]:
        marks = {mark(sentence).casefold() for sentence in topic["sentences"]}
        others = [s for another in BANK["topics"] if another is not topic for s in another["sentences"]]
        assert [(s, marks & words_of(s)) for s in others + BANK["plain"] if marks & words_of(s)] == []


def test_tokens_are_the_sentence_and_one_whole_word_is_active() -> None:
    marks = {bare(sentence): mark(sentence) for sentence in SENTENCES}
    for seed in SEEDS:
        for anchor in context_anchors(seed):
            peaks = [max(context.strengths) for context in anchor.contexts]
            assert len(anchor.contexts) == 10
            assert len({context.text for context in anchor.contexts}) == 10
            assert peaks == sorted(set(peaks), reverse=True)
            for context in anchor.contexts:
                assert marked(context).strip() == marks[context.text]
                assert all(re.fullmatch(r" ?[\w'-]+|[.,]", token) for token in context.tokens)


@pytest.mark.parametrize(
    ("kind", "fitting", "truth"), [("token", 10, 5), ("token_but_one", 9, 4), ("token_half", 6, 3)]
)
def test_token_anchors_share_one_token_as_often_as_their_truth_says(
    kind: str, fitting: int, truth: int
) -> None:
    for anchor in cases(kind):
        ((token, count),) = Counter(map(marked, anchor.contexts)).most_common(1)
        misfits = [context for context in anchor.contexts if marked(context) != token]
        assert (count, anchor.truth) == (fitting, truth)
        assert all(context.text in PLAIN for context in misfits)
        assert not any(token.strip().casefold() in words_of(context.text) for context in misfits)


@pytest.mark.parametrize(
    ("kind", "fitting", "truth"), [("topic", 10, 5), ("topic_but_two", 8, 4), ("topic_half", 6, 3)]
)
def test_topic_anchors_share_one_topic_as_often_as_their_truth_says(
    kind: str, fitting: int, truth: int
) -> None:
    for anchor in cases(kind):
        fits = [context for context in anchor.contexts if context.text in TOPIC_OF]
        assert len({TOPIC_OF[context.text] for context in fits}) == 1
        assert (len(fits), anchor.truth) == (fitting, truth)
        assert len({marked(context) for context in anchor.contexts}) == 10
        assert all(context.text in PLAIN for context in anchor.contexts if context not in fits)


def test_nothing_anchors_repeat_no_word_and_no_topic() -> None:
    mixed = 0
    for anchor in cases("nothing"):
        subjects = [TOPIC_OF.get(c.text) or WORD_OF.get(c.text) or c.text for c in anchor.contexts]
        assert anchor.truth == 1
        assert len(set(subjects)) == 10
        assert len({marked(context).strip().casefold() for context in anchor.contexts}) == 10
        mixed += any(context.text in TOPIC_OF for context in anchor.contexts)
    assert mixed == len(cases("nothing")) / 2


@pytest.mark.parametrize(("truth", "own"), [(2, 4), (1, 1), (0, 0)])
def test_concept_is_in_as_many_sentences_as_its_truth_says(truth: int, own: int) -> None:
    for anchor in texts("concept", truth):
        topics = topics_of(anchor.text)
        assert len(topics) == 4
        assert topics.count(topic_with("description", anchor.concept)) == own
        assert len(set(topics)) == (2 if truth == 1 else 1)
        assert topics.count(topic_with("instruction", anchor.instruction)) == max(own, 4 - own)


@pytest.mark.parametrize(("truth", "own"), [(2, 4), (0, 0)])
def test_instruction_is_followed_by_all_sentences_or_none(truth: int, own: int) -> None:
    for anchor in texts("instruct", truth):
        topics = topics_of(anchor.text)
        assert len(topics) == 4
        assert topics.count(topic_with("instruction", anchor.instruction)) == own
        assert set(topics) == {topic_with("description", anchor.concept)}


def test_fluent_texts_are_whole_sentences_of_their_topic() -> None:
    for anchor in texts("fluency", 2):
        topics = topics_of(anchor.text)
        assert topics == [topic_with("description", anchor.concept)] * 4
        assert topics[0] == topic_with("instruction", anchor.instruction)


def test_texts_without_fluency_are_shuffled_or_repeated() -> None:
    shuffled = repeated = 0
    for anchor in texts("fluency", 0):
        topic = topic_with("description", anchor.concept)
        phrase = re.match(r"(.+?)(?: \1)+$", anchor.text)
        if phrase:
            repeated += 1
            assert 3 <= len(phrase[1].split()) <= 5
            assert 18 <= anchor.text.count(phrase[1]) <= 22
            assert any(s.startswith(phrase[1]) and TOPIC_OF[s] == topic for s in TOPIC_OF)
            continue
        shuffled += 1
        words = Counter(anchor.text.split())
        used = [s for s in TOPIC_OF if TOPIC_OF[s] == topic and Counter(s.split()) <= words]
        assert sum((Counter(s.split()) for s in used), Counter()) == words
        assert len(used) == 4
        assert not any(s in anchor.text for s in used)
    assert shuffled == repeated == 6 * len(SEEDS)


@pytest.mark.parametrize("seed", SEEDS)
def test_truths_are_balanced_and_ids_unique(seed: int) -> None:
    contexts, answers = context_anchors(seed), text_anchors(seed)
    assert len(contexts) >= 64
    assert Counter(anchor.truth for anchor in contexts) == dict.fromkeys((5, 4, 3, 1), len(contexts) // 4)
    assert Counter((anchor.aspect, anchor.truth) for anchor in answers) == {
        ("concept", 2): 12,
        ("concept", 1): 12,
        ("concept", 0): 12,
        ("instruct", 2): 12,
        ("instruct", 0): 12,
        ("fluency", 2): 12,
        ("fluency", 0): 12,
    }
    assert [anchor.id for anchor in contexts] == [f"context-{n:03d}" for n in range(len(contexts))]
    assert [anchor.id for anchor in answers] == [f"text-{n:03d}" for n in range(len(answers))]
    assert all(anchor.concept and anchor.instruction for anchor in answers)
    assert not any(bracket in anchor.text for anchor in answers for bracket in "[]")


def test_equal_seeds_give_equal_anchors_and_others_other_mixtures_of_the_same_kinds() -> None:
    assert context_anchors(3) == context_anchors(3)
    assert text_anchors(3) == text_anchors(3)
    assert context_anchors() == context_anchors(0)
    first, second = context_anchors(3), context_anchors(4)
    assert [(a.id, a.kind, a.truth) for a in first] == [(a.id, a.kind, a.truth) for a in second]
    assert not any(a.contexts == b.contexts for a, b in zip(first, second, strict=True))
    assert {a.text for a in text_anchors(3)} != {a.text for a in text_anchors(4)}


def test_the_first_anchors_are_as_mixed_as_all() -> None:
    assert Counter(a.truth for a in context_anchors()[:8]) == {5: 2, 4: 2, 3: 2, 1: 2}
    assert Counter(a.aspect for a in text_anchors()[:7]) == {"concept": 3, "instruct": 2, "fluency": 2}
