"""Interventions: records of what is done to a model's activations, and the edits that do it."""

from latentbench.interventions._adds import AddDense, AddLatents
from latentbench.interventions._bind import BoundIntervention, bind, dictionary_sha256, vector_payload
from latentbench.interventions._directions import AlongDirections, Directions
from latentbench.interventions._edits import intervention_edits
from latentbench.interventions._latents import ChangeLatents, LatentPlan
from latentbench.interventions._record import (
    Conflict,
    Intervention,
    Mode,
    Operator,
    Phases,
    Positions,
    Unit,
    VectorPayload,
)
from latentbench.interventions._rows import RowsEdit, SumOfChanges

__all__ = [
    "AddDense",
    "AddLatents",
    "AlongDirections",
    "BoundIntervention",
    "ChangeLatents",
    "Conflict",
    "Directions",
    "Intervention",
    "LatentPlan",
    "Mode",
    "Operator",
    "Phases",
    "Positions",
    "RowsEdit",
    "SumOfChanges",
    "Unit",
    "VectorPayload",
    "bind",
    "dictionary_sha256",
    "intervention_edits",
    "vector_payload",
]
