"""Checkpoints written by SAELens, loaded by us: the same codes and reconstructions as SAELens's own."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from latentbench.adapters import InputTransform, SparseAutoencoder, load_dictionary
from latentbench.errors import AdapterError, UserError
from latentbench.lm import Site

pytestmark = pytest.mark.slow  # importing sae_lens takes seconds

SITE = Site("resid_post", 3)
SHAPES = [(12, 40), (16, 16), (20, 9)]
NORMALISATIONS = ["none", "layer_norm", "constant_norm_rescale"]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)  # toy tensors: threads would only wait for each other


@pytest.fixture(autouse=True)
def _their_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SAELens and what it imports warn about their own affairs
        yield


@pytest.fixture(scope="session")
def draw() -> Callable[..., Tensor]:
    def drawn(*shape: int, seed: int = 0) -> Tensor:
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed))

    return drawn


def native_sae(architecture: str, d_in: int, d_sae: int, seed: int = 0, **options: Any) -> Any:
    """A SAELens SAE whose every weight is drawn anew."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import sae_lens
        from sae_lens.saes.sae import SAEMetadata

    kinds = {
        "standard": (sae_lens.StandardSAE, sae_lens.StandardSAEConfig),
        "topk": (sae_lens.TopKSAE, sae_lens.TopKSAEConfig),
        "jumprelu": (sae_lens.JumpReLUSAE, sae_lens.JumpReLUSAEConfig),
        "gated": (sae_lens.GatedSAE, sae_lens.GatedSAEConfig),
    }
    kind, config = kinds[architecture]
    metadata = SAEMetadata(model_name="toy", hook_name="blocks.3.hook_resid_post")
    sae = kind(config(d_in=d_in, d_sae=d_sae, metadata=metadata, **options))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in sorted(sae.named_parameters()):
            scale = d_in**-0.5 if weight.dim() == 2 else 0.3
            weight.copy_(torch.randn(weight.shape, generator=generator) * scale)
            if name == "W_dec":  # decoder norms that differ, so that scaling by them matters
                weight.mul_(torch.rand(d_sae, 1, generator=generator) + 0.5)
    return sae


def agree(theirs: Any, ours: SparseAutoencoder, x: Tensor) -> None:
    """Codes and reconstructions of a batch agree to 1e-5 in float32."""
    with torch.no_grad():
        expected = theirs.encode(x)
        expected = expected.to_dense() if expected.is_sparse else expected
        recovered = theirs.decode(expected)
    codes = ours.encode({SITE: x})
    assert codes.nnz > 0
    torch.testing.assert_close(codes.dense(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.decode(codes)[SITE].values, recovered, rtol=1e-5, atol=1e-5)


def loaded(folder: Path, **options: Any) -> SparseAutoencoder:
    dictionary = load_dictionary(str(folder), **options)
    assert isinstance(dictionary, SparseAutoencoder)
    return dictionary


@pytest.mark.parametrize("shape", SHAPES, ids=["wide", "square", "narrow"])
@pytest.mark.parametrize("bias", [True, False], ids=["b_dec-in", "no-b_dec-in"])
@pytest.mark.parametrize("normalisation", NORMALISATIONS)
@pytest.mark.parametrize("architecture", ["standard", "topk", "topk-rescaled", "jumprelu"])
def test_codes_and_reconstructions_are_saelens_own(
    tmp_path: Path,
    draw: Callable[..., Tensor],
    architecture: str,
    normalisation: str,
    bias: bool,
    shape: tuple[int, int],
) -> None:
    d_in, d_sae = shape
    options: dict[str, Any] = {"normalize_activations": normalisation, "apply_b_dec_to_input": bias}
    if architecture.startswith("topk"):
        options |= {"k": 5, "rescale_acts_by_decoder_norm": architecture == "topk-rescaled"}
    theirs = native_sae(architecture.split("-", maxsplit=1)[0], d_in, d_sae, **options)
    theirs.save_model(tmp_path)
    ours = loaded(tmp_path)
    agree(theirs, ours, draw(50, d_in) * 3 + 1)
    agree(theirs, ours, draw(50, d_in, seed=1) * 0.1 - 2)
    assert ours.card.reads == ("resid_post.3",)
    assert ours.card.lm == "toy"
    assert ours.card.nominal_l0 == (5 if architecture.startswith("topk") else None)


def test_rescaling_by_the_decoder_norm_changes_which_latents_win(draw: Callable[..., Tensor]) -> None:
    """Otherwise the parity of rescaled TopK would prove little."""
    x = draw(50, 12)
    plain, rescaled = (
        native_sae("topk", 12, 40, k=5, rescale_acts_by_decoder_norm=on) for on in (False, True)
    )
    with torch.no_grad():
        assert not torch.equal(plain.encode(x).to_dense() != 0, rescaled.encode(x).to_dense() != 0)


def test_negative_jumprelu_thresholds_act_as_zero(tmp_path: Path, draw: Callable[..., Tensor]) -> None:
    theirs = native_sae("jumprelu", 12, 40)
    assert bool((theirs.threshold < 0).any())
    theirs.save_model(tmp_path)
    codes = loaded(tmp_path).encode({SITE: draw(50, 12)})
    assert bool((codes.values > 0).all())


def test_decoding_after_another_batch_is_right_in_ours_and_wrong_in_theirs(
    tmp_path: Path, draw: Callable[..., Tensor]
) -> None:
    """SAELens keeps a batch's layer-norm statistics on the module; ours travel with the codes."""
    theirs = native_sae("standard", 12, 40, normalize_activations="layer_norm")
    theirs.save_model(tmp_path)
    ours = loaded(tmp_path)
    first, second = draw(20, 12) * 5 + 3, draw(20, 12, seed=1)
    with torch.no_grad():
        codes = theirs.encode(first)
        right = theirs.decode(codes)
        codes = theirs.encode(first)
        theirs.encode(second)
        late = theirs.decode(codes)
    assert not torch.allclose(late, right, atol=0.1), "the trap is there"
    mine = ours.encode({SITE: first})
    ours.encode({SITE: second})
    torch.testing.assert_close(ours.decode(mine)[SITE].values, right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("architecture", ["topk", "batchtopk", "jumprelu"])
def test_training_saes_exported_for_inference(
    tmp_path: Path, draw: Callable[..., Tensor], architecture: str
) -> None:
    """BatchTopK is exported as jumprelu with one threshold; the training class's own checkpoint is
    refused."""
    import sae_lens
    from sae_lens.saes.sae import SAEMetadata

    kinds: dict[str, Any] = {
        "topk": (sae_lens.TopKTrainingSAE, sae_lens.TopKTrainingSAEConfig, {"k": 5}),
        "batchtopk": (sae_lens.BatchTopKTrainingSAE, sae_lens.BatchTopKTrainingSAEConfig, {"k": 5}),
        "jumprelu": (sae_lens.JumpReLUTrainingSAE, sae_lens.JumpReLUTrainingSAEConfig, {}),
    }
    kind, config, options = kinds[architecture]
    metadata = SAEMetadata(model_name="toy", hook_name="blocks.3.hook_resid_post")
    training = kind(config(d_in=12, d_sae=40, metadata=metadata, **options))
    if architecture == "batchtopk":
        with torch.no_grad():
            training.topk_threshold.fill_(0.05)
    training.save_inference_model(tmp_path)
    theirs = sae_lens.SAE.load_from_disk(tmp_path)
    agree(theirs, loaded(tmp_path), draw(50, 12) * 3)
    if architecture == "batchtopk":
        training.save_model(tmp_path / "training")
        with pytest.raises(AdapterError, match="architecture is 'batchtopk', which is that of a training"):
            loaded(tmp_path / "training")


def test_half_precision_checkpoints_load_in_float32(tmp_path: Path, draw: Callable[..., Tensor]) -> None:
    theirs = native_sae("topk", 12, 40, k=5).to(torch.bfloat16)
    theirs.save_model(tmp_path)
    ours = loaded(tmp_path)
    assert ours.dtype == torch.float32
    agree(theirs.to(torch.float32), ours, draw(50, 12))


def test_options_and_models_apply_to_saelens_checkpoints_too(
    tmp_path: Path, draw: Callable[..., Tensor]
) -> None:
    native_sae("topk", 12, 40, k=5).save_model(tmp_path)
    ours = loaded(tmp_path / "sae_weights.safetensors", k=2)
    assert int(ours.encode({SITE: draw(9, 12)}).counts().max()) == 2
    assert loaded(tmp_path).card.sha256 == ours.card.sha256
    assert loaded(tmp_path).card.source == tmp_path.name


@pytest.mark.parametrize(
    ("architecture", "options", "message"),
    [
        (
            "standard",
            {"normalize_activations": "expected_average_only_in"},
            "fold_activation_norm_scaling_factor",
        ),
    ],
)
def test_what_is_not_reproduced_exactly_is_refused(
    tmp_path: Path, architecture: str, options: dict[str, Any], message: str
) -> None:
    native_sae(architecture, 12, 40, **options).save_model(tmp_path)
    with pytest.raises(AdapterError, match=message):
        loaded(tmp_path)


# What SAELens wrote before version 6: one flat object.
FLAT: dict[str, Any] = {
    "d_in": 12,
    "d_sae": 40,
    "dtype": "float32",
    "device": "cpu",
    "model_name": "gpt2-small",
    "hook_point": "blocks.3.hook_resid_post",
    "hook_point_layer": 3,
    "hook_point_head_index": None,
    "activation_fn": "relu",
    "apply_b_dec_to_input": True,
    "finetuning_scaling_factor": False,
    "prepend_bos": True,
    "context_size": 128,
    "normalize_activations": "none",
}


def flat_checkpoint(folder: Path, weights: dict[str, Tensor], **changes: Any) -> Path:
    config = {name: value for name, value in {**FLAT, **changes}.items() if value != "absent"}
    (folder / "cfg.json").write_text(json.dumps(config))
    save_file(weights, folder / "sae_weights.safetensors")
    return folder


@pytest.fixture
def weights() -> dict[str, Tensor]:
    sae = native_sae("standard", 12, 40)
    return {name: value.detach().clone() for name, value in sae.state_dict().items()}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"architecture": "standard", "hook_point": "absent", "hook_name": "blocks.3.hook_resid_post"},
        {"apply_b_dec_to_input": False},
        {"apply_b_dec_to_input": "absent"},
        {"normalize_activations": "layer_norm"},
        {"normalize_activations": False},
        {"normalize_activations": None},
        {"normalize_activations": "absent"},
        {"activation_fn": "absent", "activation_fn_str": "topk", "activation_fn_kwargs": {"k": 7}},
        {"activation_fn": "topk", "activation_fn_kwargs": {"k": 7}, "architecture": "standard"},
    ],
    ids=str,
)
def test_flat_configs_from_before_version_6(
    tmp_path: Path, draw: Callable[..., Tensor], weights: dict[str, Tensor], changes: dict[str, Any]
) -> None:
    import sae_lens

    flat_checkpoint(tmp_path, weights, **changes)
    theirs = sae_lens.SAE.load_from_disk(tmp_path)
    ours = loaded(tmp_path)
    agree(theirs, ours, draw(50, 12) * 3 + 1)
    assert ours.card.family == ("topk" if "activation_fn_kwargs" in changes else "relu")
    if ours.card.family == "topk":
        assert ours.card.nominal_l0 == 7, "a TopK that calls itself standard is no ReLU"
        assert int(ours.encode({SITE: draw(50, 12)}).counts().max()) <= 7


def test_scaling_factors_of_ones_are_ignored_and_others_are_applied(
    tmp_path: Path, draw: Callable[..., Tensor], weights: dict[str, Tensor]
) -> None:
    import sae_lens

    x = draw(50, 12)
    flat_checkpoint(tmp_path, weights | {"scaling_factor": torch.ones(40)})
    theirs = sae_lens.SAE.load_from_disk(tmp_path)
    agree(theirs, loaded(tmp_path), x)
    scale = torch.rand(40, generator=torch.Generator().manual_seed(0)) + 0.5
    flat_checkpoint(tmp_path, weights | {"scaling_factor": scale}, finetuning_scaling_factor=True)
    ours = loaded(tmp_path)
    codes = ours.encode({SITE: x})
    expected = (theirs.encode(x) * scale) @ theirs.W_dec + theirs.b_dec
    torch.testing.assert_close(ours.decode(codes)[SITE].values, expected.detach(), rtol=1e-5, atol=1e-5)
    flat_checkpoint(tmp_path, weights | {"scaling_factor": scale})
    with pytest.raises(AdapterError, match="scaling_factor, but the config does not say that it was used"):
        loaded(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"normalize_activations": True}, "needs the scale it was trained with"),
        ({"normalize_activations": "covariance_whitening"}, "'covariance_whitening' is not supported"),
        ({"hook_point_head_index": 4}, "one attention head only"),
        ({"hook_point": "absent"}, "names no hook_name"),
        ({"hook_point": "blocks.3.hook_resid_pots"}, "unknown site 'blocks.3.hook_resid_pots'"),
        ({"architecture": "jumprelu"}, r"key threshold of shape \(40,\) is expected, and it is missing"),
        ({"activation_fn": "topk"}, "names no k"),
        ({"architecture": "transcoder"}, "apply_b_dec_to_input is true, and false is expected"),
        ({"rescale_acts_by_decoder_norm": True}, "rescale_acts_by_decoder_norm with architecture 'standard'"),
    ],
    ids=str,
)
def test_flat_configs_that_can_not_be_reproduced(
    tmp_path: Path, weights: dict[str, Tensor], changes: dict[str, Any], message: str
) -> None:
    flat_checkpoint(tmp_path, weights, **changes)
    with pytest.raises(UserError, match=message):
        loaded(tmp_path)


def test_damaged_checkpoints_are_refused(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    folder = flat_checkpoint(tmp_path, {name: value for name, value in weights.items() if name != "W_dec"})
    with pytest.raises(AdapterError, match=r"key W_dec .* is missing; found W_enc, b_dec, b_enc"):
        loaded(folder)
    flat_checkpoint(tmp_path, weights | {"W_enc": weights["W_enc"].T.contiguous()})
    with pytest.raises(AdapterError, match="transposed"):
        loaded(folder)
    flat_checkpoint(tmp_path, weights | {"b_enc": torch.full((40,), float("nan"))})
    with pytest.raises(AdapterError, match="key b_enc holds 40 NaN"):
        loaded(folder)
    flat_checkpoint(tmp_path, weights)
    (tmp_path / "cfg.json").write_text("{")
    with pytest.raises(AdapterError, match=r"cfg\.json of .* is not JSON"):
        loaded(folder)


def test_hook_z_sites_are_read_flat(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    ours = loaded(flat_checkpoint(tmp_path, weights, hook_point="blocks.3.attn.hook_z"))
    assert ours.card.reads == ("attn_z.3",)
    assert ours.transform == InputTransform("none")


def test_a_release_that_saelens_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(AdapterError, match="SAELens can't load release 'no-such-release', id 'layer_3/x'"):
        load_dictionary("no-such-release/layer_3/x")


def test_a_release_loads_as_saelens_loads_it(
    monkeypatch: pytest.MonkeyPatch, draw: Callable[..., Tensor]
) -> None:
    """The registry's download is replaced by an SAE made here: what is tested is the way from it to ours."""
    import sae_lens

    theirs = native_sae("jumprelu", 12, 40, normalize_activations="layer_norm", apply_b_dec_to_input=False)
    asked: list[tuple[str, str]] = []

    def from_pretrained(release: str, sae_id: str) -> Any:
        asked.append((release, sae_id))
        return theirs

    monkeypatch.setattr(sae_lens.SAE, "from_pretrained", from_pretrained)
    ours = load_dictionary("some-release/layer_3/width_16k")
    assert asked == [("some-release", "layer_3/width_16k")]
    assert isinstance(ours, SparseAutoencoder)
    agree(theirs, ours, draw(50, 12))
    assert ours.card.source == "some-release/layer_3/width_16k"
    assert ours.card.sha256 == load_dictionary("some-release/layer_3/width_16k").card.sha256
    with torch.no_grad():
        theirs.b_dec[0] += 1
    assert ours.card.sha256 != load_dictionary("some-release/layer_3/width_16k").card.sha256
