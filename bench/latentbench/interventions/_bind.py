"""Joining a record with the dictionary or vector that it names."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from latentbench.adapters import Dictionary, RouteSae
from latentbench.errors import UserError
from latentbench.identity import sha256_bytes, sha256_json
from latentbench.interventions._official import OfficialRouting
from latentbench.interventions._record import Intervention, VectorPayload
from latentbench.lm import LM, Site

__all__ = ["BoundIntervention", "bind", "dictionary_sha256", "vector_payload"]


def dictionary_sha256(dictionary: Dictionary) -> str:
    """What an intervention calls a dictionary: the hash of all that can change what its latents do."""
    return sha256_json(dictionary.card.identity())


def vector_payload(site: str | Site, vector: Tensor) -> VectorPayload:
    """What an intervention calls a dense vector.

    Args:
        site: where it is written.
        vector: `Float[Tensor, "d"]` in any type; it is hashed, and used, in float32.
    """
    numbers = vector.detach().to(device="cpu", dtype=torch.float32).contiguous().numpy().astype("<f4")
    return VectorPayload(site=str(Site.parse(site)), sha256=sha256_bytes(numbers.tobytes()))


@dataclass(frozen=True, eq=False)
class BoundIntervention:
    """A record with its tensors, checked against each other; `bind` makes one."""

    intervention: Intervention
    """The record."""
    dictionary: Dictionary | None
    """Whose latents it names, or whose router `positions="routed"` means."""
    vector: Tensor | None
    """`Float[Tensor, "d"]`, float32."""
    acting: Dictionary | None
    """The dictionary as it acts: another than `dictionary` in mode `code` alone."""

    @property
    def sites(self) -> tuple[Site, ...]:
        """Where it may write."""
        if self.intervention.vector is not None:
            return (Site.parse(self.intervention.vector.site),)
        assert self.dictionary is not None
        return self.dictionary.writes


def bind(
    intervention: Intervention,
    dictionary: Dictionary | None = None,
    vector: Tensor | None = None,
    *,
    lm: LM | None = None,
) -> BoundIntervention:
    """Join a record with what it names.

    Args:
        intervention: the record.
        dictionary: the dictionary that it names, on any device.
        vector: `Float[Tensor, "d"]`, the dense vector that it names.
        lm: the language model; needed for mode `code` alone, where the router sees every layer.

    Raises:
        UserError: one of them is missing or not asked for, is another than the record names, or can't do what the
            record says.
    """
    if vector is not None or intervention.vector is not None:
        vector = _checked_vector(intervention, vector)
    if dictionary is not None or intervention.dictionary is not None:
        _check_dictionary(intervention, dictionary)
    return BoundIntervention(intervention, dictionary, vector, _acting(intervention, dictionary, lm))


def _checked_vector(intervention: Intervention, vector: Tensor | None) -> Tensor:
    named = intervention.vector
    if vector is None or named is None:
        raise UserError(
            "the intervention names a dense vector, but none was given: pass it as `vector`"
            if named is not None
            else "a vector was given, but the intervention names latents: leave it out"
        )
    if vector.dim() != 1 or not bool(torch.isfinite(vector).all()):
        raise UserError(
            f"a dense vector is one row of finite numbers; found shape {tuple(vector.shape)}"
            + ("" if vector.dim() != 1 else " with NaN or infinite numbers in it")
        )
    found = vector_payload(named.site, vector)
    if found != named:
        raise UserError(
            f"the vector given for {named.site} has sha256 {found.sha256[:12]}, but the intervention names "
            f"{named.sha256[:12]}: it is another vector"
        )
    if intervention.along_directions and not bool(vector.any()):
        raise UserError(f"operator {intervention.operator!r} needs a direction, and the vector given is 0")
    return vector.detach().to(torch.float32)


def _check_dictionary(intervention: Intervention, dictionary: Dictionary | None) -> None:
    named = intervention.dictionary
    if dictionary is None or named is None:
        raise UserError(
            f"the intervention names the dictionary {named[:12]}, but none was given: pass it as `dictionary`"
            if named is not None
            else "a dictionary was given, but the intervention names none: leave it out"
        )
    found = dictionary_sha256(dictionary)
    name = dictionary.card.name
    if found != named:
        raise UserError(
            f"dictionary {name!r} has identity {found[:12]}, but the intervention names {named[:12]}: it is another "
            "dictionary, or was loaded with other options"
        )
    over = [latent for latent in intervention.latents if latent >= dictionary.card.n_latents]
    if over:
        raise UserError(
            f"latent {over[0]} is out of range: {name!r} has latents 0 to {dictionary.card.n_latents - 1}"
        )
    if isinstance(dictionary, RouteSae):
        dictionary.needs_a_site()
    elif intervention.positions == "routed" or intervention.mode == "code":
        what = "positions='routed'" if intervention.positions == "routed" else "mode 'code'"
        raise UserError(f"{what} is for routed dictionaries, and {name!r} has no router")
    if intervention.vector is not None and Site.parse(intervention.vector.site) not in dictionary.reads:
        raise UserError(
            f"positions='routed' at {intervention.vector.site}, but {name!r} routes over "
            f"{', '.join(dictionary.card.reads)}: no token is ever routed there"
        )


def _acting(intervention: Intervention, dictionary: Dictionary | None, lm: LM | None) -> Dictionary | None:
    if intervention.mode != "code":
        return dictionary
    if not isinstance(dictionary, RouteSae) or intervention.vector is not None:
        raise UserError("mode 'code' is for latents of a RouteSAE: leave it out for a dense vector")
    if lm is None:
        raise UserError("mode 'code' routes over every layer of the language model: pass it as `lm`")
    return OfficialRouting(dictionary, lm)
