from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from leaderboard_records import HOSTILE, metric

from latentbench_leaderboard._format import (
    clip,
    decimals_for,
    flat,
    humanise,
    interval_text,
    number,
    plain,
    rank_text,
    sites_text,
    slug,
)


@pytest.mark.parametrize(
    ("value", "decimals", "text"),
    [
        (1234567.0, 0, "1,234,567"),
        (0.8734, 3, "0.873"),
        (-0.5, 1, "\N{MINUS SIGN}0.5"),
        (-0.0001, 2, "0.00"),
        (0.0, 0, "0"),
    ],
)
def test_number(value: float, decimals: int, text: str) -> None:
    assert number(value, decimals) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (64.0, "64"),
        (0.2134, "0.2134"),
        (63.42, "63.42"),
        (1e-7, "1e\N{MINUS SIGN}07"),
        (1200000.0, "1,200,000"),
    ],
)
def test_plain(value: float, text: str) -> None:
    assert plain(value) == text


def test_decimals_follow_the_intervals() -> None:
    assert decimals_for([metric("a", 0.5, 0.12), metric("b", 0.5, 0.15)]) == 2
    assert decimals_for([metric("a", 0.5, 0.0123)]) == 3
    assert decimals_for([metric("a", 152.0, 9.0)]) == 0
    assert decimals_for([metric("a", 0.51234)]) == 3
    assert decimals_for([metric("a", None, reason="none")]) == 2


def test_a_value_of_zero_has_the_decimals_of_its_interval() -> None:
    assert decimals_for([metric("a", 0.0, 0.434)]) == 2
    assert decimals_for([metric("a", 0.0)]) == 2


def test_a_share_of_one_keeps_its_decimals() -> None:
    assert decimals_for([metric("a", 1.0)]) == 2


def test_interval_text_never_reads_a_dash_as_a_minus() -> None:
    assert interval_text(metric("a", 0.5, 0.1), 1) == "0.4\N{EN DASH}0.6"
    assert interval_text(metric("a", 0.0, 0.5), 1) == "\N{MINUS SIGN}0.5 to 0.5"
    assert interval_text(metric("a", 0.5), 1) == ""


def test_rank_text() -> None:
    assert rank_text(2, 1, 3) == "2 (1\N{EN DASH}3)"
    assert rank_text(1, 1, 1) == "1 (1)"
    assert rank_text(1, None, None) == "1"


@given(st.text(max_size=200))
def test_a_slug_is_a_plain_file_name(name: str) -> None:
    made = slug(name, "ab" * 32)
    assert made.endswith("-abababab")
    assert set(made) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert len(made) <= 50


def test_slugs_of_hostile_names() -> None:
    assert slug("../../etc/passwd", "0" * 64) == "etc-passwd-00000000"
    assert slug(HOSTILE, "0" * 64) == "script-window-hacked-1-script-00000000"
    assert slug("\u202e", "0" * 64) == "dictionary-00000000"


@given(st.text(max_size=2000))
def test_clip_is_short_and_on_one_line(text: str) -> None:
    assert len(clip(text)) <= 80
    assert "\n" not in clip(text)


def test_clip_of_a_megabyte() -> None:
    assert clip("x" * 1_000_000, 20) == "x" * 19 + "…"
    assert clip("short") == "short"


def test_humanise() -> None:
    assert humanise("explained_variance") == "Explained variance"
    assert humanise("ce_recovered") == "CE recovered"
    assert humanise("success_gradsae") == "Success GradSAE"


def test_sites_text() -> None:
    assert sites_text(["resid_post.21"]) == "resid_post.21"
    assert sites_text([f"resid_post.{i}" for i in range(6, 22)]) == "resid_post.6\N{EN DASH}21"
    assert sites_text(["a.1", "a.3", "a.5"]) == "a.1, a.3 and 1 more"


def test_flat_names_every_leaf() -> None:
    assert list(flat({"b": {"c": 0.25, "a": [1, 2]}, "a": None})) == [
        ("a", "null"),
        ("b.a", "[1, 2]"),
        ("b.c", "0.25"),
    ]
