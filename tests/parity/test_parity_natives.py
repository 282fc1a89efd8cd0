"""Checkpoints written by sparsify, dictionary_learning and SAELens: our codes and reconstructions are their own.

Where a native library is known to go wrong, the test holds ours to the one that wrote the file.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from latentbench.adapters import Dictionary, LoadOptions
from latentbench.adapters.formats import dictionary_learning, saelens, sparsify

pytestmark = pytest.mark.slow  # importing the libraries takes seconds

SHAPES = [(12, 40), (16, 16), (20, 9)]
TOLERANCE = 1e-5


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)  # toy tensors: threads would only wait for each other


@pytest.fixture(autouse=True)
def _their_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the libraries and what they import warn about their own affairs
        yield


@pytest.fixture(scope="module", autouse=True)
def _natives_in_sight() -> Iterator[None]:
    """The folder that natives.txt is installed into; after the tests nothing sees it any more."""
    before = {*sys.modules}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(sys.prefix) / "natives"))
        nnsight: Any = ModuleType(
            "nnsight"
        )  # dictionary_learning imports these names for its training buffers
        nnsight.LanguageModel = nnsight.NNsight = type("LanguageModel", (), {})
        patch.setitem(sys.modules, "nnsight", nnsight)
        yield
    for name in {*sys.modules} - before:
        if name.split(".")[0] in ("dictionary_learning", "sparsify"):
            del sys.modules[name]


def imported(name: str) -> ModuleType:
    """A native library; the tests are left out where it isn't installed.

    `make test` installs them all.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module: ModuleType = pytest.importorskip(name, exc_type=ImportError)
    return module


@pytest.fixture(params=SHAPES, ids=["wide", "square", "narrow"])
def shape(request: pytest.FixtureRequest) -> tuple[int, int]:
    found: tuple[int, int] = request.param
    return found


def inputs(width: int, seed: int = 0) -> Tensor:
    return torch.randn(60, width, generator=torch.Generator().manual_seed(seed)) * 2 + 0.5


def redrawn(module: torch.nn.Module, seed: int = 0) -> None:
    """Draws every parameter anew, so that none is zero, symmetric or of unit norm."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, weight in sorted(module.named_parameters()):
            scale = min(weight.shape) ** -0.5 if weight.dim() == 2 else 0.3
            weight.copy_(torch.randn(weight.shape, generator=generator) * scale)
        for name, weight in module.named_parameters():
            if name == "threshold":
                weight.abs_()


def agree(ours: Dictionary, x: Tensor, codes: Tensor, recovered: Tensor) -> None:
    """Both to 1e-5 in float32, with exactly the same latents active."""
    found = ours.encode({ours.reads[0]: x})
    assert found.nnz > 0
    torch.testing.assert_close(found.dense(), codes, rtol=TOLERANCE, atol=TOLERANCE)
    assert torch.equal(found.dense() != 0, codes != 0)
    torch.testing.assert_close(
        ours.decode(found)[ours.writes[0]].values, recovered, rtol=TOLERANCE, atol=TOLERANCE
    )


# sparsify


@pytest.fixture(scope="module")
def native_sparsify() -> ModuleType:
    return imported("sparsify")


def coder(library: ModuleType, shape: tuple[int, int], **options: Any) -> Any:
    config = library.SparseCoderConfig(num_latents=shape[1], k=5, **options)
    made = library.SparseCoder(shape[0], config)
    redrawn(made)
    return made


def dense(encoded: Any, n_latents: int) -> Tensor:
    values = torch.zeros(len(encoded.top_acts), n_latents)
    return values.scatter(1, encoded.top_indices, encoded.top_acts)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalize_decoder": False},
        {"transcode": True},
        {"transcode": True, "skip_connection": True},
        {"multi_topk": True},
    ],
    ids=str,
)
def test_sparsify(
    native_sparsify: ModuleType, tmp_path: Path, shape: tuple[int, int], options: dict[str, Any]
) -> None:
    theirs = coder(native_sparsify, shape, **options)
    folder = tmp_path / ("layers.3.mlp" if "transcode" in options else "layers.3")
    theirs.save_to_disk(folder)
    x = inputs(shape[0])
    with torch.no_grad():
        encoded = theirs.encode(x)
        # With multi_topk, its forward gives back the reconstruction of 4k latents beside the codes of k.
        theirs.cfg.multi_topk = False
        recovered = theirs(x).sae_out
    ours = sparsify.FORMAT.load(folder, LoadOptions())
    agree(ours, x, dense(encoded, shape[1]), recovered)
    again = native_sparsify.SparseCoder.load_from_disk(folder)
    assert again.cfg.multi_topk == ("multi_topk" in options), "the file is as training leaves it"


def test_a_square_sparsify_checkpoint_is_turned_round_by_saelens_and_not_by_us(
    native_sparsify: ModuleType, tmp_path: Path
) -> None:
    """SAELens transposes `W_dec`, which holds a row for each latent already: no error tells when d = latents."""
    loaders = imported("sae_lens.loading.pretrained_sae_loaders")
    theirs = coder(native_sparsify, (16, 16))
    folder = tmp_path / "layers.3"
    theirs.save_to_disk(folder)
    _, state = loaders.sparsify_disk_loader(folder, cfg_overrides={"dtype": "float32"})
    assert torch.equal(state["W_dec"], theirs.W_dec.detach().T), "the trap is there"
    ours = sparsify.FORMAT.load(folder, LoadOptions())
    x = inputs(16)
    codes = ours.encode({ours.reads[0]: x})
    with torch.no_grad():
        right = theirs(x).sae_out
    wrong = codes.dense() @ state["W_dec"] + state["b_dec"]
    assert float((wrong - right).abs().max()) > 0.5
    torch.testing.assert_close(
        ours.decode(codes)[ours.writes[0]].values, right, rtol=TOLERANCE, atol=TOLERANCE
    )


# dictionary_learning


@pytest.fixture(scope="module")
def native_dictionary_learning() -> ModuleType:
    for name in (
        "dictionary",
        "utils",
        "trainers.top_k",
        "trainers.batch_top_k",
        "trainers.matryoshka_batch_top_k",
    ):
        imported(f"dictionary_learning.{name}")
    return imported("dictionary_learning")


def dictionary_of(library: ModuleType, kind: str, shape: tuple[int, int]) -> Any:
    trainers = library.trainers
    width, latents = shape
    if kind == "AutoEncoderTopK":
        made: Any = trainers.top_k.AutoEncoderTopK(width, latents, 5)
    elif kind == "BatchTopKSAE":
        made = trainers.batch_top_k.BatchTopKSAE(width, latents, 5)
    elif kind == "MatryoshkaBatchTopKSAE":
        made = trainers.matryoshka_batch_top_k.MatryoshkaBatchTopKSAE(width, latents, 5, [2, 3, latents - 5])
    else:
        made = getattr(library.dictionary, kind)(width, latents)
    redrawn(made)
    if isinstance(getattr(made, "k", None), Tensor):
        made.threshold.fill_(0.25)
    return made


@pytest.mark.parametrize(
    "kind",
    [
        "AutoEncoder",
        "AutoEncoderNew",
        "GatedAutoEncoder",
        "JumpReluAutoEncoder",
        "AutoEncoderTopK",
        "BatchTopKSAE",
        "MatryoshkaBatchTopKSAE",
    ],
)
def test_dictionary_learning(
    native_dictionary_learning: ModuleType, tmp_path: Path, shape: tuple[int, int], kind: str
) -> None:
    made = dictionary_of(native_dictionary_learning, kind, shape)
    torch.save(made.state_dict(), tmp_path / "ae.pt")
    trainer = {"dict_class": kind, "activation_dim": shape[0], "dict_size": shape[1], "layer": 3, "k": 5}
    trainer |= {"submodule_name": "resid_post_layer_3", "lm_name": "toy"}
    (tmp_path / "config.json").write_text(json.dumps({"trainer": trainer, "buffer": {}}))
    x = inputs(shape[0])
    theirs, _ = native_dictionary_learning.utils.load_dictionary(str(tmp_path), device="cpu")
    with torch.no_grad():
        codes = theirs.encode(x)
        recovered = theirs.decode(codes)
        torch.testing.assert_close(made(x), recovered, rtol=1e-4, atol=1e-4)
    agree(dictionary_learning.FORMAT.load(tmp_path, LoadOptions()), x, codes, recovered)


def test_a_batchtopk_code_in_training_depends_on_the_batch_and_ours_does_not(
    native_dictionary_learning: ModuleType, tmp_path: Path
) -> None:
    theirs = dictionary_of(native_dictionary_learning, "BatchTopKSAE", (12, 40))
    torch.save(theirs.state_dict(), tmp_path / "ae.pt")
    options = LoadOptions(architecture="batchtopk", site="resid_post.3")
    ours, x = dictionary_learning.FORMAT.load(tmp_path, options), inputs(12)
    with torch.no_grad():
        whole = theirs.encode(x, use_threshold=False)
        alone = torch.cat(
            [theirs.encode(x[token : token + 1], use_threshold=False) for token in range(len(x))]
        )
    assert not torch.equal(whole != 0, alone != 0), "the trap is there"
    site = ours.reads[0]
    mine = torch.cat([ours.encode({site: x[token : token + 1]}).dense() for token in range(len(x))])
    torch.testing.assert_close(ours.encode({site: x}).dense(), mine, rtol=1e-6, atol=1e-6)


# SAELens: what tests/parity/test_parity_saelens.py does not hold.


@pytest.fixture(scope="module")
def native_saelens() -> ModuleType:
    return imported("sae_lens")


def metadata(library: ModuleType, *, transcoder: bool) -> Any:
    from sae_lens.saes.sae import SAEMetadata

    if transcoder:
        return SAEMetadata(
            model_name="toy", hook_name="blocks.3.mlp.hook_in", hook_name_out="blocks.3.hook_mlp_out"
        )
    return SAEMetadata(model_name="toy", hook_name="blocks.3.hook_resid_post")


@pytest.mark.parametrize("normalisation", ["none", "layer_norm", "constant_norm_rescale"])
@pytest.mark.parametrize("bias", [True, False], ids=["b_dec-in", "no-b_dec-in"])
@pytest.mark.parametrize("architecture", ["gated", "abstopk", "abstopk-rescaled"])
def test_saelens_gated_and_abstopk(
    native_saelens: ModuleType,
    tmp_path: Path,
    shape: tuple[int, int],
    architecture: str,
    bias: bool,
    normalisation: str,
) -> None:
    from sae_lens.saes import abstopk_sae, gated_sae

    options: dict[str, Any] = {"d_in": shape[0], "d_sae": shape[1], "apply_b_dec_to_input": bias}
    options |= {
        "normalize_activations": normalisation,
        "metadata": metadata(native_saelens, transcoder=False),
    }
    if architecture == "gated":
        theirs: Any = gated_sae.GatedSAE(gated_sae.GatedSAEConfig(**options))
    else:
        options |= {"k": 5, "rescale_acts_by_decoder_norm": architecture == "abstopk-rescaled"}
        theirs = abstopk_sae.AbsTopKSAE(abstopk_sae.AbsTopKSAEConfig(**options))
    redrawn(theirs)
    theirs.save_model(tmp_path)
    x = inputs(shape[0])
    with torch.no_grad():
        codes = theirs.encode(x)
        recovered = theirs.decode(codes)
    agree(saelens.FORMAT.load(tmp_path, LoadOptions()), x, codes, recovered)


@pytest.mark.parametrize(
    "name", ["Transcoder", "SkipTranscoder", "JumpReLUTranscoder", "JumpReLUSkipTranscoder"]
)
def test_saelens_transcoders(
    native_saelens: ModuleType, tmp_path: Path, shape: tuple[int, int], name: str
) -> None:
    from sae_lens.saes import transcoder

    config = getattr(transcoder, f"{name}Config")(
        d_in=shape[0],
        d_sae=shape[1],
        d_out=14,
        apply_b_dec_to_input=False,
        metadata=metadata(native_saelens, transcoder=True),
    )
    theirs = getattr(transcoder, name)(config)
    redrawn(theirs)
    theirs.save_model(tmp_path)
    x = inputs(shape[0])
    with torch.no_grad():
        codes, recovered = theirs.encode(x), theirs(x)
    ours = saelens.FORMAT.load(tmp_path, LoadOptions())
    agree(ours, x, codes, recovered)
    assert (ours.card.reads, ours.card.writes) == (("mlp_in.3",), ("mlp_out.3",))


@pytest.mark.parametrize("name", ["gated", "abstopk", "matryoshka"])
def test_saelens_training_classes_exported_for_use(
    native_saelens: ModuleType, tmp_path: Path, name: str
) -> None:
    from sae_lens.saes import abstopk_sae, gated_sae, matryoshka_batchtopk_sae

    kinds: dict[str, Callable[..., Any]] = {
        "gated": lambda **options: gated_sae.GatedTrainingSAE(gated_sae.GatedTrainingSAEConfig(**options)),
        "abstopk": lambda **options: abstopk_sae.AbsTopKTrainingSAE(
            abstopk_sae.AbsTopKTrainingSAEConfig(k=5, **options)
        ),
        "matryoshka": lambda **options: matryoshka_batchtopk_sae.MatryoshkaBatchTopKTrainingSAE(
            matryoshka_batchtopk_sae.MatryoshkaBatchTopKTrainingSAEConfig(
                k=5, matryoshka_widths=[8, 20, 40], **options
            )
        ),
    }
    training = kinds[name](d_in=12, d_sae=40, metadata=metadata(native_saelens, transcoder=False))
    redrawn(training)
    if name == "matryoshka":
        with torch.no_grad():
            training.topk_threshold.fill_(0.25)
    training.save_inference_model(tmp_path)
    theirs = native_saelens.SAE.load_from_disk(tmp_path)
    x = inputs(12)
    with torch.no_grad():
        codes = theirs.encode(x)
        recovered = theirs.decode(codes)
    ours = saelens.FORMAT.load(tmp_path, LoadOptions())
    agree(ours, x, codes, recovered)
    assert ours.card.family == ("jumprelu" if name == "matryoshka" else name)


def test_saelens_decodes_with_the_statistics_of_the_last_encode_and_ours_with_its_own(
    native_saelens: ModuleType, tmp_path: Path
) -> None:
    from sae_lens.saes import gated_sae

    config = gated_sae.GatedSAEConfig(
        d_in=12,
        d_sae=40,
        normalize_activations="layer_norm",
        metadata=metadata(native_saelens, transcoder=False),
    )
    theirs = gated_sae.GatedSAE(config)
    redrawn(theirs)
    theirs.save_model(tmp_path)
    ours = saelens.FORMAT.load(tmp_path, LoadOptions())
    first, second = inputs(12) * 4, inputs(12, seed=1)
    with torch.no_grad():
        right = theirs.decode(theirs.encode(first))
        codes = theirs.encode(first)
        theirs.encode(second)
        late = theirs.decode(codes)
    assert not torch.allclose(late, right, atol=0.1), "the trap is there"
    site = ours.reads[0]
    mine = ours.encode({site: first})
    ours.encode({site: second})
    torch.testing.assert_close(ours.decode(mine)[site].values, right, rtol=1e-5, atol=1e-5)
