"""Selectors that look at labelled texts or at the model alone, against plain definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from latentbench.adapters import Dictionary, codes_from_dense
from latentbench.errors import UserError
from latentbench.lm import LM, AddVector, Site
from latentbench.selectors import (
    Auroc,
    DeltaConfidence,
    Example,
    InputScore,
    LabelledSelector,
    MeanDifference,
    OutcomeCorrelation,
    OutputScore,
    Target,
    TargetAtoms,
    VocabularyProjection,
    pool_codes,
    promoted_tokens,
    splice,
)
from latentbench.testing import random_routesae, random_sae, toy_lm

torch.set_num_threads(1)  # toy tensors: threads would only wait for each other
F64 = torch.float64
PROMPT = (5, 9, 11, 3, 20, 7)
SITE = Site("resid_post", 1)
ALL = torch.arange(48)


@pytest.fixture(scope="module")
def lm() -> LM:
    return toy_lm("llama", dtype=F64)


@pytest.fixture(scope="module", params=["sae", "routesae"])
def dictionary(request: pytest.FixtureRequest) -> Dictionary:
    if request.param == "sae":
        return random_sae(site=SITE, dtype=F64)
    return random_routesae([SITE, Site("resid_post", 2)], router_scale=2.0, dtype=F64)


@pytest.fixture
def pooled() -> Tensor:
    generator = torch.Generator().manual_seed(3)
    drawn = torch.randn(30, 12, generator=generator, dtype=F64).relu()
    drawn[:, 11] = 0
    return drawn


@pytest.fixture
def labels() -> Tensor:
    return torch.arange(30) % 3 == 0


def test_pooling_is_by_text_over_all_of_its_tokens() -> None:
    dense = torch.tensor([[1.0, 0.0], [3.0, 2.0], [0.0, 5.0]])
    rows = torch.tensor([0, 0, 2])
    codes = codes_from_dense(dense)
    assert pool_codes(codes, rows, 3).tolist() == [[2.0, 1.0], [0.0, 0.0], [0.0, 5.0]]
    assert pool_codes(codes, rows, 3, "max").tolist() == [[3.0, 2.0], [0.0, 0.0], [0.0, 5.0]]


def test_labelled_selectors_follow_their_definitions(pooled: Tensor, labels: Tensor) -> None:
    difference = MeanDifference().scores(pooled, labels).scores
    auroc = Auroc().scores(pooled, labels).scores
    correlation = OutcomeCorrelation().scores(pooled, labels.double() * 2 - 1).scores
    for latent in range(12):
        column = pooled[:, latent].numpy()
        assert difference[latent] == pytest.approx(column[labels].mean() - column[~labels].mean())
        assert auroc[latent] == pytest.approx(roc_auc_score(labels.numpy(), column))
        wanted = 0.0 if latent == 11 else np.corrcoef(column, labels.numpy())[0, 1]
        assert correlation[latent] == pytest.approx(wanted)
    good = OutcomeCorrelation.coefficients(pooled, labels)
    assert torch.allclose(good, pooled[labels].mean(dim=0))


def test_target_atoms_agree_in_strength_and_frequency() -> None:
    labels = torch.tensor([True, True, False, False])
    pooled = torch.tensor(
        [
            [4.0, 9.0, 0.1, 0.0],
            [4.0, 0.0, 0.0, 0.0],
            [0.0, 1.0, 0.0, 3.0],
            [0.0, 1.0, 0.1, 3.0],
        ]
    )
    found = TargetAtoms(trim=0.25).scores(pooled, labels).scores
    # 1 is stronger but rarer on wanted texts; 2 differs in neither
    assert found.tolist() == [4.0, 0.0, 0.0, -3.0]
    assert TargetAtoms(trim=1.0).scores(pooled, labels).scores.tolist() == [4.0, 0.0, 0.0, 0.0]


def test_target_atoms_rank_frequencies_among_those_that_agree() -> None:
    """A latent whose frequency disagrees takes no place from one that agrees."""
    labels = torch.tensor([True, True, False, False])
    pooled = torch.tensor([[9.0, 3.0], [0.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    # both differ by a half in frequency, the first one against its strength
    assert TargetAtoms(trim=0.5).scores(pooled, labels).scores.tolist() == [0.0, 1.5]


@pytest.mark.parametrize("selector", [MeanDifference(), Auroc(), TargetAtoms(), OutcomeCorrelation()])
def test_labels_must_pair_up_and_differ(selector: LabelledSelector, pooled: Tensor) -> None:
    with pytest.raises(UserError, match="for 30 texts"):
        selector.scores(pooled, torch.ones(4, dtype=torch.bool))
    with pytest.raises(UserError, match="same"):
        selector.scores(pooled, torch.ones(30, dtype=torch.bool))


def lens(lm: LM, direction: Tensor) -> Tensor:
    """Final norm and unembedding by hand."""
    logits: Tensor = lm.model.lm_head(lm.model.model.norm(direction))
    return logits


def test_promoted_tokens_are_those_of_norm_and_unembedding(lm: LM, dictionary: Dictionary) -> None:
    found = promoted_tokens(lm, dictionary, torch.tensor([3, 40]), 5)
    for row, latent in zip(found, (3, 40), strict=True):
        direction = next(iter(dictionary.write_vectors([latent]).values()))[0]
        assert row.tolist() == lens(lm, direction).topk(5).indices.tolist()


def test_vocabulary_projection_reads_the_target_tokens(lm: LM, dictionary: Dictionary) -> None:
    examples = [Example((5, 9, 11, 3), (20, 7)), Example((8, 2, 30), (4,))]
    spliced = splice(lm, dictionary, examples, Target(tokens="answer"), keep_error=True)
    found = VocabularyProjection().scores(spliced)
    for one, example in zip(found, examples, strict=True):
        logits = lens(lm, next(iter(dictionary.write_vectors(one.latents.tolist()).values()))).float()
        scaled = (logits - logits.mean(dim=1, keepdim=True)) / logits.std(dim=1, keepdim=True)
        wanted = scaled[:, list(example.answer)].mean(dim=1)
        assert torch.allclose(one.scores.float(), wanted, atol=1e-4)
    some = found[0].latents[1:4]
    alone = VocabularyProjection().among(spliced.alone(0), some)
    assert torch.equal(alone.latents, some)
    assert torch.allclose(alone.scores, found[0].scores[1:4], atol=1e-5)
    with pytest.raises(UserError, match="of one example, and there are 2"):
        VocabularyProjection().among(spliced, some)


def raised(lm: LM, dictionary: Dictionary, latent: int, factor: float) -> tuple[Tensor, Tensor]:
    """Logits as they are and with a vector added by hand at the last token."""
    batch = lm.batch([PROMPT])
    acts = lm.forward(batch, capture=dictionary.reads).acts
    codes = dictionary.encode({site: value[0, -1:] for site, value in acts.items()})
    amount = factor * codes.values.max()
    route = dictionary.routed(codes)
    site = dictionary.writes[0] if route is None else dictionary.reads[int(route)]
    vector = dictionary.write_vectors([latent], codes.context)[site][0, 0] * amount
    where = torch.zeros(1, len(PROMPT), dtype=torch.bool)
    where[0, -1] = True
    both = [lm.forward(batch, edits=edits).logits for edits in ([], [AddVector(site, vector, where=where)])]
    assert both[0] is not None
    assert both[1] is not None
    return both[0][0, -1], both[1][0, -1]


def test_output_score_is_rank_times_probability_of_a_latent_s_own_tokens(
    lm: LM, dictionary: Dictionary
) -> None:
    selector = OutputScore(factor=3.0, tokens=4, prompt=PROMPT)
    found = selector.scores(lm, dictionary, ALL).scores
    for latent in (0, 17, 47):
        own = promoted_tokens(lm, dictionary, torch.tensor([latent]), 4)[0]
        parts = []
        for logits in raised(lm, dictionary, latent, 3.0):
            shares = logits.softmax(dim=0)
            best = shares[own].max()
            parts.append((1 - int((shares > best).sum()) / len(shares)) * best)
        assert found[latent] == pytest.approx(float(parts[1] - parts[0]), abs=1e-6)
    plain = OutputScore(factor=0.0, tokens=4, prompt=PROMPT).scores(lm, dictionary, ALL).scores
    assert plain.abs().max() < 1e-9


def test_delta_confidence_is_the_change_of_the_largest_log_probabilities(
    lm: LM, dictionary: Dictionary
) -> None:
    kept = DeltaConfidence(k=3, factor=3.0, others="kept", absolute=False, prompt=PROMPT)
    found = kept.scores(lm, dictionary, ALL).scores
    for latent in (0, 17, 47):
        base, after = (
            -logits.log_softmax(dim=0).topk(3).values.mean() for logits in raised(lm, dictionary, latent, 3.0)
        )
        assert found[latent] == pytest.approx(float(after - base), abs=1e-6)
    alone = DeltaConfidence(k=3, factor=3.0, prompt=PROMPT).scores(lm, dictionary, ALL).scores
    assert bool((alone >= 0).all())
    assert not torch.allclose(alone, found.abs(), atol=1e-3)


def test_input_score_is_the_share_of_activating_tokens_that_are_promoted(
    lm: LM, dictionary: Dictionary
) -> None:
    own = promoted_tokens(lm, dictionary, torch.tensor([3]), 4)[0].tolist()
    other = next(token for token in range(48) if token not in own)
    found = InputScore(tokens=4).scores(lm, dictionary, {3: [own[0], other, own[2], other], 9: []})
    assert (found.latents.tolist(), found.scores.tolist()) == ([3], [0.5])
    assert InputScore().scores(lm, dictionary, {}).latents.tolist() == []
