"""Export to Neuronpedia: what its import makes of it, and that nothing is invented."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from leaderboard_records import CORPUS, DICTIONARIES, HOSTILE
from neuronpedia_host import USER
from neuronpedia_results import (
    FREE,
    MODEL,
    ROUTED,
    RUBRIC,
    TERMS,
    TOPK,
    Items,
    add,
    answer,
    context,
    core_row,
    exported,
    latent,
    lines,
    loaded,
)

from latentbench.errors import UserError
from latentbench.store import ErrorRecord, ResultsFolder


@pytest.fixture
def results(tmp_path: Path) -> ResultsFolder:
    return ResultsFolder.create(tmp_path / "results")


def test_a_host_holds_what_was_measured_and_no_more(results: ResultsFolder, tmp_path: Path) -> None:
    add(results, TOPK, "core", [core_row(100, {3: 7, 5: 1}), core_row(60, {3: 1})])
    add(
        results,
        TOPK,
        "feature_count",
        [latent(3, context("aa", [0.0, 12.5, 3.0]), context("bb", [1.0, 4.0]))],
    )
    judgements = [
        answer("explanation", 3, verdict="words about harbours"),
        answer("detection", 3, truth=[1, 1, 1, 0], verdict=[1, 1, 0, 0]),
        answer("fuzzing", 3, truth=[1, 0], verdict=[0, 0]),
        {**answer("detection", 3, truth=[1, 0]), "id": "d2", "status": "parse_failed", "verdict": None},
    ]
    add(results, TOPK, "autointerp", [], judgements, RUBRIC)
    made = exported(results)
    host = loaded(made, tmp_path / "out")
    (source,) = host.rows("Source")
    assert (source["modelId"], source["id"], source["setName"]) == (MODEL, "21-lab-res-2k", "lab-res-2k")
    assert (source["dataset"], source["num_tokens_in_prompt"], source["num_prompts"]) == (
        CORPUS["name"],
        128,
        None,
    )
    assert "not raw codes" in source["notes"]
    assert "160 tokens" in source["notes"]
    features = {row["index"]: row for row in host.rows("Neuron")}
    assert set(features) == {"3", "5"}
    assert features["3"]["frac_nonzero"] == 8 / 160
    assert features["5"]["frac_nonzero"] == 1 / 160
    assert (features["3"]["maxActApprox"], features["5"]["maxActApprox"]) == (12.5, None)
    for row in features.values():
        assert row["vectorDefaultSteerStrength"] is None
        assert [row[name] for name in ("pos_str", "neg_values", "vector", "freq_hist_data_bar_heights")] == [
            []
        ] * 4
    first, second = host.rows("Activation")
    assert (first["tokens"], first["values"]) == ([" word0", " word1", " word2"], [0.0, 12.5, 3.0])
    assert (first["maxValue"], first["maxValueTokenIndex"], first["minValue"]) == (12.5, 1, 0.0)
    assert (first["dataSource"], first["dataIndex"]) == (FREE, "aa:10:13")
    assert (second["maxValue"], second["binContains"], second["binMin"]) == (4.0, None, None)
    (explanation,) = host.rows("Explanation")
    assert explanation["description"] == "words about harbours"
    assert explanation["explanationModelName"] == "gpt-4o-mini-2024"
    assert explanation["typeName"] == "latentbench_autointerp-1"
    assert explanation["umap_x"] is None
    assert (
        "detection 0.833 over 4 texts (1 questions unscored), fuzzing 0.500 over 2 texts"
        in explanation["notes"]
    )
    scores = {row["explanationScoreTypeName"]: row for row in host.rows("ExplanationScore")}
    assert scores["latentbench_detection-1"]["value"] == pytest.approx(5 / 6)
    assert scores["latentbench_fuzzing-1"]["value"] == 0.5
    assert {row["explanationId"] for row in scores.values()} == {explanation["id"]}
    (one,) = made.exported
    assert one == (TOPK.name, f"{MODEL}/21-lab-res-2k", 2, 0, 2, 1, {})


def test_what_was_not_measured_is_no_field(results: ResultsFolder, tmp_path: Path) -> None:
    add(results, TOPK, "core", [core_row(100, {3: 7})])
    add(results, TOPK, "feature_count", [latent(9, context("aa", [0.0, 2.0]))])
    made = exported(results)
    by_index = {row["index"]: row for row in lines(made, "features")}
    assert by_index["3"]["frac_nonzero"] == 0.07
    assert "frac_nonzero" not in by_index["9"]  # not seen in 100 tokens: that is no density of 0
    assert by_index["3"]["maxActApprox"] is None
    assert made.exported[0].without_density == 1
    for name, data in made.files.items():
        if name.endswith(".gz"):  # the importer takes the columns of a file from its first line
            rows = [json.loads(line) for line in gzip.decompress(data).decode("ascii").splitlines()]
            assert len({tuple(row) for row in rows}) == 1
    assert not any("explanation" in name for name in made.files)
    loaded(made, tmp_path / "out")


def test_peaks_of_rows_count_and_their_starts_are_not_passed_off_as_silent(results: ResultsFolder) -> None:
    rows: Items = [
        {
            "kind": "row",
            "id": "a",
            "document": "aa",
            "start_token": 20,
            "latents": [3, 4],
            "strengths": [9.0, 8.0],
        },
        {
            "kind": "row",
            "id": "b",
            "document": "aa",
            "start_token": 0,
            "latents": [4],
            "strengths": [[2.0, 8.5]],
        },
        {
            "kind": "row",
            "id": "c",
            "document": "bb",
            "start_token": 0,
            "latents": [4, "x"],
            "strengths": [-1.0],
        },
    ]
    at_start = context("aa", [0.0, 0.0, 5.0], start=20, end=23)
    strong_start = context("bb", [6.0, 0.0], start=0, end=2)
    inside = context("aa", [0.0, 7.0], start=5, end=7)
    unknown = context("zz", [0.0, 4.0], start=5, end=7)  # no row item: it may be a row's start
    add(results, TOPK, "interpretability", [*rows, latent(3, at_start, strong_start, inside, unknown)])
    made = exported(results)
    features = {row["index"]: row["maxActApprox"] for row in lines(made, "features")}
    assert features == {"3": 9.0, "4": 8.5}
    found = {
        row["dataIndex"]: (row["values"], row["qualifyingTokenIndex"]) for row in lines(made, "activations")
    }
    assert found == {
        "aa:21:23": ([0.0, 5.0], 0),
        "bb:0:2": ([6.0, 0.0], 1),
        "aa:5:7": ([0.0, 7.0], 1),
        "zz:6:7": ([4.0], 0),
    }


def test_texts_with_terms_of_their_own_are_left_out_unless_asked_for(results: ResultsFolder) -> None:
    withheld = context("dd", [0.0, 3.0], TERMS, excerpt=None, text="3:dd")
    smuggled = context("ee", [0.0, 4.0], TERMS)
    folder = add(results, TOPK, "feature_count", [latent(3, withheld, smuggled, context("aa", [0.0, 5.0]))])
    place = {name: withheld[name] for name in ("document", "start", "end")}
    text = {**place, "id": "3:dd", "tokens": [" PRIVATE", " x"], "activations": [0.0, 3.0], "activated": 1}
    other = {**text, "id": "4:dd", "activations": [9.0, 9.0]}  # of another latent in the same place
    stored = "".join(json.dumps(one) + "\n" for one in (text, other))
    (folder.path / "texts.jsonl").write_text(stored, encoding="utf-8")
    public, local = exported(results), exported(results, local_texts=True)
    assert [row["dataIndex"] for row in lines(public, "activations")] == ["aa:10:12"]
    assert public.exported[0].left_out == {"without a text that may be shown": 2}
    assert b"PRIVATE" not in b"".join(gzip.decompress(d) for n, d in public.files.items() if n.endswith("gz"))
    assert [row["tokens"][0] for row in lines(local, "activations")] == [" word0", " PRIVATE"]
    assert lines(public, "features")[0]["maxActApprox"] == 5.0  # strengths are no texts


@pytest.mark.parametrize(
    "values",
    [
        [0.0, None],
        [0.0, "3"],
        [True, 2.0],
        [0.0, 10**400],
        [],
        None,
    ],
)
def test_a_context_without_a_number_for_every_token_is_left_out(results: ResultsFolder, values: Any) -> None:
    broken = context("aa", [0.0, 1.0], activation=None)
    broken["excerpt"] |= {"activations": values}
    short = context("bb", [0.0, 1.0], activation=None)
    short["excerpt"] |= {"activations": [1.0]}
    folder = add(results, TOPK, "feature_count", [latent(3, context("cc", [0.0, 2.0]))])
    with (folder.path / "items.jsonl").open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(latent(4, broken, short)) + "\n")  # the writer would refuse some of these
    made = exported(results)
    assert [row["dataIndex"] for row in lines(made, "activations")] == ["cc:10:12"]
    assert made.exported[0].left_out == {"without the strength of every token": 2}
    assert [row["index"] for row in lines(made, "features")] == ["3"]  # latent 4 is an index alone


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_never_becomes_one(results: ResultsFolder, value: float) -> None:
    withheld = context("dd", [0.0, 3.0], excerpt=None)
    folder = add(results, TOPK, "feature_count", [latent(3, withheld)])
    place = {name: withheld[name] for name in ("document", "start", "end")}
    text = {**place, "tokens": [" a", " b"], "activations": [0.0, value], "activated": 1}
    (folder.path / "texts.jsonl").write_text(json.dumps(text) + "\n", encoding="utf-8")
    made = exported(results, local_texts=True)
    assert made.exported[0].left_out == {"without the strength of every token": 1}
    with (folder.path / "items.jsonl").open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(latent(4, context("aa", [0.0, value]))) + "\n")
    with pytest.raises(UserError, match=r"items\.jsonl:7 is not a JSON object"):
        exported(results)


HOSTILE_TOKENS = [
    HOSTILE,
    "a\nb\r\u2028\u2029\x85",
    '"}]',
    "\ud800",
    "\udfff\ud800",
    "\x00",
    "\\u0000",
    "\\\\u0000",
    "\\",
    "\N{GRINNING FACE}",
    "\u202e",
    "",
]


def test_any_text_comes_through(results: ResultsFolder, tmp_path: Path) -> None:
    values = [0.0, *[2.0] * (len(HOSTILE_TOKENS) - 1)]
    hostile = context("aa", values)
    hostile["excerpt"] |= {"tokens": HOSTILE_TOKENS}
    name = f"{TOPK.name} {HOSTILE}\x00\n../.."
    odd = TOPK._replace(name=name)
    folder = add(results, odd, "feature_count", [latent(3)])
    with (folder.path / "items.jsonl").open("a", encoding="ascii") as stream:
        stream.write(json.dumps(latent(3, hostile)) + "\n")
    says = [answer("explanation", 3, verdict=f"{HOSTILE}\\u0000", model="gpt\\u0000\n4")]
    add(results, odd, "autointerp", [], says, RUBRIC)
    add(results, DICTIONARIES[3], "core", [core_row(10, {1: 1})])
    made = exported(results)
    host = loaded(made, tmp_path / "out")
    expected = [token.replace("\x00", "\ufffd") for token in HOSTILE_TOKENS]
    expected[3:5] = ["\ufffd", "\ufffd\ufffd"]
    assert host.rows("Activation")[0]["tokens"] == expected
    assert host.rows("Explanation")[0]["description"] == f"{HOSTILE}\\u0000"
    assert host.rows("Explanation")[0]["explanationModelName"] == "gpt\\u0000\n4"
    assert all(
        set(part) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_.")
        for n in made.files
        for part in n.split("/")
    )
    assert not any(".." in n for n in made.files)


def test_dictionaries_of_one_layer_are_told_apart_and_several_sites_are_refused(
    results: ResultsFolder, tmp_path: Path
) -> None:
    embed = TOPK._replace(name="at the embedding", sites=["embed"])
    shared = TOPK._replace(name="crosscoder", family="crosscoder", sites=["resid_post.3", "resid_post.9"])
    strange = TOPK._replace(name="strange", sites=["resid_post.x"])
    for made in (TOPK, DICTIONARIES[3], DICTIONARIES[5], embed, ROUTED, shared, strange):
        add(results, made, "core", [core_row(10, {1: 2})])
    found = exported(results)
    host = loaded(found, tmp_path / "out")
    ids = sorted(row["id"] for row in host.rows("Source"))
    assert [one.rpartition("-")[0] for one in ids] == [
        "21-lab-res-2k__topk-at-resid-post-21",
        "21-lab-res-2k__topk-k-32",
        "21-lab-res-2k__topk-random-decoder",
        "e-lab-res",
    ]
    assert len(host.rows("SourceSet")) == 1
    assert host.rows("SourceSet")[0]["description"] == "embed, 2304 latents; resid_post, 2304 latents"
    notes = {row["id"]: row["notes"] for row in host.rows("Source")}
    assert [("a control" in notes[one]) for one in ids] == [False, False, True, False]
    reasons = dict(found.refused)
    assert set(reasons) == {ROUTED.name, "crosscoder", "strange"}
    assert "shared by 16 sites (resid_post.6, resid_post.7, ...)" in reasons[ROUTED.name]
    assert "shared by 2 sites (resid_post.3, resid_post.9)" in reasons["crosscoder"]
    assert "resid_post.x names none" in reasons["strange"]
    alone = exported(results, dictionaries=(TOPK.name, ROUTED.name))
    assert [one.source for one in alone.exported] == [f"{MODEL}/21-lab-res-2k"]


def test_the_cell_with_most_tokens_gives_the_density(results: ResultsFolder) -> None:
    add(results, TOPK, "core", [core_row(50, {3: 10})])
    long = add(results, TOPK, "core", [core_row(200, {3: 2, 2304: 5, -1: 5})], seed=1)
    record = json.loads((long.path / "run.json").read_bytes())
    record["counts"] = {"tokens": 200}
    (long.path / "run.json").write_text(json.dumps(record), encoding="utf-8")
    failed = ErrorRecord(type="AdapterError", message="x")
    add(results, TOPK, "feature_count", [latent(8, context("aa", [0.0, 5.0]))], error=failed)
    made = exported(results)
    assert {row["index"]: row["frac_nonzero"] for row in lines(made, "features")} == {"3": 0.01}


def test_one_context_of_a_place_and_negatives_of_none(results: ResultsFolder) -> None:
    short, long = (
        context("aa", [0.0, 5.0], start=12, end=14),
        context("aa", [0.0, 0.0, 1.0, 5.0], start=10, end=14),
    )
    long["excerpt"] |= {"activated": 3}
    items = [
        {**latent(3, short), "positives": [long, "x"], "negatives": [context("bb", [0.0, 0.0])]},
        {**latent(4, long), "positives": [short], "contexts": [long, None]},
    ]
    add(results, TOPK, "interpretability", items)
    found = lines(exported(results), "activations")
    assert [row["values"] for row in found] == [[0.0, 0.0, 1.0, 5.0]] * 2


def test_an_explanation_that_failed_or_says_nothing_is_none(results: ResultsFolder) -> None:
    judgements = [
        {**answer("explanation", 3, verdict="x"), "status": "refused"},
        answer("explanation", 4, verdict="  "),
        answer("explanation", 5, verdict=None),
        answer("explanation", 6, verdict=" months ", model=""),
        answer("detection", 6, truth=[1, 1], verdict=[1, 0]),  # one class alone has no balanced accuracy
        answer("explanation", 99999, verdict="no such latent"),
    ]
    add(results, TOPK, "autointerp", [], judgements, RUBRIC)
    made = exported(results)
    (row,) = lines(made, "explanations")
    assert (row["index"], row["description"], row["explanationModelName"]) == (
        "6",
        "months",
        "openai (gpt-4o-mini)",
    )
    assert row["notes"].endswith("not scored")
    assert lines(made, "explanation_scores") == []
    assert [one["index"] for one in lines(made, "features")] == ["6"]


def test_a_host_without_the_model_makes_it_if_told_its_layers(results: ResultsFolder, tmp_path: Path) -> None:
    add(results, TOPK, "core", [core_row(10, {1: 2})])
    assert exported(results).files[f"{MODEL}/21-lab-res-2k/model.jsonl"] == b""
    made = exported(results, layers=30, model_id="smollm2-135m", creator="me")
    (row,) = loaded(made, tmp_path / "out", model=None).rows("Model")
    assert (row["id"], row["layers"], row["owner"], row["creatorId"]) == ("smollm2-135m", 30, "me", USER)


def test_many_latents_are_batches(results: ResultsFolder, tmp_path: Path) -> None:
    add(results, TOPK, "core", [core_row(5000, {number: 1 + number for number in range(2000)})])
    add(results, TOPK, "feature_count", [latent(n, context("aa", [0.0, 5.0])) for n in (1500, 2100)])
    made = exported(results)
    assert sorted(name.partition("lab-res-2k/")[2] for name in made.files if name.endswith(".gz")) == [
        "activations/batch-1.jsonl.gz",
        "activations/batch-2.jsonl.gz",
        "features/batch-0.jsonl.gz",
        "features/batch-1.jsonl.gz",
        "features/batch-2.jsonl.gz",
    ]
    assert len(loaded(made, tmp_path / "out").rows("Neuron")) == 2001
    assert exported(results).files == made.files
    stamps = {data[4:8] for name, data in made.files.items() if name.endswith(".gz")}
    assert stamps == {bytes(4)}  # no time in the header of a gzip file
