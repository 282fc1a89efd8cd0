"""Questions on contexts as prompts, and what counts as the answer, for the tasks about influence."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import SerializerFunctionWrapHandler, model_serializer, model_validator

from latentbench.data import Question, Sheet, fact_sheets, load_squad, squad_from_hub
from latentbench.errors import UserError
from latentbench.identity import sha256_file, sha256_text
from latentbench.lm import LM
from latentbench.run import TaskConfig
from latentbench.selectors import Example

__all__ = [
    "HUB_SQUAD",
    "Asked",
    "Form",
    "QuestionsConfig",
    "answer_text",
    "asked_questions",
    "prompt_text",
    "stop_ids",
]

Form = Literal["few-shot", "brackets"]
"""How questions are asked.

"few-shot" shows two answered questions on a short context of their own first, so that small models answer with the bare
word: strict exact match 45 % on 60 questions with SmolLM2-135M, and 47 % with three questions on six facts, which
makes prompts half as long again. "brackets" asks for the form Result = [[ label ]], as GradSAE does (arXiv
2505.08080, appendix), which takes a larger model.
"""
HUB_SQUAD = "rajpurkar/squad"
"""The data set of GradSAE on the hub."""
_SHOTS = 2
_SHOWN_SEED = 999
_IN_BRACKETS = re.compile(r"\[+([^\[\]]*)\]")


class QuestionsConfig(TaskConfig):
    """Where questions come from."""

    data: str = "fact-sheets"
    """"fact-sheets", "rajpurkar/squad" (as the hub has it on the day), or the path of a file in SQuAD's format."""
    data_sha256: str | None = None
    """Of that file, filled in; None without one. Another file under the same name is another measurement."""

    @model_validator(mode="before")
    @classmethod
    def _hashed(cls, given: Any) -> Any:
        if not isinstance(given, dict) or given.get("data", "fact-sheets") in ("fact-sheets", HUB_SQUAD):
            return given
        path = Path(str(given["data"]))
        if not path.is_file():
            return given  # said where it is read: a stored configuration must load where its file is not
        found, wanted = sha256_file(path), given.get("data_sha256")
        if wanted not in (None, found):
            raise ValueError(f"{path} has the sha256 {found}, and data_sha256 says {wanted}: it was changed")
        return {**given, "data_sha256": found}

    @model_serializer(mode="wrap")
    def _without_an_empty_hash(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        made: dict[str, Any] = handler(self)
        if self.data_sha256 is None:
            del made["data_sha256"]
        return made


class Asked(NamedTuple):
    """A question as a model is asked it."""

    id: str
    """Hash of context and question."""
    context: str
    """Hash of the context; questions of one context are no independent examples."""
    example: Example
    """Token ids of prompt and first accepted answer."""
    answers: tuple[str, ...]
    """All accepted answers."""


def asked_questions(
    lm: LM, source: str, count: int, seed: int, *, form: Form = "few-shot", told: bool = True
) -> list[Asked]:
    """The first `count` questions of a source, context by context.

    Args:
        lm: the model, for its tokenizer.
        source: "fact-sheets" (made from the seed), "rajpurkar/squad" (from the hub) or a file in SQuAD's format (whose
            contexts the seed shuffles).
        count: questions.
        seed: see above.
        form: how they are asked.
        told: False leaves the contexts out, to see how often a guess is right.

    Raises:
        UserError: the file can't be read, holds fewer questions, or the model has no tokenizer.
    """
    if source == "fact-sheets":
        shown = fact_sheets(1, seed=_SHOWN_SEED, questions=_SHOTS, attributes=1)[0]
        sheets = fact_sheets(count, seed=seed)
    else:
        several = load_squad(squad_from_hub(HUB_SQUAD) if source == HUB_SQUAD else Path(source))
        random.Random(f"questions/{seed}").shuffle(several)
        shown, sheets = several[0], several[1:]
    asked = [
        _asked(lm, shown, sheet, question, form, told=told)
        for sheet in sheets[: max(1, count)]
        for question in sheet.questions
    ]
    if len(asked) < count:
        raise UserError(
            f"{source} holds {len(asked)} questions beside those shown first, and {count} were asked for"
        )
    return asked[:count]


def prompt_text(
    shown: Sheet, sheet: Sheet, question: Question, form: Form = "few-shot", *, told: bool = True
) -> str:
    """The prompt, up to where the answer begins; see `Form`."""
    if form == "brackets":
        context = f"Context: {sheet.context}\n" if told else ""
        return (
            f"{context}Question: {question.text}\nAnswer the question{' from the context' if told else ''}, and give "
            "the final answer in the form Result = [[ label ]].\n"
        )
    first = [f"Context: {shown.context}"] if told else []
    first += [f"Question: {one.text}\nAnswer: {one.answers[0]}\n" for one in shown.questions[:_SHOTS]]
    own = [f"Context: {sheet.context}"] if told else []
    return "\n".join([*first, *own, f"Question: {question.text}", "Answer:"])


def stop_ids(lm: LM, form: Form) -> frozenset[int]:
    """Tokens that end an answer: the model's own, and in the few-shot form any with a line break."""
    if form == "brackets":
        return lm.eos_ids
    texts = lm.tokenizer.batch_decode([[token] for token in range(lm.vocab_size)])
    return lm.eos_ids | {token for token, text in enumerate(texts) if "\n" in text}


def answer_text(output: str, form: Form) -> str:
    """The answer within an output: its first line, or what stands in the first brackets ("" without any)."""
    if form == "few-shot":
        return output.strip().splitlines()[0].strip() if output.strip() else ""
    found = _IN_BRACKETS.search(output)
    return found.group(1).replace("=", "").strip() if found else ""


def _asked(lm: LM, shown: Sheet, sheet: Sheet, question: Question, form: Form, *, told: bool) -> Asked:
    if lm.tokenizer is None:
        raise UserError(f"{lm.name} was loaded without a tokenizer: questions can't be asked of it")
    text = prompt_text(shown, sheet, question, form, told=told)
    answer = question.answers[0]
    behind = f" {answer}" if form == "few-shot" else f"Result = [[ {answer} ]]"
    prompt = lm.tokenize([text], max_tokens=10**6)[0]
    whole = lm.tokenize([text + behind], max_tokens=10**6)[0]
    # Where the tokenizer joins the end of the prompt with the answer, the joined token belongs to the answer.
    common = _common(prompt, whole)
    return Asked(
        id=sha256_text(f"{sheet.context}\n{question.text}")[:16],
        context=sheet.id[:16],
        example=Example(tuple(whole[:common]), tuple(whole[common:])),
        answers=question.answers,
    )


def _common(prompt: Sequence[int], whole: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b), len(prompt))
