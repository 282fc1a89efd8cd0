"""Items of the embedded tasks, made from labelled texts and fact sheets. No torch.

| task | set, and what is known of its terms |
|---|---|
| `lb_openbookqa` | OpenBookQA, elementary science, four choices (arXiv:1809.02789; unknown) |
| `lb_sciq` | SciQ, science: its right answer among those of three other questions (arXiv:1707.06209; CC BY-NC 3.0) |
| `lb_piqa` | PIQA, everyday physics, two choices (arXiv:1911.11641; unknown) |
| `lb_social_iqa` | Social IQa, social common sense, three choices (arXiv:1904.09728; unknown) |
| `lb_movie_sentiment` | sentences of film reviews, positive or negative (Rotten Tomatoes; unknown) |
| `lb_news_topic` | AG News: world, sports, business, technology (unknown) |
| `lb_fact_sheets` | this project's made-up fact sheets: a question is answered in a word (Apache-2.0) |
| `lb_text` | the token stream's texts, for their likelihood (various) |

The probing sets hold samples of these data sets, 2 % of which are in the `capability` split: scores are no substitute
for the published ones. Items are written to the cache alone; of them, results hold hashes.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from latentbench.data import fact_sheets
from latentbench.identity import sha256_text

if TYPE_CHECKING:
    from latentbench.data import Corpus, Document

__all__ = ["EMBEDDED", "Row", "embedded_rows", "shown_rows"]

Row = dict[str, Any]
"""One item: `document` (hash of the text that it was made from) and what the task's template names."""

_CHARACTERS = 1000
"""Longest text shown: about 220 tokens of English."""
_SHEETS = 200
_SHEETS_SEED = 20260
_SHOWN_SHEETS = 16
_SHOWN_TEXTS = 16
_LETTER = re.compile(r"\s*\(([A-D])\)\s*")
_PIQA = re.compile(r"(?s)\A(?P<question>.+?)\n+A\.(?P<a>.+)\nB\.(?P<b>.+)\Z")
_SOCIAL = re.compile(
    r"(?s)Context: (?P<context>.+?)\| Question: (?P<question>.+?)\| Option A: (?P<a>.+?)\| Option B: (?P<b>.+?)"
    r"\| Option C: (?P<c>.+?)\. The correct answer is\s*\Z"
)
_SCIQ = re.compile(r"(?s)\AQ: (?P<question>.+)\nA: (?P<answer>.+)\Z")
_TAG = re.compile(r"<[^<>]*>")
# 97_news_class gives three of AG News's classes other names than their texts have (see the steering task's concepts).
_TOPICS = {"Politics": "World", "Sport": "Sports", "Technology": "Business", "Entertainment": "Technology"}


def _openbookqa(documents: Sequence[Document]) -> Iterator[Row]:
    for document in documents:
        question, *rest = _LETTER.split(document.text)
        letters, choices = rest[::2], [choice.strip() for choice in rest[1::2]]
        if letters == list("ABCD") and all(choices):
            answer = "ABCD".index(document.labels["55_open_qa"])
            yield _choice(document, question.strip(), choices, answer)


def _piqa(documents: Sequence[Document]) -> Iterator[Row]:
    for document in documents:
        found = _PIQA.match(document.text)
        if found:
            choices = [found["a"].strip(), found["b"].strip()]
            yield _choice(document, found["question"].strip(), choices, int(document.labels["44_phys_tf"]))


def _social_iqa(documents: Sequence[Document]) -> Iterator[Row]:
    for document in documents:
        found = _SOCIAL.search(document.text)
        if found:
            choices = [found[letter].strip() for letter in "abc"]
            answer = int(document.labels["86_social_iqa"]) - 1
            yield _choice(
                document, f"{found['context'].strip()} {found['question'].strip()}", choices, answer
            )


def _sciq(documents: Sequence[Document]) -> Iterator[Row]:
    """The set holds a question with one answer, right or wrong: right ones, among answers to other questions."""
    parsed = [(document, found) for document in documents if (found := _SCIQ.match(document.text))]
    answers = sorted({found["answer"].strip().lower() for _, found in parsed})
    for document, found in parsed:
        if document.labels["36_sciq_tf"] != "1":
            continue
        right = found["answer"].strip().lower()
        own = {
            other["answer"].strip().lower() for _, other in parsed if other["question"] == found["question"]
        }
        others = [answer for answer in answers if answer not in own]
        others.sort(key=lambda answer: sha256_text(f"{document.sha256}:{answer}"))
        if len(others) >= 3:
            place = int(document.sha256[:8], 16) % 4
            choices = [*others[:place], right, *others[place:3]]
            yield _choice(document, found["question"].strip(), choices, place)


def _movie_sentiment(documents: Sequence[Document]) -> Iterator[Row]:
    for document in documents:
        row = _choice(
            document, document.text.strip(), ["negative", "positive"], int(document.labels["113_movie_sent"])
        )
        yield {**row, "prompts": [f"This is a {name} review of a film:" for name in row["choices"]]}


def _news_topic(documents: Sequence[Document]) -> Iterator[Row]:
    names = list(_TOPICS.values())
    for document in documents:
        text = " ".join(_TAG.sub(" ", html.unescape(document.text)).split())
        row = _choice(document, text, names, names.index(_TOPICS[document.labels["97_news_class"]]))
        yield {**row, "prompts": [f"{name} news:" for name in names]}


def _choice(document: Document, question: str, choices: Sequence[str], answer: int) -> Row:
    return {
        "document": document.sha256,
        "question": question[:_CHARACTERS],
        "choices": list(choices),
        "answer": answer,
    }


_LABELLED: Mapping[str, tuple[str, Callable[[Sequence[Document]], Iterator[Row]]]] = {
    "lb_openbookqa": ("55_open_qa", _openbookqa),
    "lb_sciq": ("36_sciq_tf", _sciq),
    "lb_piqa": ("44_phys_tf", _piqa),
    "lb_social_iqa": ("86_social_iqa", _social_iqa),
    "lb_movie_sentiment": ("113_movie_sent", _movie_sentiment),
    "lb_news_topic": ("97_news_class", _news_topic),
}

EMBEDDED: Mapping[str, int] = {
    "lb_openbookqa": 80,
    "lb_sciq": 80,
    "lb_piqa": 80,
    "lb_social_iqa": 110,
    "lb_movie_sentiment": 50,
    "lb_news_topic": 90,
    "lb_fact_sheets": 150,
    "lb_text": 200,
}
"""The embedded tasks with the tokens that an item puts through the model, roughly; for cost estimates only."""


def embedded_rows(name: str, corpus: Corpus) -> list[Row]:
    """Every item of an embedded task, in hash order; none if the corpus has no such labels.

    Args:
        name: a key of `EMBEDDED`.
        corpus: the `capability` split.
    """
    if name == "lb_fact_sheets":
        return _sheets(_SHEETS, _SHEETS_SEED, attributes=3)
    if name == "lb_text":
        return [
            {"document": document.sha256, "text": document.text[:_CHARACTERS]}
            for document in corpus.documents
        ]
    label, make = _LABELLED[name]
    return list(make([document for document in corpus.pool if label in document.labels]))


def shown_rows(name: str, corpus: Corpus) -> list[Row]:
    """Items to show worked out in front of others, with the answers in turn as far as there are any.

    Args:
        name: a key of `EMBEDDED`.
        corpus: a split that no item is taken from.
    """
    if name == "lb_fact_sheets":
        return _sheets(_SHOWN_SHEETS, _SHEETS_SEED + 1, attributes=1)
    rows = embedded_rows(name, corpus)
    if name == "lb_text":
        return rows[:_SHOWN_TEXTS]
    by_answer: dict[int, list[Row]] = {}
    for row in rows:
        by_answer.setdefault(row["answer"], []).append(row)
    turns = zip(*(by_answer[answer] for answer in sorted(by_answer)), strict=False)
    return [row for turn in turns for row in turn][:_SHOWN_TEXTS]


def _sheets(count: int, seed: int, attributes: int) -> list[Row]:
    return [
        {
            "document": sheet.id,
            "context": sheet.context,
            "question": sheet.questions[0].text,
            "answer": sheet.questions[0].answers[0],
        }
        for sheet in fact_sheets(count, seed=seed, questions=1, attributes=attributes)
    ]
