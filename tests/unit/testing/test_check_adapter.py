"""`check_adapter`: sound dictionaries pass, and each mistake is found by its own check and named."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import pytest
import torch
from torch import Tensor

from latentbench.adapters import (
    Codes,
    Dictionary,
    DictionaryCard,
    Gate,
    InputTransform,
    SaeWeights,
    SparseAutoencoder,
    ThresholdGate,
    TopKGate,
    Written,
    load_dictionary,
    with_threshold,
)
from latentbench.adapters import calibrate as calibrated
from latentbench.errors import UserError
from latentbench.lm import LM, Site
from latentbench.testing import (
    ADAPTER_CHECKS,
    CheckResult,
    assert_adapter,
    check_adapter,
    fitted_sae,
    parametrize_adapter_checks,
    perfect_weights,
    random_routesae,
    random_sae,
    toy_lm,
    toy_tokenizer,
)

SITE = "resid_post.1"


def make_lm() -> LM:
    torch.set_num_threads(1)
    return toy_lm(tokenizer=toy_tokenizer())


@pytest.fixture(scope="module")
def lm() -> LM:
    return make_lm()


@pytest.fixture(scope="module")
def fitted(lm: LM) -> SparseAutoencoder:
    return fitted_sae(lm, SITE)


@pytest.fixture(scope="module")
def square(lm: LM) -> SparseAutoencoder:
    return fitted_sae(lm, SITE, n_latents=lm.d_model)


def changed(
    sae: SparseAutoencoder,
    *,
    card: dict[str, Any] | None = None,
    gate: Gate | None = None,
    transform: InputTransform | None = None,
    **weights: Any,
) -> SparseAutoencoder:
    return SparseAutoencoder(
        sae.card.model_copy(update=card or {}),
        replace(sae.weights, **weights),
        gate or sae.gate,
        transform or sae.transform,
    )


def at(sae: SparseAutoencoder, site: str) -> SparseAutoencoder:
    return changed(sae, card={"reads": (site,), "writes": (site,)})


def failures(dictionary: Dictionary, lm: LM | None) -> dict[str, CheckResult]:
    return {result.name: result for result in check_adapter(dictionary, lm) if result.passed is False}


def the_failure(dictionary: Dictionary, lm: LM | None, name: str) -> CheckResult:
    """The failure of that check; no check that it has nothing to do with fails."""
    failed = failures(dictionary, lm)
    assert name in failed, failed
    assert failed[name].why
    return failed[name]


class TestSound:
    """Dictionaries without a mistake."""

    @pytest.mark.parametrize("kind", ["none", "standardise", "layer_norm", "constant_norm"])
    def test_fitted(self, lm: LM, kind: Any) -> None:
        sae = fitted_sae(lm, SITE, transform=InputTransform(kind))
        results = check_adapter(sae, lm)
        assert tuple(result.name for result in results) == ADAPTER_CHECKS
        assert [
            result for result in results if result.state != "passed" and result.name != "orientation"
        ] == []

    @pytest.mark.parametrize(
        "site", ["embed", "resid_mid.0", "resid_post.0", "mlp_out.2", "attn_out.3", "resid_post.3"]
    )
    def test_every_kind_of_site(self, lm: LM, site: str) -> None:
        assert failures(fitted_sae(lm, site), lm) == {}

    def test_square(self, lm: LM, square: SparseAutoencoder) -> None:
        results = {result.name: result for result in check_adapter(square, lm)}
        assert results["orientation"].passed

    def test_exact(self, lm: LM) -> None:
        gate = TopKGate(lm.d_model, rectify=False)
        assert failures(random_sae(weights=perfect_weights(lm.d_model), gate=gate), lm) == {}

    def test_threshold(self, lm: LM, fitted: SparseAutoencoder) -> None:
        assert failures(calibrated_to(fitted, lm, 4.0), lm) == {}

    def test_routed(self, lm: LM) -> None:
        failed = failures(random_routesae(["resid_post.0", "resid_post.1", "resid_post.2"]), lm)
        assert set(failed) == {"reconstruction"}  # its weights are random
        assert failed["reconstruction"].cause == ""
        assert "compare the encoder" in failed["reconstruction"].instead

    def test_control(self, lm: LM) -> None:
        results = check_adapter(load_dictionary(f"identity:{SITE}", lm=lm), lm)
        assert [result.name for result in results if result.passed is False] == []
        assert {result.name for result in results if result.passed is None} >= {"reconstruction", "site"}

    @pytest.mark.parametrize("family", ["gpt2", "gemma2"])
    def test_without_a_tokenizer(self, family: str) -> None:
        lm = toy_lm(family)
        assert failures(fitted_sae(lm, SITE), lm) == {}

    def test_without_a_model(self, fitted: SparseAutoencoder) -> None:
        results = check_adapter(fitted)
        assert [result for result in results if result.passed is False] == []
        skipped = {result.name for result in results if result.passed is None}
        assert skipped >= {"fit", "reconstruction", "site", "normalisation", "sparsity", "edit"}
        assert not skipped & {"codes", "shapes", "batch invariance", "dtype round trip", "linear decoder"}

    def test_twice_the_same(self, lm: LM, fitted: SparseAutoencoder) -> None:
        assert check_adapter(fitted, lm) == check_adapter(fitted, lm)

    def test_half_precision(self, lm: LM, fitted: SparseAutoencoder) -> None:
        assert failures(fitted.to(dtype=torch.bfloat16), lm) == {}


class TestCauses:
    """What does not fit the model's activations, and why."""

    @pytest.mark.parametrize(
        "site", ["resid_post.0", "resid_post.2", "resid_post.3", "resid_mid.1", "mlp_out.1"]
    )
    def test_wrong_site(self, lm: LM, fitted: SparseAutoencoder, site: str) -> None:
        failure = the_failure(at(fitted, site), lm, "site")
        assert failure.cause == "wrong site"
        assert f"at {SITE}" in failure.found
        assert failure.instead.startswith(f"Declare {SITE}")

    @pytest.mark.parametrize("declared", ["none", "constant_norm"])
    def test_forgotten_standardisation(self, lm: LM, declared: Any) -> None:
        trained = fitted_sae(lm, SITE, transform=InputTransform("standardise"))
        wrong = changed(trained, card={"normalisation": declared}, transform=InputTransform(declared))
        failure = the_failure(wrong, lm, "normalisation")
        assert failure.cause == "forgotten normalisation"
        assert "'standardise'" in failure.instead

    def test_forgotten_constant_norm(self, lm: LM) -> None:
        trained = fitted_sae(lm, SITE, transform=InputTransform("constant_norm"))
        biased = calibrated_to(trained, lm, 6.0)  # a threshold is what a scale matters to
        failure = the_failure(changed(biased, transform=InputTransform("none")), lm, "normalisation")
        assert failure.cause == "forgotten normalisation"

    def test_needless_standardisation(self, lm: LM, fitted: SparseAutoencoder) -> None:
        wrong = changed(
            fitted, card={"normalisation": "standardise"}, transform=InputTransform("standardise")
        )
        assert the_failure(wrong, lm, "normalisation").cause == "needless normalisation"

    def test_forgotten_scale(self, lm: LM, fitted: SparseAutoencoder) -> None:
        # Weights that were trained on activations scaled to a median norm of 1.
        factor = 1 / 4.66
        weights = fitted.weights
        assert weights.b_pre is not None
        gate = calibrated_to(fitted, lm, 6.0).gate
        assert isinstance(gate, ThresholdGate)
        small = changed(
            fitted,
            card={"nominal_l0": None},
            gate=ThresholdGate(gate.threshold * factor),
            b_enc=weights.b_enc * factor,
            b_dec=weights.b_dec * factor,
            b_pre=weights.b_pre * factor,
        )
        failure = the_failure(small, lm, "normalisation")
        assert failure.cause == "forgotten normalisation"
        assert "median norm 1" in failure.found

    def test_forgotten_pre_bias(self, lm: LM, fitted: SparseAutoencoder) -> None:
        failure = the_failure(changed(fitted, b_pre=None), lm, "pre-bias")
        assert failure.cause == "forgotten pre-bias"
        assert "b_pre = b_dec" in failure.instead

    def test_forgotten_pre_bias_of_another_family(self, lm: LM, fitted: SparseAutoencoder) -> None:
        failure = the_failure(Wrapped(changed(fitted, b_pre=None)), lm, "pre-bias")
        assert failure.cause == "forgotten pre-bias"

    def test_needless_pre_bias(self, lm: LM, fitted: SparseAutoencoder) -> None:
        weights = fitted.weights
        assert weights.b_pre is not None
        folded = weights.b_enc - weights.w_enc @ weights.b_pre
        failure = the_failure(changed(fitted, b_enc=folded), lm, "pre-bias")
        assert failure.cause == "needless pre-bias"

    @pytest.mark.parametrize("turned", ["encoder", "decoder", "encoder and decoder"])
    def test_transposed_square(self, lm: LM, square: SparseAutoencoder, turned: str) -> None:
        wrong = square
        if "encoder" in turned.split(" and "):
            wrong = changed(wrong, w_enc=square.weights.w_enc.T)
        if "decoder" in turned.split(" and "):
            wrong = changed(wrong, w_dec=square.weights.w_dec.T)
        failure = the_failure(wrong, lm, "orientation")
        assert failure.cause == f"transposed {turned}"

    def test_decoder_of_another_scale(self, lm: LM, fitted: SparseAutoencoder) -> None:
        failure = the_failure(changed(fitted, w_dec=fitted.weights.w_dec * 3), lm, "output scale")
        assert failure.cause == "decoder of another scale"
        assert "0.33" in failure.found

    def test_the_cause_is_named_beside_the_failure(self, lm: LM, square: SparseAutoencoder) -> None:
        failure = the_failure(changed(square, w_dec=square.weights.w_dec.T), lm, "reconstruction")
        assert failure.cause == "transposed decoder"

    @pytest.mark.parametrize("declared", [2.0, 8.0])
    def test_wrong_l0(self, lm: LM, fitted: SparseAutoencoder, declared: float) -> None:
        failed = failures(changed(fitted, card={"nominal_l0": declared}), lm)
        assert set(failed) == {"sparsity"}
        assert failed["sparsity"].cause == "wrong gate or k"
        assert (
            f"measured L0 4 (5 % to 95 % of tokens: 4 to 4), declared {declared:g}"
            in failed["sparsity"].found
        )

    def test_dead(self, lm: LM, fitted: SparseAutoencoder) -> None:
        bias = fitted.weights.b_enc.clone()
        bias[4:] = -1e6
        assert "4 of 48 latents" in the_failure(changed(fitted, b_enc=bias), lm, "dead latents").found

    def test_silent(self, lm: LM, fitted: SparseAutoencoder) -> None:
        failed = failures(with_threshold(fitted, 1e9), lm)
        assert {"dead latents", "edit", "decoder norms"} <= set(failed)

    def test_row_of_zeros(self, lm: LM, fitted: SparseAutoencoder) -> None:
        w_dec = fitted.weights.w_dec.clone()
        w_dec[::2] = 0
        the_failure(changed(fitted, w_dec=w_dec), lm, "decoder norms")


def calibrated_to(sae: SparseAutoencoder, lm: LM, l0: float) -> SparseAutoencoder:
    """The SAE with one threshold, found on the activations that the checks use."""
    from latentbench.testing._subject import Subject

    site = sae.site
    found = calibrated(sae, [Subject(sae, lm).at([site])], l0)
    assert isinstance(found, SparseAutoencoder)
    return changed(found, card={"nominal_l0": l0})


class Wrapped(Dictionary):
    """An SAE that is no `SparseAutoencoder`, as one from another package; its parts can be broken."""

    def __init__(self, inner: SparseAutoencoder) -> None:
        self.inner = inner
        self.card = inner.card

    @property
    def device(self) -> torch.device:
        return self.inner.device

    @property
    def dtype(self) -> torch.dtype:
        return self.inner.dtype

    def encode(self, acts: Mapping[Site, Tensor] | Mapping[str, Tensor]) -> Codes:
        return self.inner.encode(acts)

    def decode(self, codes: Codes) -> dict[Site, Written]:
        return self.inner.decode(codes)

    def encode_at(self, site: Site, acts: Tensor, context: Mapping[str, Tensor]) -> Codes:
        return self.inner.encode_at(site, acts, context)

    def write_vectors(
        self, latents: Sequence[int], context: Mapping[str, Tensor] | None = None
    ) -> dict[Site, Tensor]:
        return self.inner.write_vectors(latents, context)

    def raw_scale(self, site: Site, acts: Tensor) -> Tensor:
        return self.inner.raw_scale(site, acts)

    def routed(self, codes: Codes) -> Tensor | None:
        return self.inner.routed(codes)

    def reconstructions(self, acts: Mapping[Site, Tensor], codes: Codes) -> Any:
        return self.inner.reconstructions(acts, codes)

    def relative_values(self, acts: Mapping[Site, Tensor], codes: Codes) -> Tensor:
        return self.inner.relative_values(acts, codes)

    def to(self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        return type(self)(self.inner.to(device=device, dtype=dtype))


class BatchStatistics(Wrapped):
    def encode(self, acts: Any) -> Codes:
        return self.inner.encode({site: value - value.mean(dim=0) for site, value in acts.items()})


class Noisy(Wrapped):
    def encode(self, acts: Any) -> Codes:
        codes = self.inner.encode(acts)
        return codes.with_values(codes.values * (1 + torch.rand_like(codes.values)))


class Zeros(Wrapped):
    def encode(self, acts: Any) -> Codes:
        codes = self.inner.encode(acts)
        return codes.with_values(codes.values.where(codes.rows() > 3, torch.zeros(())))


class Nan(Wrapped):
    def encode(self, acts: Any) -> Codes:
        codes = self.inner.encode(acts)
        return codes.with_values(codes.values / (codes.rows() != 0))


class Twice(Wrapped):
    def encode(self, acts: Any) -> Codes:
        codes = self.inner.encode(acts)
        return replace(codes, latents=codes.latents.clamp(max=40) // 8 * 8)


class Outside(Wrapped):
    def encode(self, acts: Any) -> Codes:
        codes = self.inner.encode(acts)
        return replace(codes, latents=codes.latents + 40)


class Unsorted(Wrapped):
    def encode(self, acts: Any) -> Codes:
        codes = self.inner.encode(acts)
        offsets = codes.offsets.clone()
        if codes.n_tokens > 2:
            offsets[1:3] = offsets[1:3].flip(0)
        return replace(codes, offsets=offsets)


class Short(Wrapped):
    def encode(self, acts: Any) -> Codes:
        return replace(self.inner.encode(acts), offsets=self.inner.encode(acts).offsets[:-1])


class Stray(Wrapped):
    def decode(self, codes: Codes) -> dict[Site, Written]:
        return {Site("resid_post", 3): written for written in self.inner.decode(codes).values()}


class Squared(Wrapped):
    def decode(self, codes: Codes) -> dict[Site, Written]:
        return self.inner.decode(codes.with_values(codes.values * codes.values.abs()))


class OtherVectors(Wrapped):
    def write_vectors(
        self, latents: Sequence[int], context: Mapping[str, Tensor] | None = None
    ) -> dict[Site, Tensor]:
        return {site: -vectors for site, vectors in self.inner.write_vectors(latents, context).items()}


class Unchecked(Wrapped):
    def encode(self, acts: Any) -> Codes:
        site = self.reads[0]
        if site not in acts:
            return self.inner.encode({site: torch.zeros((1, self.card.d_model))})
        return self.inner.encode(acts)


class InPlace(Wrapped):
    def to(self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        self.inner = self.inner.to(device=device, dtype=dtype)
        return self


class StuckInFloat32(Wrapped):
    def to(self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        return self


class FailsOnNothing(Wrapped):
    def encode(self, acts: Any) -> Codes:
        codes = self.inner.encode(acts)
        assert codes.n_tokens > 0
        return codes


class WritesNothingThere(Wrapped):
    def write_vectors(
        self, latents: Sequence[int], context: Mapping[str, Tensor] | None = None
    ) -> dict[Site, Tensor]:
        return {site: vectors * 0 for site, vectors in self.inner.write_vectors(latents, context).items()}


class TestForm:
    """What is wrong whatever the activations are."""

    @pytest.mark.parametrize(
        ("broken", "check", "found"),
        [
            (BatchStatistics, "batch invariance", "in other batches"),
            (Noisy, "determinism", "a second time"),
            (Zeros, "codes", "stored activations are 0"),
            (Nan, "codes", "NaN or infinite"),
            (Twice, "codes", "twice in one token"),
            (Outside, "codes", "outside 0 to 47"),
            (Unsorted, "codes", "offsets are not sorted"),
            (Short, "codes", "offsets do not run"),
            (Stray, "shapes", "wrote resid_post.3"),
            (Squared, "linear decoder", "for mixed values"),
            (OtherVectors, "write vectors", "writes something else"),
            (Unchecked, "input errors", "a missing site is not noticed"),
            (InPlace, "dtype round trip", "left the original at torch.float64"),
            (StuckInFloat32, "dtype round trip", "gave torch.float32"),
            (FailsOnNothing, "no tokens", "AssertionError"),
            (WritesNothingThere, "edit", "0 when latent"),
        ],
    )
    def test_broken(
        self, lm: LM, fitted: SparseAutoencoder, broken: type[Wrapped], check: str, found: str
    ) -> None:
        assert found in the_failure(broken(fitted), lm, check).found

    def test_the_wrapper_itself_is_sound(self, lm: LM, fitted: SparseAutoencoder) -> None:
        assert failures(Wrapped(fitted), lm) == {}

    @pytest.mark.parametrize(
        ("update", "found"),
        [
            ({"reads": ("blocks.1.hook_resid_post",)}, "is an alias"),
            ({"reads": ("resid_pots.1",)}, "unknown site"),
            ({"sha256": ""}, "sha256 is empty"),
            ({"options": {"gate": object()}}, "JSON"),
        ],
    )
    def test_card(self, lm: LM, fitted: SparseAutoencoder, update: dict[str, Any], found: str) -> None:
        broken = Wrapped(fitted)
        broken.card = fitted.card.model_copy(update=update)
        failed = failures(broken, lm)
        assert found in failed["card"].found
        assert set(failed) == {"card"}  # the others are not made

    def test_another_models_dictionary(self, fitted: SparseAutoencoder) -> None:
        failure = the_failure(fitted, toy_lm(d_model=24), "fit")
        assert failure.cause == "wrong model"
        assert "has width 16, but toy-llama has width 24" in failure.found

    def test_a_site_that_the_model_lacks(self, lm: LM, fitted: SparseAutoencoder) -> None:
        assert "resid_post.9" in the_failure(at(fitted, "resid_post.9"), lm, "fit").found


class TestKit:
    """How results are handed on."""

    def test_assert_names_everything(self, lm: LM, fitted: SparseAutoencoder) -> None:
        assert_adapter(fitted, lm)
        with pytest.raises(AssertionError, match=r"(?s)1 of 23 .*Likely cause: forgotten pre-bias"):
            assert_adapter(changed(fitted, b_pre=None), lm)

    def test_expected_failures(self, lm: LM, fitted: SparseAutoencoder) -> None:
        wrong = changed(fitted, b_pre=None)
        results = check_adapter(wrong, lm, expected_failures={"pre-bias": "trained so"})
        assert [result.name for result in results if result.passed is False] == []
        assert "expected: trained so" in {result.name: result.found for result in results}["pre-bias"]
        with pytest.raises(AssertionError, match="though a failure was expected"):
            assert_adapter(fitted, lm, expected_failures={"pre-bias": "trained so"})
        with pytest.raises(UserError, match="did you mean 'pre-bias'"):
            check_adapter(fitted, lm, expected_failures={"prebias": "?"})

    @parametrize_adapter_checks(lambda: fitted_sae(make_lm(), SITE, n_latents=16), make_lm)
    def test_parametrised(self, check: Callable[[], None]) -> None:
        check()

    def test_one_failing_case_fails(self, fitted: SparseAutoencoder) -> None:
        mark = parametrize_adapter_checks(lambda: Nan(fitted)).mark
        cases = {case.id: case.values[0] for case in mark.args[1]}
        assert list(cases) == [name.replace(" ", "-") for name in ADAPTER_CHECKS]
        with pytest.raises(AssertionError, match="NaN or infinite"):
            cases["codes"]()
        with pytest.raises(pytest.skip.Exception, match="'codes' failed"):
            cases["edit"]()


@pytest.mark.slow
class TestRealModel:
    """The shipped TopK dictionary on the model that it was trained on."""

    def test_right_and_wrong_site(self) -> None:
        from latentbench.lm import load_lm

        torch.set_num_threads(1)
        lm = load_lm("smollm2-135m-q4")
        sae = load_dictionary("zoo:smollm2-topk-r21-k64", lm=lm)
        assert isinstance(sae, SparseAutoencoder)
        assert failures(sae, lm) == {}
        for site in ("resid_post.20", "resid_post.11"):
            failure = the_failure(at(sae, site), lm, "site")
            assert (failure.cause, "at resid_post.21" in failure.found) == ("wrong site", True)


def test_cards_of_the_toys_are_json() -> None:
    card = random_sae().card
    assert DictionaryCard.model_validate_json(card.model_dump_json()) == card
    assert isinstance(random_sae().weights, SaeWeights)
