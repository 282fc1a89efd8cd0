"""Richness against published examples, brute force and simulated corpora; ratios of counts against the truth."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latentbench.stats import (
    SetCount,
    abundance_coverage,
    chao1,
    chao2,
    count_reaching,
    doubling_gain,
    expected_richness,
    generator,
    incidence_coverage,
    minimum_detectable_ratio,
    paired_ratio,
    richness,
    units_to_detect,
)

# Spiders of Sackett et al. 2011, as in the documentation of the R package iNEXT.
GIRDLED = [46, 22, 17, 15, 15, 9, 8, 6, 6, 4, 2, 2, 2, 2, *[1] * 12]
LOGGED = [88, 22, 16, 15, 13, 10, 8, 8, 7, 7, 7, 5, 4, 4, 4, 3, 3, 3, 3, 2, 2, 2, 2, *[1] * 14]
# Ants of Longino and Colwell at 50 m and at 2000 m, there too: plots, incidences, species, and those in 1 and in 2
# plots. The other species' frequencies enter only by their sum.
ANTS_50 = (599, 5976, 227, 49, 23)
ANTS_2000 = (200, 271, 14, 1, 2)
COUNTS = st.lists(st.integers(0, 6), min_size=1, max_size=6)


def incidences(plots: int, total: int, species: int, once: int, twice: int) -> list[int]:
    others = species - once - twice
    left = total - once - 2 * twice
    common = [left // others + (place < left % others) for place in range(others)]
    assert min(common) > 2
    assert max(common) <= plots
    return [*common, *[2] * twice, *[1] * once]


@pytest.mark.parametrize(
    ("counts", "value", "error", "low", "high", "coverage"),
    [(GIRDLED, 43.893, 14.306, 30.511, 96.971, 0.9289), (LOGGED, 61.403, 18.532, 43.502, 128.583, 0.9446)],
)
def test_chao1_and_coverage_of_the_published_spiders(
    counts: list[int], value: float, error: float, low: float, high: float, coverage: float
) -> None:
    found = chao1(counts)
    assert (found.value, found.low, found.high) == pytest.approx((value, low, high), abs=5e-4)
    assert found.n == sum(counts)
    assert found.high is not None
    unseen = value - len(counts)
    assert math.log(found.high - len(counts)) - math.log(unseen) == pytest.approx(
        1.959964 * math.sqrt(math.log1p((error / unseen) ** 2)), abs=1e-3
    )
    assert abundance_coverage(counts) == pytest.approx(coverage, abs=1e-4)


@pytest.mark.parametrize(
    ("ants", "value", "coverage", "grown"),
    [
        (ANTS_50, 279.108514, 0.9918134, {883: 245.732481, 1198: 258.745498}),
        (ANTS_2000, 14.248750, 0.9963827, {295: 14.211194, 400: 14.244103}),
    ],
)
def test_chao2_coverage_and_extrapolation_of_the_published_ants(
    ants: tuple[int, int, int, int, int], value: float, coverage: float, grown: dict[int, float]
) -> None:
    plots, counts = ants[0], incidences(*ants)
    assert chao2(counts, plots).value == pytest.approx(value, abs=1e-6)
    assert incidence_coverage(counts, plots) == pytest.approx(coverage, abs=1e-7)
    assert expected_richness(counts, plots, list(grown)) == pytest.approx(list(grown.values()), abs=1e-5)
    assert doubling_gain(counts, plots) == pytest.approx(grown[2 * plots] / len(counts) - 1, abs=1e-7)


def test_the_bound_without_species_met_twice_is_the_bias_corrected_one() -> None:
    # 10 individuals, f1 = 4, f2 = 0: 6 species seen, 0.9 * 4 * 3 / 2 more.
    found = chao1([1, 1, 1, 1, 3, 3])
    assert found.value == pytest.approx(6 + 0.9 * 6)
    variance = 0.9 * 6 + 0.81 * 4 * 49 / 4 - 0.81 * 256 / (4 * 11.4)
    factor = math.exp(1.959964 * math.sqrt(math.log1p(variance / 5.4**2)))
    assert (found.low, found.high) == pytest.approx((6 + 5.4 / factor, 6 + 5.4 * factor), rel=1e-6)


def test_nothing_met_once_means_nothing_unseen() -> None:
    found = chao1([5, 3, 2])
    assert (found.value, found.low) == (3.0, None)
    assert "observed number" in found.method
    assert abundance_coverage([5, 3, 2]) == 1.0
    assert doubling_gain([5, 3, 2], 10) == 0.0
    assert abundance_coverage([0, 0]) is None
    assert doubling_gain([0, 0], 4) is None
    assert chao2([], 0).value is None


def test_no_estimate_exceeds_the_width() -> None:
    counts = [1] * 40
    assert chao2(counts, 20).value == pytest.approx(40 + 0.95 * 40 * 39 / 2)
    cut = chao2(counts, 20, maximum=64)
    assert (cut.value, cut.high) == (64.0, 64.0)
    assert "cut at" in cut.method
    units, latents = np.arange(40) // 2, np.arange(40)
    found = richness(units, latents, 20, 64, generator("cut"))
    assert found.chao2.value == 64.0
    assert found.doubling_gain.value is not None
    assert found.doubling_gain.value <= 64 / 40 - 1


@given(counts=COUNTS, extra=st.integers(0, 2))
def test_rarefaction_is_the_mean_over_all_subsets(counts: list[int], extra: int) -> None:
    """Incidences: every set of plots; abundances: every set of individuals. One formula, so one of them will do."""
    size = max(*counts, 1) + extra
    plots = [
        {species for species, count in enumerate(counts) if (place + 3 * species) % size < count}
        for place in range(size)
    ]
    for m in range(size + 1):
        seen = [len(set().union(*chosen)) for chosen in itertools.combinations(plots, m)]
        assert expected_richness(counts, size, [m])[0] == pytest.approx(np.mean(seen), abs=1e-9)


@given(counts=st.lists(st.integers(0, 9), min_size=1, max_size=30), extra=st.integers(0, 5))
def test_the_curve_grows_ever_more_slowly_towards_the_bound(counts: list[int], extra: int) -> None:
    size = max(*counts, 1) + extra
    curve = expected_richness(counts, size, np.arange(2 * size + 1))
    steps = np.diff(curve)
    assert curve[0] == pytest.approx(0, abs=1e-9)
    assert curve[size] == pytest.approx(np.count_nonzero(counts))
    assert (steps > -1e-9).all()
    assert (np.diff(steps[:size]) < 1e-9).all()
    assert (np.diff(steps[size:]) < 1e-9).all()
    bound = chao2(counts, size).value
    assert bound is not None
    assert curve[-1] <= bound + 1e-9
    coverage = incidence_coverage(counts, size)
    assert coverage is None or 0 <= coverage <= 1


@pytest.mark.parametrize("wrong", [[1.5], [-1], [[1, 2]]])
def test_counts_are_whole_numbers(wrong: list[float]) -> None:
    with pytest.raises(ValueError, match="whole number"):
        chao1(wrong)


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="has the size 2"):
        chao2([3], 2)
    with pytest.raises(ValueError, match=r"must lie in \[0, 4\]"):
        expected_richness([1, 2], 2, [5])


def corpus(rates: np.ndarray, documents: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Positions of documents and latents: latent l is in a document with probability rates[l]."""
    unit, latent = (rng.random((documents, len(rates))) < rates).nonzero()
    return unit, latent


def test_intervals_of_the_bound_cover_a_number_of_equally_likely_latents() -> None:
    rng, covered, values = np.random.default_rng(3), 0, []
    for _ in range(300):
        counts = rng.binomial(60, 0.02, size=400)
        found = chao2(counts, 60)
        assert found.low is not None
        assert found.high is not None
        assert found.value is not None
        covered += found.low <= 400 <= found.high
        values.append(found.value)
    assert np.mean(values) == pytest.approx(400, rel=0.02)
    assert covered / 300 > 0.91  # nominal 0.95; standard error 0.013


def test_the_bound_is_a_lower_one_and_nearer_than_the_count_for_unequal_latents() -> None:
    rng = np.random.default_rng(4)
    rates = np.minimum(0.5, rng.lognormal(-4.5, 1.5, size=600))
    found = [rng.binomial(150, rates) for _ in range(50)]
    bounds = np.mean([chao2(counts, 150).value for counts in found])
    seen = np.mean([np.count_nonzero(counts) for counts in found])
    assert seen < bounds < 600
    assert 600 - bounds < 0.7 * (600 - seen)


def test_coverage_and_gain_are_those_of_further_documents() -> None:
    rng = np.random.default_rng(5)
    rates = np.minimum(0.5, rng.lognormal(-4, 1.3, size=500))
    covered = {"observed": 0, "coverage": 0, "gain": 0}
    misses, gains, rounds = [], [], 60
    expected = float((1 - (1 - rates) ** 200).sum())
    doubled = float((1 - (1 - rates) ** 400).sum())
    for place in range(rounds):
        unit, latent = corpus(rates, 200, rng)
        found = richness(unit, latent, 200, 500, generator(f"gain/{place}"))
        seen = np.bincount(latent, minlength=500) > 0
        share = float(rates[seen].sum() / rates.sum())
        misses.append((found.coverage.value or 0) - share)
        gains.append(found.doubling_gain.value or 0)
        for name, estimate, truth in (
            ("observed", found.observed, expected),
            ("coverage", found.coverage, share),
            ("gain", found.doubling_gain, doubled / expected - 1),
        ):
            assert estimate.low is not None
            assert estimate.high is not None
            covered[name] += estimate.low <= truth <= estimate.high
    assert abs(np.mean(misses)) < 0.002
    assert np.mean(gains) == pytest.approx(doubled / expected - 1, rel=0.15)
    assert min(covered.values()) / rounds > 0.85, covered


def test_repeats_within_a_document_count_once() -> None:
    unit, latent = np.array([0, 0, 0, 1, 1, 2]), np.array([0, 0, 1, 0, 2, 2])
    once = richness(unit[1:], latent[1:], 3, 8, generator("r"))
    assert richness(unit, latent, 3, 8, generator("r")) == once
    assert once.observed.value == 3
    assert once.chao2.value == chao2([2, 1, 2], 3).value


def test_few_documents_give_no_interval_and_none_no_value() -> None:
    alone = richness([0, 0], [1, 2], 1, 4, generator("a"))
    assert (alone.observed.value, alone.observed.low) == (2.0, None)
    assert alone.coverage.low is None
    nothing = richness([], [], 0, 4, generator("a"))
    assert [estimate.value for estimate in nothing] == [None] * 4
    silent = richness([], [], 9, 4, generator("a"))
    assert silent.observed.value == 0
    assert silent.coverage.value is None
    empty = richness([], [], 9, 0, generator("a"))
    assert empty.chao2.value == 0


def pair(rng: np.random.Generator, factor: float) -> tuple[SetCount, SetCount]:
    """Two dictionaries of which the first has `factor` times the latents, on documents of unequal length."""
    lengths = rng.lognormal(0, 0.7, size=150)
    counts = []
    for width in (round(400 * factor), 400):
        rates = generator(f"rates/{width}").lognormal(-4.5, 1.2, size=width)
        unit, latent = (rng.random((150, width)) < 1 - np.exp(-np.outer(lengths, rates))).nonzero()
        counts.append(count_reaching(unit, latent, 150, width, at_least=2))
    return counts[0], counts[1]


@pytest.mark.parametrize(("method", "near"), [("bootstrap", 0.25), ("subsampling", 0.6)])
def test_the_paired_interval_covers_the_ratio_of_expected_counts(method: str, near: float) -> None:
    rng = np.random.default_rng(6)
    everything = np.ones((1, 150), dtype=np.bool_)
    totals = np.array([[float(count(everything)[0]) for count in pair(rng, 1.2)] for _ in range(400)])
    truth = totals[:, 0].mean() / totals[:, 1].mean()
    spread = float(np.std(np.log(totals[:, 0] / totals[:, 1])))
    covered, errors = 0, []
    for place in range(100):
        found = paired_ratio(150, *pair(rng, 1.2), generator(f"pair/{place}"), draws=200, method=method)
        assert found.ratio.low is not None
        assert found.ratio.high is not None
        assert found.log_error is not None
        covered += found.ratio.low <= truth <= found.ratio.high
        errors.append(found.log_error)
    assert covered / 100 >= 0.9
    assert np.mean(errors) == pytest.approx(spread, rel=near)


def test_pairing_takes_the_documents_luck_out() -> None:
    """The same dictionary twice: the counts vary, their ratio does not."""
    rng = np.random.default_rng(7)
    first, second = pair(rng, 1.0)
    same = paired_ratio(150, first, first, generator("same"))
    assert same.ratio.value == 1.0
    assert same.ratio.low is None
    assert same.log_error is None
    one, other = (
        paired_ratio(150, *order, generator("turn")) for order in ((first, second), (second, first))
    )
    assert one.ratio.value == pytest.approx(1 / (other.ratio.value or 0))
    assert one.log_error == pytest.approx(other.log_error)


def test_a_ratio_without_a_denominator_is_unscored() -> None:
    none = count_reaching([], [], 5, 3)
    some = count_reaching([0, 1, 2, 3, 4], [0, 0, 1, 1, 2], 5, 3)
    assert paired_ratio(5, some, none, generator("z")).ratio.value is None
    zero = paired_ratio(5, none, some, generator("z"))
    assert (zero.ratio.value, zero.ratio.low) == (0.0, None)
    assert paired_ratio(0, some, some, generator("z")).ratio.value is None
    assert paired_ratio(
        1, count_reaching([0], [0], 1, 1), count_reaching([0], [0], 1, 1), generator("z")
    ).ratio == (
        paired_ratio(1, count_reaching([0], [0], 1, 1), count_reaching([0], [0], 1, 1), generator("y")).ratio
    )


def test_the_documents_a_ratio_takes() -> None:
    needed = units_to_detect(1.225, 0.1, 400)
    error = 0.1 * math.sqrt(400 / needed)
    assert minimum_detectable_ratio(error, needed) == pytest.approx(1.225, rel=0.01)
    assert units_to_detect(1 / 1.225, 0.1, 400) == needed
    assert units_to_detect(1.05, 0.1, 400) > 10 * needed
    with pytest.raises(ValueError, match="other than 1"):
        units_to_detect(1.0, 0.1, 400)
