"""Choosing latents by contrast of mean activations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from latentbench.adapters import codes_from_dense
from latentbench_tasks.steering._choose import ChoiceOptions, choose_latents
from latentbench_tasks.steering._watch import latent_sums

N_LATENTS = 6
PLANTED = 4
DENSE = 1


def options(**changes: Any) -> ChoiceOptions:
    return ChoiceOptions("effect_size", "max", 1, 0.5)._replace(**changes)


def items_of(dense: np.ndarray, sides: list[int]) -> list[dict[str, Any]]:
    """Contrast items of Float[document, token, latent]."""
    found = []
    for index, (tokens, side) in enumerate(zip(dense, sides, strict=True)):
        sums = latent_sums(
            codes_from_dense(torch.tensor(tokens)), torch.zeros(len(tokens), dtype=torch.int64), 1
        )
        found.append(
            {
                "kind": "contrast",
                "document": f"{index}",
                "concepts": {"x": side},
                "tokens": len(tokens),
                **sums[0],
            }
        )
    return found


def planted(rng: np.random.Generator, documents: int = 20) -> tuple[np.ndarray, list[int]]:
    """Sparse noise, a latent that is on in the positives, and one that is on everywhere and more so there."""
    sides = [1] * documents + [-1] * documents
    acts = rng.exponential(size=(2 * documents, 10, N_LATENTS)) * (
        rng.random((2 * documents, 10, N_LATENTS)) < 0.2
    )
    acts[:documents, :3, PLANTED] += 2.0
    acts[:, :, DENSE] = 5.0 + rng.random((2 * documents, 10))
    acts[:documents, :, DENSE] += 9.0
    return acts, sides


def test_sums_are_those_of_the_dense_activations() -> None:
    generator = torch.Generator().manual_seed(0)
    dense = torch.randn((7, N_LATENTS), generator=generator) * (
        torch.rand((7, N_LATENTS), generator=generator) < 0.5
    )
    rows = torch.tensor([0, 0, 0, 2, 2, 2, 2])  # row 1 has no measured token
    found = latent_sums(codes_from_dense(dense), rows, 3)
    assert found[1] == {"latents": [], "sums": [], "active": [], "peaks": []}
    for row in (0, 2):
        part = dense[rows == row]
        on = (part != 0).any(dim=0).nonzero()[:, 0].tolist()
        assert found[row]["latents"] == on
        np.testing.assert_allclose(found[row]["sums"], part.sum(dim=0)[on], rtol=1e-3)
        assert found[row]["active"] == (part != 0).sum(dim=0)[on].tolist()
        expected = [part[part[:, latent] != 0, latent].max() for latent in on]
        np.testing.assert_allclose(found[row]["peaks"], expected, rtol=1e-3)


@pytest.mark.parametrize("kind", ["effect_size", "mean"])
def test_the_planted_latent_is_chosen_and_the_dense_one_passed_over(kind: str) -> None:
    acts, sides = planted(np.random.default_rng(0))
    items = items_of(acts, sides)
    item = choose_latents(items, ["x"], np.ones(N_LATENTS), options(contrast=kind))[0]
    assert item["latents"] == [PLANTED]
    assert item["dense_latents_skipped"] == 1
    assert item["units"][0] == pytest.approx(acts[:, :, PLANTED].max(), rel=1e-3)
    assert item["densities"][0] == pytest.approx((acts[:, :, PLANTED] != 0).mean())
    kept = choose_latents(items, ["x"], np.ones(N_LATENTS), options(contrast=kind, max_density=None))[0]
    assert kept["latents"] == [DENSE]


@pytest.mark.parametrize("kind", ["effect_size", "mean"])
def test_rescaling_a_latent_changes_no_choice_and_no_amount(kind: str) -> None:
    acts, sides = planted(np.random.default_rng(1))
    scale = np.array([1.0, 1.0, 50.0, 1.0, 0.02, 7.0])
    plain = choose_latents(
        items_of(acts, sides), ["x"], np.ones(N_LATENTS), options(contrast=kind, n_latents=3)
    )[0]
    scaled = choose_latents(
        items_of(acts * scale, sides), ["x"], 1 / scale, options(contrast=kind, n_latents=3)
    )[0]
    assert plain["latents"] == scaled["latents"]
    amounts = np.array(scaled["units"]) / scale[scaled["latents"]]
    np.testing.assert_allclose(amounts, plain["units"], rtol=2e-3)


def test_a_dictionary_that_is_dense_all_over_keeps_its_latents() -> None:
    acts, sides = planted(np.random.default_rng(2))
    item = choose_latents(items_of(acts + 0.5, sides), ["x"], np.ones(N_LATENTS), options())[0]
    assert item["latents"]
    assert item["dense_latents_skipped"] == 0


def test_no_latent_that_favours_the_concept_is_a_reason_and_not_a_choice() -> None:
    acts = np.zeros((8, 5, N_LATENTS))
    acts[4:, :2, 0] = 1.0
    item = choose_latents(items_of(acts, [1] * 4 + [-1] * 4), ["x"], np.ones(N_LATENTS), options())[0]
    assert item["latents"] == []
    assert "no usable latent" in item["reason"]
    few = choose_latents(items_of(acts[3:], [1] + [-1] * 4), ["x"], np.ones(N_LATENTS), options())[0]
    assert few["latents"] == []
    assert "fewer than 2" in few["reason"]


def test_the_percentile_unit_ignores_one_outlier() -> None:
    acts = np.zeros((60, 5, N_LATENTS))
    acts[:40, 0, 3] = 1.0
    acts[0, 0, 3] = 100.0
    items = items_of(acts, [1] * 30 + [-1] * 30)
    largest, percentile = (
        choose_latents(items, ["x"], np.ones(N_LATENTS), options(unit=unit))[0]["units"]
        for unit in ("max", "p95")
    )
    assert (largest, percentile) == ([100.0], [1.0])
