"""The feature count against a straight-line reading of RouteSAE's rule, and the pieces it is made of."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latentbench.registry import TASKS
from latentbench.stats import chao2, generator, paired_ratio
from latentbench.testing import toy_tokenizer
from latentbench_tasks._contexts import Vocabulary, Window, read_vocabulary, sentence_window
from latentbench_tasks.feature_count.metrics import (
    Rule,
    active_latents,
    kept_counter,
    kept_latents,
    pack_latents,
    read_events,
    summarise,
    unpack_latents,
)
from latentbench_tasks.feature_count.task import FeatureCountConfig, FeatureCountTask

PLACE = st.tuples(st.integers(0, 3), st.integers(0, 7))
ROW = st.fixed_dictionaries(
    {
        "document": st.sampled_from("abcde"),
        "hits": st.dictionaries(PLACE, st.integers(1, 30), max_size=12).map(
            lambda found: [(*place, strength) for place, strength in found.items()]
        ),
        "classes": st.lists(st.integers(0, 4), min_size=8, max_size=8),
    }
)


def item(place: int, row: dict[str, Any]) -> dict[str, Any]:
    by_latent: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for latent, column, strength in row["hits"]:
        by_latent[latent].append((column, float(strength)))
    latents = sorted(by_latent)
    return {
        "kind": "row",
        "document": row["document"],
        "start_token": place,
        "tokens": 8,
        "n_latents": 4,
        "classes": row["classes"],
        "latents": latents,
        "columns": [[c for c, _ in sorted(by_latent[latent])] for latent in latents],
        "strengths": [[s for _, s in sorted(by_latent[latent])] for latent in latents],
        "active": pack_latents(np.array(latents, dtype=np.int64), 4),
    }


def reference(rows: list[dict[str, Any]], threshold: float, rule: Rule) -> set[int]:
    """Heaps of the strongest contexts by latent and class, as the official code keeps them."""
    heaps: dict[int, dict[int, list[tuple[float, str]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for latent, column, strength in row["hits"]:
            if strength > threshold:
                heaps[latent][row["classes"][column]].append((strength, row["document"]))
    kept = set()
    for latent, classes in heaps.items():
        total = 0
        for events in classes.values():
            counted = {document for _, document in events} if rule.one_per_document else events
            total += min(rule.per_class, len(counted))
        small_enough = rule.max_classes is None or len(classes) <= rule.max_classes
        if total >= rule.min_contexts and small_enough:
            kept.add(latent)
    return kept


@settings(deadline=None, max_examples=150)
@given(
    rows=st.lists(ROW, min_size=1, max_size=12),
    threshold=st.sampled_from([0.5, 7.0, 15.0]),
    minimum=st.integers(1, 6),
    most=st.sampled_from([None, 2, 32]),
    once=st.booleans(),
)
def test_the_count_is_the_straight_line_rule(
    rows: list[dict[str, Any]], threshold: float, minimum: int, most: int | None, once: bool
) -> None:
    rule = Rule(minimum, most, 2, once)
    items = [item(place, row) for place, row in enumerate(rows)]
    expected = reference(rows, threshold, rule)
    assert set(kept_latents(read_events(items), threshold, rule).tolist()) == expected
    metrics, _, counts = summarise(items[::-1], (threshold,), threshold, rule, generator("t"))
    found = {metric.name: metric.value for metric in metrics}
    assert found[f"features_at_{threshold:g}"] == len(expected)
    unlimited = reference(rows, threshold, rule._replace(max_classes=None))
    assert found[f"unlimited_at_{threshold:g}"] == len(unlimited)
    assert expected <= unlimited
    assert found["active"] == len({latent for row in rows for latent, _, _ in row["hits"]})
    assert counts["tokens"] == 8 * len(rows)


@settings(deadline=None, max_examples=60)
@given(rows=st.lists(ROW, min_size=2, max_size=10), once=st.booleans(), seed=st.integers(0, 99))
def test_counts_on_sets_of_documents_are_those_of_the_rule_there(
    rows: list[dict[str, Any]], once: bool, seed: int
) -> None:
    names = sorted({row["document"] for row in rows})
    chosen = np.random.default_rng(seed).random((7, len(names))) < 0.6
    events = read_events([item(place, row) for place, row in enumerate(rows)])
    for most in (2, None):
        rule = Rule(2, most, 2, once)
        expected = [
            len(reference([row for row in rows if members[names.index(row["document"])]], 7.0, rule))
            for members in chosen
        ]
        assert kept_counter(events, 7.0, rule)(chosen).tolist() == expected


@given(latents=st.sets(st.integers(0, 40)), width=st.integers(41, 90))
def test_a_packed_set_of_latents_comes_back(latents: set[int], width: int) -> None:
    text = pack_latents(np.array(sorted(latents), dtype=np.int64), width)
    assert text.isascii()
    assert unpack_latents(text, width).tolist() == sorted(latents)


def drawn_items(seed: int, n_documents: int = 40, latents: int = 4) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    rows = [
        {
            "document": f"d{place // 2}",
            "classes": rng.integers(0, 60, 8).tolist(),
            "hits": [(int(rng.integers(latents)), c, int(rng.integers(1, 30))) for c in range(8)],
        }
        for place in range(2 * n_documents)
    ]
    return [item(place, row) for place, row in enumerate(rows)]


def test_the_count_without_a_limit_never_falls() -> None:
    items = drawn_items(1)
    events = read_events(items)
    order = np.arange(40)[None, :] < np.arange(1, 41)[:, None]
    limited, unlimited = (
        kept_counter(events, 5.0, Rule(5, most, 2, True))(order).tolist() for most in (8, None)
    )
    assert unlimited == sorted(unlimited)
    assert limited != sorted(limited)
    assert unlimited[-1] == 4


def test_richness_is_that_of_documents_with_an_event() -> None:
    rng = np.random.default_rng(2)
    hits = [
        [(latent, latent, int(rng.integers(1, 30))) for latent in range(4) if rng.random() < 0.02]
        for _ in range(120)
    ]
    items = [
        item(place, {"document": f"d{place // 2}", "classes": [0] * 8, "hits": found})
        for place, found in enumerate(hits)
    ]
    metrics, curves, _ = summarise(items, (10.0,), 10.0, Rule(5, 32, 2, True), generator("r"))
    by_name = {metric.name: metric for metric in metrics}
    for name, least in (("at_10", 10), ("active", 0)):
        pairs = {
            (place // 2, latent)
            for place, found in enumerate(hits)
            for latent, _, strength in found
            if strength > least
        }
        seen = np.bincount([latent for _, latent in pairs], minlength=4)
        assert by_name[f"richness_{name}"].value == chao2(seen, 60, maximum=4).value
    unit, latents = active_latents(items[::-1])
    names = sorted({each["document"] for each in items})
    assert {(names[place], int(latent)) for place, latent in zip(unit, latents, strict=True)} == {
        (f"d{place // 2}", latent) for place, found in enumerate(hits) for latent, _, _ in found
    }
    assert by_name["active"].direction == "none"
    assert [metric.name for metric in metrics if metric.headline] == ["features_at_10"]
    assert [curve.name for curve in curves] == ["features_at_10", "unlimited_at_10"]


def test_every_metric_of_the_default_thresholds_is_on_the_card() -> None:
    card = tomllib.loads((TASKS.folder("feature_count") / "card.toml").read_text(encoding="utf-8"))
    config = FeatureCountConfig()
    for items in (drawn_items(3), []):
        metrics, _, _ = summarise(items, config.thresholds, config.headline, config.rule, generator("c"))
        assert {metric.name for metric in metrics} == set(card["metric"])
        for metric in metrics:
            shown = card["metric"][metric.name]
            assert (shown["unit"], shown["direction"]) == (metric.unit, metric.direction)
    assert card["version"] == FeatureCountTask.version


def test_two_dictionaries_on_the_same_documents_are_compared_in_pairs() -> None:
    """One latent in three documents against one in all: the ratio of the counts and its interval."""
    rule = Rule(2, None, 2, True)
    first, second = (
        kept_counter(read_events(drawn_items(seed)), threshold, rule)
        for seed, threshold in ((4, 25.0), (5, 28.0))
    )
    found = paired_ratio(40, first, second, generator("p"))
    everything = np.ones((1, 40), dtype=bool)
    assert found.ratio.value == float(first(everything)[0] / second(everything)[0])


def test_the_threshold_is_strict() -> None:
    row = {"document": "a", "classes": [0, 1, 2, 3, 4, 0, 0, 0], "hits": [(1, c, 10) for c in range(5)]}
    rule = Rule(5, 32, 2, one_per_document=False)
    assert kept_latents(read_events([item(0, row)]), 10.0, rule).tolist() == []
    assert kept_latents(read_events([item(0, row)]), 9.99, rule).tolist() == [1]


def test_counts_grow_with_documents_and_intervals_hold_the_value() -> None:
    rng = np.random.default_rng(0)
    rows = [
        {
            "document": f"d{place}",
            "classes": rng.integers(0, 9, 8).tolist(),
            "hits": [(int(rng.integers(4)), c, int(rng.integers(1, 30))) for c in range(8)],
        }
        for place in range(40)
    ]
    items = [item(place, row) for place, row in enumerate(rows)]
    metrics, curves, _ = summarise(items, (10.0,), 10.0, Rule(5, 32, 2, True), generator("g"))
    heights = [point.value for point in curves[0].points if point.value is not None]
    assert heights == sorted(heights)
    assert metrics[0].headline
    assert "320 tokens" in metrics[0].note


@pytest.mark.parametrize(
    ("column", "expected"), [(0, (0, 3)), (2, (0, 3)), (3, (3, 6)), (5, (3, 6)), (6, (6, 8)), (7, (6, 8))]
)
def test_a_context_is_the_sentence_around_the_token(column: int, expected: tuple[int, int]) -> None:
    ids = [5, 6, 9, 7, 8, 9, 5, 6]  # 9 ends a sentence and belongs to it
    assert sentence_window(ids, column, Vocabulary([], frozenset({9}), frozenset()), 64) == Window(*expected)


def test_a_long_sentence_is_cut_to_half_the_limit_on_either_side() -> None:
    nothing = Vocabulary([], frozenset(), frozenset())
    assert sentence_window([1] * 64, 50, nothing, 64) == Window(0, 64)
    assert sentence_window([1] * 100, 50, nothing, 64) == Window(18, 83)  # 32 on either side of the token
    assert sentence_window([1] * 100, 3, nothing, 64) == Window(0, 36)
    assert sentence_window([1] * 100, 98, nothing, 64) == Window(66, 100)


def test_token_classes_fold_case_and_spaces_but_not_the_marker() -> None:
    class Tokens:
        eos_token = "<end>"

        def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
            return [["The", "the ", "Ġthe", ".", "Ġ.", "<end>", '"'][i] for i in ids]

        def decode(self, ids: list[int], *, clean_up_tokenization_spaces: bool) -> str:
            return ""

    vocabulary = read_vocabulary(Tokens(), 7)  # type: ignore[arg-type]
    assert vocabulary.classes == [0, 0, 2, 3, 4, 5, 6]
    assert vocabulary.ends == {3, 5, 6}
    assert vocabulary.blank == {5}
    assert read_vocabulary(toy_tokenizer(), 48).ends


def test_presets_and_options() -> None:
    assert FeatureCountConfig(preset="paper").rule == Rule(4, None, 2, False)
    assert FeatureCountConfig(preset="code").rule == Rule(5, 32, 2, False)
    assert FeatureCountConfig(min_contexts=3, max_classes=9).rule == Rule(3, 9, 2, True)
    with pytest.raises(ValueError, match="headline"):
        FeatureCountConfig(headline=11.0)
