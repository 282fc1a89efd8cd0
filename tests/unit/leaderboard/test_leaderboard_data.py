"""Shards, latents and transcripts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from leaderboard_records import EMBED, HOSTILE, Made, cell_of, finish, metric, record_of

from latentbench.errors import UserError
from latentbench.store import ResultsFolder
from latentbench_leaderboard._latents import CONTEXTS_SHOWN, LatentBook, latent_book
from latentbench_leaderboard._shards import script_json, shard_text
from latentbench_leaderboard._steering import (
    SAMPLES_PER_LATENT,
    SteeringBook,
    samples_by_latent,
    steering_book,
)
from latentbench_leaderboard._subjects import load_subjects

MADE = Made("one", "topk", ["resid_post.21"], 64.0, 0.5)
DOCUMENT = "ab" * 32

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def test_another_name_for_the_same_weights_renames_no_row(tmp_path: Path) -> None:
    results = ResultsFolder.create(tmp_path)
    for budget, name in ((1, "TopK"), (2, "TopK"), (3, "Another")):
        record = record_of(MADE, cell_of(MADE, "core", {"budget_tokens": budget}), [metric("l0", 64.0)])
        finish(results, record.model_copy(update={"labels": {**record.labels, "dictionary": name}}), [])
    (subject,), _ = load_subjects(tmp_path)
    assert subject.name == "TopK"


@given(anything)
def test_script_json_is_the_same_json_without_anything_that_ends_a_script(value: Any) -> None:
    text = script_json(value)
    assert json.loads(text) == value
    assert text.isascii()
    assert not set("<>&") & set(text)


def test_shards_of_hostile_text() -> None:
    text = shard_text("a", {"x": f"{HOSTILE}</script><!-- \u2028\u2029 ]]>"})
    assert "</script" not in text
    assert "<!--" not in text
    assert "\u2028" not in text
    assert text.startswith('latentbench.shard("a",')


def context(activation: float | None, start: int = 0, text: bool = True, tokens: int = 5) -> dict[str, Any]:
    excerpt = {
        "tokens": [f" t{i}" for i in range(tokens)],
        "activations": [activation or 0.0 if i == tokens // 2 else 0.0 for i in range(tokens)],
        "activated": tokens // 2,
    }
    return {
        "document": DOCUMENT,
        "source": "set",
        "start": start,
        "end": start + 10,
        "token_class": "t",
        "activation": activation,
        "excerpt": excerpt if text else None,
    }


def latent(number: int, contexts: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"kind": "latent", "id": str(number), "latent": number, "contexts": contexts, **more}


def book_of(
    path: Path,
    items: list[dict[str, Any]],
    judgements: list[dict[str, Any]] | None = None,
    texts: str = "",
    local: bool = True,
) -> LatentBook:
    results = ResultsFolder.create(path)
    cell = cell_of(MADE, "interpretability", {}, EMBED)
    folder = finish(results, record_of(MADE, cell, [metric("score", 0.5, 0.1)]), items, judgements)
    if texts:
        (folder.path / "texts.jsonl").write_text(texts, encoding="utf-8")
    book = latent_book(load_subjects(path)[0][0], local)
    assert book is not None
    return book


class TestLatents:
    def test_strongest_contexts_first_and_capped(self, tmp_path: Path) -> None:
        book = book_of(tmp_path, [latent(7, [context(float(i), start=i) for i in range(20)], events=20)])
        (shown,) = book.shards[0]
        assert [c["a"] for c in shown["p"]] == [float(i) for i in range(19, 19 - CONTEXTS_SHOWN, -1)]
        assert shown["m"] == 20

    def test_highlight_is_in_fifths_of_the_largest(self, tmp_path: Path) -> None:
        book = book_of(
            tmp_path, [latent(7, [context(10.0), context(4.0, 1), context(0.5, 2), context(2.0, 3)])]
        )
        (shown,) = book.shards[0]
        assert [max(c["h"]) for c in shown["p"]] == [5, 2, 1, 1]
        assert all(c["h"][c["i"]] == max(c["h"]) for c in shown["p"])

    def test_one_place_is_one_context(self, tmp_path: Path) -> None:
        twice = [context(3.0), context(3.0)]
        (shown,) = book_of(tmp_path, [latent(7, twice)]).shards[0]
        assert len(shown["p"]) == 1

    def test_two_latents_in_one_place_have_each_its_own_text(self, tmp_path: Path) -> None:
        place = {"document": "aa", "start": 0, "end": 2}
        stored = "".join(
            json.dumps(
                {**place, "id": f"{n}:aa", "tokens": [" a", " b"], "activations": values, "activated": 1}
            )
            + "\n"
            for n, values in ((7, [0.0, 3.0]), (8, [3.0, 0.0]))
        )
        items = [
            latent(n, [{**place, "activation": 3.0, "excerpt": None, "text": f"{n}:aa"}]) for n in (7, 8)
        ]
        (shown,) = book_of(tmp_path, items, texts=stored).shards
        assert {one["n"]: one["p"][0]["h"] for one in shown} == {7: [0, 5], 8: [5, 0]}

    def test_long_texts_are_cut_around_the_activated_token(self, tmp_path: Path) -> None:
        (shown,) = book_of(tmp_path, [latent(7, [context(3.0, tokens=500)])]).shards[0]
        (cut,) = shown["p"]
        assert len(cut["w"]) == len(cut["h"]) == 96
        assert cut["w"][cut["i"]] == " t250"
        assert cut["h"][cut["i"]] == 5

    def test_best_judged_first_then_most_active(self, tmp_path: Path) -> None:
        items = [latent(n, [], events=n) for n in (1, 2, 3, 4)]
        judgements = [
            {"kind": "judgement", "id": "1", "latent": 1, "status": "ok", "score": 0.7},
            {"kind": "judgement", "id": "3", "latent": 3, "status": "ok", "score": 0.9},
            {
                "kind": "judgement",
                "id": "4",
                "latent": 4,
                "status": "too few",
                "score": None,
                "reason": "why",
            },
        ]
        book = book_of(tmp_path, items, judgements)
        assert book.index["latent"] == [3, 1, 4, 2]
        assert book.index["judges"] == ["embed (all-MiniLM-L6-v2)"]
        assert book.index["scores"] == [[0.9, 0.7, None, None]]
        assert book.shards[0][2]["v"] == [
            {"j": "embed (all-MiniLM-L6-v2)", "s": None, "x": "too few", "r": "why"}
        ]

    def test_shards_and_index_agree(self, tmp_path: Path) -> None:
        book = book_of(tmp_path, [latent(n, [context(1.0)], events=100 - n) for n in range(45)])
        per = book.index["perShard"]
        numbers = [one["n"] for shard in book.shards for one in shard]
        assert numbers == book.index["latent"]
        assert [len(shard) for shard in book.shards] == [per, per, 45 - 2 * per]

    def test_withheld_and_local_texts(self, tmp_path: Path) -> None:
        items = [latent(7, [context(3.0, 5, text=False)])]
        side = json.dumps(
            {
                "document": DOCUMENT,
                "start": 5,
                "end": 15,
                "tokens": ["secret"],
                "activations": [3.0],
                "activated": 0,
            }
        )
        local = book_of(tmp_path / "a", items, texts=side + "\n")
        public = book_of(tmp_path / "b", items, texts=side + "\n", local=False)
        assert local.shards[0][0]["p"][0]["w"] == ["secret"]
        assert (local.with_text, local.withheld) == (1, 0)
        assert public.shards[0][0]["p"][0]["w"] is None
        assert (public.with_text, public.withheld) == (0, 1)

    def test_damaged_side_file_names_line_and_way_out(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"texts.jsonl:1 is not a JSON object.*--public"):
            book_of(tmp_path, [latent(7, [])], texts="{torn\n")

    def test_negatives_are_kept_apart(self, tmp_path: Path) -> None:
        items = [
            {
                "kind": "latent",
                "id": "7",
                "latent": 7,
                "positives": [context(2.0)],
                "negatives": [context(None, 50)],
            }
        ]
        (shown,) = book_of(tmp_path, items).shards[0]
        assert len(shown["p"]) == len(shown["q"]) == 1
        assert shown["q"][0]["h"] == [0] * 5

    def test_a_second_judge_reads_the_items_of_the_shared_measurement(self, tmp_path: Path) -> None:
        results = ResultsFolder.create(tmp_path)
        for judge, items in ((EMBED, [latent(7, [context(1.0)])]), ({"name": "other"}, [])):
            cell = cell_of(MADE, "interpretability", {}, judge)
            verdict = {"kind": "judgement", "id": "7", "latent": 7, "status": "ok", "score": 0.5}
            finish(results, record_of(MADE, cell, [metric("score", 0.5, 0.1)]), items, [verdict])
        book = latent_book(load_subjects(tmp_path)[0][0], True)
        assert book is not None
        assert book.total == 1
        assert [verdict["j"] for verdict in book.shards[0][0]["v"]] == ["embed (all-MiniLM-L6-v2)", "other"]

    def test_density_is_counted_by_the_core_cell_with_most_tokens(self, tmp_path: Path) -> None:
        results = ResultsFolder.create(tmp_path)
        cell = cell_of(MADE, "interpretability", {}, EMBED)
        finish(results, record_of(MADE, cell, [metric("score", 0.5, 0.1)]), [latent(7, []), latent(8, [])])
        for budget, share in ((100, 1), (1000, 4)):
            core = cell_of(MADE, "core", {"budget_tokens": budget})
            items = [
                {
                    "kind": "core",
                    "id": f"d{n}",
                    "tokens": budget // 2,
                    "latents": [7, 3],
                    "active": [share, 2],
                }
                for n in range(2)
            ]
            record = record_of(MADE, core, [metric("l0", 64.0, 0.1)], counts={"tokens": budget})
            finish(results, record, items)
        book = latent_book(load_subjects(tmp_path)[0][0], True)
        assert book is not None
        assert book.index["tokens"] == 1000
        assert dict(zip(book.index["latent"], book.index["active"], strict=True)) == {7: 8, 8: 0}
        assert {one["n"]: one["y"] for one in book.shards[0]} == {7: 8, 8: 0}

    def test_without_core_items_no_density_is_claimed(self, tmp_path: Path) -> None:
        book = book_of(tmp_path, [latent(7, [])])
        assert book.index["tokens"] is None
        assert book.shards[0][0]["y"] is None

    def test_items_with_odd_fields_do_no_harm(self, tmp_path: Path) -> None:
        items = [
            latent(7, [{"document": 3, "excerpt": {"tokens": "no list"}}], events="many", kept=[1]),
            {"kind": "latent", "id": "x", "latent": "seven"},
            {"kind": "latent", "id": "y", "latent": True, "contexts": 4},
        ]
        assert book_of(tmp_path, items).total == 1


def generation(prompt: int, factor: float, success: bool, **more: Any) -> dict[str, Any]:
    return {
        "kind": "generation",
        "id": f"{prompt}/{factor}/{more.get('sample', 0)}",
        "concept": "sport",
        "dictionary_latents": [3],
        "factor": factor,
        "split": "test" if prompt < 8 else "select",
        "prompt_id": prompt,
        "prompt": f"prompt {prompt}",
        "text": "steered",
        "baseline_text": "plain",
        "concept_score": 0.5,
        "fluency": None,
        "success": success,
        **more,
    }


def steering_of(
    path: Path, items: list[dict[str, Any]], methods: Sequence[str] = ("contrast",)
) -> SteeringBook | None:
    cell = cell_of(MADE, "steering", {"methods": list(methods)})
    finish(ResultsFolder.create(path), record_of(MADE, cell, [metric("success", 0.5, 0.1)]), items)
    return steering_book(load_subjects(path)[0][0])


class TestSteering:
    def test_rates_by_factor_and_half(self, tmp_path: Path) -> None:
        items = [generation(p, f, success=p % 2 == 0 and f == 1.0) for p in range(12) for f in (2.0, 1.0)]
        book = steering_of(tmp_path, items)
        assert book is not None
        (concept,) = book.concepts
        assert concept.factors == ("1", "2")
        (method,) = concept.methods
        assert method.method == "Contrast"
        assert [rate.text for rate in method.test] == ["4/8", "0/8"]
        assert [rate.text for rate in method.select] == ["2/4", "0/4"]
        assert method.test[0].interval == "22\N{EN DASH}78 %"  # Wilson, 4 of 8
        assert [rate.step for rate in method.test] == [3, 0]

    def test_texts_that_share_a_prompt_have_no_interval(self, tmp_path: Path) -> None:
        items = [generation(p, 1.0, True, sample=s) for p in range(4) for s in range(2)]
        book = steering_of(tmp_path, items)
        assert book is not None
        assert book.concepts[0].methods[0].test[0].text == "8/8"
        assert book.concepts[0].methods[0].test[0].interval == ""

    def test_methods_are_kept_apart_in_the_order_of_the_suite(self, tmp_path: Path) -> None:
        items = [
            generation(0, 1.0, True, id="a", method="prompt", dictionary_latents=[]),
            *(generation(0, f, f > 1, id=f"b{f}", method="contrast") for f in (1.0, 2.0)),
        ]
        book = steering_of(tmp_path, items, ["contrast", "prompt"])
        assert book is not None
        assert book.total == 3
        (concept,) = book.concepts
        assert [(one.method, one.latents) for one in concept.methods] == [("Contrast", (3,)), ("Prompt", ())]
        assert [[rate.text for rate in one.test] for one in concept.methods] == [
            ["0/1", "1/1"],
            ["1/1", "\N{EM DASH}"],
        ]
        assert concept.shard["methods"] == ["Contrast", "Prompt"]
        assert [row[:3] for row in concept.shard["rows"]] == [[0, 0, 0], [0, 0, 1], [0, 1, 0]]

    def test_a_method_without_texts_for_a_concept_is_named_with_it(self, tmp_path: Path) -> None:
        empty = {
            "kind": "choice",
            "id": "c",
            "concept": "sport",
            "method": "spread",
            "latents": [],
            "reason": "no latent",
        }
        book = steering_of(tmp_path, [generation(0, 1.0, True), empty], ["contrast", "spread"])
        assert book is not None
        assert book.unscored == (("Sport, Spread", "no latent"),)

    def test_rows_point_at_their_prompts(self, tmp_path: Path) -> None:
        book = steering_of(tmp_path, [generation(p, f, False) for p in (9, 2) for f in (1.0, 2.0)])
        assert book is not None
        shard = book.concepts[0].shard
        assert [prompt["half"] for prompt in shard["prompts"]] == ["test", "select"]
        assert {shard["prompts"][row[0]]["prompt"] for row in shard["rows"]} == {"prompt 9", "prompt 2"}
        assert shard["rows"] == sorted(shard["rows"], key=lambda row: row[:2])

    def test_concepts_without_texts_are_named(self, tmp_path: Path) -> None:
        weak = {"kind": "scorer", "id": "s", "concept": "law", "kept": False, "auroc": 0.61}
        empty = {"kind": "choice", "id": "c", "concept": "food", "latents": [], "reason": "no usable latent"}
        book = steering_of(tmp_path, [generation(0, 1.0, True), weak, empty])
        assert book is not None
        assert book.unscored == (
            ("Food", "no usable latent"),
            ("Law", "text classifier too weak (held-out AUROC 0.61)"),
        )

    def test_a_latent_shows_the_first_test_prompt_at_the_middle_factor(self, tmp_path: Path) -> None:
        items = [
            generation(p, f, f == 2.0, text=f"{p} at {f:g}", dictionary_latents=[3, 9])
            for p in (9, 4, 2)
            for f in (4.0, 2.0, 1.0)
        ]
        found = samples_by_latent(steering_of(tmp_path, items))
        assert set(found) == {3, 9}
        (sample,) = found[3]
        assert sample == {
            "c": "Sport",
            "a": "c0",
            "m": "Contrast",
            "l": 2,
            "f": "2",
            "h": "prompt 2",
            "b": "plain",
            "w": "2 at 2",
            "s": True,
        }

    def test_a_latent_that_two_methods_steer_for_a_concept_shows_the_first(self, tmp_path: Path) -> None:
        items = [
            generation(0, 1.0, False, id=method, method=method, text=method)
            for method in ("spread", "contrast")
        ]
        (sample,) = samples_by_latent(steering_of(tmp_path, items, ["contrast", "spread"]))[3]
        assert (sample["m"], sample["w"]) == ("Contrast", "contrast")

    def test_samples_of_a_latent_are_capped(self, tmp_path: Path) -> None:
        items = [generation(0, 1.0, False, id=str(n), concept=f"concept {n}") for n in range(9)]
        assert len(samples_by_latent(steering_of(tmp_path, items))[3]) == SAMPLES_PER_LATENT

    def test_a_steered_latent_has_a_place_among_the_latents(self, tmp_path: Path) -> None:
        book = steering_of(tmp_path, [generation(0, 1.0, True)])
        subject = load_subjects(tmp_path)[0][0]
        assert latent_book(subject, True) is None
        latents = latent_book(subject, True, book)
        assert latents is not None
        assert latents.index["latent"] == [3]
        assert latents.index["steered"] == [1]
        assert latents.shards[0][0]["z"][0]["w"] == "steered"

    def test_a_dictionary_without_texts_has_no_page(self, tmp_path: Path) -> None:
        assert steering_of(tmp_path, []) is None
