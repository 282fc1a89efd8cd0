"""Which latents and documents are judged: drawing, peaks, matched negatives, and what is stored of them."""

from __future__ import annotations

import json
import math
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from latentbench.adapters import Dictionary, IdentityDictionary, InputTransform, random_decoder
from latentbench.data import Corpus, Document, TokenRow
from latentbench.identity import sha256_text
from latentbench.lm import LM, Site
from latentbench.run import CellSetup, Item, Shared, TokenPolicy
from latentbench.run._pass import Fed, run_pass
from latentbench.stats import generator
from latentbench.testing import random_routesae, random_sae, toy_lm, toy_tokenizer
from latentbench_tasks._choose_latents import drawing_order, matched_documents, peaks_by_latent
from latentbench_tasks.interpretability.metrics import score_latents, summarise
from latentbench_tasks.interpretability.task import InterpretabilityConfig, InterpretabilityTask

BUDGET = 2_000
torch.set_num_threads(1)


@cache
def corpus() -> Corpus:
    rng = np.random.default_rng(3)
    words = {"colours": ["red", "blue", "green", "grey"], "animals": ["dog", "cat", "ox", "hen"]}
    documents = []
    for place in range(90):
        source = "colours" if place % 3 else "animals"
        text = " ".join(rng.choice(words[source], size=int(rng.integers(2, 14))))
        documents.append(Document(sha256_text(f"{text} {place}"), text, source, excerpts=place % 2 == 0))
    return Corpus("toy", "test", "0" * 64, documents, documents)


@cache
def model() -> LM:
    return toy_lm(tokenizer=toy_tokenizer())


def sae() -> Dictionary:
    return random_sae(n_latents=96, transform=InputTransform("standardise"))


def routed() -> Dictionary:
    return random_routesae(["resid_post.0", "resid_post.1", "resid_post.2"], n_latents=96)


KINDS = pytest.mark.parametrize("dictionary", [sae(), routed()], ids=["single", "routed"])


def setup(dictionary: Dictionary, batch_rows: int = 4, seed: int = 0) -> CellSetup:
    policy = TokenPolicy(context=24, batch_rows=batch_rows)
    return CellSetup(
        model(), dictionary, corpus(), lambda _split: corpus(), policy, seed, Path("unused"), Shared()
    )


def task(**options: Any) -> InterpretabilityTask:
    given: dict[str, Any] = {"budget_tokens": BUDGET, "latents": 20, "min_documents": 8, "contexts": 4}
    return InterpretabilityTask(InterpretabilityConfig(**{**given, "context_tokens": 10, **options}))


def watch(judging: InterpretabilityTask, cell: CellSetup) -> list[Item]:
    items: list[Item] = []

    def fail(error: Exception) -> None:
        raise error

    fed = Fed(cell.dictionary, judging.watcher(cell), cell.rows(BUDGET), set(), items.extend, fail)
    run_pass(cell.lm, cell.tokens, [fed])
    return [json.loads(json.dumps(item, allow_nan=False)) for item in items]


def of_kind(items: list[Item], kind: str) -> list[Item]:
    return [item for item in items if item["kind"] == kind]


def dense_strengths(cell: CellSetup, row: TokenRow) -> NDArray[np.float64]:
    """Float[pos, latent] of one row alone on the scale of d = 2,048; 0 where nothing is measured."""
    sites = {*cell.dictionary.reads, *cell.dictionary.writes}
    captured = cell.lm.forward(cell.lm.batch([row.ids]), capture=sites, logits=False).acts
    acts = {site: value[0, 1:] for site, value in captured.items()}
    codes = cell.dictionary.encode({site: acts[site] for site in cell.dictionary.reads})
    dense = codes.with_values(cell.dictionary.relative_values(acts, codes)).dense().double()
    strengths: NDArray[np.float64] = torch.cat([torch.zeros_like(dense[:1]), dense]).numpy()
    return strengths.clip(min=0) * math.sqrt(2048)


@KINDS
def test_row_items_hold_the_peak_of_every_active_latent(dictionary: Dictionary) -> None:
    cell, judging = setup(dictionary), task()
    items = {item["id"]: item for item in watch(judging, cell)}
    shown = set(drawing_order(96, 0)[:30].tolist())
    near = 0
    for row in cell.rows(BUDGET):
        item, dense = items[f"{row.document}:{row.start_token}"], dense_strengths(cell, row)
        assert item["tokens"] == len(row.ids) - 1
        assert item["latents"] == np.flatnonzero(dense.max(axis=0)).tolist()
        assert item["at"] == dense.argmax(axis=0)[item["latents"]].tolist()
        assert item["strengths"] == pytest.approx(dense.max(axis=0)[item["latents"]], rel=1e-3)
        assert item["near_latents"] == [latent for latent in item["latents"] if latent in shown]
        for latent, columns, strengths in zip(
            item["near_latents"], item["near_columns"], item["near_strengths"], strict=True
        ):
            size = min(10, len(row.ids))
            start = max(0, min(int(dense[:, latent].argmax()) - 5, len(row.ids) - size))
            window = dense[start : start + size, latent]
            assert columns == (np.flatnonzero(window) + start).tolist()
            assert strengths == pytest.approx(window[window > 0], rel=0.06)  # two digits
            near += len(columns)
    assert near > 100


@KINDS
def test_items_do_not_depend_on_how_rows_are_batched(dictionary: Dictionary) -> None:
    one, *others = (watch(task(), setup(dictionary, size)) for size in (1, 3, 8))
    by_id = {item["id"]: item for item in one}
    for items in others:
        assert {item["id"] for item in items} == by_id.keys()
        for item in items:
            twin = by_id[item["id"]]
            for key in ("document", "tokens", "latents", "at", "near_latents", "near_columns"):
                assert item[key] == twin[key]
            assert item["strengths"] == pytest.approx(twin["strengths"], rel=2e-3)


def test_a_document_of_several_rows_has_one_peak() -> None:
    rows = [
        {"id": "a:0", "document": "a", "start_token": 0, "latents": [3], "at": [2], "strengths": [5.0]},
        {"id": "a:9", "document": "a", "start_token": 9, "latents": [3], "at": [4], "strengths": [6.0]},
        {"id": "b:0", "document": "b", "start_token": 0, "latents": [1, 3], "at": [1, 1], "strengths": [2.0, 1.0]},
    ]  # fmt: skip
    nothing: dict[str, list[Any]] = {"near_latents": [], "near_columns": [], "near_strengths": []}
    rows = [{**row, **nothing} for row in rows]
    rows[1] |= {"near_latents": [3], "near_columns": [[3, 4]], "near_strengths": [[0.5, 6.0]]}
    for order in (rows, rows[::-1]):
        found = peaks_by_latent(order)
        assert found.keys() == {1, 3}
        assert found[3]["a"] == ("a", "a:9", 4, 6.0, {3: 0.5, 4: 6.0})
        assert found[3]["b"].around is None


def test_the_draw_is_uniform_and_the_same_for_equal_widths() -> None:
    assert drawing_order(40, 5).tolist() == drawing_order(40, 5).tolist()
    assert drawing_order(40, 5).tolist() != drawing_order(40, 6).tolist()
    first = Counter(int(drawing_order(8, seed)[0]) for seed in range(4_000))
    assert sorted(first) == list(range(8))
    assert all(abs(count - 500) < 5 * math.sqrt(500 * 7 / 8) for count in first.values())


@settings(deadline=None)
@given(
    st.lists(st.sampled_from("xyz"), max_size=12),
    st.dictionaries(st.text("abcdefgh", min_size=1, max_size=3), st.sampled_from("xyz"), max_size=15),
    st.integers(0, 99),
)
def test_negatives_are_matched_as_far_as_documents_reach(
    families: list[str], silent: dict[str, str], seed: int
) -> None:
    found = matched_documents(families, silent, np.random.default_rng(seed))
    assert len(found) == len(families)
    used = [partner[0] for partner in found if partner is not None]
    assert len(used) == len(set(used)) == min(len(families), len(silent))
    assert set(used) <= silent.keys()
    wanted, there = Counter(families), Counter(silent.values())
    for family in "xyz":
        matched = [
            partner[1]
            for own, partner in zip(families, found, strict=True)
            if own == family and partner is not None
        ]
        assert sum(matched) == min(wanted[family], there[family])
    for own, partner in zip(families, found, strict=True):
        if partner is not None:
            assert partner[1] == (silent[partner[0]] == own)


def test_every_silent_document_may_be_drawn() -> None:
    silent = {name: "x" if name < "e" else "y" for name in "abcdefgh"}
    drawn = Counter(
        partner[0]
        for seed in range(400)
        for partner in matched_documents(["x", "z"], silent, np.random.default_rng(seed))
        if partner is not None
    )
    assert drawn.keys() == silent.keys()
    assert all(drawn[name] > 60 for name in "abcd")


@KINDS
@pytest.mark.parametrize("negatives", ["matched", "random"])
def test_contexts_are_split_by_document_verified_and_alike(dictionary: Dictionary, negatives: str) -> None:
    cell, judging = setup(dictionary), task(negatives=negatives)
    items = watch(judging, cell)
    made = list(judging.measure(cell, items))
    rows: dict[str, list[TokenRow]] = {}
    for row in cell.rows(BUDGET):
        rows.setdefault(row.document, []).append(row)
    dense = {id(row): dense_strengths(cell, row) for found in rows.values() for row in found}
    latents = of_kind(made, "latent")
    assert len(latents) == 20
    for item in latents:
        documents = [context["document"] for context in (*item["positives"], *item["negatives"])]
        assert len(documents) == len(set(documents))
        assert [c["split"] for c in item["positives"]] == ["train", "test"] * (len(item["positives"]) // 2)
        strongest = sorted(
            (max(float(dense[id(row)][:, item["latent"]].max()) for row in found) for found in rows.values()),
            reverse=True,
        )
        assert [c["activation"] for c in item["positives"]] == pytest.approx(strongest[:8], rel=1e-3)
        assert item["n_documents"] == sum(strength > 0 for strength in strongest)
        for context in item["negatives"]:
            assert all(dense[id(row)][:, item["latent"]].max() == 0 for row in rows[context["document"]])
    everything = [c for item in latents for c in item["negatives"]]
    assert len(everything) > 80
    if negatives == "random":
        return
    pairs = [
        (positive, negative)
        for item in latents
        if len(item["negatives"])
        == len(item["positives"])  # a common latent leaves too few documents without it
        for positive, negative in zip(item["positives"], item["negatives"], strict=True)
    ]
    assert len(pairs) > 60
    assert [n["matched"] for _, n in pairs] == [p["source"] == n["source"] for p, n in pairs]
    assert [p["split"] for p, _ in pairs] == [n["split"] for _, n in pairs]
    assert np.mean([n["matched"] for _, n in pairs]) > 0.7
    lengths = [[context["end"] - context["start"] for context in pair] for pair in pairs]
    assert np.mean([positive == negative for positive, negative in lengths]) > 0.7  # some documents are short


@KINDS
def test_texts_hold_the_measured_activations(dictionary: Dictionary) -> None:
    cell, judging = setup(dictionary), task()
    made = list(judging.measure(cell, watch(judging, cell)))
    rows = cell.rows(BUDGET)
    texts = {item["id"]: item for item in of_kind(made, "text")}
    free = {document.sha256 for document in corpus().documents if document.excerpts}
    shown = set(drawing_order(96, 0)[:30].tolist())
    checked = 0
    for item in of_kind(made, "latent"):
        for context in (*item["positives"], *item["negatives"]):
            text = texts[context["text"]]
            (row,) = (
                row
                for row in rows
                if row.document == context["document"] and row.start_token <= context["start"] < row.end_token
            )
            place = slice(context["start"] - row.start_token, context["end"] - row.start_token)
            assert "".join(text["tokens"]) == cell.lm.tokenizer.decode(row.ids[place])
            if text["activations"] is None:
                assert item["latent"] not in shown
                continue
            measured = dense_strengths(cell, row)[place, item["latent"]].tolist()
            assert text["activations"] == pytest.approx(measured, rel=0.06)  # two digits
            assert (context["excerpt"] is not None) == (context["document"] in free)
            checked += 1
    assert checked > 200


def test_activations_that_were_not_kept_are_unknown_and_not_zero() -> None:
    """Latents that come late in the drawing order are shown with their peaks alone."""
    cell, judging = setup(sae()), task(latents=2, min_documents=12)
    items = watch(judging, cell)
    live = peaks_by_latent(of_kind(items, "row"))
    order = drawing_order(96, 0).tolist()
    early = {latent for latent in order[:3] if latent in live}
    for item in of_kind(items, "row"):
        assert set(item["near_latents"]) <= early
    late = next(latent for latent in order[3:] if len(live.get(latent, ())) >= 12)
    assert all(peak.around is None for peak in live[late].values())


def test_a_control_with_the_same_encoder_is_judged_on_the_same_contexts() -> None:
    judging, real = task(), sae()
    control = random_decoder(real)
    made = [
        [item for item in judging.measure(setup(one), watch(judging, setup(one))) if item["kind"] != "text"]
        for one in (real, control)
    ]
    places = [
        [
            (c["document"], c["start"], c["split"])
            for item in of_kind(items, "latent")
            for c in item["negatives"]
        ]
        for items in made
    ]
    assert made[0][0]["drawn"] == made[1][0]["drawn"]
    assert places[0] == places[1]


class LetterJudge:
    """Vectors of letter counts."""

    role = "similarity"

    def identity(self) -> dict[str, Any]:
        return {"name": "letters"}

    def embed(self, texts: list[str]) -> NDArray[np.float32]:
        counts = np.array([[0.1, *(text.count(letter) for letter in "abcdeghlnortuxy")] for text in texts])
        vectors: NDArray[np.float32] = (counts / np.linalg.norm(counts, axis=1, keepdims=True)).astype(
            np.float32
        )
        return vectors


def judged(dictionary: Dictionary, **options: Any) -> tuple[list[Item], Any]:
    cell, judging = setup(dictionary), task(**options)
    items = watch(judging, cell)
    items += judging.measure(cell, items)
    judgements = list(judging.judge(items, LetterJudge(), generator("judge")))
    return judgements, judging.summarise(items, judgements, generator("summary"))


def test_latents_active_everywhere_are_counted_as_unscored() -> None:
    judgements, (metrics, _, counts) = judged(
        IdentityDictionary(Site.parse("resid_post.1"), 16, torch.device("cpu"), torch.float32)
    )
    assert counts["unscored"] > 10
    assert {j["status"] for j in judgements} <= {"ok", "unscored"}
    assert any("documents without the latent" in (j["reason"] or "") for j in judgements)
    assert counts["latents_drawn"] == 16
    assert "all 16 eligible latents, 20 were asked for" in metrics[0].note or metrics[0].value is None


def test_one_scored_latent_is_no_mean() -> None:
    drawn = {"kind": "drawn", "asked": 100, "drawn": [4], "eligible": 1, "live": 9}
    one = {"status": "ok", "score": 0.9, "p_value": 0.01, "balanced_accuracy": 0.8, "shuffled": None}
    metrics, _, _ = summarise([drawn], [one], generator("s"))
    for metric in metrics[:4]:
        assert metric.value is None
        assert "2 latents" in str(metric.reason)
    two = summarise([drawn | {"drawn": [4, 5], "eligible": 2}], [one, one], generator("s"))[0]
    assert two[0].value == pytest.approx(0.9)
    assert two[2].value == 1
    assert "all 2 eligible latents, 100 were asked for" in two[0].note
    assert metrics[4].value == pytest.approx(1 / 9)


def test_no_eligible_latent_is_said() -> None:
    _, (metrics, _, counts) = judged(sae(), min_documents=89)
    assert counts["latents_drawn"] == counts["latents_scored"] == 0
    assert metrics[0].value is None
    assert "0 of all 0 eligible latents" in str(metrics[0].reason)


def test_the_shuffled_control_is_at_chance_and_few_random_latents_are_separated() -> None:
    """Over many latents the control has no side, however interpretable they are."""
    rng = np.random.default_rng(2)
    for strength in (0.0, 2.0):
        vectors: dict[str, NDArray[np.float32]] = {}
        latents = []
        for latent in range(400):
            direction = rng.normal(size=48)
            item: dict[str, Any] = {"id": str(latent), "latent": latent, "positives": [], "negatives": []}
            for kind, shift in (("positives", strength), ("negatives", 0.0)):
                for place in range(20):
                    vector = rng.normal(size=48) + shift * direction
                    vectors[f"{latent}{kind}{place}"] = (vector / np.linalg.norm(vector)).astype(np.float32)
                    split = "train" if place % 2 == 0 else "test"
                    name = f"{latent}{kind}{place}"
                    item[kind].append({"text": name, "document": name, "split": split})
            latents.append(item)
        verdicts = list(score_latents(latents, vectors, generator(f"control {strength}")))
        shuffled = np.array([verdict["shuffled"] for verdict in verdicts])
        error = shuffled.std() / math.sqrt(len(shuffled))
        assert abs(shuffled.mean() - 0.5) < 4 * error
        share = np.mean([verdict["p_value"] <= 0.05 for verdict in verdicts])
        if strength == 0:
            assert share < 0.05 + 4 * math.sqrt(0.05 * 0.95 / 400)
        else:
            assert share > 0.95


def test_the_control_never_sees_a_document_of_the_test_half() -> None:
    """Two latents on the same documents, in opposite halves: all the other's training contexts are one's test ones."""
    rng = np.random.default_rng(5)
    vectors = {f"{kind}{place}": rng.normal(size=8).astype(np.float32) for kind in "pn" for place in range(8)}
    latents = []
    for latent in range(2):
        item: dict[str, Any] = {"id": str(latent), "latent": latent}
        for kind in ("positives", "negatives"):
            item[kind] = [
                {
                    "text": f"{kind[0]}{place}",
                    "document": f"{kind[0]}{place}",
                    "split": "train" if place % 2 == latent else "test",
                }
                for place in range(8)
            ]
        latents.append(item)
    assert [j["shuffled"] for j in score_latents(latents, vectors, generator("same"))] == [None, None]
    latents[1]["positives"][1]["document"] = "elsewhere"
    first, _ = score_latents(latents, vectors, generator("same"))
    centre = vectors["p1"].astype(np.float64)
    own = [np.array([vectors[f"{kind}{place}"] @ centre for place in (1, 3, 5, 7)]) for kind in "pn"]
    assert first["shuffled"] == pytest.approx((own[0][:, None] > own[1][None]).mean())


def test_the_threshold_of_balanced_accuracy_comes_from_training_contexts_without_themselves() -> None:
    vectors = {
        name: np.array(vector, dtype=np.float32)
        for name, vector in {
            "p0": (1, 0), "p1": (0.6, 0.8), "p2": (0.8, 0.6), "p3": (0.6, -0.8),
            "n0": (-1, 0), "n1": (-0.6, 0.8), "n2": (0, 1), "n3": (0.8, -0.6),
        }.items()
    }  # fmt: skip
    item: dict[str, Any] = {"id": "0", "latent": 0}
    for kind in ("positives", "negatives"):
        item[kind] = [
            {
                "text": f"{kind[0]}{place}",
                "document": f"{kind[0]}{place}",
                "split": "train" if place % 2 == 0 else "test",
            }
            for place in range(4)
        ]
    (verdict,) = score_latents([item], vectors, generator("one"))
    # Centre (0.9, 0.3). Each training positive is at 0.8 from the other; training negatives at -0.9 and 0.3: the
    # threshold is (0.8 - 0.3) / 2 = 0.25 (with themselves in the centre it would be 0.3).
    # Test positives at 0.78 and 0.3: both above. Test negatives at -0.3 and 0.54: one below.
    assert verdict["balanced_accuracy"] == pytest.approx(0.75)
    vectors["p3"] = np.array((0.28, 0.06), dtype=np.float32)  # at 0.27, between the two thresholds
    (verdict,) = score_latents([item], vectors, generator("one"))
    assert verdict["balanced_accuracy"] == pytest.approx(0.75)
    assert verdict["score"] == pytest.approx(0.75)
    assert verdict["shuffled"] is None
