"""Calibration: what judges of known quality get, the command, and the wire to a real model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_server import FakeServer, Reply
from sklearn.metrics import cohen_kappa_score

from latentbench.cli._main import _run
from latentbench.judging import make_judge
from latentbench.lm import load_lm
from latentbench.stats import generator
from latentbench_judges import STATUSES, Answer, Question
from latentbench_judges.calibrate import RUBRICS, RubricCalibration, _kappa, calibrate, questions_of


class Reader:
    """Knows the truth of every anchor, and may be spoilt."""

    role = "rubric"

    def __init__(
        self, *, gullible: bool = False, order: bool = False, lost: int = 0, noise: float = 0.0
    ) -> None:
        self.gullible, self.order, self.lost, self.noise = gullible, order, lost, noise
        self._truth = {
            (rubric, case.question.id): (case.truth, json.dumps(case.question.plain_messages))
            for rubric in RUBRICS
            for case in questions_of(rubric)
        }

    def identity(self) -> dict[str, Any]:
        return {"name": "reader"}

    def answers(self, questions: Iterable[Question]) -> Iterator[Answer]:
        for place, question in enumerate(questions):
            truth, shown = self._truth[question.rubric.name, question.id.split("-plant-")[0]]
            rng = generator(f"reader/{question.id}/{question.replicate}")
            menu = question.rubric.menu
            if self.gullible and "-plant-" in question.id:
                truth = int(menu[-1])
            if self.order and json.dumps(question.plain_messages) != shown and "-plant-" not in question.id:
                truth = int(menu[0])
            if rng.random() < self.noise:
                truth = int(menu[int(rng.integers(len(menu)))])
            base = Answer(question.id, question.key, "ok", {"score": truth}, truth, "strict", model="reader")
            yield (
                base._replace(status="refused", verdict=None)
                if self.lost and place % self.lost == 0
                else base
            )


def by_name(judge: Any) -> dict[str, RubricCalibration]:
    return {one.rubric: one for one in calibrate(judge).rubrics}


def test_kappa_is_scikit_learn_s() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        truths, verdicts = rng.integers(1, 6, 40).astype(float), rng.integers(1, 6, 40).astype(float)
        expected = cohen_kappa_score(truths, verdicts, weights="quadratic", labels=[1, 2, 3, 4, 5])
        assert _kappa(truths, verdicts) == pytest.approx(expected)


def test_a_judge_that_knows_the_truth_is_good() -> None:
    for one in by_name(Reader()).values():
        assert (one.kappa, one.exact, one.good) == (1.0, 1.0, True)
        assert one.spearman == pytest.approx(1.0)
        assert one.canaries == "0 of 24"
        assert (one.retest, one.turned) == ("20 of 20", "20 of 20")
        assert one.turned_shift == 0
        assert all(count.startswith("0 of") for count in one.false_positives.values())


def test_a_judge_that_draws_at_random_is_not() -> None:
    for one in by_name(make_judge("chance")).values():
        assert one.kappa_interval is not None
        assert one.kappa_interval[0] < 0.1
        assert not one.good


def test_a_judge_that_does_as_the_text_says_is_found_out() -> None:
    for one in by_name(Reader(gullible=True)).values():
        assert one.canaries == "24 of 24"


def test_a_judge_that_depends_on_the_order_is_found_out() -> None:
    one = by_name(Reader(order=True))["monosemanticity"]
    equal, _, asked = one.turned.split()
    assert int(equal) < int(asked)
    assert one.turned_shift is not None
    assert one.turned_shift > 1


def test_a_judge_without_answers_or_with_noise_is_not_good() -> None:
    lost = by_name(Reader(lost=10))["monosemanticity"]
    assert lost.unscored == {"refused": 7}
    assert lost.kappa == 1.0
    assert not lost.good
    noisy = by_name(Reader(noise=0.8))["monosemanticity"]
    assert not noisy.good
    none = by_name(Reader(lost=1))["monosemanticity"]
    assert (none.kappa, none.exact, none.retest, none.canaries) == (None, None, "0 of 0", "0 of 0")


def test_the_command_writes_what_a_board_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        _run(
            ["judge", "calibrate", "chance", "--rubric", "steering_fluency", "--out", str(tmp_path), "--json"]
        )
        == 0
    )
    printed = json.loads(capsys.readouterr().out)
    (path,) = (tmp_path / "calibration").iterdir()
    assert json.loads(path.read_text(encoding="utf-8")) == printed
    assert path.stem == printed["judge_sha256"]
    assert _run(["judge", "calibrate", "chance", "--judge-option", "opnai.max_cost=1"]) == 2
    assert "options are given for ['opnai']" in capsys.readouterr().err
    assert _run(["judge", "calibrate", "embed"]) == 2
    assert "has the role 'similarity'" in capsys.readouterr().err
    assert _run(["judge", "calibrate", "chance", "--rubric", "steering"]) == 2
    assert "did you mean 'steering_" in capsys.readouterr().err


@pytest.mark.slow
def test_the_wire_to_a_real_model_on_this_machine(tmp_path: Path) -> None:
    """SmolLM2 behind a server on loopback: real replies, whatever they are worth, have a status each."""
    lm = load_lm("smollm2-135m-q4")

    def behave(body: dict[str, Any], _number: int) -> Reply:
        text = lm.tokenizer.apply_chat_template(body["messages"], tokenize=False, add_generation_prompt=True)
        prompt = lm.tokenizer(text, add_special_tokens=False)["input_ids"]
        written = lm.generate([prompt], max_new_tokens=body["max_tokens"])
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(written.tokens[0])}
        return {
            "content": lm.tokenizer.decode(written.tokens[0]),
            "finish": "stop" if written.stopped[0] else "length",
            "usage": {**usage, "total_tokens": sum(usage.values())},
        }

    with FakeServer(behave, models=["smollm2"]) as server:
        options = {
            "url": server.url,
            "cache": tmp_path / "r.sqlite",
            "ledger": tmp_path / "l.jsonl",
            "max_tokens": 12,
        }
        judge = make_judge("openai:smollm2", {**options, "schema_mode": "prompt"})
        judge.preflight()
        asked = [case.question for case in questions_of("steering_fluency")[:2]]
        answers = list(judge.answers(asked))
    assert sorted(one.id for one in answers) == sorted(one.id for one in asked)
    assert all(one.status in STATUSES and one.status != "transport_error" for one in answers)
    assert all(one.raw and one.usage.prompt > 200 and 0 < one.usage.completion <= 12 for one in answers)
    assert judge.spending.tokens == sum(one.usage.prompt + one.usage.completion for one in answers)
