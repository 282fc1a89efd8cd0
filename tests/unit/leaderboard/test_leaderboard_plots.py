from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from leaderboard_records import HOSTILE, write_results

from latentbench_leaderboard import _curves
from latentbench_leaderboard._curves import charts_over_tokens
from latentbench_leaderboard._plots import Axis, Bar, Line, Point, bar_chart, line_chart, point_chart
from latentbench_leaderboard._subjects import load_subjects

L0, SHARE = Axis("L0"), Axis("share")


def point(
    x: float, y: float, label: str = "one", style: int = 0, half: float | None = 0.1, *, front: bool = False
) -> Point:
    low, high = (y - half, y + half) if half is not None else (None, None)
    return Point(x, y, low, high, label, style, front)


def labels(svg: str) -> list[tuple[float, str]]:
    found = [e for e in ET.fromstring(svg).iter() if e.tag == "text" and e.get("class") == "label"]
    return [(float(e.get("y", "nan")), e.text or "") for e in found]


def test_whiskers_reach_from_low_to_high() -> None:
    svg = point_chart([point(64, 0.5, half=0.1), point(64, 0.9, half=None)], L0, SHARE, "title")
    whiskers = [e for e in ET.fromstring(svg).iter() if e.get("class") == "whisker"]
    assert len(whiskers) == 1
    numbers = [float(n) for n in re.findall(r"[\d.]+", whiskers[0].get("d", ""))]
    _, low, high = numbers
    dot = next(e for e in ET.fromstring(svg).iter() if e.get("class") == "dot")
    middle = float(re.findall(r"[\d.]+", dot.get("transform", ""))[1])
    assert low > high  # y grows downwards
    assert middle == pytest.approx((low + high) / 2, abs=0.11)


def test_points_at_one_place_are_spread_and_others_are_not() -> None:
    svg = point_chart([point(64, 0.5), point(64, 0.6, "two"), point(200, 0.5, "far")], L0, SHARE, "t")
    xs = sorted(
        float(re.findall(r"[\d.]+", e.get("transform", ""))[0])
        for g in ET.fromstring(svg)
        if g.tag == "g" and g.find("path[@class='whisker']") is not None
        for e in g.findall("path[@class='dot']")
    )
    assert xs[1] - xs[0] == pytest.approx(9, abs=0.2)
    assert xs[2] - xs[1] > 50


@given(
    st.lists(
        st.tuples(st.floats(0.1, 5000), st.floats(-1e6, 1e6), st.text(max_size=30)), min_size=1, max_size=40
    ),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_every_chart_is_well_formed_and_inside_of_its_frame(
    rows: list[tuple[float, float, str]], log: bool
) -> None:
    # XML itself has no place for control characters; pages are HTML, where they are harmless.
    points = [point(x, y, "".join(c for c in name if c.isprintable())) for x, y, name in rows]
    svg = point_chart(points, Axis("L0", log), SHARE, "title", guides=[64])
    heights = [y for y, _ in labels(svg)]
    assert all(0 <= y <= 300 for y in heights)
    ordered = sorted(heights)
    assert all(b - a >= 13.8 for a, b in pairwise(ordered))


def test_labels_that_find_no_room_are_counted() -> None:
    svg = point_chart([point(64, i, f"row {i}") for i in range(40)], L0, SHARE, "t")
    shown = labels(svg)
    assert 10 < len(shown) < 40
    assert f"+ {40 - len(shown)} in the table" in svg


def test_hostile_labels_stay_text() -> None:
    evil = f'{HOSTILE}"><img onerror=x>&'
    for svg in (
        point_chart([point(64, 0.5, evil)], Axis(evil), Axis(evil), evil),
        line_chart([Line([(0, 1, 0, 2), (1, 2, 1, 3)], evil, 0)], Axis(evil), Axis(evil), evil),
    ):
        assert "<script" not in svg
        assert "<img" not in svg
        ET.fromstring(svg)


def test_band_and_curve() -> None:
    line = Line([(1000, 10, 8, 12), (2000, 18, 15, 21), (3000, 24, None, None)], "one", 1)
    root = ET.fromstring(line_chart([line], Axis("tokens"), Axis("latents"), "t"))
    curve = next(e for e in root.iter() if e.get("class") == "curve s1")
    assert len(curve.get("points", "").split()) == 3
    band = next(e for e in root.iter() if e.get("class") == "band s1")
    assert len(band.get("points", "").split()) == 4


def test_a_series_is_joined_with_a_band_that_stays_inside() -> None:
    points = [point(32, 1), point(64, 2), point(128, 3)]
    line = Line([(32, 1, -50, 2), (64, 2, 1, 3), (128, 3, 2, 90)], "series", 0)
    root = ET.fromstring(point_chart(points, L0, SHARE, "t", lines=[line]))
    (chain,) = [e for e in root.iter() if (e.get("class") or "").startswith("chain")]
    assert len(chain.get("points", "").split()) == 3
    (band,) = [e for e in root.iter() if (e.get("class") or "").startswith("band")]
    heights = [float(pair.split(",")[1]) for pair in band.get("points", "").split()]
    assert all(14 <= y <= 256 for y in heights)


def test_the_front_is_stepped_and_ringed() -> None:
    points = [point(32, 1, front=True), point(64, 0.5), point(128, 3, front=True)]
    root = ET.fromstring(point_chart(points, L0, SHARE, "t"))
    (front,) = [e for e in root.iter() if e.get("class") == "front"]
    assert re.fullmatch(r"M[\d.]+ [\d.]+H[\d.]+V[\d.]+H[\d.]+", front.get("d", ""))
    assert len([e for e in root.iter() if e.get("class") == "ring"]) == 2


def test_a_legend_names_series_in_place_of_points() -> None:
    points = [point(64, i, f"row {i}", i % 2) for i in range(20)]
    svg = point_chart(points, L0, SHARE, "t", legend=[("TopK", 0), ("controls", -1)])
    assert [name for _, name in labels(svg)] == ["TopK", "controls"]


def test_among_very_many_points_only_the_front_has_whiskers() -> None:
    points = [point(64 + i, i, front=i == 0) for i in range(500)]
    svg = point_chart(points, L0, SHARE, "t", legend=[])
    root = ET.fromstring(svg)
    assert len([e for e in root.iter() if e.get("class") == "whisker"]) == 1
    assert len([e for e in root.iter() if e.get("class") == "dot"]) == 500
    assert len(svg) < 100_000


def test_markers_and_colours_together_tell_36_series_apart() -> None:
    points = [point(64, i, f"row {i}", i) for i in range(36)]
    root = ET.fromstring(point_chart(points, L0, SHARE, "t", legend=[]))
    looks = {(g.get("class"), e.get("d")) for g in root if g.tag == "g" for e in g if e.get("class") == "dot"}
    assert len(looks) == 36


def test_bars_reach_from_the_ground_and_carry_intervals() -> None:
    bars = [Bar("6", 0.2, 0.15, 0.25), Bar("7", 0.8, None, None), Bar(f'8{HOSTILE}"', 0.0, None, None)]
    root = ET.fromstring(bar_chart(bars, "layer", SHARE, "t"))
    drawn = [e for e in root.iter() if e.get("class") == "bar"]
    bottoms = {round(float(e.get("y", "0")) + float(e.get("height", "0")), 0) for e in drawn}
    assert len(bottoms) == 1
    heights = [float(e.get("height", "0")) for e in drawn]
    assert heights[1] == pytest.approx(4 * heights[0], abs=0.3)
    assert heights[2] == 0
    assert len([e for e in root.iter() if e.get("class") == "on-bar"]) == 1


def test_equal_values_still_have_an_axis() -> None:
    svg = point_chart([point(64, 0.0, half=None)], L0, SHARE, "t")
    ticks = [e.text for e in ET.fromstring(svg).iter() if e.get("class") == "tick end"]
    assert len(ticks) >= 3
    assert len(set(ticks)) == len(ticks)


def test_controls_are_marked() -> None:
    root = ET.fromstring(point_chart([point(64, 1, style=-1), point(64, 2, "b", style=8)], L0, SHARE, "t"))
    classes = [g.get("class") for g in root if g.tag == "g" and g.find("title") is not None]
    assert classes == ["control", "s2"]


def test_of_many_curves_the_highest_are_drawn_and_the_others_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_results(tmp_path / "results")
    subjects, _ = load_subjects(tmp_path / "results")
    (whole, *_) = charts_over_tokens(subjects)
    assert whole.left_out == ()
    monkeypatch.setattr(_curves, "_DRAWN", 3)
    (chart, *_) = charts_over_tokens(subjects)
    assert chart.rows == whole.rows
    order = sorted(whole.rows, key=lambda row: -float(row.value.replace(",", "")))
    assert sorted(chart.left_out) == sorted(row.name for row in order[3:])
    drawn = [e for e in ET.fromstring(str(chart.svg)).iter() if "curve" in e.get("class", "").split()]
    assert len(drawn) == 3
