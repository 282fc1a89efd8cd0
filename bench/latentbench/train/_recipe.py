"""Training recipes: documented options, read from TOML."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from latentbench.errors import UserError, nearest

__all__ = ["Recipe", "TraineeSpec", "load_recipe", "multiplier"]

Schedule = Literal["paper", "as-run-2025"]


class TraineeSpec(BaseModel):
    """One dictionary to be trained from the shared stream."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """File stem of the result and its name in the zoo."""
    kind: Literal["topk", "routesae", "random"]
    """"topk": single layer, at the last routed site. "routesae": router over all routed sites. "random": the paper's
    control, every token from a random routed site, unscaled."""
    pooling: Literal["sum", "mean"] = "sum"
    """How the router pools sites."""


class Recipe(BaseModel):
    """How a family of dictionaries is trained.

    Defaults follow RouteSAE (arXiv 2503.08200v3, section 4.1, and GitHub swei2001/RouteSAEs), except for the sizes
    of model, data and batch.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """Name of the recipe."""
    lm: str
    """Language model, as `load_lm` takes it."""
    corpus: str = "probe-texts"
    """Corpus whose train split is streamed once."""
    tokens: int = Field(gt=0)
    """Measured tokens to train on."""
    context: int = 128
    """Tokens in a row."""
    skip_first: int = 1
    """Tokens at the start of each row that are not trained on (attention sink)."""
    rows: int = Field(default=8, gt=0)
    """Rows in one forward pass of the language model."""
    block_tokens: int = Field(default=8192, gt=0)
    """Tokens that are collected and shuffled before steps are taken on them; also the grain of resuming."""
    batch_tokens: int = Field(default=1024, gt=0)
    """Tokens in one optimiser step, about: a block is cut into equal batches of this size."""
    repeats: int = Field(default=1, gt=0)
    """Times each block is gone through, reshuffled: steps are cheap beside the activations they need."""
    latents: int = Field(default=2304, gt=0)
    """Width of each dictionary."""
    k: int = Field(default=64, gt=0)
    """Active latents per token."""
    lr: float = Field(default=5e-4, gt=0)
    """Peak learning rate of Adam (betas 0.9 and 0.999, no weight decay)."""
    schedule: Schedule = "paper"
    """"paper": linear warm-up over 5 % of the steps, constant, linear decay to 0 over the last 20 %. "as-run-2025":
    what the code of that time did instead: from 1 to 0.2 at 80 %, then to 0 at 95 %."""
    normalise_every: int = Field(default=10, gt=0)
    """Steps between resets of the decoder rows to unit norm."""
    seed: int = 42
    """Seed of initialisation and shuffling."""
    held_out_tokens: int = Field(default=8192, gt=0)
    """Tokens of the calibration split on which the card's held-out error is measured."""
    trainees: tuple[TraineeSpec, ...] = Field(min_length=1)
    """Dictionaries trained side by side."""

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        if self.k > self.latents:
            raise ValueError(f"k = {self.k} is more than latents = {self.latents}")
        if self.batch_tokens > self.block_tokens:
            raise ValueError(
                f"batch_tokens = {self.batch_tokens} is more than block_tokens = {self.block_tokens}"
            )
        if len({trainee.name for trainee in self.trainees}) < len(self.trainees):
            raise ValueError("two trainees have one name")
        return self


def load_recipe(source: str) -> Recipe:
    """A recipe from a TOML file, or a shipped one by name.

    Raises:
        UserError: the file is missing or no recipe; the first wrong key is named.
    """
    shipped = Path(__file__).parent / "recipes" / f"{source}.toml"
    path = shipped if shipped.is_file() else Path(source)
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in shipped.parent.glob("*.toml")))
        raise UserError(f"there is no recipe {source!r}: give a TOML file or one of {known}")
    try:
        return Recipe.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"recipe {path.name} is not TOML: {error}") from error
    except ValidationError as error:
        # A misspelt key also shows up as the missing one; the misspelling is what has to be told.
        first = min(error.errors(), key=lambda found: found["type"] != "extra_forbidden")
        where = ".".join(map(str, first["loc"])) or "the file"
        hint = ""
        if first["type"] == "extra_forbidden":
            close = nearest(str(first["loc"][-1]), [*Recipe.model_fields, *TraineeSpec.model_fields])
            hint = f"; did you mean {close[0]!r}?" if close else ""
        raise UserError(f"recipe {path.name}: {where}: {first['msg']}{hint}") from error


def multiplier(done: float, schedule: Schedule) -> float:
    """Share of the peak learning rate.

    Args:
        done: share of the run's tokens that are behind it once the step is taken, above 0.
        schedule: see `Recipe.schedule`.
    """
    if done < 0.05:
        return done / 0.05
    if done < 0.8:
        return 1.0
    if schedule == "paper":
        return max(0.0, (1.0 - done) / 0.2)
    return max(0.0, 0.2 * (0.95 - done) / 0.15)
