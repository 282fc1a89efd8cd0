"""Checks of a dictionary that hold on any activations: form, round trips, invariances, linearity."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from latentbench.adapters import Codes, Dictionary, check_fits
from latentbench.errors import AdapterError, UserError
from latentbench.identity import canonical_json
from latentbench.lm import Site
from latentbench.testing._results import Check, Finding
from latentbench.testing._subject import Acts, Subject, filled

__all__ = ["STRUCTURE"]

_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}
"""Relative difference of a token's reconstruction that rounding may explain; 0.1 in half precision."""
_FLIPS = 0.02
"""Share of tokens that may differ more: in another order of summation, a latent near its threshold flips."""


def _card(subject: Subject) -> Finding:
    card = subject.dictionary.card
    reads, writes = subject.dictionary.reads, subject.dictionary.writes  # raises where a name is no site
    canonical_json(card.identity())  # raises where it is no JSON
    for problem, bad in (
        ("no site is read", not reads),
        ("no site is written", not writes),
        ("a site is named twice", len({*reads}) < len(reads) or len({*writes}) < len(writes)),
        (f"n_latents is {card.n_latents}", card.n_latents < 1),
        (f"d_model is {card.d_model}", card.d_model < 1),
        ("the family has no name", not card.family),
        ("sha256 is empty", not card.sha256),
    ):
        if bad:
            return Finding(False, problem, "Fill in the card when the checkpoint is loaded.")
    aliases = [name for name in (*card.reads, *card.writes) if name != str(Site.parse(name))]
    if aliases:
        instead = f"Write {str(Site.parse(aliases[0]))!r}: str(Site.parse(name)) gives the canonical name."
        return Finding(False, f"{aliases[0]!r} is an alias of a site", instead)
    where = ", ".join(card.reads) if len(reads) < 3 else f"{card.reads[0]} to {card.reads[-1]}"
    return Finding(True, f"{card.family}, {card.n_latents:,} latents of width {card.d_model} at {where}")


def _fit(subject: Subject) -> Finding:
    if subject.lm is None:
        return Finding(None, "no language model was given")
    try:
        check_fits(subject.dictionary, subject.lm)
    except UserError as error:
        return Finding(
            False,
            " ".join(str(error).split()),
            "Name the model and the sites it was made for.",
            "wrong model",
        )
    return Finding(True, f"{subject.lm.name} has these sites, in this width")


def _codes(subject: Subject) -> Finding:
    tokens = next(iter(subject.few.values())).shape[0]
    problem = _malformed(subject.few_codes, tokens, subject.dictionary.card.n_latents)
    if problem:
        return Finding(False, problem, "Build codes with codes_from_topk or codes_from_dense.")
    codes = subject.few_codes
    return Finding(True, f"{codes.nnz:,} entries of {tokens} tokens, in order, finite, none of them 0")


def _malformed(codes: Codes, tokens: int, n_latents: int) -> str | None:
    """The first thing wrong with codes, or None."""
    return next(_problems(codes, tokens, n_latents), None)


def _problems(codes: Codes, tokens: int, n_latents: int) -> Iterator[str]:
    """What is wrong with codes; the later questions only make sense where the earlier ones found nothing."""
    latents, values, offsets = codes.latents, codes.values, codes.offsets
    if codes.n_latents != n_latents:
        yield f"codes have n_latents = {codes.n_latents}, the card says {n_latents}"
    if latents.dtype != torch.int64 or offsets.dtype != torch.int64:
        yield f"latents are {latents.dtype} and offsets {offsets.dtype}; both have to be int64"
    if latents.dim() != 1 or values.shape != latents.shape:
        yield f"latents {tuple(latents.shape)} and values {tuple(values.shape)} are not two lists of one length"
    if offsets.shape != (tokens + 1,) or int(offsets[0]) != 0 or int(offsets[-1]) != len(latents):
        yield f"offsets do not run from 0 to {len(latents)} over {tokens} tokens"
    if bool((offsets.diff() < 0).any()):
        yield "offsets are not sorted"
    if len(latents) and not 0 <= int(latents.min()) <= int(latents.max()) < n_latents:
        yield f"latents run from {int(latents.min())} to {int(latents.max())}, outside 0 to {n_latents - 1}"
    if not bool(torch.isfinite(values).all()):
        yield f"{int((~torch.isfinite(values)).sum())} activations are NaN or infinite"
    if bool((values == 0).any()):
        yield f"{int((values == 0).sum())} stored activations are 0; only active latents are stored"
    if len(torch.unique(codes.rows() * n_latents + latents)) < len(latents):
        yield "a latent appears twice in one token"
    for name, value in codes.context.items():
        if value.shape[0] != tokens:
            yield f"context {name!r} does not have one entry for each token"


def _shapes(subject: Subject) -> Finding:
    problem = next(_misshapen(subject), None)
    if problem:
        return Finding(
            False, problem, "See the docstrings of latentbench.adapters.Dictionary for the shapes."
        )
    tokens = subject.few_codes.n_tokens
    written = subject.dictionary.decode(subject.few_codes)
    shown = ", ".join(f"{site} [{tokens}, {one.values.shape[1]}]" for site, one in list(written.items())[:3])
    return Finding(True, f"decode writes {shown}" + (", ..." if len(written) > 3 else ""))


def _misshapen(subject: Subject) -> Iterator[str]:
    dictionary, codes = subject.dictionary, subject.few_codes
    written = dictionary.decode(codes)
    if not written:
        yield "decode wrote nothing"
    for site, one in written.items():
        rows = codes.n_tokens if one.rows is None else len(one.rows)
        if site not in dictionary.writes:
            yield f"decode wrote {site}, which the card's `writes` doesn't name"
        if one.values.dim() != 2 or one.values.shape[0] != rows:
            yield f"at {site} decode wrote {tuple(one.values.shape)} for {rows} tokens"
        if one.rows is not None and len(torch.unique(one.rows)) < rows:
            yield f"at {site} decode wrote a token twice"
        if not bool(torch.isfinite(one.values).all()):
            yield f"at {site} decode wrote NaN or infinite numbers"
    chosen = list(range(min(3, dictionary.card.n_latents)))
    for site, vectors in dictionary.write_vectors(chosen).items():
        width = written[site].values.shape[1] if site in written else vectors.shape[-1]
        if tuple(vectors.shape) != (len(chosen), width):
            yield f"write_vectors gave {tuple(vectors.shape)} at {site}; {(len(chosen), width)} is wanted"
    relative = dictionary.relative_values(_all(subject), codes)
    if relative.shape != codes.latents.shape:
        yield f"relative_values gave {tuple(relative.shape)} for {codes.nnz} entries"
    for space, pair in dictionary.reconstructions(_all(subject), codes).items():
        if pair.target.shape != pair.prediction.shape:
            shapes = f"{tuple(pair.target.shape)} and {tuple(pair.prediction.shape)}"
            yield f"reconstructions in {space!r} space have shapes {shapes}"


def _no_tokens(subject: Subject) -> Finding:
    dictionary = subject.dictionary
    codes = dictionary.encode({site: value[:0] for site, value in subject.few.items()})
    problem = _malformed(codes, 0, dictionary.card.n_latents)
    if problem:
        return Finding(False, f"without tokens, {problem}")
    rows = sum(one.values.shape[0] for one in dictionary.decode(codes).values())
    return Finding(rows == 0, f"without tokens, decode wrote {rows} rows")


def _input_errors(subject: Subject) -> Finding:
    dictionary, acts = subject.dictionary, subject.few
    site = dictionary.reads[0]
    wide = {place: torch.cat([value, value[:, :1]], dim=1) for place, value in acts.items()}
    cases: tuple[tuple[str, Acts], ...] = (("a missing site", {}), ("activations of the wrong width", wide))
    for what, given in cases:
        try:
            dictionary.encode(given)
        except AdapterError:
            continue
        except (KeyError, RuntimeError, IndexError, ValueError) as error:
            text = f"{what} raises {type(error).__name__}"
            return Finding(False, text, "Begin encode with self.gather(acts), which says what is wrong.")
        return Finding(False, f"{what} is not noticed", "Begin encode with self.gather(acts).")
    other = {str(place): value.double() for place, value in acts.items()}
    codes = dictionary.encode(other)
    if codes.n_tokens != acts[site].shape[0]:
        return Finding(False, f"float64 activations under site names gave codes of {codes.n_tokens} tokens")
    return Finding(True, "a missing site and a wrong width are refused; names and other dtypes are taken")


def _deterministic(subject: Subject) -> Finding:
    """Twice the same but for rounding: the last digits of a matrix product may depend on where memory lies."""
    dictionary, acts = subject.dictionary, subject.few
    first, second = _reconstructed(dictionary, acts), _reconstructed(dictionary, acts)
    return _alike(first, second, dictionary.dtype, "a second time", "randomness (dropout, noise)")


def _batches(subject: Subject) -> Finding:
    dictionary, acts = subject.dictionary, subject.few
    whole = _reconstructed(dictionary, acts)
    tokens = next(iter(acts.values())).shape[0]
    edges = [0, 1, min(8, tokens), tokens]
    parts = [
        _reconstructed(dictionary, {site: value[a:b] for site, value in acts.items()})
        for a, b in pairwise(edges)
        if b > a
    ]
    joined = {site: torch.cat([part[site] for part in parts]) for site in whole}
    return _alike(whole, joined, dictionary.dtype, "in other batches", "statistics or a top-k over the batch")


def _padding(subject: Subject) -> Finding:
    lm, dictionary = subject.lm, subject.dictionary
    if lm is None:
        return Finding(None, "no language model was given")
    rows = sorted((row for row in subject.rows[:8] if len(row) > subject.skip_first), key=len)
    rows = [rows[0][: max(subject.skip_first + 1, len(rows[0]) // 2)], *rows[-2:]]
    alone = []
    for row in rows:
        tokens = lm.batch([row])
        found = lm.forward(tokens, capture=dictionary.reads, logits=False).acts
        measured = tokens.measured(subject.skip_first)
        alone.append(_reconstructed(dictionary, {site: found[site][measured] for site in dictionary.reads}))
    wanted = {site: torch.cat([part[site] for part in alone]) for site in alone[0]}
    finding = Finding(True, "")
    for side in ("right", "left"):
        if side == "left" and lm.dtype == torch.float64 and lm.attention == "eager":
            continue  # NaN in the model itself
        tokens = lm.batch(rows, side=side)
        found = lm.forward(tokens, capture=dictionary.reads, logits=False).acts
        measured = tokens.measured(subject.skip_first)
        padded = _reconstructed(dictionary, {site: found[site][measured] for site in dictionary.reads})
        finding = _alike(
            wanted, padded, dictionary.dtype, f"with padding on the {side}", "padding that is read"
        )
        if not finding.passed:
            return finding
    return finding


def _dtypes(subject: Subject) -> Finding:
    dictionary, acts = subject.dictionary, subject.few
    before = dictionary.dtype
    whole = _reconstructed(dictionary, acts)
    for dtype in (torch.float64, torch.bfloat16):
        moved = dictionary.to(dtype=dtype)
        if moved.dtype != dtype or dictionary.dtype != before:
            text = f"to(dtype={dtype}) gave {moved.dtype} and left the original at {dictionary.dtype}"
            return Finding(
                False, text, "Return a new dictionary with converted weights; change nothing in place."
            )
        there = _reconstructed(moved, acts)
        if any(value.dtype != dtype for value in there.values()):
            return Finding(False, f"in {dtype}, decode writes {next(iter(there.values())).dtype}")
        if any(not bool(torch.isfinite(value).all()) for value in there.values()):
            return Finding(False, f"in {dtype}, decode writes NaN or infinite numbers")
        if dtype == torch.float64:
            finding = _alike(whole, there, before, "in float64", "weights that are not converted")
            if finding.passed:
                back = _reconstructed(moved.to(dtype=before), acts)
                finding = _alike(
                    whole, back, before, "after float64 and back", "weights that are not converted"
                )
            if not finding.passed:
                return finding
    return Finding(
        True, f"{str(before).removeprefix('torch.')} to float64 and back works, and so does bfloat16"
    )


def _devices(subject: Subject) -> Finding:
    dictionary, acts = subject.dictionary, subject.few
    before, whole = dictionary.device, _reconstructed(dictionary, acts)
    places = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
    for place in places:
        moved = dictionary.to(device=place)
        if moved.device.type != place or dictionary.device != before:
            text = f"to(device={place!r}) gave {moved.device} and left the original at {dictionary.device}"
            return Finding(
                False, text, "Return a new dictionary with moved weights; change nothing in place."
            )
        there = {site: value.to(before) for site, value in _reconstructed(moved, acts).items()}
        finding = _alike(whole, there, dictionary.dtype, f"on {place}", "state that is not moved")
        if not finding.passed:
            return finding
    return Finding(True, f"works on {' and '.join(places)}")


def _linear(subject: Subject) -> Finding:
    dictionary, codes = subject.dictionary, subject.few_codes
    scale = codes.values.detach().abs().mean().clamp(min=1e-6) if codes.nnz else torch.tensor(1.0)
    one, two = (
        torch.randn(codes.nnz, generator=subject.generator, dtype=torch.float64).to(codes.values) * scale
        for _ in range(2)
    )
    mixed = _decoded(dictionary, codes.with_values(0.3 * one + 0.7 * two), subject.few)
    first = _decoded(dictionary, codes.with_values(one), subject.few)
    second = _decoded(dictionary, codes.with_values(two), subject.few)
    apart = {site: 0.3 * first[site] + 0.7 * second[site] for site in mixed}
    return _alike(
        apart, mixed, dictionary.dtype, "for mixed values", "a decoder that is not affine", flips=0.0
    )


def _directions(subject: Subject) -> Finding:
    dictionary, codes = subject.dictionary, subject.few_codes
    if codes.nnz == 0:
        return Finding(None, "no latent is active on these activations")
    entry = int(codes.values.detach().abs().argmax())
    latent, token = int(codes.latents[entry]), int(codes.rows()[entry])
    more = codes.values.clone()
    more[entry] += (step := codes.values.detach().abs().max())
    before = dictionary.decode(codes)
    after = dictionary.decode(codes.with_values(more))
    vectors = dictionary.write_vectors([latent], codes.context)
    for site, one in after.items():
        change = (
            filled(one, subject.few[dictionary.reads[0]])[0]
            - filled(before[site], subject.few[dictionary.reads[0]])[0]
        )
        if float(change[token].abs().sum()) == 0:
            continue  # a routed token is written elsewhere
        vector = vectors[site]
        wanted = step * vector[token if vector.shape[0] > 1 else 0, 0]
        off = float((change[token] - wanted).norm() / wanted.norm().clamp(min=1e-12))
        if not off <= 10 * _TOLERANCE.get(dictionary.dtype, 0.1):
            text = f"at {site} a unit of latent {latent} writes something else than write_vectors says ({off:.2g})"
            return Finding(
                False, text, "Give what decode adds for one unit, in raw units where a context is given."
            )
    return Finding(True, "write_vectors says what one more unit of a latent writes")


def _all(subject: Subject) -> Acts:
    tokens = subject.few_codes.n_tokens
    return {site: value[:tokens] for site, value in subject.acts.items()}


def _reconstructed(dictionary: Dictionary, acts: Acts) -> Acts:
    return _decoded(dictionary, dictionary.encode(acts), acts)


def _decoded(dictionary: Dictionary, codes: Codes, acts: Acts) -> Acts:
    """What is written at each site, 0 at tokens that are not written there."""
    like = acts[dictionary.reads[0]]
    written = {site: filled(one, like)[0] for site, one in dictionary.decode(codes).items()}
    missing = [site for site in dictionary.writes if site not in written]
    return {**written, **{site: like.new_zeros(like.shape, dtype=dictionary.dtype) for site in missing}}


def _alike(
    wanted: Acts, found: Acts, dtype: torch.dtype, when: str, suspect: str, flips: float = _FLIPS
) -> Finding:
    """Whether two reconstructions agree but for rounding and a few flipped latents."""
    tolerance = _TOLERANCE.get(dtype, 0.1)
    worst, apart, tokens = 0.0, 0, 0
    for site, value in wanted.items():
        off = _relative(found[site], value)
        apart += int((~(off <= tolerance)).sum())
        tokens += len(off)
        worst = max(worst, float(off.median()) if len(off) else 0.0)
    allowed = max(1.0, flips * tokens) if flips else 0.0
    if apart > allowed:
        text = f"{when}, {apart} of {tokens} reconstructions differ by more than {tolerance:g}"
        return Finding(False, text, f"Look for {suspect}.")
    return Finding(True, f"{when}, reconstructions agree (median relative difference {worst:.1g})")


def _relative(found: Tensor, wanted: Tensor) -> Tensor:
    norms = wanted.double().norm(dim=1)
    floor = float(norms.median()) * 1e-3 + 1e-12 if len(norms) else 1.0
    off: Tensor = (found.double() - wanted.double()).norm(dim=1)
    relative: Tensor = off / norms.clamp(min=floor)
    return relative


STRUCTURE: tuple[Check[Subject], ...] = (
    Check("card", "Sites, sizes and checksum of the card go into every record and every cache key.", _card),
    Check("fit", "A dictionary of another model gives numbers that mean nothing.", _fit, ("card",)),
    Check("codes", "Every task reads codes in this form without checking again.", _codes, ("card", "fit")),
    Check("shapes", "Edits and metrics put these tensors beside the model's own.", _shapes, ("codes",)),
    Check(
        "no tokens", "A batch may hold no measured token, or a site no routed one.", _no_tokens, ("shapes",)
    ),
    Check(
        "input errors",
        "A wrong site that is not refused gives numbers without meaning.",
        _input_errors,
        ("codes",),
    ),
    Check(
        "determinism", "A number that can't be computed again can't be checked.", _deterministic, ("shapes",)
    ),
    Check("batch invariance", "Batch size must not change a score.", _batches, ("shapes",)),
    Check("padding invariance", "Padding must not change a score.", _padding, ("shapes",)),
    Check("dtype round trip", "Suites choose the type that dictionaries run in.", _dtypes, ("shapes",)),
    Check("device round trip", "Suites choose the device that dictionaries run on.", _devices, ("shapes",)),
    Check(
        "linear decoder",
        "Ablation and steering scale activations and expect the output to follow.",
        _linear,
        ("shapes",),
    ),
    Check("write vectors", "Steering adds these vectors in place of the latent.", _directions, ("shapes",)),
)
"""In the order in which they are made."""
