"""The state of a training run and its checkpoints."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from latentbench.errors import UserError
from latentbench.train._trainees import Trainee

__all__ = ["Run", "checkpoint", "clear", "restore"]

_STATE = "training.json"
_TENSORS = "training.safetensors"


@dataclass
class Run:
    """Trainees side by side and how far they are, saved at every checkpoint."""

    trainees: list[Trainee]
    """What is trained."""
    optimisers: list[torch.optim.Adam]
    """One for each."""
    steps: int = 0
    """Batches behind it."""
    tokens: int = 0
    """Tokens of the stream behind it."""
    next_row: int = 0
    """Row of the stream that comes next."""
    curves: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    """By trainee: held-out error, L0 and penalty on the way."""


def checkpoint(run: Run, out: Path, key: str) -> None:
    """Write weights and optimiser states as safetensors, then the JSON that makes them count."""
    tensors: dict[str, Tensor] = {}
    for trainee, optimiser in zip(run.trainees, run.optimisers, strict=True):
        labels = {id(parameter): label for label, parameter in trainee.named_parameters()}
        for label, value in trainee.state_dict().items():
            tensors[f"{trainee.name}/{label}"] = value.detach().cpu().contiguous()
        for parameter, state in optimiser.state.items():
            for name, value in state.items():
                tensors[f"{trainee.name}/adam/{labels[id(parameter)]}/{name}"] = torch.as_tensor(value).cpu()
    stem = f"{run.steps}.{_TENSORS}"
    save_file(tensors, out / f"{stem}.tmp")
    os.replace(out / f"{stem}.tmp", out / stem)
    state_of_run = {
        "key": key,
        "steps": run.steps,
        "tokens": run.tokens,
        "next_row": run.next_row,
        "curves": run.curves,
        "tensors": stem,
    }
    (out / f"{_STATE}.tmp").write_text(json.dumps(state_of_run), encoding="utf-8")
    os.replace(out / f"{_STATE}.tmp", out / _STATE)
    for old in out.glob(f"*.{_TENSORS}"):
        if old.name != stem:
            old.unlink()


def restore(run: Run, out: Path, key: str) -> None:
    """Take up the checkpoint in a folder, if there is one.

    Raises:
        UserError: it is of another recipe, corpus, model or choice of dictionaries.
    """
    if not (out / _STATE).is_file():
        return
    state: dict[str, Any] = json.loads((out / _STATE).read_text(encoding="utf-8"))
    if state["key"] != key:
        raise UserError(
            f"{out} holds an unfinished run of another recipe, corpus, model or choice of dictionaries: finish "
            "that one, delete its training.json or choose another folder"
        )
    tensors = load_file(out / state["tensors"])
    for trainee, optimiser in zip(run.trainees, run.optimisers, strict=True):
        trainee.load_state_dict({label: tensors[f"{trainee.name}/{label}"] for label in trainee.state_dict()})
        for label, parameter in trainee.named_parameters():
            prefix = f"{trainee.name}/adam/{label}/"
            found = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
            if found:
                optimiser.state[parameter] = {k: v.to(parameter.device) for k, v in found.items()}
    run.steps, run.tokens, run.next_row = state["steps"], state["tokens"], state["next_row"]
    run.curves = state["curves"]


def clear(out: Path) -> None:
    """Remove the checkpoint of a finished run."""
    for left in (*out.glob(f"*.{_TENSORS}"), out / _STATE):
        left.unlink(missing_ok=True)
