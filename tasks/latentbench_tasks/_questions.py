"""Questions on contexts as few-shot prompts, for the tasks about influence."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Literal, NamedTuple

from latentbench.data import Question, Sheet, fact_sheets, load_squad
from latentbench.errors import UserError
from latentbench.identity import sha256_text
from latentbench.lm import LM
from latentbench.selectors import Example

__all__ = ["Asked", "asked_questions", "prompt_text"]

_SHOTS = 3
"""Questions that are shown with their answers first, on a context of their own: small models then answer with the bare
word (strict exact match 53 % on 60 questions with SmolLM2-135M, 10 % without the context)."""
_SHOWN_SEED = 999


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
    lm: LM, source: Literal["fact-sheets"] | Path | str, count: int, seed: int
) -> list[Asked]:
    """The first `count` questions of a source, context by context.

    Args:
        lm: the model, for its tokenizer.
        source: "fact-sheets" (made from the seed) or a SQuAD file (whose contexts the seed shuffles).
        count: questions.
        seed: see above.

    Raises:
        UserError: the file can't be read, holds fewer questions, or the model has no tokenizer.
    """
    if source == "fact-sheets":
        shown, sheets = fact_sheets(1, seed=_SHOWN_SEED)[0], fact_sheets(count, seed=seed)
    else:
        several = load_squad(Path(source))
        random.Random(f"questions/{seed}").shuffle(several)
        shown, sheets = several[0], several[1:]
    asked = [
        _asked(lm, shown, sheet, question)
        for sheet in sheets[: max(1, count)]
        for question in sheet.questions
    ]
    if len(asked) < count:
        raise UserError(
            f"{source} holds {len(asked)} questions beside those shown first, and {count} were asked for"
        )
    return asked[:count]


def prompt_text(shown: Sheet, sheet: Sheet, question: Question) -> str:
    """A context with answered questions, then the context in question, up to where the answer begins."""
    first = [f"Context: {shown.context}"]
    first += [f"Question: {one.text}\nAnswer: {one.answers[0]}\n" for one in shown.questions[:_SHOTS]]
    return "\n".join([*first, f"Context: {sheet.context}", f"Question: {question.text}", "Answer:"])


def _asked(lm: LM, shown: Sheet, sheet: Sheet, question: Question) -> Asked:
    if lm.tokenizer is None:
        raise UserError(f"{lm.name} was loaded without a tokenizer: questions can't be asked of it")
    text = prompt_text(shown, sheet, question)
    prompt = lm.tokenize([text], max_tokens=10**6)[0]
    whole = lm.tokenize([f"{text} {question.answers[0]}"], max_tokens=10**6)[0]
    # Where the tokenizer joins the end of the prompt with the answer, the joined token belongs to the answer.
    common = next((i for i, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b), len(prompt))
    return Asked(
        id=sha256_text(f"{sheet.context}\n{question.text}")[:16],
        context=sheet.id[:16],
        example=Example(tuple(whole[:common]), tuple(whole[common:])),
        answers=question.answers,
    )
