"""Every path on a CUDA device, against the same computation on the CPU."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from latentbench.adapters import Dictionary, InputTransform, load_dictionary, splice_edits, steering_edits
from latentbench.data import Corpus, Document, token_rows
from latentbench.identity import sha256_json, sha256_text
from latentbench.lm import LM, AddVector, Site, TokenBatch
from latentbench.run import CellSetup, Item, Shared, TokenPolicy
from latentbench.run._pass import Fed, run_pass
from latentbench.testing import random_routesae, random_sae
from latentbench.train import Recipe, TraineeSpec, TrainOptions, train
from latentbench_tasks.core.task import CoreConfig, CoreTask

pytestmark = pytest.mark.gpu
SITE = Site("resid_post", 2)
ROUTED = [Site("resid_post", layer) for layer in range(4)]
FAMILIES = ("sae", "routesae")


def dictionary_of(family: str) -> Dictionary:
    if family == "routesae":
        return random_routesae(ROUTED)
    return random_sae(site=SITE, transform=InputTransform("standardise"))


def corpus_of(split: str) -> Corpus:
    rng = np.random.default_rng(len(split))
    words = [
        "we",
        "took",
        "the",
        "old",
        "road",
        "and",
        "saw",
        "a",
        "small",
        "house",
        "by",
        "the",
        "river",
        "where",
        "it",
        "runs",
        "north",
    ]
    texts = dict.fromkeys(" ".join(rng.choice(words, 20)) for _ in range(60))
    documents = [Document(sha256=sha256_text(text), text=text, source="toy") for text in texts]
    sha256 = sha256_json([document.sha256 for document in documents])
    return Corpus(name="toy", split=split, sha256=sha256, documents=documents, pool=documents)


def core_items(lm: LM, dictionary: Dictionary) -> list[Item]:
    """Items of the core task over a few toy rows, zero and mean ablation included."""
    policy = TokenPolicy(context=32, batch_rows=4)
    setup = CellSetup(lm, dictionary, corpus_of("test"), corpus_of, policy, 0, Path(), Shared())
    watcher = CoreTask(CoreConfig(budget_tokens=300, calibration_tokens=200)).watcher(setup)
    rows = token_rows(setup.corpus, lm, context=policy.context, budget_tokens=300)
    found: list[Item] = []

    def fail(error: Exception) -> None:
        raise error

    run_pass(lm, policy, [Fed(dictionary, watcher, rows, set(), found.extend, fail)])
    return found


def test_forward_agrees_with_the_cpu(lm: LM, cpu_lm: LM, tokens: TokenBatch) -> None:
    here = lm.forward(tokens, capture=[SITE])
    there = cpu_lm.forward(tokens, capture=[SITE])
    assert here.logits is not None
    assert there.logits is not None
    assert here.logits.device.type == lm.device.type
    real = tokens.real.cpu()
    torch.testing.assert_close(here.logits.cpu()[real], there.logits[real], rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(here.acts[SITE].cpu()[real], there.acts[SITE][real], rtol=2e-3, atol=2e-3)


def test_bfloat16_stays_near_float32(lm: LM, half_lm: LM, tokens: TokenBatch) -> None:
    exact = lm.forward(tokens, capture=[SITE], logits=False).acts[SITE][tokens.real]
    rough = half_lm.forward(tokens, capture=[SITE], logits=False).acts[SITE][tokens.real]
    assert rough.dtype == torch.bfloat16
    assert float((rough.float() - exact).norm() / exact.norm()) < 0.05


@pytest.mark.parametrize(("half", "limit"), [(False, 1e-4), (True, 0.02)])
def test_resume_equals_the_full_pass(
    lm: LM, half_lm: LM, tokens: TokenBatch, half: bool, limit: float
) -> None:
    model = half_lm if half else lm
    full = model.forward(tokens, capture=[SITE])
    resumed = model.forward(tokens, resume=(SITE, full.acts[SITE]))
    assert full.logits is not None
    assert resumed.logits is not None
    wanted = full.logits[tokens.real].float()
    assert float((resumed.logits[tokens.real].float() - wanted).norm() / wanted.norm()) < limit


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("beside", [False, True], ids=["same-device", "dictionary-on-cpu"])
@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
def test_splice_with_the_dictionary_on_either_device(
    lm: LM, half_lm: LM, tokens: TokenBatch, family: str, beside: bool, half: bool
) -> None:
    model = half_lm if half else lm
    dictionary = dictionary_of(family).to(device="cpu" if beside else model.device)
    measured = tokens.measured()
    clean = model.forward(tokens, capture=dictionary.reads)
    codes = dictionary.encode({site: acts[measured] for site, acts in clean.acts.items()})
    assert codes.values.device.type == dictionary.device.type
    spliced = model.forward(tokens, edits=splice_edits(dictionary, codes, measured))
    assert spliced.logits is not None
    assert clean.logits is not None
    assert bool(torch.isfinite(spliced.logits[tokens.real]).all())
    assert not torch.equal(spliced.logits[tokens.real], clean.logits[tokens.real])


def test_codes_agree_with_the_cpu(lm: LM, tokens: TokenBatch) -> None:
    acts = lm.forward(tokens, capture=[SITE], logits=False).acts[SITE][tokens.measured()]
    dictionary = dictionary_of("sae")
    here = dictionary.to(device=lm.device).encode({SITE: acts})
    there = dictionary.encode({SITE: acts.cpu()})
    torch.testing.assert_close(here.dense().cpu(), there.dense(), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("beside", [False, True], ids=["same-device", "dictionary-on-cpu"])
def test_steered_generation(lm: LM, rows: list[list[int]], family: str, beside: bool) -> None:
    dictionary = dictionary_of(family).to(device="cpu" if beside else lm.device)
    generator = torch.Generator().manual_seed(3)
    vectors = torch.randn((len(rows), lm.d_model), generator=generator).to(dictionary.device) * 20
    plain = lm.generate(rows, max_new_tokens=8, stop_ids=())
    steered = lm.generate(rows, max_new_tokens=8, stop_ids=(), edits=steering_edits(dictionary, vectors))
    assert [len(row) for row in steered.tokens] == [8] * len(rows)
    assert steered.tokens != plain.tokens
    assert (steered.shadow_tokens > 0) == (family == "routesae")


def test_added_vectors_agree_with_the_cpu(lm: LM, cpu_lm: LM, tokens: TokenBatch) -> None:
    vectors = torch.randn((3, lm.d_model), generator=torch.Generator().manual_seed(4))
    here = lm.forward(tokens, edits=[AddVector(SITE, vectors)]).logits
    there = cpu_lm.forward(tokens, edits=[AddVector(SITE, vectors)]).logits
    assert here is not None
    assert there is not None
    real = tokens.real.cpu()
    torch.testing.assert_close(here.cpu()[real], there[real], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("beside", [False, True], ids=["same-device", "dictionary-on-cpu"])
def test_core_agrees_with_the_cpu(lm: LM, cpu_lm: LM, beside: bool) -> None:
    dictionary = dictionary_of("sae")
    here = core_items(lm, dictionary.to(device="cpu" if beside else lm.device))
    there = core_items(cpu_lm, dictionary)
    assert [item["id"] for item in here] == [item["id"] for item in there]
    for name in ("ce", "ce_spliced", "ce_zero", "ce_mean", "kl", "raw_error"):
        found, wanted = (sum(item[name] for item in items) for items in (here, there))
        assert math.isclose(found, wanted, rel_tol=5e-3), name


def test_core_of_a_routed_dictionary(lm: LM) -> None:
    items = core_items(lm, dictionary_of("routesae").to(device=lm.device))
    assert sum(item["scored"] for item in items) > 200
    assert all(math.isfinite(item["kl"]) and item["kl"] > 0 for item in items)


def test_training_on_the_device(lm: LM, tmp_path: Path) -> None:
    kinds = ("topk", "routesae", "random", "relu", "gated", "jumprelu", "mlsae", "crosscoder")
    recipe = Recipe(
        name="toy",
        lm="toy",
        tokens=2048,
        context=32,
        rows=4,
        block_tokens=512,
        batch_tokens=64,
        latents=32,
        k=4,
        lr=5e-3,
        held_out_tokens=200,
        trainees=tuple(TraineeSpec(name=kind, kind=kind, n_sites=2) for kind in kinds),  # type: ignore[arg-type]
    )
    losses: list[dict[str, float]] = []
    result = train(
        lm,
        corpus_of("train"),
        corpus_of("calibrate"),
        recipe,
        tmp_path,
        options=TrainOptions(device=str(lm.device), checkpoint_blocks=1, prefetch=True),
        progress=lambda _done, _total, mean: losses.append(mean),
    )
    assert result.tokens == recipe.tokens
    for file, kind in zip(result.files, kinds, strict=True):
        assert losses[-1][kind] < losses[0][kind]
        assert load_dictionary(str(file)).card.training["tokens"] == recipe.tokens
