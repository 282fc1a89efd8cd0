"""Recipes that train dictionaries on one shared activation stream."""

from latentbench.train._recipe import Recipe, TraineeSpec, load_recipe, multiplier
from latentbench.train._train import TrainingReport, held_out_error, train
from latentbench.train._trainees import Trainee

__all__ = [
    "Recipe",
    "Trainee",
    "TraineeSpec",
    "TrainingReport",
    "held_out_error",
    "load_recipe",
    "multiplier",
    "train",
]
