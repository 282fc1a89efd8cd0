"""The capability task from labelled texts to metrics, on a toy model with random weights."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from latentbench.adapters import Dictionary, IdentityDictionary, InputTransform
from latentbench.data import Corpus, Document
from latentbench.errors import LatentbenchError, UserError
from latentbench.identity import sha256_text
from latentbench.lm import LM, Site
from latentbench.run import CellSetup, Item, Shared, TokenPolicy
from latentbench.run._pass import Fed, run_pass
from latentbench.stats import generator
from latentbench.store import Metric
from latentbench.testing import check_task, random_sae, toy_lm, toy_tokenizer
from latentbench_tasks.capability import _edits, _harness
from latentbench_tasks.capability import task as module
from latentbench_tasks.capability.task import CapabilityConfig, CapabilityTask

torch.set_num_threads(1)  # toy tensors: threads would only wait for each other
NAMES = ("lb_piqa", "lb_movie_sentiment", "lb_fact_sheets", "lb_text")
CONDITIONS = (
    "plain",
    "identity",
    "spliced",
    "steered@2:sport",
    "steered@2:medicine",
    "steered@8:sport",
    "steered@8:medicine",
)
WORDS = {
    "Sport": "game team coach league score match",
    "clinical": "patients disease treatment surgery acute therapy",
    "plain": "we took the old road and saw a small house by the river",
}


def document(text: str, source: str, target: str) -> Document:
    return Document(sha256=sha256_text(text), text=text, source=source, labels={source: target})


def labelled(seed: int) -> list[Document]:
    rng = np.random.default_rng(seed)
    found: dict[str, Document] = {}
    for kind, source, target in (
        ("Sport", "97_news_class", "Sport"),
        ("plain", "97_news_class", "Technology"),
        ("clinical", "101_disease_class", "neoplasms"),
        ("plain", "51_just_is", "1"),
    ):
        for _ in range(30):
            mixed = [*WORDS[kind].split(), *WORDS["plain"].split()]
            one = document(" ".join(rng.choice(mixed, 12)), source, target)
            found[one.sha256] = one
    words = WORDS["plain"].split()
    for number in range(12):
        first, second = (" ".join(rng.choice(words, 4)) for _ in range(2))
        piqa = f"how to cross a river {seed} {number}?\n\nA.{first}\nB.{second}"
        for one in (
            document(piqa, "44_phys_tf", str(number % 2)),
            document(f"a film {seed} {number}: {first}", "113_movie_sent", str(number % 2)),
        ):
            found[one.sha256] = one
    return list(found.values())


@cache
def corpus(split: str) -> Corpus:
    pool = labelled(sum(map(ord, split)))
    return Corpus(name="toy", sha256=sha256_text(split), split=split, documents=pool[:20], pool=pool)


@cache
def model() -> LM:
    lm = toy_lm(tokenizer=toy_tokenizer())
    lm.config.max_position_embeddings = 4096  # a token is a letter, and fact sheets have many
    return lm


def sae(seed: int = 0) -> Dictionary:
    return random_sae(transform=InputTransform("standardise"), seed=seed)


def setup(dictionary: Dictionary, out: Path, shared: Shared | None = None) -> CellSetup:
    policy = TokenPolicy(context=24, batch_rows=4)
    return CellSetup(model(), dictionary, corpus("test"), corpus, policy, 0, out, shared or Shared())


def task(**changes: Any) -> CapabilityTask:
    small: dict[str, Any] = {
        "tasks": NAMES,
        "limit": 4,
        "concepts": ("sport", "medicine"),
        "select_documents": 6,
        "select_context": 20,
    }
    return CapabilityTask(CapabilityConfig(**{**small, **changes}))


def watch(capability: CapabilityTask, cell: CellSetup) -> list[Item]:
    watcher = capability.watcher(cell)
    if watcher is None:
        return []
    rows = watcher.rows()
    assert rows is not None
    items: list[Item] = []

    def fail(error: Exception) -> None:
        raise error

    run_pass(cell.lm, cell.tokens, [Fed(cell.dictionary, watcher, rows, set(), items.extend, fail)])
    return items


def measured(capability: CapabilityTask, cell: CellSetup) -> list[Item]:
    items = stored(watch(capability, cell))
    return items + stored(list(capability.measure(cell, items)))


def stored(items: list[Item]) -> list[Item]:
    """As they come back from a file."""
    return [json.loads(json.dumps(item, allow_nan=False)) for item in items]


def answers(items: list[Item], condition: str) -> dict[tuple[str, int], Item]:
    return {
        (item["task"], item["doc_id"]): item
        for item in items
        if item["kind"] == "answer" and item["condition"] == condition
    }


def metrics(capability: CapabilityTask, items: list[Item]) -> dict[str, Metric]:
    return {metric.name: metric for metric in capability.summarise(items, [], generator("t")).metrics}


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory) -> list[Item]:
    return measured(task(factors=(2.0, 8.0)), setup(sae(), tmp_path_factory.mktemp("cell")))


def test_every_condition_answers_the_same_items(items: list[Item]) -> None:
    plain = answers(items, "plain")
    assert Counter(name for name, _ in plain) == dict.fromkeys(NAMES, 4)
    for condition in CONDITIONS:
        found = answers(items, condition)
        assert found.keys() == plain.keys()
        assert [one["doc"] for one in found.values()] == [one["doc"] for one in plain.values()]
    done = [item["id"] for item in items if item["kind"] == "done"]
    assert sorted(done) == sorted(f"{condition}|{name}" for condition in CONDITIONS for name in NAMES)
    assert [item["version"] for item in items if item["kind"] == "harness"] == ["0.4.13"]


def test_identity_is_plain_and_the_other_conditions_are_not(items: list[Item]) -> None:
    numbers = ("correct", "loglik", "margin", "loss", "reply")
    plain = answers(items, "plain")
    for place, one in answers(items, "identity").items():
        assert [one[name] for name in numbers] == [plain[place][name] for name in numbers]
    for condition in CONDITIONS[2:]:
        for place, one in answers(items, condition).items():
            moved = "loss" if place[0] == "lb_text" else "reply" if place[0] == "lb_fact_sheets" else "loglik"
            if moved != "reply":  # a reply may stay what it is
                assert one[moved] != plain[place][moved]


def test_answers_say_what_their_kind_can_say(items: list[Item]) -> None:
    for (name, _), one in answers(items, "plain").items():
        if name == "lb_text":
            assert one["correct"] is one["chance"] is one["margin"] is None
            assert 0 < one["loss"] < 20
        elif name == "lb_fact_sheets":
            assert (one["chance"], one["loglik"], len(one["reply"])) == (0.0, None, 16)
        else:
            assert one["chance"] == 0.5
            # acc_norm, where there is one, may choose otherwise than the margin of sums
            if name == "lb_movie_sentiment":
                assert one["correct"] == float(one["margin"] > 0)


def test_items_hold_no_texts(items: list[Item]) -> None:
    mine = json.dumps([item for item in items if item["kind"] != "contrast"])
    for word in ("river", "patients", "how to", "film", "Question", "Answer"):
        assert word not in mine


def test_metrics_are_differences_on_the_same_items(items: list[Item]) -> None:
    found = metrics(task(), items)
    plain, spliced = answers(items, "plain"), answers(items, "spliced")
    for name, field in (("acc", "correct"), ("margin", "margin"), ("loss", "loss")):
        differences = [
            spliced[place][field] - plain[place][field] for place in plain if plain[place][field] is not None
        ]
        metric = found[f"{name}_change_spliced"]
        assert metric.value == pytest.approx(np.mean(differences))
        assert metric.n == len(differences)
    steered = found["margin_change_steered_at_8"].value
    concepts = [found[f"margin_change_steered_at_8_{concept}"].value for concept in ("sport", "medicine")]
    assert steered == pytest.approx(np.mean(concepts))  # type: ignore[arg-type]
    assert found["acc_chance"].value == pytest.approx(1 / 3)
    assert found["acc_chance_lb_piqa"].value == 0.5
    assert found["acc_plain_lb_piqa"].n == 4
    assert found["acc_change_spliced"].headline


def test_the_identity_dictionary_costs_nothing(tmp_path: Path) -> None:
    capability = task(concepts=())
    lm = model()
    cell = setup(IdentityDictionary(Site("resid_post", 1), lm.d_model, lm.device, lm.dtype), tmp_path)
    assert capability.watcher(cell) is None
    found = metrics(capability, measured(capability, cell))
    assert found["acc_change_spliced"].value == 0
    assert found["margin_change_spliced"].value == pytest.approx(0, abs=1e-4)
    assert found["loss_change_spliced"].value == pytest.approx(0, abs=1e-5)
    assert not [name for name in found if "steered" in name]


def test_the_plain_model_answers_once_for_all_dictionaries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = _harness.answers

    def counted(one: Any, lm: Any, condition: str, shots: int | None) -> Any:
        asked.append(condition)
        return real(one, lm, condition, shots)

    monkeypatch.setattr(_harness, "answers", counted)
    shared = Shared()
    capability = task(concepts=(), tasks=("lb_piqa",))
    for seed in (0, 1):
        measured(capability, setup(sae(seed), tmp_path, shared))
    assert Counter(asked) == {"plain": 1, "identity": 2, "spliced": 2}


def test_a_stopped_cell_goes_on_where_it_was(items: list[Item], tmp_path: Path) -> None:
    capability = task(factors=(2.0, 8.0))
    ends = [place for place, item in enumerate(items) if item["kind"] == "done"]
    kept = items[: ends[2] + 3]  # two answers into a set that isn't complete
    more = stored(list(capability.measure(setup(sae(), tmp_path), kept)))
    known = {(item["kind"], item.get("id")) for item in kept}
    fresh = [item for item in more if (item["kind"], item.get("id")) not in known]
    assert [item["kind"] for item in more].count("done") == len(ends) - 3
    assert sorted(map(json.dumps, [*kept, *fresh])) == sorted(map(json.dumps, items))


def test_answers_of_a_model_that_breaks_are_unscored(tmp_path: Path) -> None:
    """Logits that are no longer finite are no wrong answer, and cost no other condition its numbers."""
    capability = task(concepts=("sport",), factors=(1.0, 1e39))
    found = measured(capability, setup(sae(), tmp_path))
    for condition in ("plain", "spliced", "steered@1:sport"):
        assert all(one["reason"] is None for one in answers(found, condition).values())
    broken = answers(found, "steered@1e+39:sport")
    assert len(broken) == 4 * len(NAMES)
    for one in broken.values():
        assert "not finite" in one["reason"]
        assert {one[name] for name in ("correct", "loglik", "margin", "loss", "reply")} == {None}
    summary = capability.summarise(found, [], generator("t"))
    names = {metric.name for metric in summary.metrics}
    assert "acc_steered_at_1" in names
    assert "acc_steered_at_1e+39" not in names
    assert summary.counts["unscored answers"] == len(broken)


def test_an_edit_that_should_add_nothing_and_does_is_an_error() -> None:
    one = {"task": "lb_piqa", "doc_id": 3, "doc": "a", "loglik": -1.5, "margin": 0.5, "loss": None}
    plain = [{**one, "reply": None}]
    _edits.check_identity(plain, [{**plain[0], "loglik": -1.5000001}])
    for other in ({"margin": 0.6}, {"loss": 1.0}, {"reply": "other"}, {"doc": "b"}):
        with pytest.raises(LatentbenchError, match="lb_piqa, item 3"):
            _edits.check_identity(plain, [{**plain[0], **other}])


def test_global_generators_are_left_alone(tmp_path: Path) -> None:
    capability, cell = task(concepts=(), tasks=("lb_piqa",)), setup(sae(), tmp_path)
    capability._tasks(cell)  # reading data sets may draw; only answering is this task's own
    before = (random.getstate(), torch.random.get_rng_state(), np.random.get_state()[1])  # type: ignore[index]
    measured(capability, cell)
    assert random.getstate() == before[0]
    assert torch.equal(torch.random.get_rng_state(), before[1])
    assert np.array_equal(np.random.get_state()[1], before[2])  # type: ignore[index]


def test_worked_examples_come_from_another_split(tmp_path: Path) -> None:
    capability = task(concepts=(), tasks=("lb_piqa", "lb_text"))
    few = task(concepts=(), tasks=("lb_piqa", "lb_text"), num_fewshot=2)
    cell = setup(sae(), tmp_path)
    none, two = (answers(measured(one, cell), "plain") for one in (capability, few))
    assert [one["doc"] for one in none.values()] == [one["doc"] for one in two.values()]
    for place, one in none.items():  # a text to be scored gets no examples
        assert (one["loglik"] == two[place]["loglik"]) == (place[0] == "lb_text")


def test_names_that_do_not_exist_are_refused_with_those_that_do() -> None:
    with pytest.raises(ValidationError, match=r"'lb_pica' is none of the embedded tasks .*lb_piqa"):
        task(tasks=("lb_pica",))
    with pytest.raises(ValidationError, match="twice"):
        task(tasks=("lb_piqa", "lb_piqa"))


@pytest.mark.parametrize("factors", [(float("nan"),), (1.0, float("inf")), (1.0, 1.0000001)])
def test_factors_that_make_no_sense_are_refused(factors: tuple[float, ...]) -> None:
    with pytest.raises(ValidationError, match="factors"):
        task(factors=factors)


def test_concepts_that_make_no_sense_are_refused_before_anything_is_measured() -> None:
    with pytest.raises(UserError, match="sport"):
        task(concepts=("sprot",)).preflight()
    with pytest.raises(UserError, match="twice"):
        task(concepts=("sport", "sport")).preflight()


def test_public_tasks_without_a_network_name_the_embedded_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"unknown lm-eval task 'helaswag': did you mean .*lb_openbookqa"):
        task(tasks=("helaswag",)).preflight()

    def offline(*_: Any, **__: Any) -> Any:
        raise ConnectionError("Couldn't reach the hub")

    monkeypatch.setattr("datasets.load_dataset", offline)
    with pytest.raises(
        UserError, match=r"data of piqa can't be had \(Couldn't reach the hub\).*lb_openbookqa"
    ):
        task(tasks=("lb_piqa", "piqa")).preflight()


def test_a_corpus_without_the_labels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no texts for lb_social_iqa in its capability split"):
        measured(task(concepts=(), tasks=("lb_social_iqa",)), setup(sae(), tmp_path))


def test_lm_eval_is_imported_when_it_is_needed_and_missed_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys, latentbench_tasks.capability.task; sys.exit('lm_eval' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    monkeypatch.setattr(module, "find_spec", lambda _name: None)
    with pytest.raises(UserError, match=r"pip install 'latentbench\[capability\]'"):
        task().preflight()


def test_costs_grow_with_items_and_conditions() -> None:
    assert task(limit=8).tokens() > task(limit=4).tokens() > task(limit=4, concepts=()).tokens() > 0
    assert task(tasks=("hellaswag",)).tokens() > 0
    assert task(limit=8, concepts=()).texts() == 8 * 3
    assert task(limit=8).texts() == 8 * (3 + 2 * 2)
    assert task(tasks=("lb_piqa",)).texts() == 0


def test_the_task_passes_its_kit() -> None:
    capability = task(limit=3, concepts=("sport",), tasks=("lb_piqa", "lb_fact_sheets", "lb_text"))
    results = check_task(capability, lm=model(), load_split=corpus)
    assert [result for result in results if not result.passed] == []


@pytest.mark.slow
def test_a_real_model_knows_more_than_chance_and_loses_some_of_it(tmp_path: Path) -> None:
    from latentbench.adapters import load_dictionary
    from latentbench.data import load_corpus
    from latentbench.lm import load_lm

    lm = load_lm("smollm2-135m-q4")
    dictionary = load_dictionary("zoo:smollm2-topk-r21-k64", lm=lm)

    @cache
    def load_split(split: str) -> Corpus:
        return load_corpus(split=split)

    capability = task(
        tasks=("lb_fact_sheets", "lb_text"), limit=3, concepts=("sport",), factors=(2.0,), select_documents=4
    )
    cell = CellSetup(lm, dictionary, load_split("test"), load_split, TokenPolicy(), 0, tmp_path, Shared())
    found = metrics(capability, measured(capability, cell))
    assert found["acc_plain"].value > found["acc_chance"].value  # type: ignore[operator]
    assert found["loss_plain"].value == pytest.approx(0.9, abs=0.3)
    assert found["loss_change_spliced"].value > 0  # type: ignore[operator]
    assert found["loss_change_steered_at_2"].value > 0  # type: ignore[operator]
