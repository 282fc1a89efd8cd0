"""Laws of the core metrics, on the real path: shared pass, watcher, summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from latentbench.adapters import Codes, Dictionary, IdentityDictionary, InputTransform, SaeWeights, TopKGate
from latentbench.data import Corpus, Document
from latentbench.identity import sha256_text
from latentbench.lm import LM, Site
from latentbench.run import CellSetup, Item, Shared, TokenPolicy, WatchedBatch, Watcher
from latentbench.run._pass import Fed, run_pass
from latentbench.stats import generator
from latentbench.store import Metric
from latentbench.testing import perfect_weights, random_routesae, random_sae, toy_lm, toy_tokenizer
from latentbench_tasks.core.metrics import units
from latentbench_tasks.core.routes import route_shares
from latentbench_tasks.core.task import CoreConfig, CoreTask, _Clean, _losses

SITE = Site("resid_post", 1)
WIDTH = 16
torch.set_num_threads(1)  # toy tensors: threads would only wait for each other


def corpus(split: str) -> Corpus:
    rng = np.random.default_rng(len(split))
    texts = ["".join(rng.choice(list("abcdefgh .,"), size=int(n))) for n in rng.integers(3, 60, size=24)]
    documents = [Document(sha256=sha256_text(text), text=text, source="toy", labels={}) for text in texts]
    return Corpus(name="toy", sha256="0" * 64, split=split, documents=documents, pool=documents)


LM_64 = toy_lm(tokenizer=toy_tokenizer(), dtype=torch.float64)


def measured(
    dictionary: Dictionary,
    *,
    lm: LM = LM_64,
    policy: TokenPolicy | None = None,
    beside: int = 0,
    **config: Any,
) -> tuple[dict[str, Metric], list[Item]]:
    """Core metrics and items of a dictionary; `beside` adds a watcher with that budget to the same pass."""
    policy = policy or TokenPolicy(context=24, batch_rows=4)
    setup = CellSetup(lm, dictionary, corpus("test"), corpus, policy, 0, Path("unused"), Shared())
    task = CoreTask(CoreConfig(**{"budget_tokens": 300, "calibration_tokens": 200, **config}))
    items: list[Item] = []
    errors: list[Exception] = []
    fed = [_fed(setup, dictionary, task.watcher(setup), items.extend, errors)]
    if beside:
        other = CoreTask(CoreConfig(budget_tokens=beside, calibration_tokens=200)).watcher(setup)
        fed.append(_fed(setup, dictionary, other, lambda _items: None, errors))
    run_pass(lm, policy, fed)
    if errors:
        raise errors[0]
    summary = task.summarise(items, [], generator("laws"))
    return {metric.name: metric for metric in summary.metrics}, items


def _fed(
    setup: CellSetup, dictionary: Dictionary, watcher: Watcher, take: Any, errors: list[Exception]
) -> Fed:
    return Fed(dictionary, watcher, setup.rows(watcher.budget_tokens), set(), take, errors.append)


def constant(value: Tensor) -> Dictionary:
    """Reconstructs every token by one vector: no latent ever fires."""
    latents = 4
    weights = SaeWeights(
        w_enc=torch.zeros(latents, WIDTH, dtype=torch.float64),
        b_enc=torch.full((latents,), -1.0, dtype=torch.float64),
        w_dec=torch.ones(latents, WIDTH, dtype=torch.float64),
        b_dec=value,
        b_pre=None,
    )
    return random_sae(site=SITE, weights=weights, gate=TopKGate(2, rectify=True), dtype=torch.float64)


def mean_of_measured_tokens() -> Tensor:
    setup = CellSetup(
        LM_64, constant(torch.zeros(WIDTH, dtype=torch.float64)), corpus("test"), corpus,
        TokenPolicy(context=24, batch_rows=4), 0, Path("unused"),
    )  # fmt: skip
    rows = setup.rows(300)
    total, count = torch.zeros(WIDTH, dtype=torch.float64), 0
    for row in rows:
        acts = LM_64.forward(LM_64.batch([row.ids]), capture=[SITE], logits=False).acts[SITE][0, 1:]
        total, count = total + acts.sum(dim=0), count + len(acts)
    return total / count


def value(metrics: Mapping[str, Metric], name: str) -> float:
    found = metrics[name].value
    assert found is not None, metrics[name].reason
    return found


def test_units_give_the_published_numbers_and_share_their_draws() -> None:
    found, items = measured(random_sae(d_model=WIDTH, site=SITE))
    one = units(items, [], {})
    assert one is not None
    assert len(one.names) == len({item["document"] for item in items}) > 2
    assert {name: found[name].value for name in one.values()} == pytest.approx(one.values(), nan_ok=True)
    again = units(items[::-1], [], {})
    assert again is not None
    assert again.draws(20)["kl"] == pytest.approx(one.draws(20)["kl"])
    assert units([], [], {}) is None


def test_predicting_the_mean_explains_no_variance() -> None:
    metrics, _ = measured(constant(mean_of_measured_tokens()))
    assert value(metrics, "explained_variance") == pytest.approx(0, abs=1e-9)
    assert value(metrics, "l0") == 0
    assert value(metrics, "dead_latents") == 1


def test_predicting_zero_recovers_no_loss_and_has_normalised_error_one() -> None:
    metrics, _ = measured(constant(torch.zeros(WIDTH, dtype=torch.float64)))
    assert value(metrics, "ce_recovered") == pytest.approx(0, abs=1e-9)
    assert value(metrics, "normalised_mse") == pytest.approx(1)
    assert value(metrics, "explained_variance") < 0


@pytest.mark.parametrize("transform", ["none", "standardise"])
def test_a_perfect_dictionary_explains_everything_and_costs_nothing(transform: Any) -> None:
    perfect = random_sae(
        site=SITE,
        weights=perfect_weights(WIDTH, dtype=torch.float64),
        gate=TopKGate(WIDTH, rectify=False),
        transform=InputTransform(transform),
        dtype=torch.float64,
    )
    metrics, _ = measured(perfect)
    assert value(metrics, "explained_variance") == pytest.approx(1)
    assert value(metrics, "ce_recovered") == pytest.approx(1)
    assert value(metrics, "kl") == pytest.approx(0, abs=1e-9)
    assert value(metrics, "cosine") == pytest.approx(1)
    assert value(metrics, "l2_ratio") == pytest.approx(1)


def test_the_identity_is_exact() -> None:
    metrics, _ = measured(IdentityDictionary(SITE, WIDTH, torch.device("cpu"), torch.float64))
    assert value(metrics, "explained_variance") == 1
    assert value(metrics, "ce_increase") == 0
    assert value(metrics, "l0") == WIDTH


def by_row(items: Sequence[Item]) -> dict[str, Item]:
    return {item["id"]: item for item in items}


ROUTED = random_routesae(
    ["resid_post.0", "resid_post.1", "resid_post.2"], dtype=torch.float64, router_scale=1.0
)
SINGLE = random_sae(site=SITE, dtype=torch.float64, transform=InputTransform("standardise"))


@pytest.mark.parametrize("dictionary", [SINGLE, ROUTED], ids=["single", "routed"])
@pytest.mark.parametrize(
    "change", [{"batch_rows": 1}, {"batch_rows": 3}, {"batch_rows": 24}, "beside 60", "beside 900"]
)
def test_no_item_depends_on_batching_or_on_who_shares_the_pass(dictionary: Dictionary, change: Any) -> None:
    plain = by_row(measured(dictionary)[1])
    if isinstance(change, dict):
        other = by_row(measured(dictionary, policy=TokenPolicy(context=24, **change))[1])
    else:
        other = by_row(measured(dictionary, beside=int(change.split()[1]))[1])
    assert plain.keys() == other.keys()
    for name, item in plain.items():
        for key, expected in item.items():
            if isinstance(expected, float) or (isinstance(expected, list) and key.endswith("_sum")):
                assert other[name][key] == pytest.approx(expected, rel=1e-9, abs=1e-9), (name, key)
            else:
                assert other[name][key] == expected, (name, key)


def test_the_summary_does_not_depend_on_the_order_of_items() -> None:
    _, items = measured(SINGLE)
    task = CoreTask(CoreConfig())
    forward = task.summarise(items, [], generator("order"))
    backward = task.summarise(items[::-1], [], generator("order"))
    assert forward == backward


def test_the_first_position_of_every_row_is_left_out_of_everything() -> None:
    _, items = measured(SINGLE)
    lengths = {f"{row.document}:{row.start_token}": len(row.ids) for row in _rows()}
    assert {item["id"]: item["tokens"] for item in items} == {name: n - 1 for name, n in lengths.items()}
    assert all(item["scored"] == item["tokens"] - 1 for item in items)


def _rows() -> Sequence[Any]:
    policy = TokenPolicy(context=24, batch_rows=4)
    return CellSetup(LM_64, SINGLE, corpus("test"), corpus, policy, 0, Path("unused")).rows(300)


def test_errors_agree_with_a_straight_line_computation() -> None:
    metrics, _ = measured(SINGLE)
    target, predicted, kl = [], [], []
    for row in _rows():
        batch = LM_64.batch([row.ids])
        clean = LM_64.forward(batch, capture=[SITE])
        acts = clean.acts[SITE][0, 1:]
        rebuilt = SINGLE.decode(SINGLE.encode({SITE: acts}))[SITE].values
        hidden = clean.acts[SITE].clone()
        hidden[0, 1:] = rebuilt
        spliced = LM_64.forward(batch, resume=(SITE, hidden)).logits
        assert clean.logits is not None
        assert spliced is not None
        p, q = clean.logits[0, 1:-1].log_softmax(-1), spliced[0, 1:-1].log_softmax(-1)
        kl.append((p.exp() * (p - q)).sum(-1))
        target.append(acts)
        predicted.append(rebuilt)
    x, y = torch.cat(target), torch.cat(predicted)
    variance = (x - x.mean(0)).square().sum()
    assert value(metrics, "explained_variance") == pytest.approx(float(1 - (x - y).square().sum() / variance))
    ratio = ((x - y).square().sum(1) / x.square().sum(1)).mean()
    assert value(metrics, "normalised_mse") == pytest.approx(float(ratio))
    assert value(metrics, "kl") == pytest.approx(float(torch.cat(kl).mean()), abs=1e-9)
    assert value(metrics, "kl_per_sequence") == pytest.approx(
        float(torch.stack([k.sum() for k in kl]).mean()), abs=1e-8
    )


def test_kl_stays_right_on_logits_so_peaked_that_probabilities_underflow() -> None:
    generator_ = torch.Generator().manual_seed(0)
    clean = torch.randn((1, 6, 50), generator=generator_) * 200
    other = torch.randn((1, 6, 50), generator=generator_) * 200
    scored = torch.ones((1, 6), dtype=torch.bool)
    flat = clean[0]
    total = flat.logsumexp(1)
    targets = torch.zeros(6, dtype=torch.int64)
    reference = _Clean(scored, flat, (flat - total[:, None]).exp(), total, targets)
    found = _losses(other.clone(), reference)
    p, q = clean[0].double().log_softmax(-1), other[0].double().log_softmax(-1)
    assert torch.isinf((q.float().exp() + 0).log()).any()  # the naive formula would not be finite
    expected = (p.exp() * (p - q)).sum(-1)
    assert torch.allclose(found.kl.double(), expected, rtol=1e-4)
    assert torch.allclose(found.ce.double(), -q[:, 0], rtol=1e-4)
    reverse = (q.exp() * (q - p)).sum(-1)
    assert not torch.allclose(found.kl.double(), reverse, rtol=1e-2)


class _Broken(IdentityDictionary):
    """Encodes to NaN."""

    def encode(self, acts: Mapping[Site, Tensor] | Mapping[str, Tensor]) -> Codes:
        codes = super().encode(acts)
        return codes.with_values(codes.values * float("nan"))


def test_nan_never_becomes_a_number() -> None:
    with pytest.raises(ValueError, match="NaN"):
        measured(_Broken(SITE, WIDTH, torch.device("cpu"), torch.float64))


def test_ablations_change_exactly_the_routed_positions() -> None:
    batch = LM_64.batch([[5, 6, 7, 8, 9, 10]])
    acts = LM_64.forward(batch, capture=ROUTED.reads, logits=False).acts
    chosen = batch.measured()
    codes = ROUTED.encode({site: acts[site][chosen] for site in ROUTED.reads})
    seen: dict[Site, Tensor] = {}
    watched = WatchedBatch(LM_64, ROUTED, 0, [], batch, chosen, acts, LM_64.forward(batch).logits)
    assert watched.flat(ROUTED.reads[0]).shape == (5, WIDTH)
    from latentbench.adapters import written_masks

    seen = written_masks(ROUTED, codes, chosen)
    covered = torch.stack([mask.long() for mask in seen.values()]).sum(dim=0)
    assert torch.equal(covered, chosen.long())


def test_the_router_s_histogram_is_that_of_its_routes() -> None:
    routed = random_routesae(
        ["resid_post.0", "resid_post.1", "resid_post.2"], n_latents=24, dtype=torch.float64
    )
    found, items = measured(routed)
    sites = list(map(str, routed.reads))
    totals = np.array([[item["routed"][site] for site in sites] for item in items])
    assert totals.sum(axis=1).tolist() == [item["tokens"] for item in items]
    assert (totals > 0).any(axis=0).sum() > 1, "one site only would not tell sites apart"
    direct = np.zeros(3)
    for batch in TokenPolicy(context=24, batch_rows=4), TokenPolicy(context=24, batch_rows=1):
        _, again = measured(routed, policy=batch)
        direct = np.array([[item["routed"][site] for site in sites] for item in again]).sum(axis=0)
        assert direct.tolist() == totals.sum(axis=0).tolist()
    shares = direct / direct.sum()
    entropy = -sum(share * np.log(share) for share in shares if share)
    assert found["effective_layers"].value == pytest.approx(np.exp(entropy))
    assert "effective_layers" not in measured(random_sae(n_latents=24, dtype=torch.float64))[0]


def test_the_histogram_s_curve_names_layers() -> None:
    rows = [
        {"document": name, "routed": {"resid_post.7": seven, "resid_post.9": nine}}
        for name, seven, nine in (("a", 3, 1), ("b", 2, 2), ("a", 1, 3))
    ]
    routes = route_shares(rows, generator("routes"))
    assert [(point.x, point.value) for point in routes.shares.points] == [(7.0, 0.5), (9.0, 0.5)]
    assert routes.effective.value == pytest.approx(2.0)
    assert routes.effective.n == 2
    lone = route_shares([{"document": "a", "routed": {"resid_post.7": 5, "resid_post.9": 0}}], generator("x"))
    assert lone.effective.value == pytest.approx(1.0)
