"""The catalogue of assets and the table of probing sets."""

from __future__ import annotations

from pathlib import Path

import pytest

from latentbench.data import sources
from latentbench.data.assets import WheelSource, asset_spec, cache_root, catalogue, resolve_asset
from latentbench.errors import UserError

WHEEL = """
[asset.mine]
title = "Mine"
kind = "wheel"
project = "mine"
version = "1"
sha256 = "{sha}"
members = {{ "mine/x.bin" = "./" }}
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return path


def test_shipped_entries_are_locked() -> None:
    specs = catalogue()
    assert set(specs) == {"smollm2-135m-q4", "smollm2-135m-hub", "probe-texts", "minilm"}
    for spec in specs.values():
        assert spec.lock
        assert all(len(file.sha256) == 64 and file.size > 0 for file in spec.lock.values())
        assert spec.licence != "unknown"


def test_wheels_carry_their_licence() -> None:
    for spec in catalogue().values():
        if isinstance(spec.source, WheelSource):
            assert spec.lock is not None
            assert "LICENSE" in spec.lock


def test_alias_and_nearest_name() -> None:
    assert resolve_asset("smollm2-135m") == "smollm2-135m-q4"
    assert resolve_asset("HuggingFaceTB/SmolLM2-135M") is None
    with pytest.raises(UserError, match="did you mean 'minilm'"):
        asset_spec("minlm")


def test_extra_catalogue_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, WHEEL.format(sha="a" * 64))
    monkeypatch.setenv("LATENTBENCH_CATALOGUE", str(path))
    assert asset_spec("mine").lock is None


def test_a_changed_pin_is_another_folder(tmp_path: Path) -> None:
    first = catalogue(write(tmp_path, WHEEL.format(sha="a" * 64)))["mine"].pin()
    second = catalogue(write(tmp_path, WHEEL.format(sha="b" * 64)))["mine"].pin()
    assert first != second


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[asset.x", "no valid TOML"),
        ("[assets.x]\n", "unknown table 'assets'"),
        (WHEEL.format(sha="a" * 63), "'sha256' is 'aaa"),
        (WHEEL.format(sha="a" * 64).replace('"wheel"', '"zip"'), "kind is 'zip'"),
        (WHEEL.format(sha="a" * 64).replace("title", "titel"), "'title' is None"),
        (WHEEL.format(sha="a" * 64) + "colour = 'red'\n", "unknown key 'colour'"),
        (WHEEL.format(sha="a" * 64).replace("asset.mine", "asset.minilm"), "'minilm' is taken"),
        (WHEEL.format(sha="a" * 64) + "aliases = ['smollm2-135m']\n", "'smollm2-135m' is taken"),
        (WHEEL.format(sha="a" * 64).replace("asset.mine", 'asset."../mine"'), "names are lower-case"),
        (WHEEL.format(sha="a" * 64).replace('{ "mine/x.bin" = "./" }', "{}"), "names no file to unpack"),
    ],
)
def test_wrong_catalogues_say_where(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        catalogue(write(tmp_path, text))


def test_missing_catalogue(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="can't be read"):
        catalogue(tmp_path / "none.toml")


def test_cache_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LATENTBENCH_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_root() == Path("/xdg/latentbench")
    monkeypatch.setenv("LATENTBENCH_CACHE", "/named")
    assert cache_root() == Path("/named")
    assert cache_root(tmp_path) == tmp_path


def test_every_probing_set_has_one_source() -> None:
    lock = asset_spec("probe-texts").lock
    assert lock is not None
    files = {name.removeprefix("texts/").removesuffix(".csv.zst") for name in lock if name != "LICENSE"}
    assert set(sources()) == files


def test_published_sources_have_known_free_terms() -> None:
    free = {source.set for source in sources().values() if source.excerpts}
    assert free
    for source in sources().values():
        if source.excerpts:
            assert source.licence in {"MIT", "Apache-2.0", "CC BY 4.0", "CC BY-SA 4.0"}, source
            assert source.stream
    assert not {"106_hate_hate", "107_hate_offensive", "95_toxic_is"} & free


def test_abuse_stays_out_of_the_stream() -> None:
    left_out = {source.set for source in sources().values() if not source.stream}
    assert left_out == {"95_toxic_is", "106_hate_hate", "107_hate_offensive"}
