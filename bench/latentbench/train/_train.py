"""Training several dictionaries from one activation stream, in one pass over the model, resumable."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from latentbench.adapters import DictionaryCard, InputTransform, routed_sites
from latentbench.adapters.formats.native import save_dictionary
from latentbench.data import Corpus, TokenRow, measured_tokens, token_rows
from latentbench.errors import UserError
from latentbench.identity import sha256_json
from latentbench.lm import LM, Site
from latentbench.train._recipe import Recipe, multiplier
from latentbench.train._trainees import Trainee

__all__ = ["TrainingReport", "held_out_error", "train"]

Progress = Callable[[int, int, dict[str, float]], None]
_STATE = "training.json"
_TENSORS = "training.safetensors"


class TrainingReport(NamedTuple):
    """What a training run came to."""

    tokens: int
    """Measured tokens trained on."""
    held_out: dict[str, float]
    """Held-out normalised MSE by trainee."""
    files: list[Path]
    """Weights that were written, one a trainee."""


@dataclass
class _Run:
    """The state of a run, saved after every checkpoint."""

    trainees: list[Trainee]
    optimisers: list[torch.optim.Adam]
    step: int = 0
    tokens: int = 0
    next_row: int = 0


def train(
    lm: LM,
    corpus: Corpus,
    held_out: Corpus,
    recipe: Recipe,
    out: Path,
    *,
    device: str | torch.device = "cpu",
    checkpoint_blocks: int = 8,
    progress: Progress = lambda _done, _total, _losses: None,
) -> TrainingReport:
    """Train all dictionaries of a recipe side by side and write them to a folder.

    Args:
        lm: the language model; activations come from it once, for all trainees.
        corpus: train split.
        held_out: another split, for the error on the card.
        recipe: what to train.
        out: folder for the result and, until it is done, checkpoints; an interrupted run goes on from there.
        device: where the dictionaries are trained; the model may be elsewhere.
        checkpoint_blocks: blocks of `recipe.block_tokens` between checkpoints.
        progress: called as progress(tokens done, tokens in all, mean loss by trainee) after each block.

    Raises:
        UserError: the corpus is smaller than the recipe's tokens, or `out` holds a run of another recipe.
    """
    sites = routed_sites(lm.n_layers)
    rows = token_rows(
        corpus, lm, context=recipe.context, skip_first=recipe.skip_first, budget_tokens=recipe.tokens
    )
    found = measured_tokens(rows, recipe.skip_first)
    if found < recipe.tokens:
        raise UserError(
            f"recipe {recipe.name!r} asks for {recipe.tokens:,} tokens, but the train split of {corpus.name!r} "
            f"held only {found:,}: ask for fewer or add texts"
        )
    run = _start(recipe, lm.d_model, sites, torch.device(device))
    key = sha256_json(
        {"recipe": recipe.model_dump(mode="json"), "corpus": corpus.sha256, "lm": lm.identity()}
    )
    out.mkdir(parents=True, exist_ok=True)
    _restore(run, out, key)
    for number, (block, first, after) in enumerate(_blocks(lm, rows, run.next_row, sites, recipe), start=1):
        generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + first)
        losses = _take_steps(run, block, recipe, torch.device(device), generator)
        run.next_row = after
        progress(run.tokens, recipe.tokens, losses)
        if number % checkpoint_blocks == 0:
            _checkpoint(run, out, key)
    return _finish(run, lm, corpus, held_out, recipe, out, sites)


def held_out_error(
    lm: LM, corpus: Corpus, trainees: Sequence[Trainee], recipe: Recipe, sites: tuple[Site, ...]
) -> dict[str, float]:
    """Mean normalised MSE of each trainee over the first `held_out_tokens` of another split."""
    rows = token_rows(
        corpus, lm, context=recipe.context, skip_first=recipe.skip_first, budget_tokens=recipe.held_out_tokens
    )
    totals = dict.fromkeys((trainee.spec.name for trainee in trainees), 0.0)
    tokens = 0
    with torch.no_grad():
        for stacked in _activations(lm, rows, sites, recipe):
            tokens += stacked.shape[1]
            for trainee in trainees:
                moved = stacked.to(trainee.w_enc.device)
                totals[trainee.spec.name] += float(trainee(moved)[0].double().sum())
    if not tokens:
        raise UserError(f"the held-out split of {corpus.name!r} is empty: no error can be measured")
    return {name: total / tokens for name, total in totals.items()}


def _start(recipe: Recipe, d_model: int, sites: tuple[Site, ...], device: torch.device) -> _Run:
    trainees = [Trainee(spec, recipe, d_model, sites, recipe.seed).to(device) for spec in recipe.trainees]
    optimisers = [
        torch.optim.Adam([p for p in trainee.parameters() if p.requires_grad], lr=recipe.lr)
        for trainee in trainees
    ]
    return _Run(trainees, optimisers)


def _activations(
    lm: LM, rows: Sequence[TokenRow], sites: tuple[Site, ...], recipe: Recipe
) -> Iterator[Tensor]:
    """Standardised activations of the measured tokens of each forward pass, `Float[Tensor, "site token d"]`."""
    transform = InputTransform("standardise", 1e-6)
    for start in range(0, len(rows), recipe.rows):
        tokens = lm.batch([row.ids for row in rows[start : start + recipe.rows]])
        measured = tokens.measured(recipe.skip_first)
        acts = lm.forward(tokens, capture=sites, logits=False).acts
        yield torch.stack([transform.apply(acts[site][measured].float()).acts for site in sites])


def _blocks(
    lm: LM, rows: Sequence[TokenRow], first: int, sites: tuple[Site, ...], recipe: Recipe
) -> Iterator[tuple[Tensor, int, int]]:
    """Blocks of tokens, their first row and the row that follows; a block depends only on its first row."""
    waiting: list[Tensor] = []
    held, block_first = 0, first
    for offset, stacked in enumerate(_activations(lm, rows[first:], sites, recipe)):
        waiting.append(stacked)
        held += stacked.shape[1]
        after = min(first + (offset + 1) * recipe.rows, len(rows))
        if held >= recipe.block_tokens or after == len(rows):
            yield torch.cat(waiting, dim=1), block_first, after
            waiting, held, block_first = [], 0, after


def _take_steps(
    run: _Run, block: Tensor, recipe: Recipe, device: torch.device, generator: torch.Generator
) -> dict[str, float]:
    """Go through a block `recipe.repeats` times in equal batches; mean loss of the last time by trainee."""
    tokens = block.shape[1]
    pieces = max(1, round(tokens / recipe.batch_tokens))
    losses: dict[str, float] = {}
    for repeat in range(recipe.repeats):
        losses = dict.fromkeys((trainee.spec.name for trainee in run.trainees), 0.0)
        for number, batch in enumerate(torch.randperm(tokens, generator=generator).tensor_split(pieces)):
            seen = run.tokens + tokens * (repeat * pieces + number + 1) / (recipe.repeats * pieces)
            scale = multiplier(min(1.0, seen / recipe.tokens), recipe.schedule)
            stacked = block[:, batch.to(block.device)].to(device)
            for name, loss in _step(run, stacked, recipe, scale).items():
                losses[name] += loss / pieces
    run.tokens += tokens
    return losses


def _step(run: _Run, stacked: Tensor, recipe: Recipe, scale: float) -> dict[str, float]:
    """One optimiser step of every trainee on `Float[Tensor, "site token d"]`; loss by trainee."""
    losses: dict[str, float] = {}
    run.step += 1
    for trainee, optimiser in zip(run.trainees, run.optimisers, strict=True):
        for group in optimiser.param_groups:
            group["lr"] = recipe.lr * scale
        loss = trainee(stacked)[0].mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        if run.step % recipe.normalise_every == 0:
            trainee.normalise_decoder()
        losses[trainee.spec.name] = float(loss.detach())
    return losses


def _checkpoint(run: _Run, out: Path, key: str) -> None:
    """Weights and optimiser state as safetensors, then the JSON that makes them count."""
    tensors: dict[str, Tensor] = {}
    for trainee, optimiser in zip(run.trainees, run.optimisers, strict=True):
        name = trainee.spec.name
        names = {id(parameter): label for label, parameter in trainee.named_parameters()}
        tensors |= {
            f"{name}/{label}": p.detach().cpu().contiguous() for label, p in trainee.named_parameters()
        }
        for parameter, state in optimiser.state.items():
            tensors |= {
                f"{name}/adam/{names[id(parameter)]}/{k}": torch.as_tensor(v).cpu() for k, v in state.items()
            }
    stem = f"{run.step}.{_TENSORS}"
    save_file(tensors, out / f"{stem}.tmp")
    os.replace(out / f"{stem}.tmp", out / stem)
    state = {"key": key, "step": run.step, "tokens": run.tokens, "next_row": run.next_row, "tensors": stem}
    (out / f"{_STATE}.tmp").write_text(json.dumps(state), encoding="utf-8")
    os.replace(out / f"{_STATE}.tmp", out / _STATE)
    for old in out.glob(f"*.{_TENSORS}"):
        if old.name != stem:
            old.unlink()


def _restore(run: _Run, out: Path, key: str) -> None:
    if not (out / _STATE).is_file():
        return
    state: dict[str, Any] = json.loads((out / _STATE).read_text(encoding="utf-8"))
    if state["key"] != key:
        raise UserError(
            f"{out} holds an unfinished run of another recipe, corpus or model: finish that one, delete it or choose "
            "another folder"
        )
    tensors = load_file(out / state["tensors"])
    for trainee, optimiser in zip(run.trainees, run.optimisers, strict=True):
        name = trainee.spec.name
        trainee.load_state_dict(
            {label: tensors[f"{name}/{label}"] for label, _ in trainee.named_parameters()}
        )
        for label, parameter in trainee.named_parameters():
            prefix = f"{name}/adam/{label}/"
            found = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
            if found:
                moved = {k: v if k == "step" else v.to(parameter.device) for k, v in found.items()}
                optimiser.state[parameter] = moved
    run.step, run.tokens, run.next_row = state["step"], state["tokens"], state["next_row"]


def _finish(
    run: _Run, lm: LM, corpus: Corpus, held_out: Corpus, recipe: Recipe, out: Path, sites: tuple[Site, ...]
) -> TrainingReport:
    for trainee in run.trainees:
        trainee.normalise_decoder()
    errors = held_out_error(lm, held_out, run.trainees, recipe, sites)
    files: list[Path] = []
    for trainee in run.trainees:
        read = sites[-1:] if trainee.spec.kind == "topk" else sites
        options = (
            {}
            if trainee.spec.kind == "topk"
            else {
                "pooling": trainee.spec.pooling,
                "routing": "random" if trainee.spec.kind == "random" else "hard",
                "splice": "corrected",
            }
        )
        card = DictionaryCard(
            name=trainee.spec.name,
            family="topk" if trainee.spec.kind == "topk" else "routesae",
            reads=tuple(map(str, read)),
            writes=tuple(map(str, read)),
            d_model=lm.d_model,
            n_latents=recipe.latents,
            nominal_l0=float(recipe.k),
            normalisation="standardise",
            options=options,
            lm=lm.name,
            source=recipe.name,
            training={
                "recipe": recipe.model_dump(mode="json", exclude={"trainees"}),
                "kind": trainee.spec.kind,
                "tokens": run.tokens,
                "steps": run.step,
                "corpus": {"name": corpus.name, "split": corpus.split, "sha256": corpus.sha256},
                "held_out": {
                    "split": held_out.split,
                    "tokens": recipe.held_out_tokens,
                    "normalised_mse": round(errors[trainee.spec.name], 5),
                },
                "lm_revision": lm.revision,
            },
        )
        files.append(save_dictionary(out, trainee.spec.name, trainee.dictionary(card)))
    for left in (*out.glob(f"*.{_TENSORS}"), out / _STATE):
        left.unlink(missing_ok=True)
    return TrainingReport(run.tokens, errors, files)
