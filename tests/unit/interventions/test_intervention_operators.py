"""What each operator does to an activation, against dense codes by hand and against numbers worked out on paper."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from latentbench.adapters import (
    Codes,
    Dictionary,
    InputTransform,
    ReluGate,
    RouteSae,
    SaeWeights,
    codes_from_dense,
    observed_sites,
)
from latentbench.interventions import BoundIntervention, intervention_edits
from latentbench.lm import LM, EditView, Site, TokenBatch
from latentbench.testing import random_sae

Acts = dict[Site, Tensor]
Make = Callable[..., BoundIntervention]
F64 = torch.float64
SITE = Site("resid_post", 2)
LATENTS = [3, 17, 40]
AMOUNTS = [1.5, -2.0, 0.25]
OPERATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda z, a: z + a,
    "set": lambda z, a: a.expand_as(z),
    "min_clamp": torch.maximum,
    "scale": lambda z, a: z * a,
    "ablate": lambda z, a: torch.zeros_like(z),
}


def arriving(clean: Acts, site: Site, draw: Callable[..., Tensor]) -> Tensor:
    """What reaches a site once earlier ones have been edited: another activation than the unedited model's."""
    return clean[site] * 1.1 + draw(*clean[site].shape, seed=9) / 10


def codes_at(dictionary: Dictionary, site: Site, hidden: Tensor, clean: Acts, where: Tensor) -> Codes:
    """Codes of some tokens, by the rules that the protocol gives."""
    if isinstance(dictionary, RouteSae):
        context = dictionary.encode({read: clean[read][where] for read in dictionary.reads}).context
        return dictionary.encode_at(site, hidden[where], context)
    if observed_sites(dictionary):
        return dictionary.encode({read: clean[read][where] for read in dictionary.reads})
    return dictionary.encode({site: hidden[where]})


def routed_to(dictionary: Dictionary, site: Site, clean: Acts, where: Tensor) -> Tensor:
    """The tokens among `where` that the dictionary writes at a site."""
    if not isinstance(dictionary, RouteSae):
        return where
    codes = dictionary.encode({read: clean[read][where] for read in dictionary.reads})
    here = torch.zeros_like(where)
    here[where] = codes.context["route"] == dictionary.reads.index(site)
    return here


@pytest.mark.parametrize("keep_error", [True, False])
@pytest.mark.parametrize("operator", list(OPERATORS))
def test_latents_change_as_dense_codes_by_hand(
    dictionary: Dictionary,
    operator: str,
    keep_error: bool,
    tokens: TokenBatch,
    clean: Acts,
    view: EditView,
    draw: Callable[..., Tensor],
    latent: Make,
) -> None:
    amounts = [] if operator == "ablate" else AMOUNTS
    bound = latent(dictionary, LATENTS, operator=operator, amounts=amounts, keep_error=keep_error)
    edits = intervention_edits([[bound], [], [bound], [bound]])
    assert tuple(edit.site for edit in edits) == dictionary.writes
    measured = tokens.measured()
    measured[1] = False
    changed = 0
    for edit in edits:
        hidden = arriving(clean, edit.site, draw)
        where = routed_to(dictionary, edit.site, clean, measured)
        codes = codes_at(dictionary, edit.site, hidden, clean, where)
        after = codes.dense()
        after[:, LATENTS] = OPERATORS[operator](after[:, LATENTS], torch.tensor(AMOUNTS, dtype=F64))
        expected = hidden.clone()
        if bool(where.any()):
            written = dictionary.decode(codes_from_dense(after, codes.context))[edit.site].values
            before = dictionary.decode(codes)[edit.site].values
            expected[where] = written + (hidden[where] - before if keep_error else 0)
        found = edit.apply(hidden, view)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
        assert torch.equal(found[~where], hidden[~where])
        changed += int((found != hidden).any(dim=-1).sum())
    assert changed > 0


def test_adding_is_what_one_more_unit_decodes_to(
    dictionary: Dictionary, tokens: TokenBatch, clean: Acts, view: EditView, latent: Make
) -> None:
    """Probability of the route, standard deviations and all: against the protocol's own write vectors."""
    for edit in intervention_edits([[latent(dictionary, [17], operator="add", amounts=[2.5])]] * 4):
        hidden = clean[edit.site]
        where = routed_to(dictionary, edit.site, clean, tokens.measured())
        codes = codes_at(dictionary, edit.site, hidden, clean, where)
        expected = hidden.clone()
        vectors = dictionary.write_vectors([17], codes.context)[edit.site][:, 0]
        expected[where] += 2.5 * vectors
        torch.testing.assert_close(edit.apply(hidden, view), expected, rtol=0, atol=1e-12)


def test_a_corrected_routesae_writes_in_units_of_its_probability(
    made: Callable[[str], Dictionary], tokens: TokenBatch, clean: Acts, view: EditView, latent: Make
) -> None:
    moved = {}
    for name in ("routesae", "routesae_paper"):
        edits = intervention_edits([[latent(made(name), [17], operator="add", amounts=[1.0])]] * 4)
        total = sum((edit.apply(clean[edit.site], view) - clean[edit.site]) for edit in edits)
        moved[name] = torch.as_tensor(total).norm(dim=-1)[tokens.measured()]
    routed = made("routesae")
    context = routed.encode({site: clean[site][tokens.measured()] for site in routed.reads}).context
    probability = context["route_probability"]
    assert float(probability.max()) < 0.9
    torch.testing.assert_close(moved["routesae"] * probability, moved["routesae_paper"])


def worked_example() -> Dictionary:
    """Two latents that read and write coordinates 0 and 1 of 3 (3 and 4 long), with ReLU; coordinate 2 is error."""
    weights = SaeWeights(
        w_enc=torch.tensor([[1.0, 0, 0], [0, 1, 0]], dtype=F64),
        b_enc=torch.zeros(2, dtype=F64),
        w_dec=torch.tensor([[3.0, 0, 0], [0, 4, 0]], dtype=F64),
        b_dec=torch.tensor([0.0, 0, 10], dtype=F64),
        b_pre=None,
    )
    return random_sae(site=SITE, weights=weights, gate=ReluGate(), transform=InputTransform("none"))


# h = (2, -1, 5): codes (2, 0), reconstruction (6, 0, 10), error (-4, -1, -5).
WORKED: list[tuple[str, list[int], list[float], bool, list[float]]] = [
    ("add", [0], [1.5], True, [6.5, -1, 5]),
    ("add", [0], [1.5], False, [10.5, 0, 10]),
    ("add", [0, 1], [1, 1], True, [5, 3, 5]),
    ("set", [0], [5], True, [11, -1, 5]),
    ("set", [0], [5], False, [15, 0, 10]),
    ("set", [1], [0.5], True, [2, 1, 5]),
    ("min_clamp", [0, 1], [1, 1], True, [2, 3, 5]),
    ("min_clamp", [0, 1], [3, -1], True, [5, -1, 5]),
    ("scale", [0], [2], True, [8, -1, 5]),
    ("scale", [0, 1], [0, 9], False, [0, 0, 10]),
    ("ablate", [0], [], True, [-4, -1, 5]),
    ("ablate", [0], [], False, [0, 0, 10]),
    ("project_out", [0], [], True, [0, -1, 5]),
    ("project_out", [0, 1], [], True, [0, 0, 5]),
    ("subspace_clamp", [0], [7], True, [7, -1, 5]),
    ("subspace_clamp", [1], [7], True, [2, 6, 5]),
]


@pytest.mark.parametrize(("operator", "latents", "amounts", "keep_error", "expected"), WORKED)
def test_operators_on_latents_worked_out_on_paper(
    operator: str,
    latents: list[int],
    amounts: list[float],
    keep_error: bool,
    expected: list[float],
    latent: Make,
) -> None:
    bound = latent(worked_example(), latents, operator=operator, amounts=amounts, keep_error=keep_error)
    real = torch.ones((1, 2), dtype=torch.bool)
    view = EditView(real, torch.tensor([[0, 1]]), torch.zeros_like(real), 0, {}, {})
    hidden = torch.tensor([[[2.0, -1, 5], [2, -1, 5]]], dtype=F64)
    (edit,) = intervention_edits([[bound]])
    assert edit.apply(hidden, view).tolist() == [[[2, -1, 5], expected]]


@pytest.mark.parametrize(
    ("operator", "amounts", "expected"),
    [
        ("add", [2.0], [8.0, 7, 5]),  # h + 2 v
        ("project_out", [], [1.76, -1.32, 5]),  # v/|v| = (0.6, 0.8), and h.v/|v| = 1.2 - 0.8 = 0.4
        ("subspace_clamp", [10.0], [7.76, 6.68, 5]),
    ],
)
def test_operators_along_a_vector_worked_out_on_paper(
    operator: str, amounts: list[float], expected: list[float], dense: Make
) -> None:
    bound = dense(SITE, torch.tensor([3.0, 4, 0]), operator=operator, amounts=amounts)
    real = torch.ones((1, 2), dtype=torch.bool)
    view = EditView(real, torch.tensor([[0, 1]]), torch.zeros_like(real), 0, {}, {})
    hidden = torch.tensor([[[2.0, -1, 5], [2, -1, 5]]], dtype=F64)
    (edit,) = intervention_edits([[bound]])
    assert edit.apply(hidden, view)[0, 1].tolist() == pytest.approx(expected, abs=1e-6)


def test_clamping_below_takes_a_positive_component_only(dense: Make) -> None:
    """h.v = -2 stays, since ReLU leaves it out of what is taken away."""
    bound = dense(SITE, torch.tensor([1.0, 0, 0]), operator="subspace_clamp", amounts=[3.0])
    real = torch.ones((1, 1), dtype=torch.bool)
    view = EditView(real, torch.zeros((1, 1), dtype=torch.int64), torch.zeros_like(real), 0, {}, {})
    (edit,) = intervention_edits([[bound]], skip_first=0)
    assert edit.apply(torch.tensor([[[-2.0, 1, 1]]]), view).tolist() == [[[1.0, 1, 1]]]


def test_dependent_directions_are_taken_out_once(dense: Make, latent: Make) -> None:
    """Three latents, two of one direction: what is left has no component in their plane, and keeps the rest."""
    weights = SaeWeights(
        w_enc=torch.eye(3, dtype=F64),
        b_enc=torch.zeros(3, dtype=F64),
        w_dec=torch.tensor([[1.0, 1, 0], [2, 2, 0], [0, 1, 0]], dtype=F64),
        b_dec=torch.zeros(3, dtype=F64),
        b_pre=None,
    )
    dictionary = random_sae(site=SITE, weights=weights, gate=ReluGate(), transform=InputTransform("none"))
    real = torch.ones((1, 1), dtype=torch.bool)
    view = EditView(real, torch.zeros((1, 1), dtype=torch.int64), torch.zeros_like(real), 0, {}, {})
    (edit,) = intervention_edits([[latent(dictionary, [0, 1, 2], operator="project_out")]], skip_first=0)
    found = edit.apply(torch.tensor([[[4.0, -3, 7]]], dtype=F64), view)
    torch.testing.assert_close(found, torch.tensor([[[0.0, 0, 7]]], dtype=F64), rtol=0, atol=1e-12)


def test_amounts_are_multiples_of_the_units_size(latent: Make, view: EditView, clean: Acts) -> None:
    dictionary = random_sae(site=SITE, dtype=F64)
    plain = latent(dictionary, [3, 4], operator="set", amounts=[6.0, 1.0])
    unit = {"unit": "max_activation", "unit_values": [3.0, 4.0], "unit_source": "toy"}
    scaled = latent(dictionary, [3, 4], operator="set", amounts=[2.0, 0.25], **unit)
    (one,), (other,) = (intervention_edits([[bound]] * 4) for bound in (plain, scaled))
    assert torch.equal(one.apply(clean[SITE], view), other.apply(clean[SITE], view))


def test_the_official_mode_routes_over_every_layer_and_leaves_the_probability_out(
    lm: LM,
    made: Callable[[str], Dictionary],
    tokens: TokenBatch,
    clean: Acts,
    view: EditView,
    latent: Make,
) -> None:
    """Against the official steering code by hand: pooled over all blocks, the last one behind the final norm."""
    dictionary = made("routesae")
    assert isinstance(dictionary, RouteSae)
    record = {"operator": "add", "amounts": [4.0], "keep_error": False, "mode": "code", "phases": "prefill"}
    edits = intervention_edits([[latent(dictionary, [17], **record)]] * 4, skip_first=0)

    def standardised(x: Tensor) -> Tensor:
        return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6)

    states = [clean[Site("resid_post", layer)] for layer in range(6)]
    states[5] = lm.model.model.norm(states[5])
    route = (torch.stack([standardised(state) for state in states]).sum(0) @ dictionary.router.T).argmax(-1)
    trained = (
        torch.stack([standardised(clean[site]) for site in dictionary.reads]).sum(0) @ dictionary.router.T
    ).argmax(-1)
    assert bool((route != trained)[tokens.real].any()), "the two routings must differ somewhere"
    weights = dictionary.sae.weights
    assert weights.b_pre is not None
    for index, site in enumerate(dictionary.reads):
        hidden = clean[site]
        x = standardised(hidden)
        pre = (x - weights.b_pre) @ weights.w_enc.T + weights.b_enc
        values, chosen = pre.topk(4)
        z = torch.zeros_like(pre).scatter(-1, chosen, values)
        z[..., 17] += 4
        mean, std = hidden.mean(-1, keepdim=True), hidden.std(-1, keepdim=True)
        written = (z @ weights.w_dec + weights.b_dec) * std + mean
        here = ((route == index) & tokens.real)[..., None]
        expected = torch.where(here, written, hidden)
        # The code leaves eps out when it undoes the standardisation; dictionaries here don't.
        torch.testing.assert_close(edits[index].apply(hidden, view), expected, rtol=0, atol=1e-5)
        assert torch.equal(edits[index].apply(hidden, view)[~here[..., 0]], hidden[~here[..., 0]])
