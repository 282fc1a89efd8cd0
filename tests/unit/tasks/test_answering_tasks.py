"""Perturbation and local steering: scores, sets and swaps on toy models, against passes by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from latentbench.adapters import Dictionary, InputTransform, LatentChange, latent_edits
from latentbench.data import Corpus
from latentbench.lm import LM, Site
from latentbench.run import CellSetup, Item, Shared, TokenPolicy
from latentbench.selectors import Example, GradSae
from latentbench.stats import generator
from latentbench.testing import check_task, random_routesae, random_sae, toy_lm, toy_tokenizer
from latentbench_tasks import _answering
from latentbench_tasks._answering import Answer, Answering, Rerun, Skipped, distinct, divergence
from latentbench_tasks._answering_config import AnsweringConfig
from latentbench_tasks._questions import Asked, answer_text, asked_questions
from latentbench_tasks._squad import exact_match, normalised_answer, token_f1
from latentbench_tasks.local_steering.metrics import summarise as summarise_steering
from latentbench_tasks.local_steering.metrics import units as steering_units
from latentbench_tasks.local_steering.task import LocalSteeringConfig, LocalSteeringTask, _beginning
from latentbench_tasks.perturbation.metrics import summarise, units
from latentbench_tasks.perturbation.task import PerturbationConfig, PerturbationTask

torch.set_num_threads(1)  # toy tensors: threads would only wait for each other
NONE = LatentChange.none()


@pytest.fixture(scope="module")
def lm() -> LM:
    made = toy_lm("llama", tokenizer=toy_tokenizer())
    made.config.max_position_embeddings = 4096  # rotary positions go on as far as one likes
    return made


@pytest.fixture(scope="module", params=["sae", "routesae", "mlp_out"])
def dictionary(request: pytest.FixtureRequest) -> Dictionary:
    if request.param == "sae":
        return random_sae(n_latents=32, transform=InputTransform("standardise"))
    if request.param == "mlp_out":
        return random_sae(n_latents=32, site="mlp_out.1")
    return random_routesae([Site("resid_post", 1), Site("resid_post", 2)], router_scale=2.0)


def setup(lm: LM, dictionary: Dictionary, out: Path) -> CellSetup:
    corpus = Corpus("toy", "test", "0" * 64, [], [])
    return CellSetup(lm, dictionary, corpus, lambda _split: corpus, TokenPolicy(), 0, out, Shared())


@pytest.fixture
def always_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Toy models know nothing: their first answers count as right, so that the rest can be watched."""
    monkeypatch.setattr(_answering, "exact_match", lambda _text, _answers: 1.0)


def test_answers_are_compared_as_squad_does() -> None:
    assert normalised_answer("The  Red, house!") == "red house"
    assert exact_match("the Dog.", ["cat", "dog"]) == 1.0
    assert exact_match("dogs", ["dog"]) == 0.0
    assert token_f1("a red house", ["red car"]) == pytest.approx(0.5)
    assert token_f1("", ["dog"]) == 0.0
    assert token_f1("dog dog", ["dog"]) == pytest.approx(2 / 3)
    assert token_f1("x", []) == 0.0


@pytest.mark.parametrize(
    ("output", "form", "wanted"),
    [
        (" red house\nmore", "few-shot", "red house"),
        ("\n", "few-shot", ""),
        ("So: Result = [[ red ]] or [[ blue ]]", "brackets", "red"),
        ("Result = [= red]", "brackets", "red"),
        ("no brackets", "brackets", ""),
    ],
)
def test_the_answer_is_found_in_an_output(output: str, form: Any, wanted: str) -> None:
    assert answer_text(output, form) == wanted


def test_changes_are_run_once(lm: LM) -> None:
    one = LatentChange.zeroed(torch.tensor([3, 1]))
    same = LatentChange.zeroed(torch.tensor([1, 3]))
    other = LatentChange(torch.tensor([1]), torch.tensor([3]), torch.tensor([0.5]))
    kept, places = distinct([NONE, one, same, other, NONE])
    assert places == [0, 1, 1, 2, 0]
    assert [id(change) for change in kept] == [id(NONE), id(one), id(other)]


@pytest.mark.parametrize("preset", ["paper", "corrected"])
@pytest.mark.parametrize("tokens", ["all", "last", "prompt_last"])
def test_answers_under_changes_are_those_of_plain_generation(
    lm: LM, dictionary: Dictionary, tmp_path: Path, preset: Any, tokens: Any
) -> None:
    config = AnsweringConfig(questions=2, preset=preset, max_new_tokens=4)
    answering = Answering.of(setup(lm, dictionary, tmp_path), config)
    keep = config.choices().keep_error
    answer = next(answering.first_round(answering.questions()))
    zero = LatentChange.zeroed(torch.arange(0, 32, 2))
    put = LatentChange(torch.arange(16), torch.tensor([20]), torch.tensor([3.0]))
    prompt, clean = list(answer.asked.example.prompt), torch.zeros(0)
    rerun = answering.answers_under(answer, [NONE, zero, put, zero], tokens, batch=3)
    for place, change in enumerate([NONE, zero, put, zero]):
        edits = latent_edits(dictionary, [change], tokens=tokens, keep_error=keep)
        plain = lm.generate([prompt], max_new_tokens=4, edits=edits, stop_ids=answering.stops).tokens[0]
        assert rerun.texts[place] == answering.text(plain)
        first = lm.forward(lm.batch([prompt]), edits=edits).logits
        assert first is not None
        assert torch.allclose(rerun.begins[place], first[0, -1].double().log_softmax(dim=-1), atol=1e-4)
        if tokens != "all":  # a plain pass can't tell the answer from the prompt
            continue
        row = lm.forward(lm.batch([[*prompt, *answer.output]]), edits=edits).logits
        assert row is not None
        logs = row[0, len(prompt) - 1 :].double().log_softmax(dim=-1)
        clean = logs if place == 0 else clean
        assert rerun.divergence[place] == pytest.approx(float(divergence(clean, logs[None])[0]), abs=1e-5)
    assert rerun.texts[0] == answer.text
    assert rerun.divergence[0] == 0
    assert rerun.divergence[1] > 1e-3
    assert not torch.allclose(rerun.begins[1], rerun.begins[0], atol=1e-3)


def test_divergence_is_of_the_first_answer_s_tokens() -> None:
    logs = torch.randn(3, 4, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64).log_softmax(
        -1
    )
    found = divergence(logs[0], logs)
    by_hand = torch.nn.functional.kl_div(logs[2, :3], logs[0, :3], log_target=True, reduction="sum") / 3
    assert found[0] == 0
    assert found[2] == pytest.approx(float(by_hand))


@pytest.mark.usefixtures("always_right")
def test_perturbation_measures_every_set_and_resumes(lm: LM, dictionary: Dictionary, tmp_path: Path) -> None:
    config = PerturbationConfig(questions=3, counts=(1, 5, "50%"), headline=5, guesses=2, max_new_tokens=3)
    task, cell = PerturbationTask(config), setup(lm, dictionary, tmp_path)
    items = list(task.measure(cell, []))
    assert [item["kind"] for item in items] == ["guess", "guess", "example", "example", "example"]
    for item in items[2:]:
        assert item["again"] == item["text"]
        found = {(one["selector"], one["side"], one["k"]): one for one in item["conditions"]}
        sides = [(name, "top") for name in ("activation", "gradsae", "random", "matched")]
        sides += [("activation", "bottom"), ("gradsae", "bottom")]
        assert set(found) == {(*side, k) for side in sides for k in (1, 5, "50%")}
        assert found["random", "top", 5]["n"] == 5
        assert found["random", "top", "50%"]["n"] == min(item["active_last"] // 2, item["active"])
        assert all(one["kl"] >= 0 for one in item["conditions"])
    assert list(task.measure(cell, items[:3])) == items[3:]
    assert list(task.measure(cell, items)) == []
    summary = task.summarise(items, [], generator("t"))
    names = {metric.name for metric in summary.metrics}
    assert {"em_gap_activation", "kl_gap_matched", "f1_random_top", "survivors", "guessed"} <= names
    assert summary.counts["questions"] == 3
    by_unit = units(items, [], config.model_dump(mode="json"))
    published = {
        metric.name: float("nan") if metric.value is None else metric.value for metric in summary.metrics
    }
    assert by_unit is not None
    assert {name: published[name] for name in by_unit.values()} == pytest.approx(
        by_unit.values(), nan_ok=True
    )


@pytest.mark.usefixtures("always_right")
def test_zeroing_what_matters_changes_the_answer_s_probability(lm: LM, tmp_path: Path) -> None:
    """With every active latent in both halves of the ranking, GradSAE's first ones do more than its last ones."""
    dictionary = random_sae(n_latents=32, transform=InputTransform("standardise"))
    config = PerturbationConfig(questions=6, counts=(5,), headline=5, guesses=0, max_new_tokens=3)
    items = list(PerturbationTask(config).measure(setup(lm, dictionary, tmp_path), []))
    metrics = {metric.name: metric.value for metric in summarise(items, 5, generator("t"))[0]}
    assert (metrics["kl_gap_equal"] or 0) > 0


@pytest.mark.usefixtures("always_right")
def test_local_steering_swaps_within_contexts_and_resumes(
    lm: LM, dictionary: Dictionary, tmp_path: Path
) -> None:
    config = LocalSteeringConfig(questions=7, counts=(1, "50%"), headline=1, max_new_tokens=3)
    task, cell = LocalSteeringTask(config), setup(lm, dictionary, tmp_path)
    items = list(task.measure(cell, []))
    pairs = [item for item in items if item["kind"] == "example"]
    contexts = [item for item in items if item["kind"] == "context"]
    assert [item["questions"] for item in contexts] == [5, 2]
    asked = {one.id: one for one in asked_questions(lm, "fact-sheets", 7, 0)}
    for pair in pairs:
        assert pair["other"] != pair["id"]
        assert asked[pair["other"]].context == asked[pair["id"]].context
        assert tuple(pair["answers"]) == asked[pair["other"]].answers
        assert pair["answers"] != pair["own_answers"]
        assert pair["conditions"][-1]["selector"] == "everything"
    assert len(pairs) == 7
    rest = list(task.measure(cell, items[:8]))
    assert {item["id"] for item in rest} == {item["id"] for item in items[8:]}
    metrics, curves, counts = summarise_steering(items, 1, generator("t"))
    by_unit = steering_units(items, [], config.model_dump(mode="json"))
    found = {metric.name: float("nan") if metric.value is None else metric.value for metric in metrics}
    assert by_unit is not None
    assert {name: found[name] for name in by_unit.values()} == pytest.approx(by_unit.values(), nan_ok=True)
    assert counts["pairs"] == 7
    assert {"em_everything_top", "shift_gap_activation"} <= {metric.name for metric in metrics}
    assert [len(curve.points) for curve in curves if curve.name == "em_gradsae_top"] == [2]


@pytest.mark.usefixtures("always_right")
def test_swapping_everything_at_the_last_token_gives_the_other_question_s_code(
    lm: LM, tmp_path: Path
) -> None:
    """The last token then has the other's codes, whatever it had itself."""
    dictionary = random_sae(
        n_latents=32, site="resid_post.3"
    )  # the last block: nothing else reaches the logits
    config = LocalSteeringConfig(questions=2, preset="paper", tokens="prompt_last", counts=(1,), headline=1)
    answering = Answering.of(setup(lm, dictionary, tmp_path), config)
    answers = list(answering.first_round(answering.questions()))
    mine, its = (answering.rank(answer) for answer in answers)
    swap = LocalSteeringTask(config)._swaps(mine, its)[-1]["change"]
    swapped = answering.answers_under(answers[0], [NONE, swap], "prompt_last").begins
    others = answering.answers_under(answers[1], [NONE], "prompt_last").begins
    assert torch.allclose(swapped[1], others[0], atol=1e-4)
    assert not torch.allclose(swapped[0], others[0], atol=1e-3)


def test_values_are_influence_mean_or_last(lm: LM, tmp_path: Path) -> None:
    dictionary = random_sae(n_latents=32, transform=InputTransform("standardise"))
    for inject in ("influence", "mean", "last"):
        config = LocalSteeringConfig(questions=1, inject=inject)
        answering = Answering.of(setup(lm, dictionary, tmp_path), config)
        ranked = answering.rank(next(answering.first_round(answering.questions())))
        latents = ranked.top("activation", 4)
        found = LocalSteeringTask(config)._values(ranked, "activation", latents)
        dense = ranked.codes.dense().double()
        column = dense[:, latents]
        place = ranked.codes.n_tokens - len(ranked.spliced.wanted[0])
        wanted = {
            "influence": column.mean(dim=0),
            "mean": column.sum(dim=0) / (column != 0).sum(dim=0),
            "last": column[place],
        }[inject]
        assert torch.allclose(found, wanted, atol=1e-6)


def test_questions_beyond_the_window_are_counted(tmp_path: Path) -> None:
    short = toy_lm("llama", tokenizer=toy_tokenizer())
    dictionary = random_sae(n_latents=32, transform=InputTransform("standardise"))
    for task in (
        PerturbationTask(PerturbationConfig(questions=2, guesses=0)),
        LocalSteeringTask(LocalSteeringConfig(questions=2)),
    ):
        items = list(task.measure(setup(short, dictionary, tmp_path), []))
        assert [item["reason"] for item in items if item["kind"] == "skipped"] == [
            "longer than the model's window"
        ] * 2
        assert (
            task.summarise(items, [], generator("t")).counts["skipped: longer than the model's window"] == 2
        )


def test_wrong_answers_are_counted_and_not_measured(lm: LM, tmp_path: Path) -> None:
    dictionary = random_sae(n_latents=32, transform=InputTransform("standardise"))
    config = PerturbationConfig(
        questions=4, unfiltered=1, guesses=0, counts=(1,), headline=1, max_new_tokens=2
    )
    items = list(PerturbationTask(config).measure(setup(lm, dictionary, tmp_path), []))
    assert [item["kind"] for item in items] == ["example", "wrong", "wrong", "wrong"]
    metrics, _, counts = summarise(items, 1, generator("t"))
    assert (counts["survivors"], counts["unfiltered"]) == (0, 1)
    by_name = {metric.name: metric for metric in metrics}
    assert by_name["em_gap_activation"].value is None
    assert by_name["kl_gap_random_unfiltered"].value is not None
    steering = LocalSteeringTask(LocalSteeringConfig(questions=4, max_new_tokens=2))
    found = list(steering.measure(setup(lm, dictionary, tmp_path), []))
    assert [item["kind"] for item in found] == ["context"]
    assert summarise_steering(found, 10, generator("t"))[0][0].value is None


class Letters:
    """A tokenizer of single characters by code point, brackets and all."""

    def batch_decode(self, rows: list[list[int]]) -> list[str]:
        return ["".join(map(chr, row)) for row in rows]


def answer(prompt: tuple[int, ...], text: str) -> Answer:
    asked = Asked("id", "context", Example(prompt, (1,)), ("ab",))
    return Answer(asked, tuple(map(ord, text)), text, correct=True)


def test_the_bracket_form_looks_at_the_last_opening_bracket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = toy_lm("llama")
    monkeypatch.setattr(lm, "tokenizer", Letters())
    cell = setup(lm, random_sae(n_latents=32), tmp_path)
    code = Answering.of(cell, AnsweringConfig(preset="code"))
    whole = answer((7, 8), "x [[ab]]")
    example = code._example(whole)
    assert example.answer == (ord("["),)
    assert example.prompt == (7, 8, *map(ord, "x ["))
    inside = Answering.of(cell, AnsweringConfig(preset="code", at="answer"))._example(whole)
    assert inside.answer == tuple(map(ord, "ab"))
    with pytest.raises(Skipped, match="no bracket"):
        code._example(answer((7,), "no such thing"))
    with pytest.raises(Skipped, match="are empty"):
        Answering.of(cell, AnsweringConfig(preset="code", at="first"))._example(answer((7,), "[]"))
    with pytest.raises(Skipped, match="answer is empty"):
        code._example(answer((7,), ""))


def test_sets_hold_positive_scores_alone(lm: LM, tmp_path: Path) -> None:
    dictionary = random_sae(n_latents=32, transform=InputTransform("standardise"))
    config = AnsweringConfig(questions=1, selectors=("activation", "gradsae", "attribution"))
    answering = Answering.of(setup(lm, dictionary, tmp_path), config)
    ranked = answering.rank(next(answering.first_round(answering.questions())))
    for name in ("gradsae", "attribution"):
        scores = ranked.scores[name]
        chosen = ranked.top(name, 1000)
        assert len(chosen) == int((scores.scores > 0).sum()) < len(scores.latents)
        assert set(ranked.bottom(name, 3).tolist()) <= set(chosen.tolist())
    others = ranked.matched(ranked.top("gradsae", 4), "seed")
    assert not set(others.tolist()) & set(ranked.top("gradsae", 4).tolist())


def identical(name: str) -> Item:
    conditions = [
        {"selector": s, "side": side, "k": 1, "n": 1, "text": "dog", "kl": 0.5}
        for s, side in (("gradsae", "top"), ("gradsae", "bottom"), ("activation", "top"))
    ]
    return {
        "kind": "example",
        "id": name,
        "context": name,
        "answers": ["dog"],
        "text": "dog",
        "again": "dog",
        "correct": True,
        "unfiltered": False,
        "conditions": conditions,
    }


def test_gaps_are_paired_and_signed() -> None:
    items = [identical(str(n)) for n in range(8)]
    assert {m.name: m.value for m in summarise(items, 1, generator("t"))[0]}["em_gap_activation"] == 0
    for item in items[:6]:
        item["conditions"][0]["text"] = "cat"  # GradSAE's first latent costs the answer
        item["conditions"][0]["kl"] = 2.0
    metrics = {metric.name: metric for metric in summarise(items, 1, generator("t"))[0]}
    assert metrics["em_gap_activation"].value == pytest.approx(0.75)
    assert metrics["em_gap_activation"].headline
    assert metrics["kl_gap_equal"].value == pytest.approx(0.75 * 1.5)
    assert metrics["em_gradsae_top"].value == pytest.approx(0.25)
    assert metrics["em_gap_activation"].n == 8


@pytest.mark.usefixtures("always_right")
@pytest.mark.parametrize("task", [PerturbationTask, LocalSteeringTask])
def test_the_tasks_pass_their_kit(lm: LM, task: Any) -> None:
    options: dict[str, Any] = {"questions": 6, "counts": (1, 4), "headline": 4, "max_new_tokens": 2}
    results = check_task(task(task.Config(**options)), lm=lm)
    assert [result for result in results if not result.passed] == []


def test_a_bracket_is_looked_for_in_the_bracket_form_alone() -> None:
    with pytest.raises(ValidationError, match="needs form = 'brackets'"):
        AnsweringConfig(at="bracket")
    with pytest.raises(ValidationError, match="not among the counts"):
        AnsweringConfig(headline=7)


@pytest.mark.usefixtures("always_right")
def test_a_question_that_fills_an_attention_window_is_counted(tmp_path: Path) -> None:
    lm = toy_lm("gemma2", tokenizer=toy_tokenizer())
    lm.config.max_position_embeddings = 4096
    for task in (
        PerturbationTask(PerturbationConfig(questions=1, guesses=0, max_new_tokens=2)),
        LocalSteeringTask(LocalSteeringConfig(questions=2, max_new_tokens=2)),
    ):
        items = list(task.measure(setup(lm, random_sae(n_latents=32), tmp_path), []))
        reasons = {item["reason"] for item in items if item["kind"] == "skipped"}
        assert reasons == {"fills the model's attention window"}


@pytest.mark.parametrize("name", ["paper", "code", "corrected"])
def test_presets_are_those_of_the_selector(name: Any) -> None:
    choices, selector = AnsweringConfig(preset=name).choices(), GradSae.preset(name)
    assert (choices.relu, choices.keep_error) == (selector.relu, selector.keep_error)


def test_the_bracket_form_has_room_and_no_first_token(lm: LM, tmp_path: Path) -> None:
    assert AnsweringConfig(preset="code").most_tokens == 50
    assert AnsweringConfig().most_tokens == 10
    assert _beginning(Rerun([], torch.zeros(1), torch.zeros(1, 4)), 0, 0, None) == {
        "first": None,
        "shift": None,
    }


def test_another_file_of_one_name_is_another_measurement(tmp_path: Path) -> None:
    path = tmp_path / "squad.json"
    path.write_text("{}", encoding="utf-8")
    first = AnsweringConfig(data=str(path))
    path.write_text("{ }", encoding="utf-8")
    second = AnsweringConfig(data=str(path))
    stored = first.model_dump(mode="json")
    assert stored["data_sha256"] != second.model_dump(mode="json")["data_sha256"]
    assert "data_sha256" not in AnsweringConfig().model_dump(mode="json")
    with pytest.raises(ValidationError, match="it was changed"):
        AnsweringConfig.model_validate(stored)
    path.unlink()
    assert AnsweringConfig.model_validate(stored).data_sha256 == first.data_sha256
