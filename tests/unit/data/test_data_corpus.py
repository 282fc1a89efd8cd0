"""What the corpus promises: one document a text, one split a group, a balanced and deterministic stream."""

from __future__ import annotations

import csv
import io
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import hypothesis.strategies as st
import pytest
import zstandard
from hypothesis import given

from latentbench.data import SPLITS, Corpus, Document, StreamOptions, load_corpus, sources
from latentbench.data._index import _build, group_key, index_key, normalise, split_of, text_key
from latentbench.data.corpus import _kept_shares
from latentbench.errors import AssetError, UserError

NEWS, YELP, AMAZON = "97_news_class", "111_yelp_data", "112_amzn_rev"
HATE, CODE, PHYSICS = "106_hate_hate", "158_code_C", "44_phys_tf"
OPTIONS = StreamOptions(min_characters=20, max_characters=60, max_share=1.0)


def make_cache(tmp_path: Path, tables: Mapping[str, Sequence[tuple[str, str]]]) -> Path:
    """A cache whose index of the probing texts was made from these (text, target) tables."""
    texts = tmp_path / "texts"
    texts.mkdir()
    for set_id, rows in tables.items():
        stream = io.StringIO(newline="")
        writer = csv.writer(stream)
        writer.writerow(["prompt", "prompt_len", "target"])
        writer.writerows([text, len(text), target] for text, target in rows)
        packed = zstandard.ZstdCompressor().compress(stream.getvalue().encode())
        (texts / f"{set_id}.csv.zst").write_bytes(packed)
    folder = tmp_path / "cache/corpora/probe-texts" / index_key("probe-texts")
    folder.parent.mkdir(parents=True)
    _build(texts, folder)
    return tmp_path / "cache"


def everything(cache: Path) -> list[Document]:
    """Documents of all splits; a split that nothing fell into is left out."""
    found: list[Document] = []
    for split in SPLITS:
        try:
            found += load_corpus(split=split, options=OPTIONS, cache_dir=cache).pool
        except UserError:
            continue
    return found


def long_text(word: str, number: int) -> str:
    return f"{word} number {number} says that there are {number * 7919} things to be told of it"


def test_whitespace_variants_are_one_document_with_all_labels(tmp_path: Path) -> None:
    one, other = "A  review of\na long evening.\r\n", " A review of a long evening. "
    cache = make_cache(tmp_path, {YELP: [(one, "4")], AMAZON: [(other, "5")], NEWS: [(one, "Sport")]})
    (document,) = everything(cache)
    assert document.labels == {NEWS: "Sport", YELP: "4", AMAZON: "5"}
    assert document.source == NEWS  # the set with the lowest number
    assert document.text == one
    assert document.sha256 == text_key(other) == text_key(one)


def test_two_targets_in_one_set_are_no_label(tmp_path: Path) -> None:
    text = "An abstract that is filed under two headings."
    news, reviews = [(text, "Sport"), (text, "Politics")], [(text, "1"), (text, "1")]
    cache = make_cache(tmp_path, {NEWS: news, YELP: reviews})
    (document,) = everything(cache)
    assert document.labels == {YELP: "1"}


def test_line_breaks_quotes_and_odd_characters_survive(tmp_path: Path) -> None:
    text = 'She said, "one\n\ntwo\u2028three\x85four", and \N{PILE OF POO} left; a, b'
    cache = make_cache(tmp_path, {NEWS: [(text, "Sport")]})
    assert [document.text for document in everything(cache)] == [text]


def test_stream_drops_short_texts_and_cuts_long_ones(tmp_path: Path) -> None:
    rows = [("too short", "1")] * 3 + [(long_text("word", i) * 3, "1") for i in range(200)]
    cache = make_cache(tmp_path, {NEWS: rows})
    corpus = load_corpus(split="train", options=OPTIONS, cache_dir=cache)
    whole = {document.sha256: document.text for document in corpus.pool}
    assert len(corpus.documents) > 50
    for document in corpus.documents:
        assert 20 <= len(document.text) <= 60
        assert whole[document.sha256].startswith(document.text)
        assert document.sha256 == text_key(whole[document.sha256])


def test_texts_that_begin_alike_share_a_split_and_one_is_streamed(tmp_path: Path) -> None:
    passage = "Once upon a time there was a very long passage. " * 6
    rows = [(passage + f"What is question {i}?", "0") for i in range(300)]
    cache = make_cache(tmp_path, {NEWS: rows})
    (split,) = {split_of(group_key(text)) for text, _ in rows}
    corpus = load_corpus(split=split, options=OPTIONS, cache_dir=cache)
    assert len(corpus.pool) == 300
    assert len(corpus.documents) == 1


def test_abuse_is_labelled_but_never_streamed(tmp_path: Path) -> None:
    both = [(long_text("both", i), "1") for i in range(100)]
    clean = [(long_text("clean", i), "1") for i in range(400)]
    cache = make_cache(tmp_path, {HATE: [*both, (long_text("hate", 1), "1")], NEWS: [*both, *clean]})
    corpora = [load_corpus(split=split, options=OPTIONS, cache_dir=cache) for split in SPLITS]
    assert sum(HATE in document.labels for corpus in corpora for document in corpus.pool) == 101
    streamed = {document.sha256 for corpus in corpora for document in corpus.documents}
    assert streamed == {text_key(text) for text, _ in clean}


def test_share_cap_holds_and_keeps_the_rest(tmp_path: Path) -> None:
    tables = {CODE: [(long_text("code", i), "1") for i in range(3000)]}
    tables |= {set_id: [(long_text(set_id, i), "1") for i in range(300)] for set_id in (NEWS, YELP, PHYSICS)}
    cache = make_cache(tmp_path, tables)
    options = StreamOptions(min_characters=20, max_characters=60, max_share=0.4)
    corpus = load_corpus(split="train", options=options, cache_dir=cache)
    shares = Counter(sources()[document.source].family for document in corpus.documents)
    assert shares["code"] / shares.total() == pytest.approx(0.4, abs=0.05)
    uncapped = load_corpus(split="train", options=OPTIONS, cache_dir=cache)
    kept = {document.sha256 for document in corpus.documents}
    small = {document.sha256 for document in uncapped.documents if document.source != CODE}
    assert small <= kept


def test_first_documents_have_the_mixture_of_all(tmp_path: Path) -> None:
    tables = {CODE: [(long_text("code", i), "1") for i in range(4000)]}
    tables |= {NEWS: [(long_text("news", i), "1") for i in range(2000)]}
    cache = make_cache(tmp_path, tables)
    options = StreamOptions(min_characters=20, max_characters=60, max_share=0.5)
    documents = load_corpus(split="train", options=options, cache_dir=cache).documents
    head = [document.source for document in documents[: len(documents) // 4]]
    assert head.count(CODE) / len(head) == pytest.approx(0.5, abs=0.08)


def test_sources_restrict_the_stream(tmp_path: Path) -> None:
    tables = {set_id: [(long_text(set_id, i), "1") for i in range(50)] for set_id in (NEWS, YELP)}
    cache = make_cache(tmp_path, tables)
    options = StreamOptions(min_characters=20, max_characters=60, max_share=1.0, sources=(YELP,))
    corpus = load_corpus(split="train", options=options, cache_dir=cache)
    assert {document.source for document in corpus.documents} == {YELP}
    typo = StreamOptions(sources=("111_yelp",))
    with pytest.raises(UserError, match="unknown probing set '111_yelp': did you mean '111_yelp_data'"):
        load_corpus(split="train", options=typo, cache_dir=cache)


def test_identity_follows_what_is_streamed(tmp_path: Path) -> None:
    cache = make_cache(tmp_path, {NEWS: [(long_text("news", i), "1") for i in range(100)]})
    keys = {
        load_corpus(split=split, options=options, cache_dir=cache).sha256
        for split in ("train", "test")
        for options in (OPTIONS, StreamOptions(20, 50, 1.0))
    }
    assert len(keys) == 4
    again = load_corpus(split="train", options=OPTIONS, cache_dir=cache)
    assert again.sha256 == load_corpus(split="train", options=OPTIONS, cache_dir=cache).sha256


def test_labelled_classes(tmp_path: Path) -> None:
    rows = [(long_text("news", i), "Sport" if i % 2 else "Politics") for i in range(60)]
    cache = make_cache(tmp_path, {NEWS: [*rows, ("short", "Sport")]})
    corpus = load_corpus(split="train", options=OPTIONS, cache_dir=cache)
    sport = corpus.labelled(NEWS, "Sport")
    assert sport
    assert all(document.labels[NEWS] == "Sport" for document in sport)
    assert (
        len(sport) + len(corpus.labelled(NEWS, "Politics")) == len(corpus.labelled(NEWS)) == len(corpus.pool)
    )
    with pytest.raises(UserError, match="did you mean 'Sport'"):
        corpus.labelled(NEWS, "Sports")
    with pytest.raises(UserError, match="labelled set"):
        corpus.labelled("97_news", "Sport")


def test_excerpts_only_where_every_set_is_free(tmp_path: Path) -> None:
    free, mixed = long_text("free", 1), long_text("mixed", 1)
    cache = make_cache(tmp_path, {"90_glue_qnli": [(free, "1"), (mixed, "1")], NEWS: [(mixed, "Sport")]})
    assert {document.text: document.excerpts for document in everything(cache)} == {free: True, mixed: False}


def test_bad_questions() -> None:
    with pytest.raises(UserError, match="unknown split 'validation'"):
        load_corpus(split="validation")
    with pytest.raises(UserError, match="did you mean 'probe-texts'"):
        load_corpus("probe-text", split="test")
    with pytest.raises(UserError, match="min_characters=100 and max_characters=50"):
        StreamOptions(min_characters=100, max_characters=50)
    with pytest.raises(UserError, match="max_share=0"):
        StreamOptions(max_share=0.0)


def test_not_pulled(tmp_path: Path) -> None:
    with pytest.raises(AssetError, match="assets pull probe-texts"):
        load_corpus(split="test", cache_dir=tmp_path)


def test_damaged_index(tmp_path: Path) -> None:
    cache = make_cache(tmp_path, {NEWS: [(long_text("news", i), "1") for i in range(10)]})
    (index,) = cache.rglob("train.json.zst")
    index.write_bytes(index.read_bytes()[:-5])
    with pytest.raises(AssetError, match="delete that folder"):
        load_corpus(split="train", options=OPTIONS, cache_dir=cache)


def test_own_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    lines = [{"text": long_text("mine", i), "source": "a" if i % 2 else "b"} for i in range(200)]
    path.write_text("\n".join(json.dumps(line) for line in [*lines, *lines]) + "\n\n")
    corpora = [load_corpus(str(path), split=split, options=OPTIONS) for split in SPLITS]
    documents = [document for corpus in corpora for document in corpus.documents]
    assert len(documents) == 200
    assert not any(document.excerpts for document in documents)
    path.write_text('{"text": "x"}\n{"txt": "y"}\n')
    with pytest.raises(UserError, match="line 2: not a document"):
        load_corpus(str(path), split="train", options=OPTIONS)


def test_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text("")
    with pytest.raises(UserError, match="no document of split 'test' is left"):
        load_corpus(str(path), split="test")


@given(st.text(max_size=300))
def test_keys_ignore_whitespace_alone(text: str) -> None:
    assert text_key(text) == text_key(f"\n {text}\t") == text_key(normalise(text))
    assert split_of(group_key(text)) in SPLITS


def test_split_shares() -> None:
    found = Counter(split_of(group_key(f"text {i}")) for i in range(20_000))
    assert sum(SPLITS.values()) == pytest.approx(1)
    for split, share in SPLITS.items():
        assert found[split] / 20_000 == pytest.approx(share, abs=0.01)


@given(
    st.lists(st.integers(1, 10**6), min_size=1, max_size=30),
    st.floats(0.02, 1.0, allow_nan=False),
)
def test_share_cap_law(sizes: list[int], max_share: float) -> None:
    table = {str(number): size for number, size in enumerate(sizes)}
    keep = _kept_shares(table, max_share)
    kept = [size * keep[name] for name, size in table.items()]
    assert all(0 < share <= 1 for share in keep.values())
    if max_share * len(sizes) >= 1:  # else no mixture can obey the cap
        assert max(kept) <= max_share * sum(kept) * (1 + 1e-9)
    untouched = [size for name, size in table.items() if keep[name] == 1]
    cut = [size * keep[name] for name, size in table.items() if keep[name] < 1]
    if cut and untouched:
        assert max(untouched) <= min(cut) * (1 + 1e-9)  # only the largest are cut, and to one level


@pytest.fixture(scope="module")
def corpora() -> dict[str, Corpus]:
    return {split: load_corpus(split=split) for split in SPLITS if split != "train"}


@pytest.mark.slow
class TestProbeTexts:
    """The real corpus."""

    def test_splits_are_disjoint(self, corpora: dict[str, Corpus]) -> None:
        seen: Counter[str] = Counter()
        groups: dict[str, str] = {}
        for split, corpus in corpora.items():
            for document in corpus.pool:
                seen[document.sha256] += 1
                assert groups.setdefault(group_key(document.text), split) == split
        assert max(seen.values()) == 1

    def test_stream_is_balanced_and_clean(self, corpora: dict[str, Corpus]) -> None:
        table = sources()
        for corpus in corpora.values():
            characters: Counter[str] = Counter()
            for document in corpus.documents:
                characters[table[document.source].family] += len(document.text)
                assert 200 <= len(document.text) <= 2000 or len(document.text) > 1940
                assert all(table[set_id].stream for set_id in document.labels)
            assert max(characters.values()) / characters.total() < 0.13
            assert len(characters) > 20

    def test_known_content(self, corpora: dict[str, Corpus]) -> None:
        """A change of these numbers is a change of every published measurement: raise INDEX_VERSION."""
        test = corpora["test"]
        assert (len(test.documents), len(test.pool)) == (6187, 35917)
        assert test.sha256.startswith("587ac46e")
        assert {label for document in test.labelled(NEWS) for label in [document.labels[NEWS]]} == {
            "Entertainment",
            "Politics",
            "Sport",
            "Technology",
        }

    def test_warm_reading_is_quick(self, corpora: dict[str, Corpus]) -> None:
        start = time.perf_counter()
        load_corpus(split="test")
        assert time.perf_counter() - start < 5
