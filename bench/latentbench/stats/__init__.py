"""Estimators, resampling, paired tests, rank intervals and power; NumPy and SciPy only.

Every estimate names its method and its number of independent units. Fewer than two units give no interval, an
undefined statistic is unscored, and nothing turns NaN into a number.
"""

from __future__ import annotations

from latentbench.stats._agreement import krippendorff_alpha
from latentbench.stats._bootstrap import (
    IndexStatistic,
    SumStatistic,
    bootstrap,
    bootstrap_draws,
    bootstrap_indices,
    interval_from_draws,
    joint_draws,
    ratio,
)
from latentbench.stats._counts import (
    RarefactionPoint,
    SetCount,
    count_reaching,
    per_set,
    rarefaction,
    subsample_count,
)
from latentbench.stats._estimate import Estimate, unscored
from latentbench.stats._paired import Comparison, holm, minimum_detectable_difference, paired
from latentbench.stats._random import generator
from latentbench.stats._ranks import Direction, RankInterval, rank_independent, rank_intervals
from latentbench.stats._ratios import (
    PairedRatio,
    minimum_detectable_ratio,
    paired_ratio,
    units_to_detect,
)
from latentbench.stats._richness import (
    Richness,
    abundance_coverage,
    chao1,
    chao2,
    doubling_gain,
    expected_richness,
    incidence_coverage,
    richness,
)
from latentbench.stats._seeds import OverSeeds, seeds_difference, seeds_ratio
from latentbench.stats._simple import mean, wilson
from latentbench.stats._units import Units

__all__ = [
    "Comparison",
    "Direction",
    "Estimate",
    "IndexStatistic",
    "OverSeeds",
    "PairedRatio",
    "RankInterval",
    "RarefactionPoint",
    "Richness",
    "SetCount",
    "SumStatistic",
    "Units",
    "abundance_coverage",
    "bootstrap",
    "bootstrap_draws",
    "bootstrap_indices",
    "chao1",
    "chao2",
    "count_reaching",
    "doubling_gain",
    "expected_richness",
    "generator",
    "holm",
    "incidence_coverage",
    "interval_from_draws",
    "joint_draws",
    "krippendorff_alpha",
    "mean",
    "minimum_detectable_difference",
    "minimum_detectable_ratio",
    "paired",
    "paired_ratio",
    "per_set",
    "rank_independent",
    "rank_intervals",
    "rarefaction",
    "ratio",
    "richness",
    "seeds_difference",
    "seeds_ratio",
    "subsample_count",
    "units_to_detect",
    "unscored",
    "wilson",
]
