"""The same activation stream in the hands of SAELens' own trainers."""

from __future__ import annotations

import copy
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from latentbench.adapters import Dictionary, DictionaryCard, LoadOptions
from latentbench.adapters.formats.saelens import FORMAT
from latentbench.errors import UserError
from latentbench.lm import LM, Site
from latentbench.train._penalty import PenaltyController
from latentbench.train._recipe import Recipe, Unit
from latentbench.train._stream import ActivationStream

__all__ = ["SaeLensResult", "card_of", "train_saelens"]

_SETTLING = 0.8
"""Share of the tokens during which the thresholds of JumpReLU are set anew after each block."""
_PENALTIES = {"standard": "l1", "gated": "l1"}
"""Name of the coefficient in SAELens' trainer that is steered to the sparsity; the others have a k or a target."""


class SaeLensResult(NamedTuple):
    """What one of SAELens' trainers made."""

    dictionary: Dictionary
    """The trained SAE, read back through the SAELens format."""
    curve: list[dict[str, float]]
    """Held-out error, L0 and penalty on the way."""
    tokens: int
    """Tokens of the stream."""
    steps: int
    """Optimiser steps."""
    seconds: float
    """Seconds of training, without the activations."""


def train_saelens(
    unit: Unit,
    recipe: Recipe,
    lm: LM,
    site: Site,
    source: ActivationStream,
    judged: ActivationStream,
    device: str,
    progress: Callable[[int, int, dict[str, float]], None],
) -> SaeLensResult:
    """Train one dictionary with SAELens on the raw activations of its site.

    The trainer is driven through its public `step`, batch by batch, so that its losses, dead-latent handling and
    gradient clipping are its own. Coefficients of L1 penalties are steered to the target L0. JumpReLU has SAELens'
    quadratic penalty around it (Gemma Scope 2's), and its thresholds are set to it after each block of the first 80 %
    of the tokens, until the learning rate decays.

    Raises:
        UserError: SAELens isn't installed, or the recipe asks for a schedule that it lacks.
    """
    if recipe.schedule != "paper":
        raise UserError(
            f"SAELens' trainers have no schedule {recipe.schedule!r}: use 'paper' (warm-up, constant, linear decay)"
        )
    trainer = _trainer(unit, recipe, lm, site, device, next(iter(source.blocks())).raw(unit.spec.site))
    name = unit.spec.kind.removeprefix("saelens-")
    control = PenaltyController(unit.k, unit.spec.penalty, unit.spec.penalty_gain)
    curve: list[dict[str, float]] = []
    tokens = steps = 0
    seconds = 0.0
    for block in source.blocks():
        started = time.perf_counter()
        total = 0.0
        raw = block.raw(unit.spec.site).to(device)
        generator = torch.Generator().manual_seed(unit.seed * 1_000_003 + block.first)
        pieces = max(1, round(block.n_tokens / recipe.batch_tokens))
        for _ in range(recipe.repeats):
            order = torch.randperm(block.n_tokens, generator=generator).to(raw.device)
            for batch in order.tensor_split(pieces):
                total += _step(trainer, raw[batch], control, _PENALTIES.get(name)) / (pieces * recipe.repeats)
                steps += 1
        before, tokens = tokens, tokens + block.n_tokens
        if name == "jumprelu" and tokens <= _SETTLING * source.tokens:
            _set_thresholds(trainer.sae, trainer.activation_scaler.scaling_factor * raw[:1024], unit.k)
        seconds += time.perf_counter() - started
        progress(tokens, source.tokens, {unit.name: total})
        grain = source.tokens / recipe.curve_points
        if block.after >= len(source.rows) or tokens // grain > before // grain:
            point = {"tokens": float(tokens), **_held_out(_frozen(trainer), judged, unit.spec.site)}
            if name in _PENALTIES:
                point["penalty"] = float(f"{float(control.weight()):.4g}")
            curve.append(point)
    return SaeLensResult(_frozen(trainer), curve, tokens, steps, seconds)


def card_of(unit: Unit, card: DictionaryCard) -> dict[str, Any]:
    """What SAELens leaves out when it saves a batchtopk or matryoshka SAE as jumprelu: its family and groups."""
    if unit.spec.kind == "saelens-batchtopk":
        return {"family": "batchtopk"}
    if unit.spec.kind == "saelens-matryoshka":
        groups = list(_groups(unit.spec.groups, card.n_latents))
        return {"family": "matryoshka", "options": {**card.options, "groups": groups}}
    return {}


def _trainer(unit: Unit, recipe: Recipe, lm: LM, site: Site, device: str, sample: Tensor) -> Any:
    """SAELens' trainer for a unit; its weights are drawn from the unit's seed."""
    try:
        import sae_lens
        from sae_lens.config import SAETrainerConfig
        from sae_lens.registry import get_sae_training_class
        from sae_lens.training.sae_trainer import SAETrainer
    except ImportError as error:
        raise UserError(
            f"trainee {unit.name!r} needs SAELens: install latentbench with the extra 'saelens'"
        ) from error

    spec, name = unit.spec, unit.spec.kind.removeprefix("saelens-")
    by_name: dict[str, dict[str, Any]] = {
        "standard": {"l1_coefficient": spec.penalty},
        "gated": {"l1_coefficient": spec.penalty},
        "jumprelu": {
            "l0_coefficient": spec.penalty,
            "jumprelu_sparsity_loss_mode": "quadratic",
            "target_l0": float(unit.k),
            "jumprelu_init_threshold": spec.threshold,
            "jumprelu_bandwidth": spec.bandwidth,
        },
        "topk": {"k": unit.k},
        "batchtopk": {"k": unit.k},
        "matryoshka": {"k": unit.k, "matryoshka_widths": list(_groups(spec.groups, recipe.latents))},
    }
    kind, config = get_sae_training_class("matryoshka_batchtopk" if name == "matryoshka" else name)
    metadata = sae_lens.saes.sae.SAEMetadata(
        model_name=lm.name,
        hook_name=f"blocks.{site.layer}.hook_{site.kind}",
        context_size=recipe.context,
        prepend_bos=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(unit.seed)
        sae = kind(
            config(
                d_in=lm.d_model,
                d_sae=recipe.latents,
                device=device,
                normalize_activations="expected_average_only_in",
                metadata=metadata,
                **by_name[name],
            )
        ).to(device)
    samples = recipe.tokens * recipe.repeats
    steps = samples // recipe.batch_tokens
    trainer: Any = SAETrainer(
        SAETrainerConfig(
            total_training_samples=samples,
            train_batch_size_samples=recipe.batch_tokens,
            lr=recipe.lr,
            lr_end=recipe.lr / 10,  # for its cosine schedules only, but it wants a number
            lr_warm_up_steps=round(0.05 * steps),
            lr_decay_steps=round(0.2 * steps),
            device=device,
        ),
        sae,
        data_provider=iter(()),
    )
    trainer.activation_scaler.scaling_factor = math.sqrt(lm.d_model) / float(sample.norm(dim=1).mean())
    return trainer


def _set_thresholds(sae: Any, inputs: Tensor, k: int) -> None:
    """Set all thresholds to the one value at which k latents are active on average.

    A threshold moves by about the learning rate in a step, while pre-activations grow tenfold as training begins and
    drift on: a short run never catches up with them. (Left alone after 30 % of 300,000 tokens, L0 fell from 65 to 26
    with the quadratic penalty, to 17 with a steered one.)
    """
    with torch.no_grad():
        pre = sae.process_sae_in(inputs) @ sae.W_enc + sae.b_enc
        threshold = pre.flatten().kthvalue(max(1, pre.numel() - k * len(pre))).values
        sae.threshold.fill_(float(threshold))


def _groups(asked: tuple[int, ...], latents: int) -> tuple[int, ...]:
    prefixes = asked or (latents // 8, latents // 4, latents // 2)
    return prefixes if prefixes[-1] == latents else (*prefixes, latents)


def _step(trainer: Any, batch: Tensor, control: PenaltyController, penalty: str | None) -> float:
    if penalty is not None:
        schedule = trainer.coefficient_schedulers[penalty]
        schedule.final_value = schedule.current_value = float(control.weight())
    output = trainer.step(batch)
    trainer.n_training_steps += 1
    if penalty is not None:
        control.observe((output.feature_acts.detach() != 0).sum(dim=1).cpu())
    return float(output.loss.detach())


def _frozen(trainer: Any) -> Dictionary:
    """The SAE as SAELens saves it for inference, read back; the trainer itself is left alone."""
    sae = copy.deepcopy(trainer.sae)
    sae.fold_activation_norm_scaling_factor(trainer.activation_scaler.scaling_factor)
    with tempfile.TemporaryDirectory() as folder:
        sae.save_inference_model(folder)
        return FORMAT.load(Path(folder), LoadOptions())


def _held_out(dictionary: Dictionary, judged: ActivationStream, place: int) -> dict[str, float]:
    """Normalised MSE in the units of the other trainees (of the standardised activation) and L0."""
    (site,) = dictionary.reads
    wrong = active = 0.0
    tokens = 0
    with torch.no_grad():
        for block in judged.blocks():
            for piece in torch.arange(block.n_tokens).split(1024):
                raw = block.raw(place)[piece]
                codes = dictionary.encode({site: raw})
                predicted = dictionary.decode(codes)[site].values
                spread = (raw - raw.mean(dim=1, keepdim=True)).square().sum(dim=1)
                wrong += float(((predicted - raw).square().sum(dim=1) / spread).double().sum())
                active += codes.nnz
            tokens += block.n_tokens
    return {"normalised_mse": round(wrong / tokens, 5), "l0": round(active / tokens, 3)}
