"""Checks of a dictionary on a model's own activations: does it fit where it says it fits?"""

from __future__ import annotations

import math

import torch

from latentbench.adapters import splice_edits
from latentbench.lm import AddVector, Edit
from latentbench.testing._causes import Attempt, Diagnosis, diagnose
from latentbench.testing._results import Check, Finding
from latentbench.testing._subject import Subject, misfit

__all__ = ["SCALE", "Examined"]

_L0_TOLERANCE = 0.25
"""Relative difference of measured from declared L0; other texts than those of training explain some."""
_MAX_DEAD = 0.9
"""Share of latents that may be silent on a sample that could have shown nearly all."""
_NO_MODEL = Finding(None, "no language model was given")


class Examined(Subject):
    """A subject that is diagnosed once."""

    _diagnosis: Diagnosis | None = None

    @property
    def diagnosis(self) -> Diagnosis:
        """What is likely to be wrong with it."""
        if self._diagnosis is None:
            self._diagnosis = diagnose(self)
        return self._diagnosis


def _reconstruction(subject: Examined) -> Finding:
    if subject.lm is None:
        return _NO_MODEL
    dictionary = subject.dictionary
    if dictionary.card.control:
        return Finding(None, "a control is not meant to reconstruct")
    error = misfit(
        lambda acts: dictionary.decode(dictionary.encode(acts)),
        subject.at(dictionary.reads),
        subject.at(dictionary.writes),
    ).mean
    found = f"normalised MSE {error:.3g} on {len(subject.profile.counts):,} tokens"
    if error < 1:
        return Finding(True, found)
    if int(subject.profile.counts.sum()) == 0:
        found += "; no latent is active on any token"
    likely = subject.diagnosis.likely
    if likely:
        best = likely[0]
        return Finding(
            False, f"{found}; typically {_change(subject.diagnosis, best)}", best.instead, best.cause
        )
    return Finding(
        False,
        found,
        "No other site nearby, normalisation, pre-bias or orientation does much better: compare the encoder with "
        "the code that trained it, and check that the weights belong to this model.",
    )


def _compared(subject: Examined, check: str, nothing: str) -> Finding:
    """Whether undoing mistakes of one kind explains the error."""
    if subject.lm is None:
        return _NO_MODEL
    if subject.dictionary.card.control:
        return Finding(None, "a control is not meant to reconstruct")
    attempts = subject.diagnosis.of(check)
    if not attempts:
        return Finding(None, nothing)
    declared = f"typical error {subject.diagnosis.declared:.3g} as declared"
    likely = [attempt for attempt in subject.diagnosis.likely if attempt.check == check]
    if likely:
        best = likely[0]
        return Finding(False, f"{declared}, {best.error:.3g} {best.setting}", best.instead, best.cause)
    return Finding(True, f"{declared}; {_listed(attempts)}")


def _change(diagnosis: Diagnosis, best: Attempt) -> str:
    return f"{diagnosis.declared:.3g} as declared, {best.error:.3g} {best.setting}"


def _listed(attempts: tuple[Attempt, ...]) -> str:
    best = sorted(attempts, key=lambda attempt: attempt.error)[:3]
    return ", ".join(f"{attempt.error:.3g} {attempt.setting}" for attempt in best)


def _site(subject: Examined) -> Finding:
    return _compared(subject, "site", "the model has no other site to compare with")


def _normalisation(subject: Examined) -> Finding:
    return _compared(subject, "normalisation", "its input transform can't be taken off from outside")


def _pre_bias(subject: Examined) -> Finding:
    return _compared(subject, "pre-bias", "it has no bias that could be subtracted first")


def _orientation(subject: Examined) -> Finding:
    return _compared(
        subject,
        "orientation",
        "its matrices are not square, so their shapes tell, or they can't be turned from outside",
    )


def _output_scale(subject: Examined) -> Finding:
    finding = _compared(subject, "output scale", "")
    if finding.passed is None and finding.found == "":
        return Finding(True, "no factor on what latents write would help much")
    return finding


def _sparsity(subject: Examined) -> Finding:
    if subject.lm is None:
        return _NO_MODEL
    counts = subject.profile.counts.double()
    found = f"measured L0 {float(counts.mean()):.4g} (5 % to 95 % of tokens: {_range(counts)})"
    declared = subject.dictionary.card.nominal_l0
    if declared is None:
        return Finding(None, f"{found}; the card declares none")
    found += f", declared {declared:g}"
    if abs(float(counts.mean()) / declared - 1) <= _L0_TOLERANCE:
        return Finding(True, found)
    instead = (
        "Check k or the threshold, and whether inference is meant to use another gate than training did."
    )
    return Finding(False, found, instead, "wrong gate or k")


def _range(counts: torch.Tensor) -> str:
    low, high = torch.quantile(counts, torch.tensor([0.05, 0.95], dtype=counts.dtype)).tolist()
    return f"{low:.4g} to {high:.4g}"


def _norms(subject: Examined) -> Finding:
    used = subject.profile.uses.nonzero()[:, 0]
    if len(used) == 0:
        return Finding(False, "no latent is active on any token", "See the other checks.")
    norms = torch.cat(
        [
            torch.stack(
                [
                    rows.float().norm(dim=-1)
                    for rows in subject.dictionary.write_vectors(part.tolist()).values()
                ]
            )
            .max(dim=0)
            .values.cpu()
            for part in used.split(4096)
        ]
    )
    low, middle, high = torch.quantile(
        norms.double(), torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    ).tolist()
    found = f"decoder norms {low:.3g} to {high:.3g}, median {middle:.3g}, over {len(used):,} active latents"
    if bool(torch.isfinite(norms).all()) and low > 1e-6 * middle:
        return Finding(True, found)
    return Finding(
        False,
        found,
        "Latents that are active but write nothing: is the decoder read with its rows as latents?",
    )


def _dead(subject: Examined) -> Finding:
    if subject.lm is None:
        return _NO_MODEL
    profile = subject.profile
    tokens, latents = len(profile.counts), len(profile.uses)
    alive = int((profile.uses > 0).sum())
    found = f"{alive:,} of {latents:,} latents are active on {tokens:,} tokens"
    if alive == 0:
        return Finding(False, found, "See 'normalisation' and 'site', or check the threshold.")
    if int(profile.counts.sum()) < 5 * latents:
        return Finding(True, f"{found}; too few tokens to call the others dead")
    return Finding(
        alive > (1 - _MAX_DEAD) * latents, found, "Nearly all latents are dead: was training cut short?"
    )


def _edit(subject: Examined) -> Finding:
    """Both ways of editing: the reconstruction in place of the activation, and one latent added."""
    lm, dictionary = subject.lm, subject.dictionary
    if lm is None:
        return _NO_MODEL
    tokens, measured = subject.batch(4)
    sites = subject.sites
    clean = lm.forward(tokens, capture=sites)
    codes = dictionary.encode({site: clean.acts[site][measured] for site in dictionary.reads})
    if codes.nnz == 0:
        return Finding(False, "no latent is active on any token, so there is nothing to edit with")
    assert clean.logits is not None
    before = clean.logits[measured].float()

    def moved(edits: list[Edit]) -> float:
        logits = lm.forward(tokens, edits=edits).logits
        assert logits is not None
        return float((logits[measured].float() - before).abs().max())

    splice = moved(splice_edits(dictionary, codes, measured))
    strongest = int(subject.profile.strength.argmax())
    size = float(codes.values.detach().abs().max())
    steered = moved(
        [
            AddVector(site, size * vectors.mean(dim=0)[0].to(before.device), where=measured, skip_first=0)
            for site, vectors in dictionary.write_vectors([strongest], codes.context).items()
        ]
    )
    found = (
        f"logits move by up to {splice:.3g} when spliced, {steered:.3g} when latent {strongest:,} is added"
    )
    if not (math.isfinite(splice) and math.isfinite(steered)):
        return Finding(False, found, "An edited pass gives NaN: compare the scale of what is written.")
    if steered == 0:
        return Finding(False, found, "Adding a latent changes nothing: write_vectors or `writes` is wrong.")
    if splice == 0 and not dictionary.card.control:
        return Finding(
            False, found, "Splicing the reconstruction changes nothing: `writes` or decode is wrong."
        )
    return Finding(True, found)


SCALE: tuple[Check[Examined], ...] = (
    Check(
        "reconstruction",
        "A normalised MSE of 1 is what the mean activation reaches: at 1 or above, codes explain nothing.",
        _reconstruction,
        ("shapes",),
    ),
    Check(
        "site", "A dictionary fits the site it was trained on better than its neighbours.", _site, ("shapes",)
    ),
    Check("normalisation", "Activations have to enter as they did in training.", _normalisation, ("shapes",)),
    Check(
        "pre-bias", "A bias that training subtracted first has to be subtracted here.", _pre_bias, ("shapes",)
    ),
    Check(
        "orientation",
        "Square matrices fit either way round, and only one is right.",
        _orientation,
        ("shapes",),
    ),
    Check(
        "output scale",
        "Steering and ablation depend on the size of what a latent writes.",
        _output_scale,
        ("shapes",),
    ),
    Check("sparsity", "Dictionaries are compared at a fixed sparsity.", _sparsity, ("codes",)),
    Check("decoder norms", "A latent that writes nothing can't be ablated or steered.", _norms, ("shapes",)),
    Check("dead latents", "Dead latents count for nothing in a feature count.", _dead, ("codes",)),
    Check("edit", "Steering and loss metrics measure what edits do to the logits.", _edit, ("shapes",)),
)
"""In the order in which they are made."""
