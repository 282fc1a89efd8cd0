"""Training several dictionaries from one activation stream, in one pass over the model, resumable."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from latentbench.adapters import routed_sites
from latentbench.adapters.formats.native import read_card, save_dictionary
from latentbench.data import Corpus
from latentbench.errors import UserError
from latentbench.identity import sha256_json
from latentbench.lm import LM
from latentbench.train._export import export
from latentbench.train._recipe import Recipe, TraineeSpec, Unit, multiplier
from latentbench.train._saelens import card_of, train_saelens
from latentbench.train._state import Run, checkpoint, clear, restore
from latentbench.train._stream import ActivationStream
from latentbench.train._trainees import Trainee, one_site
from latentbench.train._view import BlockView

__all__ = ["Speed", "TrainOptions", "TrainingReport", "choose_units", "held_out_error", "train"]

Progress = Callable[[int, int, dict[str, float]], None]


class Speed(NamedTuple):
    """Tokens a second; a token counts once for each dictionary and each time it learns from it."""

    lm: float | None
    """Of the language model while it ran; None if every block came from a cache."""
    training: float
    """Of the dictionaries while they learnt."""
    both: float
    """Of the dictionaries over the whole run, waiting for the model and held-out errors included."""


class TrainingReport(NamedTuple):
    """What a training run came to."""

    tokens: int
    """Tokens of the stream that each dictionary was trained on."""
    held_out: dict[str, float]
    """Held-out normalised MSE by dictionary."""
    files: list[Path]
    """Weights that were written, one a dictionary."""
    speed: Speed | None = None
    """How fast it went; None if all dictionaries were there already."""


@dataclass(frozen=True)
class TrainOptions:
    """How a recipe is carried out; nothing here changes what comes out, beyond rounding."""

    device: str = "cpu"
    """Device of the dictionaries; the model may be elsewhere."""
    checkpoint_blocks: int = 8
    """Blocks of `Recipe.block_tokens` between checkpoints."""
    cache: Path | None = None
    """Folder that keeps standardised activations in half precision, for later runs over the same stream."""
    only: str = "*"
    """Shell pattern of the dictionaries to train."""
    prefetch: bool = False
    """Run the model one block ahead on another thread."""


def choose_units(recipe: Recipe, pattern: str) -> list[Unit]:
    """The dictionaries of a recipe whose names match a shell pattern.

    Raises:
        UserError: none does.
    """
    chosen = [unit for unit in recipe.units() if fnmatch(unit.name, pattern)]
    if not chosen:
        names = ", ".join(unit.name for unit in recipe.units())
        raise UserError(f"no dictionary of recipe {recipe.name!r} is called {pattern!r}; it has {names}")
    return chosen


def train(
    lm: LM,
    corpus: Corpus,
    held_out: Corpus,
    recipe: Recipe,
    out: Path,
    *,
    options: TrainOptions | None = None,
    progress: Progress = lambda _done, _total, _losses: None,
) -> TrainingReport:
    """Train dictionaries of a recipe side by side and write them to a folder.

    A dictionary's weights depend on the recipe and its own entry, not on what is trained beside it. Those that
    the folder already holds are kept and not trained again.

    Args:
        lm: the language model; activations come from it once, for all.
        corpus: train split.
        held_out: another split, for the error on the cards.
        recipe: what to train.
        out: folder for the results and, until they are done, a checkpoint; an interrupted run goes on from there.
        options: how.
        progress: called as progress(tokens done, tokens in all, mean loss by dictionary) after each block.

    Raises:
        UserError: the corpus is smaller than the recipe's tokens, or `out` holds something of another recipe.
    """
    how = options or TrainOptions()
    sites = routed_sites(lm.n_layers)

    def stream(split: Corpus, tokens: int) -> ActivationStream:
        folder = how.cache / split.split if how.cache else None
        return ActivationStream(lm, split, sites, recipe, tokens, folder, how.prefetch)

    shared = recipe.model_dump(mode="json", exclude={"trainees"})
    wanted = choose_units(recipe, how.only)
    units = [unit for unit in wanted if not _is_done(unit, shared, out)]
    if not units:
        return _report(wanted, recipe, out, None)
    source = stream(corpus, recipe.tokens)
    if source.tokens < recipe.tokens:
        raise UserError(
            f"recipe {recipe.name!r} asks for {recipe.tokens:,} tokens, but the train split of {corpus.name!r} "
            f"held only {source.tokens:,}: ask for fewer or add texts"
        )
    judged = stream(held_out, recipe.held_out_tokens)
    out.mkdir(parents=True, exist_ok=True)
    record = _Record(lm, corpus, held_out, recipe)
    theirs = [unit for unit in units if unit.spec.kind.startswith("saelens-")]
    ours = [unit for unit in units if unit not in theirs]
    speed: Speed | None = None
    if ours:
        names = [[unit.name, unit.spec.model_dump(mode="json")] for unit in ours]
        key = sha256_json({"recipe": shared, "units": names, "stream": source.key()})
        run = _start(ours, recipe, lm.d_model, len(sites), torch.device(how.device))
        restore(run, out, key)
        speed = _learn(run, source, judged, recipe, how, out, key, progress)
        for trainee in run.trainees:
            about = record.training(trainee.unit, run.curves[trainee.name], run.tokens, run.steps)
            save_dictionary(out, trainee.name, export(trainee, lm, sites, recipe.name, about))
        clear(out)
    for unit in theirs:
        site = sites[one_site(unit.spec.site, len(sites))]
        done = train_saelens(unit, recipe, lm, site, source, judged, how.device, progress)
        about = record.training(unit, done.curve, done.tokens, done.steps)
        card = done.dictionary.card.model_copy(
            update={
                "name": unit.name,
                "nominal_l0": float(unit.k),
                "lm": lm.name,
                "source": recipe.name,
                "training": about,
                **card_of(unit, done.dictionary.card),
            }
        )
        dictionary = copy.copy(done.dictionary)
        dictionary.card = card
        save_dictionary(out, unit.name, dictionary)
    return _report(wanted, recipe, out, speed)


def held_out_error(trainees: Sequence[Trainee], stream: ActivationStream) -> dict[str, dict[str, float]]:
    """Mean normalised MSE and L0 of each trainee over a stream of another split; see `Outcome.error`.

    A kind that takes one site a batch is measured at the last site, as it is exported.
    """
    totals = {trainee.name: torch.zeros(2, dtype=torch.float64) for trainee in trainees}
    tokens = 0
    with torch.no_grad():
        for block in stream.blocks():
            tokens += block.n_tokens
            for trainee in trainees:
                trainee.eval()
                view = BlockView(block.acts.to(trainee.coder.w_enc.device))
                for piece in torch.arange(block.n_tokens, device=view.acts.device).split(1024):
                    outcome = trainee(view, piece)
                    found = torch.stack([outcome.error.double().sum(), outcome.active.double().sum()])
                    totals[trainee.name] += found.cpu()
                trainee.train()
    return {
        name: dict(zip(("normalised_mse", "l0"), (total / tokens).tolist(), strict=True))
        for name, total in totals.items()
    }


def _start(units: list[Unit], recipe: Recipe, d_model: int, n_sites: int, device: torch.device) -> Run:
    trainees = [Trainee(unit, recipe, d_model, n_sites).to(device) for unit in units]
    optimisers = [
        torch.optim.Adam([p for p in trainee.parameters() if p.requires_grad], lr=recipe.lr, fused=True)
        for trainee in trainees
    ]
    return Run(trainees, optimisers, curves={trainee.name: [] for trainee in trainees})


def _learn(
    run: Run,
    source: ActivationStream,
    judged: ActivationStream,
    recipe: Recipe,
    how: TrainOptions,
    out: Path,
    key: str,
    progress: Progress,
) -> Speed:
    """All blocks that are left; how fast they went."""
    began, learning, first_token = time.perf_counter(), 0.0, run.tokens
    for number, block in enumerate(source.blocks(run.next_row), start=1):
        started = time.perf_counter()
        view = BlockView(block.acts.to(how.device))
        losses = {
            trainee.name: _take_steps(trainee, optimiser, view, run, recipe, block.first)
            for trainee, optimiser in zip(run.trainees, run.optimisers, strict=True)
        }
        before = run.tokens
        run.steps += recipe.repeats * _pieces(block.n_tokens, recipe)
        run.tokens += block.n_tokens
        run.next_row = block.after
        learning += time.perf_counter() - started
        progress(run.tokens, source.tokens, losses)
        last = run.next_row >= len(source.rows)
        if last:
            for trainee in run.trainees:
                trainee.coder.normalise_decoder()
        grain = source.tokens / recipe.curve_points
        if last or run.tokens // grain > before // grain:
            _add_to_curves(run, judged)
        if not last and number % how.checkpoint_blocks == 0:
            checkpoint(run, out, key)
    taught = (run.tokens - first_token) * len(run.trainees) * recipe.repeats
    clock = source.clock
    lm_speed = clock.lm_tokens / clock.lm_seconds if clock.lm_seconds else None
    return Speed(lm_speed, taught / max(learning, 1e-9), taught / max(time.perf_counter() - began, 1e-9))


def _pieces(tokens: int, recipe: Recipe) -> int:
    return max(1, round(tokens / recipe.batch_tokens))


def _take_steps(
    trainee: Trainee,
    optimiser: torch.optim.Adam,
    view: BlockView,
    run: Run,
    recipe: Recipe,
    first_row: int,
) -> float:
    """Go through a block `recipe.repeats` times in equal batches; mean loss of the last time."""
    generator = torch.Generator().manual_seed(trainee.unit.seed * 1_000_003 + first_row)
    pieces = _pieces(view.n_tokens, recipe)
    spec = trainee.unit.spec
    turns = spec.sites_per_batch if spec.kind == "mlsae" else 1
    total: Tensor | float = 0.0
    for repeat in range(recipe.repeats):
        total = 0.0
        order = torch.randperm(view.n_tokens, generator=generator).to(view.acts.device)
        for number, batch in enumerate(order.tensor_split(pieces), start=repeat * pieces + 1):
            seen = run.tokens + view.n_tokens * number / (recipe.repeats * pieces)
            rate = recipe.lr * multiplier(min(1.0, seen / recipe.tokens), recipe.schedule)
            step = run.steps + number
            for turn in range(turns):
                total = total + _step(trainee, optimiser, view, batch, step * turns + turn, rate) / (
                    pieces * turns
                )
            if step % recipe.normalise_every == 0:
                trainee.coder.normalise_decoder()
    return float(total)


def _step(
    trainee: Trainee, optimiser: torch.optim.Adam, view: BlockView, batch: Tensor, turn: int, rate: float
) -> Tensor:
    """One optimiser step; the loss, still on its device so that nothing waits for it."""
    for group in optimiser.param_groups:
        group["lr"] = rate
    outcome = trainee(view, batch, turn)
    loss = trainee.loss(outcome)
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    optimiser.step()
    if outcome.penalty is not None:
        trainee.penalty.observe(outcome.active)
    return loss.detach()


def _add_to_curves(run: Run, judged: ActivationStream) -> None:
    for name, found in held_out_error(run.trainees, judged).items():
        trainee = next(one for one in run.trainees if one.name == name)
        point = {"tokens": float(run.tokens), **{key: round(value, 5) for key, value in found.items()}}
        if not bool(trainee.penalty.mean_active.isnan()):
            point["penalty"] = float(f"{float(trainee.penalty.weight()):.4g}")
        run.curves[name].append(point)


def _is_done(unit: Unit, shared: dict[str, Any], out: Path) -> bool:
    """Whether the folder holds this dictionary, trained by this recipe."""
    card_file = out / f"{unit.name}.json"
    if not card_file.is_file() or not card_file.with_suffix(".safetensors").is_file():
        return False
    training = read_card(card_file).training
    theirs = [training.get(name) for name in ("recipe", "k", "seed")]
    # Cards written before an option existed lack it; they mean its default.
    trainee = TraineeSpec.model_validate(training.get("trainee"))
    if theirs != [shared, unit.k, unit.seed] or trainee != unit.spec:
        raise UserError(
            f"{out} holds a {unit.name!r} that another recipe made: choose another folder or delete it"
        )
    return True


class _Record(NamedTuple):
    """What the cards of a run's dictionaries have in common."""

    lm: LM
    corpus: Corpus
    held_out: Corpus
    recipe: Recipe

    def training(self, unit: Unit, curve: list[dict[str, float]], tokens: int, steps: int) -> dict[str, Any]:
        """The record of one dictionary's training."""
        return {
            "recipe": self.recipe.model_dump(mode="json", exclude={"trainees"}),
            "trainee": unit.spec.model_dump(mode="json"),
            "kind": unit.spec.kind,
            "k": unit.k,
            "seed": unit.seed,
            "tokens": tokens,
            "steps": steps,
            "corpus": {
                "name": self.corpus.name,
                "split": self.corpus.split,
                "sha256": self.corpus.sha256,
            },
            "held_out": {
                "split": self.held_out.split,
                "tokens": self.recipe.held_out_tokens,
                "normalised_mse": curve[-1]["normalised_mse"],
                "l0": curve[-1]["l0"],
            },
            "curve": curve,
            "lm_revision": self.lm.revision,
        }


def _report(units: list[Unit], recipe: Recipe, out: Path, speed: Speed | None) -> TrainingReport:
    cards = {unit.name: read_card(out / f"{unit.name}.json") for unit in units}
    return TrainingReport(
        recipe.tokens,
        {name: card.training["held_out"]["normalised_mse"] for name, card in cards.items()},
        [out / f"{name}.safetensors" for name in cards],
        speed,
    )
