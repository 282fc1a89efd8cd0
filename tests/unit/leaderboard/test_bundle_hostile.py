"""Bundles that were made to do harm: each is refused with its reason, and nothing is written outside."""

from __future__ import annotations

import json
import stat
import struct
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bundle_cells import Files, edit_lines, failures, file_of, forged, read_zip, sealed, write_zip

from latentbench.cli._main import _run
from latentbench_leaderboard.bundles import Limits, check_bundle, here, isolated
from latentbench_leaderboard.bundles._recompute import _Worker
from latentbench_leaderboard.bundles._strict import LONGEST_TEXT, Refused, parse, read_items

CELL = "runs/ab/" + "ab" * 32


@pytest.fixture(autouse=True)
def nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Temporary folders are made in a place of their own, and are gone afterwards."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    yield
    assert list(place.iterdir()) == []
    assert not (tmp_path / "escaped").exists()


def container(path: Path) -> str:
    """Why a bundle is refused as a whole."""
    found = failures(path)
    assert set(found) == {"container"}
    (message,) = found["container"]
    return message


@pytest.mark.parametrize(
    "name",
    [
        "../escaped",
        "../../tmp/escaped",
        "/tmp/escaped",
        "C:\\escaped",
        "runs\\ab\\escaped",
        "runs/../../escaped",
        f"{CELL}/../../../../escaped",
        f"{CELL}/texts.jsonl",
        f"{CELL}/run.json/",
        f"{CELL}/RUN.JSON",
        f"runs/cd/{'ab' * 32}/run.json",
        "runs/ab/short/run.json",
        "tiers.json",
        "cards/../../escaped.json",
        "bundle.json\x00.exe",
        "\u202enosj.eldnub",
        "a" * 60_000,
    ],
)
def test_names_that_are_no_bundles_are_refused(bundle: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / "b.zip"
    write_zip(path, read_zip(bundle))
    with zipfile.ZipFile(path, "a") as archive:
        entry = zipfile.ZipInfo("placeholder")
        entry.filename = name  # as a forger writes it, not as the library cleans it
        archive.writestr(entry, b"owned")
    message = container(path)
    assert "which is no file of a bundle" in message or "is damaged" in message
    assert len(message) < 300
    assert message.isascii()


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFDIR])
def test_links_and_devices_are_refused(bundle: Path, tmp_path: Path, kind: int) -> None:
    files = read_zip(bundle)
    path = tmp_path / "b.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (kind if name.endswith("items.jsonl") else stat.S_IFREG) << 16
            archive.writestr(entry, b"/etc/passwd" if name.endswith("items.jsonl") else data)
    assert ("is a link" if kind == stat.S_IFLNK else "is no plain file") in container(path)


def test_links_in_a_folder_are_refused(bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    with zipfile.ZipFile(bundle) as archive:
        archive.extractall(folder)
    items = next(folder.glob("runs/*/*/items.jsonl"))
    items.unlink()
    items.symlink_to("/etc/passwd")
    assert "is a link" in container(folder)


def test_two_entries_of_one_name_are_refused(bundle: Path, tmp_path: Path) -> None:
    path = write_zip(tmp_path / "b.zip", read_zip(bundle))
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("bundle.json", b"{}")
    assert "has two entries called 'bundle.json'" in container(path)


def test_a_zip_bomb_is_refused_before_it_is_unpacked(bundle: Path, tmp_path: Path) -> None:
    bomb = forged(
        bundle,
        tmp_path / "b.zip",
        lambda files: files.update({file_of(files, "core", "items.jsonl"): b" " * 20_000_000}),
    )
    assert "a zip bomb" in container(bomb)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (Limits(files=3), "entries; 3 are allowed"),
        (Limits(file_bytes=100), "bytes; 100 are allowed"),
        (Limits(total_bytes=10_000), "bytes; 10,000 are allowed"),
    ],
)
def test_sizes_are_bounded(bundle: Path, limits: Limits, message: str) -> None:
    (finding,) = check_bundle(bundle, here, limits).findings
    assert message in finding.message


def test_a_table_that_lies_about_a_size_is_refused(bundle: Path, tmp_path: Path) -> None:
    data = bytearray(write_zip(tmp_path / "b.zip", read_zip(bundle)).read_bytes())
    # In the central directory the size lies at offset 24 of an entry.
    place = data.index(b"PK\x01\x02")
    (size,) = struct.unpack_from("<I", data, place + 24)
    struct.pack_into("<I", data, place + 24, size - 5)
    (tmp_path / "c.zip").write_bytes(data)
    assert "is a damaged zip file" in container(tmp_path / "c.zip")


def test_damaged_and_encrypted_files_are_refused(bundle: Path, tmp_path: Path) -> None:
    data = bytearray(write_zip(tmp_path / "b.zip", read_zip(bundle)).read_bytes())
    data[200:260] = b"\xff" * 60
    (tmp_path / "c.zip").write_bytes(data)
    assert "damaged zip file" in container(tmp_path / "c.zip")
    data = bytearray((tmp_path / "b.zip").read_bytes())
    place = data.index(b"PK\x01\x02")
    data[place + 8] |= 1
    (tmp_path / "d.zip").write_bytes(data)
    assert "is encrypted" in container(tmp_path / "d.zip")


BAD_JSON = {
    "NaN": (b'{"kind":"x","id":"1","value":NaN}', "NaN is not a number"),
    "Infinity": (b'{"kind":"x","id":"1","value":-Infinity}', "-Infinity is not a number"),
    "overflow": (b'{"kind":"x","id":"1","value":1e999}', "is larger than any float"),
    "digits": (b'{"kind":"x","id":"1","value":' + b"9" * 5000 + b"}", "a number of 5,000 digits"),
    "integer": (b'{"kind":"x","id":"1","value":99999999999999999999}', "is larger than any count"),
    "key": (b'{"kind":"x","id":"1","id":"2"}', "has the key 'id' twice"),
    "deep": (b'{"kind":"x","id":"1","value":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "100,001 deep"),
    "text": (b'{"kind":"x","id":"1","value":"' + b"a" * 1_000_000 + b'"}', "a text of 1,000,002 bytes"),
    "utf-8": (b'{"kind":"x","id":"\xff"}', "is not UTF-8"),
    "cut off": (b'{"kind":"x","id":"1"', "is not JSON"),
    "no object": (b"[1, 2]", "is not an item"),
    "no id": (b'{"kind":"x"}', "is not an item"),
    "id": (b'{"kind":"x","id":7}', "is not an item"),
}


@pytest.mark.parametrize("name", sorted(BAD_JSON))
def test_items_with_two_meanings_or_no_bounds_are_refused(bundle: Path, tmp_path: Path, name: str) -> None:
    line, message = BAD_JSON[name]

    def forge(files: Files) -> None:
        files[file_of(files, "core", "items.jsonl")] += line + b"\n"

    found = failures(forged(bundle, tmp_path / "b.zip", forge))
    assert set(found) == {"items"}
    assert message in found["items"][0]
    assert len(found["items"][0]) < 250


@pytest.mark.parametrize("name", ["NaN", "key", "deep", "text", "digits"])
@pytest.mark.parametrize("file", ["run.json", "cell.json"])
def test_records_are_read_as_strictly(bundle: Path, tmp_path: Path, name: str, file: str) -> None:
    line, message = BAD_JSON[name]

    def forge(files: Files) -> None:
        files[file_of(files, "core", file)] = line

    # The forger's helper reads the records to seal them, so this file is put in afterwards.
    files = read_zip(bundle)
    forge(files)
    found = failures(write_zip(tmp_path / "b.zip", sealed(files)))
    assert message in found["schema"][0]


def test_repeated_ids_are_refused(bundle: Path, tmp_path: Path) -> None:
    path = forged(
        bundle,
        tmp_path / "b.zip",
        lambda files: edit_lines(files, "core", lambda items: items.append(items[0])),
    )
    assert "repeats the id" in failures(path)["items"][0]


@pytest.mark.parametrize("manifest", [b"[]", b'{"format": true, "files": {}}', b'{"files": 3}', b"{"])
def test_a_manifest_of_another_form_is_refused(bundle: Path, tmp_path: Path, manifest: bytes) -> None:
    path = forged(
        bundle, tmp_path / "b.zip", lambda files: files.update({"bundle.json": manifest}), seal=False
    )
    assert set(failures(path)) == {"manifest"}


def test_words_of_strangers_can_not_write_to_the_terminal(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    escape = "\x1b[2J\x1b]0;owned\x07\u202e"

    def forge(files: Files) -> None:
        name = file_of(files, "core", "run.json")
        record = json.loads(files[name])
        record["labels"]["dictionary"] = escape
        record["metrics"][0]["name"] = escape
        record["counts"][escape] = 1
        files[name] = json.dumps(record).encode()

    assert _run(["leaderboard", "check", str(forged(bundle, tmp_path / "b.zip", forge))]) == 1
    out = capsys.readouterr().out
    assert out.isascii()
    assert "\x1b" not in out


def test_a_rubric_file_of_a_record_is_not_opened(bundle: Path, tmp_path: Path) -> None:
    """Its config may name any file of ours; a changed config changes the key, so the cell is forged as a whole."""
    from latentbench.store import CellIdentity

    secret = tmp_path / "secret.toml"
    secret.write_text("scale = 'this must not be read'", encoding="utf-8")

    def forge(files: Files) -> None:
        folder = file_of(files, "monosemanticity", "")
        inside = {
            name.removeprefix(folder): files.pop(name) for name in list(files) if name.startswith(folder)
        }
        record = json.loads(inside["run.json"])
        record["cell"]["task"]["config"]["rubric"] = str(secret)
        cell = CellIdentity.model_validate(record["cell"])
        record |= {"key": cell.key(), "measurement_key": cell.measurement_key()}
        inside |= {
            "run.json": json.dumps(record).encode(),
            "cell.json": json.dumps(record["cell"]).encode(),
        }
        files |= {f"runs/{cell.key()[:2]}/{cell.key()}/{name}": data for name, data in inside.items()}

    messages = failures(forged(bundle, tmp_path / "b.zip", forge))["summary"]
    assert any("is not installed here" in message for message in messages)
    assert not any("must not be read" in message for message in messages)


def test_a_dead_worker_is_a_finding_and_the_next_cell_gets_a_new_one(bundle: Path) -> None:
    killed: list[int] = []

    with isolated() as recompute:
        assert isinstance(recompute, _Worker)

        def dying(record: Any, items: Path, judgements: Path) -> Any:
            if record.cell.task["name"] == "core" and not killed:
                recompute(record, items, judgements)
                assert recompute._process is not None
                recompute._process.kill()
                recompute._process.wait()
                killed.append(1)
            return recompute(record, items, judgements)

        report = check_bundle(bundle, dying)
    assert (len(killed), report.recomputed) == (1, 5)
    (finding,) = [finding for finding in report.findings if finding.fails]
    assert "or crashes" in finding.message


def test_the_worker_has_limits(tmp_path: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess
    import sys

    script = (
        "from latentbench_leaderboard.bundles import _worker as w, _recompute as r\n"
        "w._limit_memory(); w._CPU_SECONDS = 1; w._limit_time()\n"
        "import sys, numpy\n"
        "try:\n    numpy.ones(10**12)\n"
        "except MemoryError:\n    print('memory', flush=True)\n"
        "while True: pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout == "memory\n"
    assert done.returncode < 0  # the kernel ended it for its time


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


@pytest.mark.parametrize(
    "good",
    [
        b"1e308",
        b"-1.7976931348623157e+308",
        b"5e-324",
        b'"1e999"',
        b'"[[[[["',
        b'"\\"NaN"',
        nested(40),
        b"null",
    ],
)
def test_honest_json_is_read_as_it_is(good: bytes) -> None:
    assert parse(good) == json.loads(good)


def test_the_longest_text_is_still_read() -> None:
    assert len(parse(b'"' + b"a" * (LONGEST_TEXT - 2) + b'"')) == LONGEST_TEXT - 2
    with pytest.raises(Refused):
        parse(b'"' + b"a" * LONGEST_TEXT + b'"')
    with pytest.raises(Refused, match="41 deep"):
        parse(nested(41))


def test_a_line_without_an_end_is_not_read_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from latentbench_leaderboard.bundles import _strict

    monkeypatch.setattr(_strict, "LONGEST_LINE", 1000)
    (tmp_path / "items.jsonl").write_bytes(b'{"kind":"x","id":"' + b"a" * 2000)
    with pytest.raises(Refused, match="longer than 1,000 bytes"):
        list(read_items(tmp_path / "items.jsonl"))


@pytest.mark.parametrize("task", ["core", "feature_count", "monosemanticity"])
@pytest.mark.parametrize("change", ["numbers", "lists", "nulls", "texts", "negative"])
def test_items_of_any_other_shape_are_findings_not_crashes(
    bundle: Path, tmp_path: Path, task: str, change: str
) -> None:
    made: dict[str, Callable[[Any], Any]] = {
        "numbers": lambda _: 7,
        "lists": lambda _: [[]],
        "nulls": lambda _: None,
        "texts": lambda _: "x",
        "negative": lambda value: -value if isinstance(value, (int, float)) else [-9],
    }

    def edit(items: list[dict[str, Any]]) -> None:
        for item in items:
            for name in set(item) - {"kind", "id"}:
                item[name] = made[change](item[name])

    found = failures(forged(bundle, tmp_path / "b.zip", lambda files: edit_lines(files, task, edit)))
    # Ratings come from judgements alone; the items of that task only give counts, which are compared, too.
    assert found
    assert set(found) <= {"summary", "items", "texts"}
