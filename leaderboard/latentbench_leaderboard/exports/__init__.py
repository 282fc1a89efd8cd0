"""Results for other programs: a flat table, tables for papers, and the formats of other projects."""

from __future__ import annotations

from latentbench_leaderboard.exports._eee import EEE_VERSION, eee_files
from latentbench_leaderboard.exports._files import csv_text, write_parquet
from latentbench_leaderboard.exports._hf import hf_files
from latentbench_leaderboard.exports._neuronpedia import Exported, NeuronpediaExport, neuronpedia_files
from latentbench_leaderboard.exports._neuronpedia_rows import NEURONPEDIA_CREATOR, NeuronpediaOptions
from latentbench_leaderboard.exports._rows import Row, rows_of
from latentbench_leaderboard.exports._tables import latex_text, markdown_text

__all__ = [
    "EEE_VERSION",
    "NEURONPEDIA_CREATOR",
    "Exported",
    "NeuronpediaExport",
    "NeuronpediaOptions",
    "Row",
    "csv_text",
    "eee_files",
    "hf_files",
    "latex_text",
    "markdown_text",
    "neuronpedia_files",
    "rows_of",
    "write_parquet",
]
