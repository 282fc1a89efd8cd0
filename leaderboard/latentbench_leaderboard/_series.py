"""Which dictionaries belong together: training runs of one recipe, and one recipe at several sparsities."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from latentbench.identity import canonical_json
from latentbench_leaderboard._format import clip
from latentbench_leaderboard._subjects import Subject

__all__ = ["recipe_key", "series_key", "series_title", "siblings_of", "training_seed"]

_SPARSITY_OPTIONS = frozenset({"k", "l0", "threshold", "sparsity"})


def series_key(subject: Subject) -> str:
    """What dictionaries that differ in nothing but their sparsity and their training seed have in common."""
    card = subject.card
    options = card.get("options")
    kept = (
        {k: v for k, v in options.items() if k not in _SPARSITY_OPTIONS} if isinstance(options, dict) else {}
    )
    shape = [card.get("n_latents"), card.get("normalisation"), kept, _training(subject).get("kind")]
    return canonical_json([subject.family, subject.sites, subject.control, *shape])


def recipe_key(subject: Subject) -> str | None:
    """What training runs that differ in nothing but their seed have in common; None without a recorded seed."""
    if training_seed(subject) is None or subject.control:
        return None
    card, training = subject.card, _training(subject)
    recipe = training.get("recipe")
    recipe = {k: v for k, v in recipe.items() if k != "seed"} if isinstance(recipe, dict) else recipe
    shape = [card.get("nominal_l0"), card.get("options"), subject.sparsity, subject.lm]
    return canonical_json(
        [series_key(subject), *shape, training.get("tokens"), training.get("steps"), recipe]
    )


def training_seed(subject: Subject) -> int | None:
    """Seed that the dictionary was trained with, None if its card does not say."""
    seed = _training(subject).get("seed")
    return seed if isinstance(seed, int) and not isinstance(seed, bool) else None


def siblings_of(subjects: Sequence[Subject]) -> dict[str, list[Subject]]:
    """Training runs by recipe, in order of their seeds; recipes with one run are left out."""
    found: dict[str, list[Subject]] = {}
    for subject in subjects:
        key = recipe_key(subject)
        if key is not None:
            found.setdefault(key, []).append(subject)
    return {
        key: sorted(runs, key=lambda run: (training_seed(run) or 0, run.key))
        for key, runs in found.items()
        if len({training_seed(run) for run in runs}) > 1
    }


def series_title(members: Sequence[Subject]) -> str:
    """What to call a series: what its members' names begin with, else their family."""
    names = [member.name for member in members]
    if len(names) == 1:
        return names[0]
    words = []
    for same in zip(*(re.sub(r"\bk \d+\b|\bseed\b", "", name).split() for name in names), strict=False):
        if len(set(same)) > 1:
            break
        words.append(same[0])
    return clip(" ".join(words).rstrip(" ,·-"), 40) or members[0].family


def _training(subject: Subject) -> dict[str, Any]:
    training = subject.card.get("training")
    return training if isinstance(training, dict) else {}
