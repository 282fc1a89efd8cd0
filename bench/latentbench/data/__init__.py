"""Assets, corpora and token rows. No torch."""

from __future__ import annotations

from latentbench.data._cache import cache_root
from latentbench.data._index import SPLITS
from latentbench.data._questions import Question, Sheet, fact_sheets, load_squad, squad_from_hub
from latentbench.data._sources import Source, sources
from latentbench.data.assets import AssetSpec, AssetStatus, asset_path, catalogue, pull, resolve_asset, verify
from latentbench.data.corpus import Corpus, Document, StreamOptions, load_corpus
from latentbench.data.tokens import TokenRow, measured_tokens, token_rows

__all__ = [
    "SPLITS",
    "AssetSpec",
    "AssetStatus",
    "Corpus",
    "Document",
    "Question",
    "Sheet",
    "Source",
    "StreamOptions",
    "TokenRow",
    "asset_path",
    "cache_root",
    "catalogue",
    "fact_sheets",
    "load_corpus",
    "load_squad",
    "measured_tokens",
    "pull",
    "resolve_asset",
    "sources",
    "squad_from_hub",
    "token_rows",
    "verify",
]
