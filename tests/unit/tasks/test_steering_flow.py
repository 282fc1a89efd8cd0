"""The steering task from labelled texts to metrics, on a toy model with random weights."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from latentbench.adapters import Dictionary, InputTransform
from latentbench.data import Corpus, Document
from latentbench.errors import UserError
from latentbench.identity import sha256_text
from latentbench.lm import LM, AddVector, Site
from latentbench.run import CellSetup, Item, Shared, TokenPolicy
from latentbench.run._pass import Fed, run_pass
from latentbench.testing import random_routesae, random_sae, toy_lm, toy_tokenizer
from latentbench_tasks.steering import _generate as gen
from latentbench_tasks.steering._concepts import Concept, Example, background_sets, concepts, prompts
from latentbench_tasks.steering._labelled import draw_texts
from latentbench_tasks.steering._methods import METHODS
from latentbench_tasks.steering._steers import Chooser, steers
from latentbench_tasks.steering._write import Row, Steer, Writer
from latentbench_tasks.steering.task import SteeringConfig, SteeringTask

WORDS = {
    "Sport": "game team coach league score match",
    "clinical": "patients disease treatment surgery acute therapy",
    "plain": "we took the old road and saw a small house by the river",
}
CONCEPTS = ("sport", "medicine")
torch.set_num_threads(1)  # toy tensors: threads would only wait for each other


def documents(seed: int) -> list[Document]:
    rng = np.random.default_rng(seed)
    found: dict[str, Document] = {}
    for kind, source, target in (
        ("Sport", "97_news_class", "Sport"),
        ("plain", "97_news_class", "Technology"),
        ("clinical", "101_disease_class", "neoplasms"),
        ("plain", "51_just_is", "1"),
    ):
        for _ in range(80):
            mixed = [*WORDS[kind].split(), *WORDS["plain"].split()]
            text = " ".join(rng.choice(mixed, 20))
            found[text] = Document(
                sha256=sha256_text(text), text=text, source=source, labels={source: target}
            )
    return list(found.values())


@cache
def corpus(split: str) -> Corpus:
    return Corpus(name="toy", sha256="0" * 64, split=split, documents=[], pool=documents(len(split)))


@cache
def model() -> LM:
    lm = toy_lm(tokenizer=toy_tokenizer())
    lm.config.max_position_embeddings = (
        256  # a token is a letter, and a prompt that names a concept has a hundred
    )
    return lm


def sae(seed: int = 0) -> Dictionary:
    return random_sae(transform=InputTransform("standardise"), seed=seed)


def routed() -> Dictionary:
    return random_routesae(["resid_post.0", "resid_post.1", "resid_post.2"])


@cache
def common() -> Shared:
    """Classifiers and unsteered texts, which are keyed by content, made once for most tests."""
    return Shared()


def setup(dictionary: Dictionary, shared: Shared | None = None) -> CellSetup:
    return CellSetup(
        lm=model(),
        dictionary=dictionary,
        corpus=corpus("test"),
        load_split=corpus,
        tokens=TokenPolicy(),
        seed=0,
        cache=Path(tempfile.mkdtemp(prefix="latentbench-test-")),
        shared=shared or common(),
    )


def task(**changes: Any) -> SteeringTask:
    small = {
        "concepts": CONCEPTS,
        "prompts": 4,
        "select_documents": 6,
        "select_context": 20,
        "factors": (0.5, 8.0),
        "max_new_tokens": 6,
        "batch_rows": 6,
        "scorer_documents": 80,
        "neutral_texts": 20,
        "window_words": (6, 12),
    }
    return SteeringTask(SteeringConfig(**{**small, **changes}))


def watch(steering: SteeringTask, cell: CellSetup) -> list[Item]:
    """The items of the shared pass, named as the runner names them."""
    watcher = steering.watcher(cell)
    rows = watcher.rows()
    assert rows is not None
    items: list[Item] = []

    def fail(error: Exception) -> None:
        raise error

    run_pass(cell.lm, cell.tokens, [Fed(cell.dictionary, watcher, rows, set(), items.extend, fail)])
    return items


def stored(items: list[Item]) -> list[Item]:
    """As they come back from a file."""
    return [json.loads(json.dumps(item, allow_nan=False)) for item in items]


def measured(steering: SteeringTask, dictionary: Dictionary, shared: Shared | None = None) -> list[Item]:
    cell = setup(dictionary, shared)
    items = stored(watch(steering, cell))
    return items + stored(list(steering.measure(cell, items)))


def of_kind(items: list[Item], kind: str) -> list[Item]:
    return [item for item in items if item["kind"] == kind]


@pytest.mark.parametrize("dictionary", [sae(), routed()], ids=["sae", "routesae"])
def test_a_cell_goes_from_labelled_texts_to_metrics(dictionary: Dictionary) -> None:
    steering = task()
    items = measured(steering, dictionary)
    generations = of_kind(items, "generation")
    assert len({item["id"] for item in generations}) == len(generations) == 2 * 2 * 4
    assert {item["split"] for item in generations} == {"select", "test"}
    for item in generations:
        assert item["status"] == ("ok" if item["tokens"] else "empty")
        assert item["baseline_text"] in {text["text"] for text in of_kind(items, "unsteered")}
    metrics, curves, counts = steering.summarise(items, [], np.random.default_rng(0))
    assert next(metric for metric in metrics if metric.name == "success").n == 2
    assert len(curves) == 3
    assert counts["generations"] == 16
    assert counts["generation_tokens"] > 0
    assert (counts["shadow_tokens"] > 0) == (dictionary.card.family == "routesae")


def test_every_row_of_the_stream_is_a_labelled_text_once() -> None:
    watcher = task().watcher(setup(sae()))
    rows = watcher.rows()
    assert rows is not None
    drawn = draw_texts(corpus("select"), concepts(CONCEPTS), background_sets(), 6, 0)
    wanted = {document.sha256 for texts in drawn for document in (*texts.positives, *texts.negatives)}
    assert sorted(row.document for row in rows) == sorted(wanted)
    assert all(len(row.ids) <= 20 for row in rows)
    assert watcher.budget_tokens == sum(len(row.ids) for row in rows)
    assert watcher.stream() == task().watcher(setup(routed())).stream()
    assert watcher.stream() != task(select_context=21).watcher(setup(sae())).stream()


def test_a_concept_gets_the_same_texts_whichever_others_are_asked_for() -> None:
    both = draw_texts(corpus("select"), concepts(CONCEPTS), background_sets(), 6, 0)
    alone = draw_texts(corpus("select"), concepts(["medicine"]), background_sets(), 6, 0)
    assert both[1] == alone[0]
    sport = both[0]
    assert {document.labels.get("97_news_class") for document in sport.positives} == {"Sport"}
    sources = [document.source for document in sport.negatives]
    assert (sources.count("97_news_class"), sources.count("51_just_is")) == (3, 3)


def test_a_concept_without_labelled_sets_is_drawn_from_its_examples_and_background_of_like_length() -> None:
    own = [Example(text=f"the storm came {n}", positive=True) for n in range(8)]
    own += [Example(text="the storm of applause", positive=False)]
    own += [Example(text=f"clouds and snow {n}", split="classifier") for n in range(30)]
    weather = Concept(
        id="weather", name="Weather", description="Rain.", lexicon=("storm",), examples=tuple(own)
    )
    short = [
        Document(sha256=sha256_text(text), text=text, source="51_just_is", labels={"51_just_is": "1"})
        for text in (f"we walked {n}" for n in range(9))
    ]
    mixed = Corpus(
        name="toy", sha256="0" * 64, split="select", documents=[], pool=[*corpus("select").pool, *short]
    )
    both = draw_texts(mixed, [*concepts(["sport"]), weather], background_sets(), 6, 0)
    (alone,) = draw_texts(mixed, [weather], background_sets(), 6, 0)
    assert both[1] == alone
    assert len(alone.positives) == 6
    assert all(document.text.startswith("the storm came") for document in alone.positives)
    texts = [document.text for document in alone.negatives]
    assert texts[0] == "the storm of applause"
    assert len(texts) == 6
    assert all(text.startswith("we walked") for text in texts[1:])
    assert both[0] == draw_texts(mixed, concepts(["sport"]), background_sets(), 6, 0)[0]
    learnt = draw_texts(corpus("classifier"), [weather], background_sets(), 20, 0)[0].positives
    assert len(learnt) == 20
    assert all(document.text.startswith("clouds") for document in learnt)


def test_a_concept_without_labelled_texts_is_counted_with_its_name_by_the_classifiers() -> None:
    """Its latents can still be chosen: the select split has its examples and their negatives."""
    steering = task(concepts=("sport", "pirates"))
    items = measured(steering, sae())
    scorers = {item["concept"]: item for item in of_kind(items, "scorer")}
    assert scorers["sport"]["kept"]
    assert not scorers["pirates"]["kept"]
    assert "'pirates' has no labelled texts" in scorers["pirates"]["reason"]
    assert "auroc" not in scorers["pirates"]
    counts = steering.summarise(items, [], np.random.default_rng(0)).counts
    assert (counts["concepts_requested"], counts["concepts_excluded_by_scorer"]) == (2, 1)
    sides = [item["concepts"].get("pirates") for item in of_kind(items, "contrast")]
    assert (sides.count(1), sides.count(-1)) == (6, 6)


@pytest.mark.parametrize("kept", [0, 1, 3, 9, 15])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_measurement_broken_off_goes_on_to_the_same_items(kept: int, temperature: float) -> None:
    steering, dictionary = task(temperature=temperature), sae()
    cell = setup(dictionary)
    watched = stored(watch(steering, cell))
    whole = stored(list(steering.measure(cell, watched)))
    last = [index for index, item in enumerate(whole) if item["kind"] == "generation"][kept]
    before = whole[:last]
    after = stored(list(steering.measure(setup(dictionary), watched + before)))
    assert before + after == whole


def test_nothing_is_generated_again_when_all_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    steering, dictionary, shared = task(extensions=1), sae(), Shared()
    items = measured(steering, dictionary, shared)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("generated again")

    monkeypatch.setattr(LM, "generate", refuse)
    assert list(steering.measure(setup(dictionary, shared), items)) == []


def test_unsteered_texts_and_classifiers_are_made_once_per_run(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Shared()
    first = measured(task(), sae(0), shared)
    calls: list[int] = []
    real = LM.generate

    def counted(self: LM, *arguments: Any, **options: Any) -> Any:
        calls.append(len(options["edits"]))
        return real(self, *arguments, **options)

    monkeypatch.setattr(LM, "generate", counted)
    second = measured(task(), sae(1), shared)
    assert calls == [1] * 4, "two batches of each half, all steered"
    for kind in ("unsteered", "scorer", "degenerate"):
        assert of_kind(first, kind) == of_kind(second, kind)


def test_what_was_written_once_is_not_written_again_for_another_method(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two methods that choose the same latent, and a dictionary that comes back, cost no further text."""
    steering = task(methods=("contrast", "mean_difference"))
    cell = replace(setup(sae()), cache=tmp_path)
    watched = stored(watch(steering, cell))
    items = watched + stored(list(steering.measure(cell, watched)))
    choices = {(one["method"], one["concept"]): one["latents"] for one in of_kind(items, "choice")}
    same = [name for name in CONCEPTS if choices["contrast", name] == choices["mean_difference", name]]
    texts = {one["id"]: one for one in of_kind(items, "generation")}
    for name in same:
        for key, one in texts.items():
            if key.startswith(f"{name}|contrast|"):
                assert texts[key.replace("contrast", "mean_difference")]["text"] == one["text"]

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("generated again")

    monkeypatch.setattr(LM, "generate", refuse)
    again = stored(list(steering.measure(replace(setup(sae()), cache=tmp_path), watched)))
    assert of_kind(again, "generation") == of_kind(items, "generation")
    assert sum(one["forward_tokens"] for one in of_kind(again, "cost")) == 0


def test_sampling_noise_is_shared_between_dictionaries() -> None:
    """Vectors of next to no length leave only the noise, so two dictionaries must write the same texts."""
    steering = task(temperature=1.0, factors=(1e-6, 2e-6))
    first, second = (of_kind(measured(steering, dictionary), "generation") for dictionary in (sae(0), sae(1)))
    assert [item["text"] for item in first] == [item["text"] for item in second]
    assert len({item["text"] for item in first}) == 4, (
        "one for each prompt: methods and factors share it, too"
    )
    strong = of_kind(measured(task(temperature=1.0, factors=(1e-6, 50.0)), sae(1)), "generation")
    assert [item["text"] for item in strong] != [item["text"] for item in second]


def test_a_factor_of_nothing_gives_the_unsteered_text() -> None:
    for item in of_kind(measured(task(factors=(1e-9,)), sae()), "generation"):
        assert item["text"] == item["baseline_text"]


def test_each_row_is_steered_by_its_own_vector() -> None:
    """A mixed batch of latents, dense directions and nothing gives what each row gives alone."""
    dictionary = sae()
    chosen = prompts(4)
    ids = gen.prompt_ids(model(), chosen, "plain", "tokenizer")
    decoding = gen.Decoding(6, 0.0, "both", 1, 0)
    steering = task(methods=("contrast", "diffmean"), factors=(3.0,))
    cell = setup(dictionary)
    items = stored(watch(steering, cell))
    items += list(steering.measure(cell, items))
    made = steers(cell, steering.config, of_kind(items, "choice"), concepts(CONCEPTS))
    assert len(made) == 4
    several = [*made.values(), Steer()]
    grid = [
        Row(gen.GridRow(str(index), "any", 3.0, prompt, 0), steer, ids[prompt.id])
        for index, steer in enumerate(several)
        for prompt in chosen
    ]

    def written(rows: list[Row], size: int) -> dict[str, dict[str, Any]]:
        writer = Writer(setup(dictionary), decoding, size, kl=False)
        return {
            row.about.id: text
            for batch in writer.write(rows, ())
            for row, text in zip(batch.rows, batch.texts, strict=True)
        }

    mixed, alone = written(grid, 20), written(grid, 1)
    for name, text in alone.items():
        assert mixed[name]["text"] == text["text"]
        assert mixed[name]["intervention"] == text["intervention"]
        if text["tokens"]:
            assert mixed[name]["fluency"] == pytest.approx(text["fluency"], rel=1e-4)
    assert len({text["intervention"] for text in alone.values()}) == len(several)
    assert len({text["text"] for text in alone.values()}) > len(chosen)


def test_a_factor_that_breaks_the_model_leaves_rows_unscored() -> None:
    steering = task(factors=(1.0, 1e39))
    items = measured(steering, sae())
    broken = [item for item in of_kind(items, "generation") if item["factor"] > 1e30]
    assert broken
    assert all(item["status"].startswith("broken: logits were not finite") for item in broken)
    assert all(item["concept_score"] is None and item["success"] is False for item in broken)
    metrics, _, counts = steering.summarise(items, [], np.random.default_rng(0))
    assert counts["unscored_generations"] == len(broken)
    assert next(one for one in metrics if one.name == "success").n == 2
    assert next(one for one in metrics if one.name == "success_fixed_factor").note.endswith("factor 1")


def test_prompts_that_leave_no_room_are_named_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    steering = task(methods=("contrast", "prompting"))
    monkeypatch.setattr(model().config, "max_position_embeddings", 64)
    items = measured(steering, sae(), Shared())
    lost = [
        item for item in of_kind(items, "generation") if item["status"] != "ok" and item["status"] != "empty"
    ]
    assert {item["method"] for item in lost} == {"prompting"}
    assert all("leaves no room in the window of 64" in item["status"] for item in lost)
    metrics, _, counts = steering.summarise(items, [], np.random.default_rng(0))
    assert counts["unscored_generations"] == len(lost)
    assert next(one for one in metrics if one.name == "success_prompting").value is None


def test_the_divergence_is_that_of_both_distributions_on_the_text() -> None:
    lm, prompt, new = model(), [5, 6, 7], [8, 9]
    edit = AddVector(Site.parse("resid_post.1"), torch.linspace(-3, 3, lm.d_model))
    found = gen.divergences(lm, [prompt, [3]], [prompt, [3]], [new, []], [edit])
    batch = lm.batch([prompt + new])
    after, before = (
        lm.forward(batch, edits=edits).logits[0, 2:4].double().log_softmax(dim=-1)  # type: ignore[index]
        for edits in ([edit], [])
    )
    assert found[0] == pytest.approx(float((after.exp() * (after - before)).sum(dim=-1).mean()), rel=1e-4)
    assert found[0] is not None
    assert found[0] > 0.01
    assert found[1] is None
    assert gen.divergences(lm, [prompt], [prompt], [new], [])[0] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("dictionary", [sae(), routed()], ids=["sae", "routesae"])
def test_every_method_goes_through_the_same_choice_and_test(dictionary: Dictionary) -> None:
    steering = task(
        methods=tuple(METHODS), test_factors="chosen", kl=True, extensions=2, candidates=5, temperature=1.0
    )
    items = measured(steering, dictionary)
    metrics, _, counts = steering.summarise(items, [], np.random.default_rng(0))
    found = {metric.name: metric for metric in metrics}
    assert counts["unscored_generations"] == 0
    for method in list(METHODS)[1:]:
        for name in ("success", "success_on_selection", "selection_gap", "boundary_share", "kl"):
            assert found[f"{name}_{method}"].value is not None, (name, method)
        assert found[f"lift_over_{method}"].n == 2
        gap = found[f"success_on_selection_{method}"].value - found[f"success_{method}"].value  # type: ignore[operator]
        assert found[f"selection_gap_{method}"].value == pytest.approx(gap)
    choices = of_kind(items, "choice")
    assert len(choices) == len(METHODS) * 2
    candidates = {"output_score": "output_score_low", "gradsae": "gradsae_low"}
    by_name = {(one["method"], one["concept"]): one for one in choices}
    for high, low in candidates.items():
        for name in CONCEPTS:
            assert by_name[high, name]["scores"] >= by_name[low, name]["scores"]
    factors = {(one["method"], one["factor"]) for one in of_kind(items, "generation")}
    assert {factor for method, factor in factors if method == "prompting"} == {1.0}
    assert len({factor for method, factor in factors if method == "contrast"}) > 2, "the grid was made longer"
    selected = {one["id"] for one in of_kind(items, "generation") if one["split"] == "test"}
    assert len(selected) < 2 * 2 * len(METHODS) * 4
    assert found["success_degenerate"].value is not None
    assert found["success_at_20"].value is not None


def test_fluency_is_that_of_the_generated_tokens_alone_under_the_plain_model() -> None:
    lm = model()
    prompt, new = [5, 6, 7], [8, 9]
    found = gen.log_probabilities(lm, [prompt, [3], [4]], [new, [], [11]])
    logits = lm.forward(lm.batch([prompt + new])).logits
    assert logits is not None
    shares = logits[0].log_softmax(dim=-1)
    assert found[0] == pytest.approx(float(shares[2, 8] + shares[3, 9]) / 2, rel=1e-4)
    assert found[1] is None
    assert found[2] is not None


def test_distinct_pairs() -> None:
    assert gen.distinct_2([1, 2, 3]) == 1.0
    assert gen.distinct_2([1, 1, 1, 1, 1]) == 0.25
    assert gen.distinct_2([1]) == 1.0


def test_chosen_test_factors_leave_the_published_numbers_as_they_are() -> None:
    everything, chosen = task(), task(test_factors="chosen")
    dictionary = sae(3)
    full, part = measured(everything, dictionary), measured(chosen, dictionary)
    texts = {item["id"]: item["text"] for item in of_kind(full, "generation")}
    fewer = {item["id"]: item["text"] for item in of_kind(part, "generation")}
    assert fewer.items() <= texts.items()
    for name in ("success", "lift", "success_fixed_factor", "concept_gain"):
        values = [
            next(
                metric.value
                for metric in steering.summarise(items, [], np.random.default_rng(0)).metrics
                if metric.name == name
            )
            for steering, items in ((everything, full), (chosen, part))
        ]
        assert values[0] == pytest.approx(values[1]), name


def test_the_random_direction_has_the_norm_of_the_latents() -> None:
    items = measured(task(methods=("contrast", "random_direction")), sae())
    kinds = [item["method"] for item in of_kind(items, "generation")]
    assert kinds.count("contrast") == kinds.count("random_direction") == 16
    like = torch.arange(16.0)
    drawn = gen.random_direction(like, 0, "sport")
    assert drawn.norm() == pytest.approx(float(like.norm()), rel=1e-5)
    assert torch.equal(drawn, gen.random_direction(like, 0, "sport"))
    assert not torch.allclose(drawn, gen.random_direction(like, 0, "court"))


def test_several_latents_add_the_mean_of_what_each_would_add() -> None:
    dictionary = sae()
    rows = next(iter(dictionary.write_vectors([3, 5]).values()))
    choice = {"concept": "x", "latents": [3, 5], "units": [2.0, 4.0]}
    found = gen.directions(dictionary, [choice, {"concept": "y", "latents": []}])
    torch.testing.assert_close(found["x"], rows[0] + 2 * rows[1])
    assert "y" not in found


def test_a_chat_prompt_ends_in_the_opening_and_needs_a_template() -> None:
    lm = toy_lm(tokenizer=toy_tokenizer())
    with pytest.raises(UserError, match="chat template"):
        gen.prompt_ids(lm, prompts(2), "chat", "tokenizer")
    lm.tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %} answer: "
    plain, chat = (gen.prompt_ids(lm, prompts(2), style, "never") for style in ("plain", "chat"))
    head = lm.tokenizer("Continue this text. answer: ")["input_ids"]
    assert all(chat[name] == head + ids for name, ids in plain.items())


@pytest.mark.parametrize(
    "wrong",
    [
        {"factors": (2.0, 1.0)},
        {"factors": (0.0, 1.0)},
        {"factors": ()},
        {"factors": (float("nan"),)},
        {"factors": (1.0, float("inf"))},
        {"factors": (1.0, 1.0000001)},
        {"temperature": float("inf")},
        {"samples": 2},
        {"window_words": (9, 3)},
        {"factor": 1.0},
        {"methods": ()},
        {"methods": ("contrast", "contrast")},
        {"methods": ("diffmean",)},
        {"methods": ("contrast", "pcb")},
    ],
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"factor|temperature|samples|window_words|method"):
        SteeringConfig(**wrong)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"prompts": 3}, "even number of prompts from 2"),
        ({"prompts": 1000}, "even number of prompts from 2"),
        ({"concepts": ("sprot",)}, "sport"),
        ({"concepts": ("sport", "sport")}, "twice"),
    ],
)
def test_what_can_not_be_measured_is_refused_before_anything_is(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        task(**wrong).preflight()
    task().preflight()


def test_the_estimate_of_tokens_is_near_what_is_used() -> None:
    steering = task()
    items = measured(steering, sae())
    counts = steering.summarise(items, [], np.random.default_rng(0)).counts
    used = counts["generation_tokens"] + sum(
        len(row.ids) for row in steering.watcher(setup(sae())).rows() or ()
    )
    assert 0.3 < steering.tokens() / used < 3


def test_other_phases_are_other_texts_for_whatever_steers(tmp_path: Path) -> None:
    """A random direction has no record of its own, and what was written in one phase is no text of another."""
    chosen = prompts(2)
    ids = gen.prompt_ids(model(), chosen, "plain", "tokenizer")
    dictionary = sae()
    vector = gen.random_direction(next(iter(dictionary.write_vectors([0]).values()))[0], 0, "sport")
    rows = [
        Row(gen.GridRow("sport", "random_direction", 30.0, prompt, 0), Steer(space=vector), ids[prompt.id])
        for prompt in chosen
    ]

    def written(phases: str, cache: Path) -> list[tuple[str, str]]:
        decoding = gen.Decoding(6, 0.0, phases, 1, 0)
        writer = Writer(replace(setup(dictionary), cache=cache), decoding, 8, kl=False)
        return [
            (text["text"], text["intervention"]) for batch in writer.write(rows, ()) for text in batch.texts
        ]

    both = written("both", tmp_path / "one")
    alone = written("prefill", tmp_path / "other")
    assert [text for text, _ in alone] != [text for text, _ in both]
    assert {named for _, named in alone}.isdisjoint(named for _, named in both)
    assert written("prefill", tmp_path / "one") == alone


def test_a_kept_direction_is_that_of_the_same_tokens(tmp_path: Path) -> None:
    """Another token policy gives documents of the same length other tokens, and so another direction."""
    steering = task(methods=("contrast", "diffmean"), select_context=12)
    lm = toy_lm(tokenizer=toy_tokenizer())
    lm.tokenizer.bos_token = "q"

    def directions(bos: Any, cache: Path) -> list[list[float]]:
        cell = replace(setup(sae(), Shared()), lm=lm, cache=cache, tokens=TokenPolicy(bos=bos))
        items = stored(watch(steering, cell))
        chooser = Chooser(cell, steering.config, steering._labelled(cell)[0], items)
        found = [one for one in chooser.choices(concepts(CONCEPTS)) if one["method"] == "diffmean"]
        return [one["direction"] for one in found]

    fresh = directions("always", tmp_path / "fresh")
    assert directions("never", tmp_path / "kept") != fresh
    assert directions("always", tmp_path / "kept") == fresh


def test_senseless_texts_stay_within_the_window() -> None:
    """Three long words over and over have more tokens than the text had, and positions can be learnt."""
    lm = toy_lm("gpt2", tokenizer=toy_tokenizer())
    steering = task(max_new_tokens=40)
    said = " ".join(["magnificently", "extraordinarily", "incomprehensible", *"abcdefghij"])
    plain = {
        "split": "test", "id": "x", "text": said, "fluency": -1.0,
        "prompt_id": next(prompt.id for prompt in prompts(4) if prompt.half == "test"),
    }  # fmt: skip
    found = steering._degenerate(replace(setup(sae()), lm=lm), {}, [plain])
    assert [item["form"] for item in found] == ["shuffled", "loop"]
    assert all(item["fluency"] < 0 for item in found)


def test_unsteered_texts_that_broke_are_in_no_mean() -> None:
    steering = task()
    items = measured(steering, sae())
    for item in items:
        if item["kind"] == "unsteered":
            item["concept_scores"] = dict.fromkeys(item["concept_scores"], 1.0)
    lost = next(item for item in items if item["kind"] == "unsteered" and item["split"] == "test")
    lost.update(
        status="broken: logits were not finite at new token 1", text="", fluency=None, distinct_2=None,
        concept_scores=dict.fromkeys(lost["concept_scores"]),
    )  # fmt: skip
    for item in items:
        if item["kind"] == "unsteered" and item is not lost:
            item["distinct_2"] = 1.0
    metrics, _, counts = steering.summarise(items, [], np.random.default_rng(0))
    assert next(one for one in metrics if one.name == "success_unsteered").value == 1.0
    assert counts["unscored_unsteered_texts"] == 1
