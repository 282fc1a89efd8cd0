"""Training recipes: documented options, read from TOML."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from latentbench.errors import UserError, nearest

__all__ = ["Kind", "Recipe", "TraineeSpec", "Unit", "load_recipe", "multiplier"]

Kind = Literal[
    "topk",
    "routesae",
    "random",
    "relu",
    "gated",
    "jumprelu",
    "mlsae",
    "crosscoder",
    "saelens-standard",
    "saelens-gated",
    "saelens-topk",
    "saelens-batchtopk",
    "saelens-jumprelu",
    "saelens-matryoshka",
]
Schedule = Literal["paper", "as-run-2025"]


class TraineeSpec(BaseModel):
    """One dictionary to be trained from the shared stream, or several: one for each k and seed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """File stem of the result and its name in the zoo; several `k` or `seeds` append "-k64" and "-s0" to it."""
    kind: Kind
    """What is trained, all read from standardised activations (GitHub swei2001/RouteSAEs).

    "topk", "relu", "gated", "jumprelu": a single-layer SAE at `site`. "routesae": a shared TopK SAE
    and a router over all routed sites. "random": the paper's control, every token from a random routed site,
    unscaled. "mlsae": one TopK SAE that takes a batch from one routed site after the other, `sites_per_batch` of
    them. "crosscoder": an encoder and a decoder for each of `n_sites` evenly spaced routed sites, ReLU.

    "saelens-...": the trainer of that name in SAELens, with its own losses, on the raw activations of `site`,
    scaled to a mean norm of sqrt(d).
    """
    site: int = -1
    """Which of the routed sites a single-layer SAE reads, counted from 0; -1 is the last one."""
    pooling: Literal["sum", "mean"] = "sum"
    """How the router pools sites ("routesae")."""
    routing: Literal["hard", "soft"] = "hard"
    """"soft": the input is the mean of the sites weighted by the router; it can't be spliced ("routesae")."""
    k: tuple[int, ...] = ()
    """Active latents per token, one dictionary for each; empty: the recipe's. For "relu", "gated", "jumprelu" and
    "crosscoder" it is the target that the penalty is steered to."""
    seeds: tuple[int, ...] = ()
    """Seeds of initialisation and shuffling, one dictionary for each; empty: the recipe's."""
    penalty: float = Field(default=1.0, gt=0)
    """First weight of the sparsity penalty: of mean |z| over all latents, or of L0 per token for "jumprelu"; of what
    SAELens makes of it for its trainers."""
    penalty_gain: float = Field(default=0.02, ge=0)
    """How fast the penalty is steered to the target L0, see `PenaltyController`; 0 keeps it as it is."""
    bandwidth: float = Field(default=1e-3, gt=0)
    """Width of the rectangle that passes gradients to JumpReLU's thresholds, in units of the pre-activation."""
    threshold: float = Field(default=1e-3, gt=0)
    """First threshold of JumpReLU, in units of the pre-activation; see `train_saelens` for SAELens' own."""
    sites_per_batch: int = Field(default=1, gt=0)
    """Routed sites that MLSAE takes a step on for each batch; the official code takes all."""
    n_sites: int = Field(default=4, gt=0)
    """Routed sites of a crosscoder, evenly spaced and with the last one."""
    groups: tuple[int, ...] = ()
    """Latents in each prefix of "saelens-matryoshka", in rising order; empty: an eighth, a quarter and half."""

    @field_validator("k", "seeds", mode="before")
    @classmethod
    def _one_or_many(cls, value: object) -> object:
        return (value,) if isinstance(value, int) else value


class Unit(NamedTuple):
    """One dictionary to train: a trainee at one k and one seed."""

    name: str
    """File stem of its weights and card."""
    spec: TraineeSpec
    """What it is."""
    k: int
    """Active latents per token, or the target."""
    seed: int
    """Of its initialisation and its shuffling."""


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
    curve_points: int = Field(default=5, ge=1)
    """Times that the held-out error is measured on the way; the last one is at the end."""
    trainees: tuple[TraineeSpec, ...] = Field(min_length=1)
    """Dictionaries trained side by side."""

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        for unit in self.units():
            if unit.k > self.latents:
                raise ValueError(f"k = {unit.k} is more than latents = {self.latents}")
        if self.batch_tokens > self.block_tokens:
            raise ValueError(
                f"batch_tokens = {self.batch_tokens} is more than block_tokens = {self.block_tokens}"
            )
        if len({unit.name for unit in self.units()}) < len(self.units()):
            raise ValueError("two trainees have one name")
        return self

    def units(self) -> tuple[Unit, ...]:
        """The dictionaries, in order."""
        units: list[Unit] = []
        for spec in self.trainees:
            for k in spec.k or (self.k,):
                for seed in spec.seeds or (self.seed,):
                    sparsity = f"-k{k}" if len(spec.k) > 1 else ""
                    drawn = f"-s{seed}" if len(spec.seeds) > 1 else ""
                    units.append(Unit(f"{spec.name}{sparsity}{drawn}", spec, k, seed))
        return tuple(units)


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
