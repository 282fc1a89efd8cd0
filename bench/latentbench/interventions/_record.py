"""The record of an intervention: everything that decides what is done to an activation, and nothing else."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from latentbench.errors import UserError
from latentbench.identity import sha256_json
from latentbench.lm import BOTH_PHASES, Phase, Site

__all__ = ["Conflict", "Intervention", "Mode", "Operator", "Phases", "Positions", "Unit", "VectorPayload"]

Operator = Literal["add", "set", "min_clamp", "scale", "ablate", "project_out", "subspace_clamp"]
"""What is done; z is a latent's activation, h the residual activation, v a direction of norm 1.

`add`: z + a, or h + a x vector. `set`: a. `min_clamp`: max(z, a). `scale`: a z. `ablate`: 0. `project_out`:
h - (h.v) v, over all directions of the record at once. `subspace_clamp`: h - ReLU(h.v) v + a v, for each of them."""
Unit = Literal["raw", "max_activation", "residual_norm", "target_activation"]
"""What an amount of 1 stands for; the number is in `unit_values`, since only a measurement can tell."""
Positions = Literal["all", "no_bos", "last", "from_token", "routed"]
"""Which tokens. `all` and the rest begin behind the tokens that a suite leaves out of everything (`skip_first` of
`intervention_edits`). `no_bos`: not the first token, whatever `skip_first` is. `last`: the prompt's last token, and
each generated one. `from_token`: from an index within the row's real tokens on, prompt included. `routed`: only
tokens that the dictionary's router sends to the site; latents of a routed dictionary never act anywhere else, so it
matters to dense vectors."""
Phases = Literal["prefill", "decode", "both"]
"""Prompt tokens, generated tokens or both."""
Conflict = Literal["sequence", "sum", "error"]
"""When several records of one row meet at a site: each acts on what the one before left; all act on the activation
as it arrives and their changes are added up; or it is refused."""
Mode = Literal["code", "corrected"]
"""For RouteSAE. `code` is what the official code's steering does: it changes prompt tokens only, its router pools
every layer instead of the routed ones, and the route's probability plays no part. `corrected` routes as in training,
changes generated tokens too, and writes in the units of the dictionary as it is loaded."""

_AMOUNTLESS = ("ablate", "project_out")
_LATENT_ONLY = ("set", "min_clamp", "scale", "ablate")
_DIRECTIONS = ("project_out", "subspace_clamp")
_PHASES: dict[Phases, frozenset[Phase]] = {
    "prefill": frozenset({"prefill"}),
    "decode": frozenset({"decode"}),
    "both": BOTH_PHASES,
}


class VectorPayload(BaseModel):
    """Names a dense vector: where it is written and which numbers it holds. `vector_payload` makes one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    site: str
    """Canonical name of the site, such as `resid_post.7`."""
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    """Of the vector's bytes in float32, little-endian."""

    @field_validator("site")
    @classmethod
    def _canonical(cls, value: str) -> str:
        return str(Site.parse(value))


class Intervention(BaseModel):
    """One edit, frozen and hashed: of latents of a dictionary, or along a dense vector.

    Equal records do equal things. Tensors are not in it: `bind` joins it with the dictionary or vector that it names.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    operator: Operator
    """See `Operator`."""
    amounts: tuple[float, ...] = ()
    """How much, in units: one for each latent, or one for the vector; none for `ablate` and `project_out`."""
    latents: tuple[int, ...] = ()
    """Latents of the dictionary; all change at once. For `project_out` and `subspace_clamp` they stand for their
    decoder directions."""
    dictionary: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")
    """`dictionary_sha256` of whose latents these are; with a vector, of whose router `positions="routed"` means."""
    vector: VectorPayload | None = None
    """The dense vector, in place of latents."""
    unit: Unit = "raw"
    """See `Unit`; `raw` is the dictionary's own unit, or 1 x the vector (`subspace_clamp`: the activation's)."""
    unit_values: tuple[float, ...] = ()
    """The size of one unit for each amount, as a raw amount: amounts x unit_values is what acts."""
    unit_source: str = ""
    """Where those sizes come from, such as "max over the train split of fineweb, 100k tokens"."""
    keep_error: bool = True
    """For operators on latents: keep what the dictionary does not reconstruct. False replaces the activation of the
    chosen tokens by the reconstruction from the changed codes."""
    positions: Positions = "all"
    """See `Positions`."""
    first_token: int | None = Field(default=None, ge=0)
    """For `from_token`: that index."""
    phases: Phases = "both"
    """See `Phases`."""
    conflict: Conflict = "sequence"
    """See `Conflict`; records of one row that meet at a site must agree on it."""
    mode: Mode = "corrected"
    """See `Mode`; `code` is for RouteSAE alone and asks for `phases="prefill"`."""

    @field_validator("amounts", "unit_values")
    @classmethod
    def _without_negative_zero(cls, given: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(number + 0.0 for number in given)  # equal to 0, but written otherwise

    @model_validator(mode="after")
    def _consistent(self) -> Intervention:
        self._check_targets()
        self._check_amounts()
        self._check_unit()
        self._check_reach()
        return self

    def _check_targets(self) -> None:
        if bool(self.latents) == (self.vector is not None):
            raise UserError(
                "an intervention acts on latents of a dictionary or along a dense vector: give exactly one of "
                "`latents` and `vector`"
            )
        if self.latents and self.dictionary is None:
            raise UserError(
                f"latents {list(self.latents)} of which dictionary? Give its `dictionary_sha256` as `dictionary`"
            )
        negative = [latent for latent in self.latents if latent < 0]
        if negative:
            raise UserError(f"latent {negative[0]} is out of range: latents are counted from 0")
        repeated = [latent for latent in self.latents if self.latents.count(latent) > 1]
        if repeated:
            raise UserError(f"latent {repeated[0]} is named twice in one intervention: give it one amount")
        if self.vector is not None and self.operator in _LATENT_ONLY:
            raise UserError(
                f"operator {self.operator!r} changes a latent's activation, and a dense vector has none: use add, "
                "project_out or subspace_clamp, or name latents"
            )

    def _check_amounts(self) -> None:
        wanted = 0 if self.operator in _AMOUNTLESS else max(1, len(self.latents))
        if len(self.amounts) != wanted:
            raise UserError(
                f"operator {self.operator!r} on {len(self.latents) or 1} "
                f"{'latents' if self.latents else 'vector'} takes {wanted} amounts; found {len(self.amounts)}"
            )
        _check_finite("amounts", self.amounts)

    def _check_unit(self) -> None:
        if self.unit == "raw":
            if self.unit_values or self.unit_source:
                raise UserError(
                    "unit 'raw' has no sizes: leave out unit_values and unit_source, or name the unit"
                )
            return
        if self.operator in (*_AMOUNTLESS, "scale"):
            raise UserError(
                f"operator {self.operator!r} has no amount in units of {self.unit!r}: use unit 'raw'"
            )
        if len(self.unit_values) != len(self.amounts) or not self.unit_source.strip():
            raise UserError(
                f"unit {self.unit!r} is a measured size: give unit_values, one for each of {len(self.amounts)} "
                f"amounts (found {len(self.unit_values)}), and unit_source, which says where they come from"
            )
        _check_finite("unit_values", self.unit_values)

    def _check_reach(self) -> None:
        if (self.positions == "from_token") != (self.first_token is not None):
            raise UserError("positions='from_token' and first_token go together: give both or neither")
        if self.positions == "routed" and self.dictionary is None:
            raise UserError(
                "positions='routed' with a dense vector needs the dictionary whose router is meant: give its "
                "`dictionary_sha256` as `dictionary`"
            )
        if self.vector is not None and self.dictionary is not None and self.positions != "routed":
            raise UserError(
                "a dense vector needs a dictionary only for positions='routed': leave out `dictionary`, or its "
                "latents are meant and `vector` is wrong"
            )
        if not self.keep_error and (self.vector is not None or self.operator in _DIRECTIONS):
            raise UserError(
                f"keep_error=False means nothing here: {self.operator!r} "
                f"{'on a dense vector' if self.vector else 'along directions'} reconstructs nothing"
            )
        if self.mode == "code" and self.phases != "prefill":
            raise UserError(
                f"mode 'code' with phases {self.phases!r}: the official RouteSAE code changes prompt tokens only; "
                "say phases='prefill', or mode='corrected'"
            )

    @classmethod
    def from_json(cls, text: str | bytes) -> Intervention:
        """Read a record from JSON.

        Raises:
            UserError: it is no record of an intervention; the message names the first thing that is wrong.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise UserError(f"not an intervention: {where + ': ' if where else ''}{first['msg']}") from error

    def to_json(self) -> str:
        """The record as JSON, as `from_json` reads it."""
        return self.model_dump_json()

    @property
    def sha256(self) -> str:
        """Of the record's canonical JSON: equal for equal records, for cache keys and rows of results."""
        return sha256_json(self.model_dump(mode="json"))

    @property
    def values(self) -> tuple[float, ...]:
        """The amounts in raw units: amounts x unit_values."""
        if self.unit == "raw":
            return self.amounts
        return tuple(amount * size for amount, size in zip(self.amounts, self.unit_values, strict=True))

    @property
    def phase_set(self) -> frozenset[Phase]:
        """The phases as edits name them."""
        return _PHASES[self.phases]

    @property
    def reads_codes(self) -> bool:
        """Whether it needs the codes of the activation, and so pays for the encoder."""
        return self.vector is None and self.operator not in _DIRECTIONS and not self.adds

    @property
    def adds(self) -> bool:
        """Whether it adds the same direction whatever the codes are."""
        return self.operator == "add" and self.keep_error

    @property
    def along_directions(self) -> bool:
        """Whether it changes the activation's component along directions."""
        return self.operator in _DIRECTIONS


def _check_finite(name: str, numbers: tuple[float, ...]) -> None:
    bad = [number for number in numbers if not math.isfinite(number)]
    if bad:
        raise UserError(f"{name} {list(numbers)} holds {bad[0]}: an intervention needs finite numbers")
