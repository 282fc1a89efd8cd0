"""Further laws of the core metrics: whole passes against straight-line references in float64."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from latentbench.adapters import Dictionary, InputTransform
from latentbench.data import Corpus, Document, TokenRow
from latentbench.identity import sha256_text
from latentbench.lm import LM, Site
from latentbench.run import CellSetup, Item, Shared, TokenPolicy
from latentbench.run._pass import Fed, run_pass
from latentbench.stats import generator
from latentbench.store import Metric
from latentbench.testing import random_routesae, random_sae, toy_lm, toy_tokenizer
from latentbench_tasks.core.task import CoreConfig, CoreTask

SITES = ("resid_post.0", "resid_post.1", "resid_post.2")
torch.set_num_threads(1)  # toy tensors: threads would only wait for each other


@cache
def lm(dtype: torch.dtype = torch.float64) -> LM:
    return toy_lm(tokenizer=toy_tokenizer(), dtype=dtype)


@cache
def corpus(split: str) -> Corpus:
    rng = np.random.default_rng(len(split))
    texts = ["".join(rng.choice(list("abcdefgh .,"), size=int(n))) for n in rng.integers(4, 30, size=14)]
    documents = [Document(sha256=sha256_text(text), text=text, source="toy") for text in texts]
    return Corpus(name="toy", sha256="0" * 64, split=split, documents=documents, pool=documents)


@cache
def single() -> Dictionary:
    return random_sae(dtype=torch.float64, transform=InputTransform("standardise"))


@cache
def routed(pooling: Any = "sum") -> Dictionary:
    return random_routesae(SITES, dtype=torch.float64, router_scale=1.0, pooling=pooling)


def setup(dictionary: Dictionary, model: LM) -> CellSetup:
    policy = TokenPolicy(context=24, batch_rows=4)
    return CellSetup(model, dictionary, corpus("test"), corpus, policy, 0, Path("unused"), Shared())


def watch(
    dictionary: Dictionary, rows: list[TokenRow] | None = None, model: LM | None = None, batch_rows: int = 4
) -> list[Item]:
    """Items of the core task's watcher over some rows, or those of its budget."""
    cell = setup(dictionary, model or lm())
    watcher = CoreTask(CoreConfig(budget_tokens=200, calibration_tokens=100)).watcher(cell)
    items: list[Item] = []
    errors: list[Exception] = []
    chosen = rows if rows is not None else cell.rows(200)
    fed = Fed(dictionary, watcher, chosen, set(), items.extend, errors.append)
    run_pass(cell.lm, TokenPolicy(context=24, batch_rows=batch_rows), [fed])
    assert not errors
    return items


def metrics(items: list[Item]) -> dict[str, Metric]:
    found, _, _ = CoreTask(CoreConfig()).summarise(items, [], generator("laws"))
    return {metric.name: metric for metric in found}


def number(found: dict[str, Metric], name: str) -> float:
    value = found[name].value
    assert value is not None
    return value


@settings(deadline=None, max_examples=12)
@given(order=st.permutations(range(6)), batch_rows=st.integers(1, 7), use_router=st.booleans())
def test_no_number_depends_on_the_order_of_rows_or_on_padding(
    order: list[int], batch_rows: int, use_router: bool
) -> None:
    dictionary = routed() if use_router else single()
    rows = setup(dictionary, lm()).rows(200)[:6]
    plain = metrics(watch(dictionary, rows, batch_rows=1))  # rows of one length each: no padding at all
    other = metrics(watch(dictionary, [rows[place] for place in order], batch_rows=batch_rows))
    for name, metric in plain.items():
        assert other[name].value == pytest.approx(metric.value, rel=1e-9, abs=1e-9), name
        assert other[name].n == metric.n


def reference(dictionary: Dictionary, ids: list[int], means: dict[Site, Tensor] | None) -> dict[str, Tensor]:
    """Cross-entropies and KL of one row: the model is run whole, block outputs are replaced one by one."""
    model, batch = lm(), lm().batch([ids])
    clean = model.forward(batch, capture=dictionary.reads)
    acts = {site: clean.acts[site][0, 1:] for site in dictionary.reads}
    codes = dictionary.encode(acts)
    route = dictionary.routed(codes)
    assert route is not None
    blocks = model.model.model.layers
    assert clean.logits is not None
    p = clean.logits[0].log_softmax(-1)

    def run(kind: str) -> Tensor:
        def replace(index: int, site: Site, _block: Any, _given: Any, output: Any) -> Any:
            hidden = (output[0] if isinstance(output, tuple) else output).clone()
            for token in (route == index).nonzero()[:, 0].tolist():
                if kind == "spliced":
                    context = {name: value[token : token + 1] for name, value in codes.context.items()}
                    again = dictionary.encode_at(site, hidden[0, token + 1][None], context)
                    hidden[0, token + 1] = dictionary.decode(again)[site].values[0]
                else:
                    hidden[0, token + 1] = means[site] if means is not None else 0
            return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

        handles = [
            blocks[site.layer].register_forward_hook(partial(replace, index, site))
            for index, site in enumerate(dictionary.reads)
        ]
        try:
            with torch.no_grad():
                logits: Tensor = model.model(torch.tensor([ids])).logits[0]
        finally:
            for handle in handles:
                handle.remove()
        return logits.log_softmax(-1)

    targets = torch.tensor(ids[2:])[:, None]
    spliced = run("spliced")
    return {
        "ce": -p[1:-1].gather(1, targets)[:, 0],
        "ce_spliced": -spliced[1:-1].gather(1, targets)[:, 0],
        "ce_ablated": -run("ablated")[1:-1].gather(1, targets)[:, 0],
        "kl": (p.exp() * (p - spliced)).sum(-1)[1:-1],
    }


@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_a_routed_dictionary_is_spliced_and_ablated_at_routed_positions_alone(pooling: str) -> None:
    dictionary = routed(pooling)
    items = {item["id"]: item for item in watch(dictionary)}
    rows = setup(dictionary, lm()).rows(200)
    total: dict[Site, Tensor] = dict.fromkeys(dictionary.reads, torch.zeros(16, dtype=torch.float64))
    calibration = setup(dictionary, lm()).load_split("calibrate")
    from latentbench.run import stream_acts

    count = 0
    for acts in stream_acts(calibration, lm(), TokenPolicy(context=24), dictionary.reads, 100):
        total = {site: total[site] + acts[site].sum(dim=0) for site in total}
        count += len(acts[dictionary.reads[0]])
    means = {site: value / count for site, value in total.items()}
    for row in [row for row in rows if len(row.ids) > 2][:5]:
        item = items[f"{row.document}:{row.start_token}"]
        zeroed, averaged = reference(dictionary, row.ids, None), reference(dictionary, row.ids, means)
        for name in ("ce", "ce_spliced", "kl"):
            assert item[name] == pytest.approx(float(zeroed[name].sum()), rel=1e-8, abs=1e-9), name
        assert item["ce_zero"] == pytest.approx(float(zeroed["ce_ablated"].sum()), rel=1e-8)
        assert item["ce_mean"] == pytest.approx(float(averaged["ce_ablated"].sum()), rel=1e-8)
        assert item["ce_zero"] != pytest.approx(item["ce_mean"], rel=1e-3)


def peaked(scale: float, dtype: torch.dtype) -> LM:
    """The toy model with logits so far apart that most probabilities underflow."""
    model = toy_lm(tokenizer=toy_tokenizer(), dtype=torch.float64)
    with torch.no_grad():
        model.model.lm_head.weight.mul_(scale)
    return LM(model.model.to(dtype), model.tokenizer, name="peaked", revision=str(scale))


def test_a_whole_pass_on_peaked_logits_agrees_with_float64() -> None:
    small = random_sae(transform=InputTransform("standardise"))
    exact = metrics(watch(small.to(dtype=torch.float64), model=peaked(200, torch.float64)))
    found = metrics(watch(small, model=peaked(200, torch.float32)))
    for name in ("kl", "kl_per_sequence", "ce_clean", "ce_increase"):
        assert number(found, name) == pytest.approx(number(exact, name), rel=1e-3), name
    assert number(found, "kl") > 20


@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 1000))
def test_metrics_keep_their_bounds_whatever_the_dictionary(seed: int) -> None:
    dictionary = random_sae(dtype=torch.float64, seed=seed)
    found = metrics(watch(dictionary, model=lm()))
    assert number(found, "kl") >= 0
    assert number(found, "explained_variance") <= 1
    assert number(found, "normalised_mse") >= 0
    assert -1 <= number(found, "cosine") <= 1
    assert 0 <= number(found, "dead_latents") <= 1
    assert number(found, "l0") <= 4
    for metric in found.values():
        if metric.interval is not None and metric.value is not None:
            assert metric.interval.low <= metric.interval.high
