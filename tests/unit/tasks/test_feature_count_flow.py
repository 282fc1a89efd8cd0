"""The feature count from a toy model's tokens to kept latents and their contexts, against a straight-line reading
of the rule that works on dense activations."""

from __future__ import annotations

import heapq
import itertools
import json
import math
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from latentbench.adapters import Dictionary, InputTransform
from latentbench.data import Corpus, Document, TokenRow
from latentbench.identity import sha256_text
from latentbench.lm import LM
from latentbench.run import CellSetup, Item, Shared, TokenPolicy
from latentbench.run._pass import Fed, run_pass
from latentbench.selectors import promoted_tokens
from latentbench.testing import random_routesae, random_sae, toy_lm, toy_tokenizer
from latentbench_tasks._contexts import shortened
from latentbench_tasks.feature_count.metrics import Rule, kept_latents, read_events
from latentbench_tasks.feature_count.task import FeatureCountConfig, FeatureCountTask

THRESHOLDS = (4.0, 8.0, 16.0)
BUDGET = 900
SPACE = toy_tokenizer().convert_tokens_to_ids(" ")
ENDS = {1, *(toy_tokenizer().convert_tokens_to_ids(list('.!?"')))}
torch.set_num_threads(1)


@cache
def corpus() -> Corpus:
    rng = np.random.default_rng(7)
    words = ["red", "blue.", "green", "dog!", "cat", "sun", '"no"']
    texts = [" ".join(rng.choice(words, size=int(n))) for n in rng.integers(4, 16, size=30)]
    documents = [
        Document(sha256_text(text), text, "toy", excerpts=place % 2 == 0) for place, text in enumerate(texts)
    ]
    return Corpus("toy", "test", "0" * 64, documents, documents)


@cache
def model() -> LM:
    return toy_lm(tokenizer=toy_tokenizer())


def dictionaries() -> list[Dictionary]:
    return [
        random_sae(n_latents=24, transform=InputTransform("standardise")),
        random_sae(n_latents=24),
        random_routesae(["resid_post.0", "resid_post.1", "resid_post.2"], n_latents=24),
    ]


KINDS = pytest.mark.parametrize("dictionary", dictionaries(), ids=["standardised", "raw", "routed"])


def setup(dictionary: Dictionary, batch_rows: int = 4) -> CellSetup:
    policy = TokenPolicy(context=24, batch_rows=batch_rows)
    return CellSetup(
        model(), dictionary, corpus(), lambda _split: corpus(), policy, 0, Path("unused"), Shared()
    )


def task(**options: Any) -> FeatureCountTask:
    given: dict[str, Any] = {"budget_tokens": BUDGET, "thresholds": THRESHOLDS, "headline": 8.0, **options}
    return FeatureCountTask(FeatureCountConfig(**given))


def watch(counting: FeatureCountTask, cell: CellSetup) -> list[Item]:
    items: list[Item] = []

    def fail(error: Exception) -> None:
        raise error

    fed = Fed(cell.dictionary, counting.watcher(cell), cell.rows(BUDGET), set(), items.extend, fail)
    run_pass(cell.lm, cell.tokens, [fed])
    return [json.loads(json.dumps(item, allow_nan=False)) for item in items]


def dense_strengths(cell: CellSetup, row: TokenRow) -> torch.Tensor:
    """`Float64[Tensor, "pos latent"]` of one row alone on the scale of d = 2,048; 0 where nothing is measured."""
    tokens = cell.lm.batch([row.ids])
    sites = {*cell.dictionary.reads, *cell.dictionary.writes}
    acts = {
        site: value[0, 1:]
        for site, value in cell.lm.forward(tokens, capture=sites, logits=False).acts.items()
    }
    codes = cell.dictionary.encode({site: acts[site] for site in cell.dictionary.reads})
    values = cell.dictionary.relative_values(acts, codes)
    dense = codes.with_values(values).dense().double() * math.sqrt(2048)
    return torch.cat([torch.zeros_like(dense[:1]), dense])


def original_code(
    cell: CellSetup, threshold: float, lines: int = 4
) -> dict[int, list[tuple[float, str, int]]]:
    """What RouteSAE's own loop keeps: heaps of two by latent and token class, over 4 in all, at most 32 classes.

    Returns:
        For each kept latent (strength, row, column) of its contexts, strongest first.
    """
    heaps: dict[int, dict[str, list[tuple[float, str, int]]]] = defaultdict(lambda: defaultdict(list))
    for row in cell.rows(BUDGET):
        raw = cell.lm.tokenizer.convert_ids_to_tokens(row.ids)
        dense = dense_strengths(cell, row)
        for column, latent in (dense > threshold).nonzero().tolist():
            heap = heaps[latent][raw[column].strip().lower()]
            heapq.heappush(heap, (float(dense[column, latent]), f"{row.document}:{row.start_token}", column))
            if len(heap) > 2:
                heapq.heappop(heap)
    return {
        latent: sorted(itertools.chain(*classes.values()), reverse=True)
        for latent, classes in heaps.items()
        if len(classes) <= 32 and sum(map(len, classes.values())) > lines
    }


@KINDS
@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_the_code_preset_keeps_what_the_original_loop_keeps(dictionary: Dictionary, threshold: float) -> None:
    cell, counting = setup(dictionary), task(preset="code")
    expected = original_code(cell, threshold)
    events = read_events(watch(counting, cell))
    assert kept_latents(events, threshold, counting.config.rule).tolist() == sorted(expected)
    assert threshold > 8 or expected  # an empty comparison would prove nothing


@KINDS
def test_the_stored_contexts_are_those_of_the_original_loop(dictionary: Dictionary) -> None:
    cell, counting = setup(dictionary), task(preset="code", browsable_contexts=64)
    expected = original_code(cell, THRESHOLDS[0])
    items = watch(counting, cell)
    made = list(counting.measure(cell, items))
    latents = {item["latent"]: item for item in made if item["kind"] == "latent"}
    places = {item["id"]: item for item in made if item["kind"] == "text"}
    assert expected.keys() <= latents.keys()
    for latent, contexts in expected.items():
        found = latents[latent]["contexts"]
        assert [c["activation"] for c in found] == pytest.approx([c[0] for c in contexts], rel=1e-3)
        words = Counter(places[c["text"]]["tokens"][c["activated"]] for c in found)
        assert max(words.values()) <= 2
        for context in found:
            text = places[context["text"]]
            row = row_of(cell, context)
            start, end = context["start"] - row.start_token, context["end"] - row.start_token
            column = start + context["activated"]
            strength = float(dense_strengths(cell, row)[column, latent])
            assert context["activation"] == pytest.approx(strength, rel=1e-3)
            assert text["tokens"] == [cell.lm.tokenizer.decode([token]) for token in row.ids[start:end]]
            before, after = row.ids[:start], row.ids[end:]
            while before and before[-1] == SPACE:  # a raw blank is trimmed at both sides
                before.pop()
            assert not before or before[-1] in ENDS
            assert row.ids[end - 1] in ENDS or set(after) <= {SPACE}
            assert not ENDS & set(row.ids[start : end - 1])
            dense = dense_strengths(cell, row)[start:end, latent].clamp(min=0).tolist()
            assert text["activations"] == pytest.approx(dense, rel=0.06)  # two digits


def row_of(cell: CellSetup, context: Item) -> TokenRow:
    (row,) = (
        row
        for row in cell.rows(BUDGET)
        if row.document == context["document"] and row.start_token <= context["start"] < row.end_token
    )
    return row


@KINDS
def test_items_do_not_depend_on_how_rows_are_batched(dictionary: Dictionary) -> None:
    one, *others = (watch(task(), setup(dictionary, size)) for size in (1, 3, 8))
    by_id = {item["id"]: item for item in one}
    for items in others:
        assert {item["id"] for item in items} == by_id.keys()
        for item in items:
            twin = by_id[item["id"]]
            for key in ("document", "tokens", "classes", "latents", "columns"):
                assert item[key] == twin[key]
            strengths = [list(itertools.chain(*each["strengths"])) for each in (item, twin)]
            assert strengths[0] == pytest.approx(strengths[1], rel=0.06)
    assert sum(len(item["latents"]) for item in one) > 50


def test_a_routed_and_a_single_dictionary_see_the_same_tokens() -> None:
    for item in watch(task(), setup(dictionaries()[2])):
        assert item["tokens"] == len(item["classes"]) - 1
        assert not any(0 in columns for columns in item["columns"])  # the first position is never measured


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "document": st.sampled_from("abc"),
            "classes": st.lists(st.integers(0, 3), min_size=6, max_size=6),
            "latents": st.just([0, 1]),
            "columns": st.just([[0, 1, 2, 3, 4, 5]] * 2),
            "strengths": st.lists(
                st.lists(st.integers(0, 9).map(float), min_size=6, max_size=6), min_size=2, max_size=2
            ),
        }
    ),
    min_size=1,
    max_size=8,
)


@settings(deadline=None, max_examples=150)
@given(rows=ROWS, once=st.booleans(), threshold=st.sampled_from([0.5, 4.0]), order=st.randoms())
def test_the_two_strongest_of_a_row_latent_and_class_are_enough(
    rows: list[Item], once: bool, threshold: float, order: Any
) -> None:
    """Heaps of two merge in any order: what a row's heap drops, no larger heap would have kept."""
    items = [{**row, "start_token": place, "tokens": 6, "n_latents": 2} for place, row in enumerate(rows)]
    rule = Rule(4, 3, 2, once)
    whole = kept_latents(read_events(items), threshold, rule).tolist()
    reduced = [reduce(item) for item in items]
    order.shuffle(reduced)
    assert kept_latents(read_events(reduced), threshold, rule).tolist() == whole


def reduce(item: Item) -> Item:
    columns, strengths = [], []
    for found, values in zip(item["columns"], item["strengths"], strict=True):
        heaps: dict[int, list[tuple[float, int]]] = defaultdict(list)
        for column, value in zip(found, values, strict=True):
            heapq.heappush(heaps[item["classes"][column]], (value, column))
            if len(heaps[item["classes"][column]]) > 2:
                heapq.heappop(heaps[item["classes"][column]])
        left = sorted((column, value) for heap in heaps.values() for value, column in heap)
        columns.append([column for column, _ in left])
        strengths.append([value for _, value in left])
    return {**item, "columns": columns, "strengths": strengths}


def test_a_subset_of_documents_counts_as_if_the_others_had_not_been_watched() -> None:
    items = watch(task(), setup(dictionaries()[0]))
    events, rule = read_events(items), Rule(3, 32, 2, one_per_document=True)
    names = sorted({item["document"] for item in items})
    for seed in range(5):
        chosen = np.random.default_rng(seed).random(len(names)) < 0.5
        some = [item for item in items if chosen[names.index(item["document"])]]
        alone = kept_latents(read_events(some), 4.0, rule).tolist()
        assert kept_latents(events, 4.0, rule, chosen).tolist() == alone


@given(
    st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=20),
    st.sampled_from([2, 4]),
    st.lists(st.floats(1e-2, 1e2), max_size=3),
)
def test_shortened_numbers_are_near_and_on_their_side_of_every_threshold(
    values: list[float], digits: int, thresholds: list[float]
) -> None:
    short = shortened(values, digits, thresholds)
    assert short == pytest.approx(values, rel=0.51 * 10 ** (1 - digits))
    for threshold in thresholds:
        assert ((short > threshold) == (np.array(values) > threshold)).all()


def test_numbers_are_short_where_they_may_be() -> None:
    assert shortened([12.3456, 0.123456, 10.0000001, 9.99999], 4, (10.0,)).tolist() == [
        12.35,
        0.1235,
        10.0000001,
        10.0,
    ]


def test_no_text_of_a_source_with_terms_is_in_the_items() -> None:
    cell, counting = setup(dictionaries()[0]), task()
    free = {document.sha256 for document in corpus().documents if document.excerpts}
    made = list(counting.measure(cell, watch(counting, cell)))
    contexts = [c for item in made if item["kind"] == "latent" for c in item["contexts"]]
    assert {c["document"] in free for c in contexts} == {True, False}
    for context in contexts:
        assert (context["excerpt"] is not None) == (context["document"] in free)
        assert bool(context["token_class"] == "") >= (context["document"] not in free)
    texts = [item for item in made if item["kind"] == "text"]
    assert len({item["id"] for item in texts}) == len(texts) == len(contexts)


def test_a_latent_is_browsable_if_any_threshold_keeps_it() -> None:
    """With a limit on classes a lower threshold can drop what a higher one keeps."""
    cell, counting = setup(dictionaries()[0]), task(max_classes=10, min_contexts=2)
    items = watch(counting, cell)
    events, rule = read_events(items), counting.config.rule
    kept = {t: set(kept_latents(events, t, rule).tolist()) for t in THRESHOLDS}
    made = {item["latent"]: item for item in counting.measure(cell, items) if item["kind"] == "latent"}
    assert kept[8.0] - kept[4.0]
    assert made.keys() == set.union(*kept.values())
    for latent, item in made.items():
        assert item["kept"] == {f"{t:g}": latent in kept[t] for t in THRESHOLDS}
        above = (events.latent == latent) & (events.strength > 4.0)
        assert item["events"] == above.sum()
        assert item["token_classes"] == len(set(events.token_class[above].tolist()))
        assert all(context["activation"] > 4.0 for context in item["contexts"])


def test_browsable_latents_say_what_their_direction_promotes() -> None:
    cell, counting = setup(dictionaries()[0]), task(max_classes=10, min_contexts=2)
    made = [item for item in counting.measure(cell, watch(counting, cell)) if item["kind"] == "latent"]
    assert made
    for item in made:
        expected = promoted_tokens(cell.lm, cell.dictionary, torch.tensor([item["latent"]]), 10)[0]
        assert item["promotes"] == [cell.lm.tokenizer.decode([int(token)]) for token in expected]
    assert len({tuple(item["promotes"]) for item in made}) > 1


def test_thresholds_that_make_no_sense_are_refused() -> None:
    for wrong in ((), (0.0, 8.0), (8.0, 8.0)):
        with pytest.raises(ValueError, match="thresholds"):
            task(thresholds=wrong)


def test_a_bos_token_belongs_to_no_context() -> None:
    tokenizer = toy_tokenizer()
    tokenizer.bos_token = "<unk>"
    policy = TokenPolicy(context=24, batch_rows=4, bos="always")
    lm = toy_lm(tokenizer=tokenizer)
    cell = CellSetup(
        lm, dictionaries()[0], corpus(), lambda _split: corpus(), policy, 0, Path("unused"), Shared()
    )
    counting = task()
    made = list(counting.measure(cell, watch(counting, cell)))
    starts = [item["start"] for item in made if item["kind"] == "text"]
    assert min(starts) == 0
    texts = {document.sha256: document.text for document in corpus().documents}
    for item in (item for item in made if item["kind"] == "text"):
        assert "".join(item["tokens"]) == texts[item["document"]][item["start"] : item["end"]]
