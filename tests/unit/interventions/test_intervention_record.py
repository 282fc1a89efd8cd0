"""The record: round trips, hashes, and what it refuses."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from latentbench.adapters import Dictionary, with_k
from latentbench.errors import UserError
from latentbench.interventions import Intervention, bind, dictionary_sha256, vector_payload
from latentbench.lm import LM, Site
from latentbench.testing import random_routesae, random_sae

Fields = dict[str, Any]
SHA = "a" * 64
VECTOR: Fields = {"site": "resid_post.2", "sha256": SHA}
LATENT: Fields = {"operator": "add", "latents": [3], "amounts": [2.0], "dictionary": SHA}
DENSE: Fields = {"operator": "add", "vector": VECTOR, "amounts": [2.0]}


def record(**fields: object) -> Intervention:
    return Intervention.model_validate({**LATENT, **fields})


@pytest.mark.parametrize(
    "fields",
    [
        LATENT,
        DENSE,
        LATENT | {"operator": "ablate", "amounts": [], "keep_error": False, "phases": "decode"},
        LATENT
        | {
            "operator": "set",
            "unit": "max_activation",
            "unit_values": [7.25],
            "unit_source": "max over 100k tokens",
            "positions": "from_token",
            "first_token": 4,
            "conflict": "sum",
        },
        LATENT | {"mode": "code", "phases": "prefill"},
        DENSE | {"positions": "routed", "dictionary": SHA},
    ],
)
def test_records_survive_json(fields: Fields) -> None:
    made = Intervention.model_validate(fields)
    again = Intervention.from_json(made.to_json())
    assert again == made
    assert hash(again) == hash(made)
    assert again.sha256 == made.sha256


def test_the_hash_is_the_one_that_results_carry() -> None:
    """Golden: a change here makes every cached text of earlier versions a miss."""
    assert record().sha256 == "177bd447c9201955c7cc436a761642f453af7871f8de378c37b02998a944ef5f"


def test_equal_numbers_give_equal_hashes() -> None:
    assert record(amounts=[2]).sha256 == record(amounts=(2.0,)).sha256
    named = Intervention.model_validate(DENSE | {"vector": VECTOR | {"site": "model.layers.2"}})
    assert named == Intervention.model_validate(DENSE)


@pytest.mark.parametrize(
    "change",
    [
        {"operator": "set"},
        {"latents": [4]},
        {"amounts": [2.5]},
        {"amounts": [-2.0]},
        {"dictionary": "b" * 64},
        {"keep_error": False},
        {"positions": "last"},
        {"positions": "from_token", "first_token": 0},
        {"phases": "prefill"},
        {"conflict": "error"},
        {"unit": "residual_norm", "unit_values": [1.0], "unit_source": "toy"},
    ],
)
def test_every_field_is_in_the_hash(change: Fields) -> None:
    assert record(**change).sha256 != record().sha256


@given(amount=st.floats(allow_nan=False, allow_infinity=False), size=st.floats(0.001, 1000))
def test_any_finite_amount_survives_json(amount: float, size: float) -> None:
    made = record(amounts=[amount], unit="max_activation", unit_values=[size], unit_source="toy")
    again = Intervention.from_json(made.to_json())
    assert again == made
    assert again.sha256 == made.sha256
    assert again.values == (amount * size,)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (LATENT | {"vector": VECTOR}, "exactly one of"),
        (LATENT | {"latents": []}, "exactly one of"),
        (LATENT | {"dictionary": None}, "of which dictionary"),
        (LATENT | {"latents": [-1]}, "latent -1 is out of range"),
        (LATENT | {"latents": [3, 3], "amounts": [1, 1]}, "named twice"),
        (LATENT | {"amounts": [1, 2]}, "takes 1 amounts; found 2"),
        (LATENT | {"operator": "ablate"}, "takes 0 amounts; found 1"),
        (LATENT | {"amounts": [math.nan]}, "finite"),
        (LATENT | {"amounts": [math.inf]}, "finite"),
        (LATENT | {"unit": "max_activation"}, "unit_values"),
        (LATENT | {"unit": "max_activation", "unit_values": [3.0]}, "unit_source"),
        (LATENT | {"unit": "max_activation", "unit_values": [math.nan], "unit_source": "toy"}, "finite"),
        (LATENT | {"unit_values": [3.0]}, "'raw' has no sizes"),
        (
            LATENT
            | {"operator": "scale", "unit": "residual_norm", "unit_values": [3.0], "unit_source": "toy"},
            "has no amount in units",
        ),
        (DENSE | {"operator": "set"}, "a dense vector has none"),
        (DENSE | {"operator": "ablate", "amounts": []}, "a dense vector has none"),
        (DENSE | {"keep_error": False}, "reconstructs nothing"),
        (DENSE | {"dictionary": SHA}, "only for positions='routed'"),
        (DENSE | {"positions": "routed"}, "the dictionary whose router"),
        (LATENT | {"operator": "project_out", "amounts": [], "keep_error": False}, "reconstructs nothing"),
        (LATENT | {"positions": "from_token"}, "first_token"),
        (LATENT | {"first_token": 2}, "first_token"),
        (LATENT | {"mode": "code"}, "phases='prefill'"),
    ],
)
def test_records_that_mean_nothing_are_refused(fields: Fields, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Intervention.model_validate(fields)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"operator": "clamp"}, "operator"),
        ({"positons": "all"}, "positons"),
        ({"dictionary": "zoo:x"}, "dictionary"),
        ({"first_token": -1}, "first_token"),
    ],
)
def test_json_that_is_no_record_is_told_in_a_line(change: Fields, message: str) -> None:
    with pytest.raises(UserError, match=f"not an intervention: {message}") as caught:
        Intervention.from_json(json.dumps(LATENT | change))
    assert "\n" not in str(caught.value)


def test_a_changed_copy_has_a_hash_of_its_own() -> None:
    one = record()
    assert one.sha256 == record().sha256
    other = one.model_copy(update={"amounts": (5.0,)})
    assert other.sha256 == record(amounts=[5.0]).sha256 != one.sha256


def test_equal_records_have_equal_hashes_whatever_the_sign_of_nothing() -> None:
    assert record(amounts=[-0.0]) == record(amounts=[0.0])
    assert record(amounts=[-0.0]).sha256 == record(amounts=[0.0]).sha256


def test_records_are_frozen() -> None:
    with pytest.raises(ValidationError):
        record().operator = "set"


def test_a_dictionary_is_named_by_all_that_changes_what_it_does() -> None:
    plain = random_sae(site="resid_post.2")
    assert dictionary_sha256(plain) == dictionary_sha256(random_sae(site="resid_post.2"))
    others = [random_sae(site="resid_post.2", seed=1), random_sae(site="resid_post.3"), with_k(plain, 2)]
    sites = [f"resid_post.{layer}" for layer in range(4)]
    others += [random_routesae(sites, splice=splice) for splice in ("code", "paper", "corrected")]
    assert len({dictionary_sha256(one) for one in [plain, *others]}) == 7


def test_a_vector_is_named_by_its_float32_bytes() -> None:
    vector = torch.tensor([1.0, -0.5, 3.0])
    payload = vector_payload("resid_post.2", vector)
    assert payload.sha256 == hashlib.sha256(struct.pack("<3f", 1.0, -0.5, 3.0)).hexdigest()
    assert vector_payload(Site("resid_post", 2), vector.double()) == payload
    assert vector_payload("resid_post.2", torch.stack([vector, vector], dim=1)[:, 0]) == payload
    assert vector_payload("resid_post.2", vector + 1e-6) != payload


def test_binding_checks_the_dictionary(made: Callable[[str], Dictionary], lm: LM) -> None:
    sae, routed = made("topk"), made("routesae")
    fine = record(dictionary=dictionary_sha256(sae))
    assert bind(fine, sae).sites == (Site("resid_post", 2),)
    cases: list[tuple[Intervention, Dictionary | None, str]] = [
        (fine, None, "none was given"),
        (fine, made("jumprelu"), "it is another dictionary, or was loaded with other options"),
        (record(dictionary=dictionary_sha256(sae), latents=[48]), sae, "latent 48 is out of range.* 0 to 47"),
        (record(dictionary=dictionary_sha256(sae), positions="routed"), sae, "has no router"),
        (record(dictionary=dictionary_sha256(sae), mode="code", phases="prefill"), sae, "has no router"),
        (
            record(dictionary=dictionary_sha256(routed), mode="code", phases="prefill"),
            routed,
            "pass it as `lm`",
        ),
        (Intervention.model_validate(DENSE), sae, "none was given"),
    ]
    for intervention, dictionary, message in cases:
        with pytest.raises(UserError, match=message):
            bind(intervention, dictionary)
    random = made("random_routing")
    with pytest.raises(UserError, match="random routing"):
        bind(record(dictionary=dictionary_sha256(random), mode="code", phases="prefill"), random, lm=lm)
    soft = random_routesae([Site("resid_post", layer) for layer in range(1, 5)], routing="soft")
    with pytest.raises(UserError, match="soft routing"):
        bind(record(dictionary=dictionary_sha256(soft)), soft)


def test_binding_checks_the_vector(made: Callable[[str], Dictionary], draw: Callable[..., Tensor]) -> None:
    vector = draw(16)
    fields = DENSE | {"vector": vector_payload("resid_post.2", vector)}
    fine = Intervention.model_validate(fields)
    assert torch.equal(torch.as_tensor(bind(fine, vector=vector).vector), vector.float())
    cases: list[tuple[Fields, Tensor | None, str]] = [
        (fields, None, "none was given"),
        (fields, vector + 1, "it is another vector"),
        (fields, vector[None], "one row of finite numbers"),
        (fields, vector * math.nan, "NaN"),
    ]
    for changed, given_vector, message in cases:
        with pytest.raises(UserError, match=message):
            bind(Intervention.model_validate(changed), vector=given_vector)
    nothing = {"operator": "project_out", "amounts": [], "vector": vector_payload("resid_post.2", 0 * vector)}
    with pytest.raises(UserError, match="needs a direction"):
        bind(Intervention.model_validate(nothing), vector=0 * vector)
    with pytest.raises(UserError, match="names latents"):
        bind(record(), vector=vector)
    with pytest.raises(UserError, match="names none"):
        bind(fine, made("topk"), vector)
    routed = made("routesae")
    elsewhere = DENSE | {
        "vector": vector_payload("resid_post.5", vector),
        "positions": "routed",
        "dictionary": dictionary_sha256(routed),
    }
    with pytest.raises(UserError, match="no token is ever routed there"):
        bind(Intervention.model_validate(elsewhere), routed, vector)
