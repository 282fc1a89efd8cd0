"""The model as lm-eval asks it, against lm-eval's own Hugging Face model on the same weights."""

from __future__ import annotations

import math
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from latentbench.errors import UserError
from latentbench.lm import LM, AddVector
from latentbench.testing import toy_lm, toy_tokenizer
from latentbench_tasks.capability._edits import no_edits
from latentbench_tasks.capability._model import EditedLM, EditsFor

torch.set_num_threads(1)  # toy tensors: threads would only wait for each other
GREEDY = {"until": ["."], "do_sample": False, "max_gen_toks": 12}
PAIRS = [
    ("the dog walks", " home"),
    ("the dog walks", " away again"),
    ("the dog walks", "s"),  # one token behind one context, three times: they share a row
    ("the dog walks", "t"),
    ("the dog walks", "."),
    ("a cat ", "sings"),  # the space belongs to what follows
    ("", "seven moons"),
    ("x" * 70, "long behind the window of 64"),
]
TEXTS = ["red, blue and green.", "a", "the sun and the moon " * 8]
PROMPTS = ["the dog", "a longer prompt, of seven words or so", "moon", "z" * 80]


@cache
def model() -> LM:
    return toy_lm(tokenizer=toy_tokenizer())


@cache
def theirs() -> Any:
    return HFLM(pretrained=model().model, tokenizer=model().tokenizer, batch_size=3)


def ours(edits: EditsFor = no_edits, batch_rows: int = 3, **more: Any) -> EditedLM:
    return EditedLM(model(), edits, bos="tokenizer", batch_rows=batch_rows, **more)


def requests(kind: Any, arguments: list[Any]) -> list[Instance]:
    return [Instance(kind, {}, given, place) for place, given in enumerate(arguments)]


def test_continuations_are_scored_as_lm_eval_scores_them() -> None:
    asked = requests("loglikelihood", PAIRS)
    expected = theirs().loglikelihood(asked, disable_tqdm=True)
    for batch_rows in (1, 3, 20):
        found = ours(batch_rows=batch_rows).loglikelihood(asked)
        assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
        for one, other in zip(found, expected, strict=True):
            assert one[0] == pytest.approx(other[0], abs=1e-3)
            assert one[0] < 0


def test_a_continuation_that_greedy_decoding_gives_is_said_to_be_greedy() -> None:
    (text,) = ours().generate_until(requests("generate_until", [("the dog", {**GREEDY, "max_gen_toks": 3})]))
    assert text
    right, wrong = ours().loglikelihood(requests("loglikelihood", [("the dog", text), ("the dog", "qqqq")]))
    assert right[1]
    assert not wrong[1]
    assert right[0] > wrong[0]


def test_texts_are_scored_as_lm_eval_scores_them() -> None:
    asked = requests("loglikelihood_rolling", [(text,) for text in TEXTS])
    expected = theirs().loglikelihood_rolling(asked, disable_tqdm=True)
    assert len(TEXTS[-1]) > 2 * model().window  # type: ignore[operator]
    for batch_rows in (1, 4):
        assert ours(batch_rows=batch_rows).loglikelihood_rolling(asked) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("until", [["."], ["e", "o"], [], ["zq"]])
def test_texts_are_continued_as_lm_eval_continues_them(until: list[str]) -> None:
    asked = requests("generate_until", [(prompt, {**GREEDY, "until": until}) for prompt in PROMPTS])
    expected = theirs().generate_until(asked, disable_tqdm=True)
    assert any(expected)
    for batch_rows in (1, 3):
        assert ours(batch_rows=batch_rows).generate_until(asked) == expected


def test_sampling_follows_the_seed_and_not_the_batch() -> None:
    hot = {"until": [], "do_sample": True, "temperature": 1.5, "max_gen_toks": 8}
    asked = requests("generate_until", [(prompt, hot) for prompt in PROMPTS])
    first = ours().generate_until(asked)
    assert ours(batch_rows=1).generate_until(asked) == first
    assert ours(seed=1).generate_until(asked) != first


def test_edits_act_on_every_kind_of_request() -> None:
    vector = 20.0 * torch.randn(model().d_model, generator=torch.Generator().manual_seed(3))

    def edits(rows: int) -> list[Any]:
        return [AddVector(model().site("resid_post.1"), vector.expand(rows, -1), skip_first=0)]

    edited = ours(edits)
    pairs = requests("loglikelihood", PAIRS)
    texts = requests("loglikelihood_rolling", [(text,) for text in TEXTS])
    prompts = requests("generate_until", [(prompt, GREEDY) for prompt in PROMPTS])
    for one, other in zip(edited.loglikelihood(pairs), ours().loglikelihood(pairs), strict=True):
        assert not math.isclose(one[0], other[0], abs_tol=1e-3)
    for rolled, plain in zip(
        edited.loglikelihood_rolling(texts), ours().loglikelihood_rolling(texts), strict=True
    ):
        assert not math.isclose(rolled, plain, abs_tol=1e-3)
    assert edited.generate_until(prompts) != ours().generate_until(prompts)


def test_what_cannot_be_answered_is_refused_in_words() -> None:
    with pytest.raises(UserError, match="without a tokenizer"):
        EditedLM(toy_lm(), no_edits, bos="tokenizer", batch_rows=1)
    with pytest.raises(UserError, match="nothing is left for the prompt"):
        ours().generate_until(requests("generate_until", [("a", {**GREEDY, "max_gen_toks": 64})]))
    with pytest.raises(UserError, match="top_p"):
        ours().generate_until(requests("generate_until", [("a", {**GREEDY, "top_p": 0.9})]))
    with pytest.raises(UserError, match="longer than the window"):
        ours().loglikelihood([SimpleNamespace(args=("a", "b" * 65))])


def test_a_context_that_its_continuation_melts_into_leaves_something_to_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both are one token together, and nothing would be left in front of it."""
    lm = ours()
    monkeypatch.setattr(lm, "tok_encode", lambda *_, **__: [7])
    ((value, _),) = lm.loglikelihood(requests("loglikelihood", [("a", "b")]))
    logits = model().forward(model().batch([[lm.prefix_token_id]])).logits
    assert logits is not None
    assert value == pytest.approx(float(logits[0, -1].log_softmax(dim=-1)[7]), rel=1e-5)
