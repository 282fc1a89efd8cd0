"""The feature count's watcher and browsable contexts on a toy model, against the dictionary asked token by token."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from latentbench.adapters import Dictionary, InputTransform
from latentbench.data import Corpus, Document
from latentbench.identity import sha256_text
from latentbench.lm import LM
from latentbench.run import CellSetup, Item, Shared, TokenPolicy
from latentbench.run._pass import Fed, run_pass
from latentbench.testing import random_routesae, random_sae, toy_lm, toy_tokenizer
from latentbench_tasks.feature_count.metrics import Events, kept_latents, read_events, unpack_latents
from latentbench_tasks.feature_count.task import FeatureCountConfig, FeatureCountTask

THRESHOLDS = (4.0, 15.0)
torch.set_num_threads(1)  # toy tensors: threads would only wait for each other


@cache
def lm() -> LM:
    return toy_lm(tokenizer=toy_tokenizer(), dtype=torch.float64)


@cache
def corpus(split: str) -> Corpus:
    rng = np.random.default_rng(len(split))
    words = ["the", "cat.", "a", "dog!", "sun", "sees", "red", "blue"]
    texts = [" ".join(rng.choice(words, size=int(n))) for n in rng.integers(1, 12, size=25)]
    documents = [
        Document(sha256=sha256_text(text), text=text, source="toy", excerpts=place % 2 == 0)
        for place, text in enumerate(dict.fromkeys(texts))
    ]
    return Corpus(name="toy", sha256="0" * 64, split=split, documents=documents, pool=documents)


def setup(dictionary: Dictionary, batch_rows: int = 4) -> CellSetup:
    policy = TokenPolicy(context=24, batch_rows=batch_rows)
    return CellSetup(lm(), dictionary, corpus("test"), corpus, policy, 0, Path("unused"), Shared())


def task(**options: int) -> FeatureCountTask:
    return FeatureCountTask(
        FeatureCountConfig(budget_tokens=500, thresholds=THRESHOLDS, headline=4.0, **options)  # type: ignore[arg-type]
    )


def watched(dictionary: Dictionary, batch_rows: int = 4) -> list[Item]:
    cell = setup(dictionary, batch_rows)
    items: list[Item] = []
    errors: list[Exception] = []
    watcher = task().watcher(cell)
    fed = Fed(dictionary, watcher, cell.rows(500), set(), items.extend, errors.append)
    run_pass(cell.lm, cell.tokens, [fed])
    assert not errors
    return items


@cache
def single() -> Dictionary:
    return random_sae(dtype=torch.float64, transform=InputTransform("standardise"))


@cache
def routed() -> Dictionary:
    return random_routesae(["resid_post.0", "resid_post.1", "resid_post.2"], dtype=torch.float64)


def listed(events: Events, above: float) -> list[tuple[int, int, int, float]]:
    columns = zip(events.document, events.latent, events.token_class, events.strength, strict=True)
    return sorted(
        (int(document), int(latent), int(kind), float(strength))
        for document, latent, kind, strength in columns
        if strength > above
    )


@pytest.mark.parametrize("make", [single, routed])
def test_events_are_those_of_the_dictionary_asked_row_by_row(make: object) -> None:
    dictionary = single() if make is single else routed()
    events = read_events(watched(dictionary))
    cell = setup(dictionary)
    rows = cell.rows(500)
    names = sorted({row.document for row in rows})
    expected = []
    for row in rows:
        acts = cell.lm.forward(cell.lm.batch([row.ids]), capture=dictionary.reads, logits=False).acts
        flat = {site: value[0, 1:] for site, value in acts.items()}
        codes = dictionary.encode(flat)
        strengths = dictionary.relative_values(flat, codes) * math.sqrt(2048)
        for token, latent, strength in zip(codes.rows(), codes.latents, strengths, strict=True):
            if strength > THRESHOLDS[0]:
                # Each token of the toy tokenizer is its own class: it has lower-case letters only.
                expected.append(
                    (names.index(row.document), int(latent), row.ids[int(token) + 1], float(strength))
                )
    found = listed(events, THRESHOLDS[0])
    assert len(found) == len(expected) > 50
    for one, other in zip(found, sorted(expected), strict=True):
        assert one[:3] == other[:3]
        assert one[3] == pytest.approx(other[3], rel=1e-3)
    assert int(events.sizes.sum()) == sum(len(row.ids) - 1 for row in rows)


@pytest.mark.parametrize("make", [single, routed])
def test_a_row_tells_every_latent_that_is_active_on_it_however_weakly(make: object) -> None:
    dictionary = single() if make is single else routed()
    cell = setup(dictionary)
    items = {item["id"]: item for item in watched(dictionary)}
    weak = 0
    for row in cell.rows(500):
        acts = cell.lm.forward(cell.lm.batch([row.ids]), capture=dictionary.reads, logits=False).acts
        flat = {site: value[0, 1:] for site, value in acts.items()}
        codes = dictionary.encode(flat)
        expected = codes.latents[dictionary.relative_values(flat, codes) > 0].unique().tolist()
        item = items[f"{row.document}:{row.start_token}"]
        assert unpack_latents(item["active"], item["n_latents"]).tolist() == expected
        weak += len(expected) - len(item["latents"])
    assert weak > 0 or make is single  # whose toy latents are all strong


@pytest.mark.parametrize("batch_rows", [1, 3, 30])
def test_items_do_not_depend_on_batches(batch_rows: int) -> None:
    plain = {item["id"]: item for item in watched(single())}
    assert {item["id"]: item for item in watched(single(), batch_rows)} == plain


def test_browsable_latents_are_kept_ones_with_contexts_around_their_events() -> None:
    dictionary, counted = single(), task(browsable=6, browsable_contexts=3)
    rows = watched(dictionary)
    items = list(counted.measure(setup(dictionary), rows))
    latents = [item for item in items if item["kind"] == "latent"]
    texts = [item for item in items if item["kind"] == "text"]
    kept = set(kept_latents(read_events(rows), THRESHOLDS[0], counted.config.rule).tolist())
    assert 0 < len(latents) <= 6
    assert {item["latent"] for item in latents} <= kept
    assert len(texts) == sum(len(item["contexts"]) for item in latents)
    documents = {document.sha256: document for document in corpus("test").documents}
    for item in latents:
        strengths = [context["activation"] for context in item["contexts"]]
        assert strengths == sorted(strengths, reverse=True)
        assert min(strengths) > THRESHOLDS[0]
        assert 0 < len(strengths) <= 3
        for context in item["contexts"]:
            document = documents[context["document"]]
            assert (context["excerpt"] is not None) == document.excerpts
            if context["excerpt"] is not None:  # one character is one token
                shown = "".join(context["excerpt"]["tokens"])
                assert shown == document.text[context["start"] : context["end"]]
                place = context["excerpt"]["activated"]
                assert context["excerpt"]["activations"][place] == context["activation"]
