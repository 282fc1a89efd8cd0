"""Writing, resuming, reading and checking cells."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from records_for_tests import cell, failed, record

from latentbench.errors import StoreError
from latentbench.store import CellFolder, ResultsFolder, load_records


def item(number: int, **more: Any) -> dict[str, Any]:
    return {"kind": "document", "id": f"d{number}", **more}


def filled(tmp_path: Path) -> CellFolder:
    """A finished cell with three items and one judgement."""
    folder = ResultsFolder.create(tmp_path / "results").cell(cell().key())
    with folder.writer(cell()) as writer:
        assert writer.append(item(i, x=i / 3) for i in range(3)) == 3
        writer.append([{"kind": "judgement", "id": "j0", "text": "Ω \ud800 \u2028"}], "judgements")
        writer.finish(record())
    return folder


def test_a_cell_is_written_and_read_back(tmp_path: Path) -> None:
    folder = filled(tmp_path)
    assert sorted(path.name for path in folder.path.iterdir() if path.name != ".lock") == [
        "SHA256SUMS",
        "cell.json",
        "items.jsonl",
        "judgements.jsonl",
        "run.json",
    ]
    assert folder.path.relative_to(tmp_path) == Path("results/runs") / cell().key()[:2] / cell().key()
    assert [stored["x"] for stored in folder.items()] == [0, 1 / 3, 2 / 3]
    assert [stored["text"] for stored in folder.items("judgements")] == ["Ω \ud800 \u2028"]
    assert folder.item_ids() == {"d0", "d1", "d2"}
    assert folder.item_ids(kind="other") == set()
    assert folder.identity() == cell()
    assert load_records(tmp_path / "results") == [record()]
    assert folder.verify() == []
    assert (folder.path / "run.json").read_text(encoding="utf-8") == record().to_json()


def test_checksums_are_those_of_sha256sum(tmp_path: Path) -> None:
    folder = filled(tmp_path)
    subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=folder.path, check=True, capture_output=True
    )


def test_each_item_is_on_disk_before_the_next_is_asked_for(tmp_path: Path) -> None:
    folder = ResultsFolder.create(tmp_path).cell(cell().key())

    def watched() -> Iterator[dict[str, Any]]:
        for i in range(3):
            assert len(list(folder.items())) == i
            yield item(i)

    with folder.writer(cell()) as writer:
        writer.append(watched())


def test_resuming_keeps_what_is_there_and_drops_only_a_torn_line(tmp_path: Path) -> None:
    folder = ResultsFolder.create(tmp_path).cell(cell().key())
    with folder.writer(cell()) as writer:
        writer.append(item(i) for i in range(3))
    path = folder.path / "items.jsonl"
    path.write_bytes(path.read_bytes()[:-4])
    assert folder.item_ids() == {"d0", "d1"}
    with folder.writer(cell()) as writer:
        assert writer.ids() == {"d0", "d1"}
        writer.append([item(2)])
    assert [stored["id"] for stored in folder.items()] == ["d0", "d1", "d2"]


def test_a_whole_last_line_without_its_newline_is_kept(tmp_path: Path) -> None:
    folder = ResultsFolder.create(tmp_path).cell(cell().key())
    with folder.writer(cell()) as writer:
        writer.append([item(0)])
    path = folder.path / "items.jsonl"
    path.write_bytes(path.read_bytes()[:-1])
    assert folder.item_ids() == {"d0"}
    with folder.writer(cell()) as writer:
        writer.append([item(1)])
    assert [stored["id"] for stored in folder.items()] == ["d0", "d1"]


@pytest.mark.parametrize("bad", [b'{"kind": "do', b"[1]", b"", b"\xff\xfe", b'{"x": NaN}'])
def test_any_other_bad_line_is_an_error_with_its_place(tmp_path: Path, bad: bytes) -> None:
    folder = ResultsFolder.create(tmp_path).cell(cell().key())
    with folder.writer(cell()) as writer:
        writer.append([item(0), item(1)])
    path = folder.path / "items.jsonl"
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + bad + b"\n" + second)
    with pytest.raises(StoreError, match=r"items\.jsonl:2 is not a JSON object"):
        list(folder.items())
    path.write_bytes(first + bad + b"\n")
    with pytest.raises(StoreError, match=r"items\.jsonl:2"), folder.writer(cell()) as writer:
        writer.ids()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"id": "d9"}, "kind None and id 'd9'"),
        ({"kind": "document", "id": 9}, "id 9"),
        (item(0), "already in"),
        (item(9, x=float("nan")), "can't be stored as JSON"),
        (item(9, x={1, 2}), "can't be stored as JSON"),
    ],
)
def test_bad_items_are_refused_and_leave_no_trace(tmp_path: Path, bad: dict[str, Any], message: str) -> None:
    folder = ResultsFolder.create(tmp_path).cell(cell().key())
    with folder.writer(cell()) as writer:
        writer.append([item(0)])
        with pytest.raises(StoreError, match=message):
            writer.append([bad])
        writer.append([item(1)])
    assert [stored["id"] for stored in folder.items()] == ["d0", "d1"]


def test_the_same_id_may_be_used_by_two_kinds(tmp_path: Path) -> None:
    folder = ResultsFolder.create(tmp_path).cell(cell().key())
    with folder.writer(cell()) as writer:
        writer.append([item(0), {"kind": "latent", "id": "d0"}])
        assert writer.ids(kind="latent") == {"d0"}


def test_one_writer_per_cell(tmp_path: Path) -> None:
    folder = ResultsFolder.create(tmp_path).cell(cell().key())
    with folder.writer(cell()) as writer:
        with (
            pytest.raises(StoreError, match=f"another writer \\(process {os.getpid()}\\)"),
            folder.writer(cell()),
        ):
            pass
        writer.append([item(0)])
    with folder.writer(cell()) as again:
        assert again.ids() == {"d0"}


def test_writing_needs_the_lock(tmp_path: Path) -> None:
    writer = ResultsFolder.create(tmp_path).cell(cell().key()).writer(cell())
    with pytest.raises(StoreError, match="not open for writing"):
        writer.append([item(0)])
    with pytest.raises(StoreError, match="not open for writing"):
        writer.finish(record())


def test_a_finished_cell_is_written_again_only_on_purpose(tmp_path: Path) -> None:
    folder = filled(tmp_path)
    with pytest.raises(StoreError, match="holds a finished cell"), folder.writer(cell()):
        pass
    with folder.writer(cell(), reopen=True) as writer:
        assert writer.ids() == {"d0", "d1", "d2"}
    assert folder.record() == record()
    assert folder.verify() == []
    with folder.writer(cell(), reopen=True) as writer:
        writer.append([item(3)])
        assert not folder.finished
        writer.finish(record(counts={"tokens": 1}))
    assert folder.record() == record(counts={"tokens": 1})
    assert folder.verify() == []


def test_a_failed_cell_is_simply_run_again(tmp_path: Path) -> None:
    folder = ResultsFolder.create(tmp_path).cell(cell().key())
    with folder.writer(cell()) as writer:
        writer.append([item(0)])
        writer.finish(failed())
    assert folder.record() == failed()
    with folder.writer(cell()) as writer:
        writer.append([item(1)])
        writer.finish(record())
    assert folder.record() == record()
    assert folder.verify() == []


def test_cells_do_not_mix(tmp_path: Path) -> None:
    folder = ResultsFolder.create(tmp_path).cell(cell().key())
    with pytest.raises(StoreError, match="that folder is another cell's"):
        folder.writer(cell(seed=1))
    with folder.writer(cell()) as writer, pytest.raises(StoreError, match="can't finish the cell"):
        writer.finish(record(cell(seed=1)))


def test_records_are_sorted_by_key_and_second_judges_find_the_measurement(tmp_path: Path) -> None:
    results = ResultsFolder.create(tmp_path)
    cells = [cell(seed=seed) for seed in range(5)] + [cell(judge=None)]
    for one in cells:
        with results.cell(one.key()).writer(one) as writer:
            writer.finish(record(one))
    assert [r.key for r in load_records(tmp_path)] == sorted(one.key() for one in cells)
    shared = results.measured(cell().measurement_key())
    assert [one.key for one in shared] == sorted([cell().key(), cell(judge=None).key()])


def test_unfinished_cells_have_no_record(tmp_path: Path) -> None:
    results = ResultsFolder.create(tmp_path)
    with results.cell(cell().key()).writer(cell()) as writer:
        writer.append([item(0)])
    assert load_records(tmp_path) == []
    assert [one.key for one in results.cells()] == [cell().key()]
    assert results.verify() == []


def test_wrong_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no folder"):
        load_records(tmp_path / "nowhere")
    with pytest.raises(StoreError, match="not a results folder"):
        load_records(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="a file is in the way"):
        ResultsFolder.create(tmp_path / "file")
    with pytest.raises(StoreError, match="not a cell's key"):
        ResultsFolder.create(tmp_path).cell("../../etc")


def test_damaged_and_newer_records_are_named(tmp_path: Path) -> None:
    folder = filled(tmp_path)
    path = folder.path / "run.json"
    good = json.loads(path.read_text(encoding="utf-8"))
    for change, message in (
        ({"schema_version": 99}, "record format 99, this latentbench reads up to 1"),
        ({"status": "fine"}, r"run\.json is not a run record: status"),
    ):
        path.write_text(json.dumps(good | change))
        with pytest.raises(StoreError, match=message):
            load_records(tmp_path / "results")
    path.write_text("{")
    with pytest.raises(StoreError, match=r"run\.json is not JSON"):
        load_records(tmp_path / "results")
    other = cell(seed=1)
    path.write_text(record(other).to_json())
    with pytest.raises(StoreError, match="not the one the folder is named after"):
        load_records(tmp_path / "results")


def test_verify_finds_every_kind_of_change(tmp_path: Path) -> None:
    folder = filled(tmp_path)

    def messages() -> str:
        return "\n".join(problem.message for problem in folder.verify())

    def restore_after(name: str, change: bytes | None) -> str:
        path = folder.path / name
        before = path.read_bytes()
        path.unlink()
        if change is not None:
            path.write_bytes(change)
        found = messages()
        path.write_bytes(before)
        return found

    items = (folder.path / "items.jsonl").read_bytes()
    sums = (folder.path / "SHA256SUMS").read_bytes()
    assert (
        restore_after("items.jsonl", items.replace(b"d2", b"d7")) == "items.jsonl differs from its checksum"
    )
    assert "judgements.jsonl is listed" in restore_after("judgements.jsonl", None)
    assert restore_after("SHA256SUMS", None) == "SHA256SUMS is missing"
    assert "cell.json is missing" in restore_after("cell.json", None)
    assert "not the one the folder is named after" in restore_after(
        "run.json", record(cell(seed=1)).to_json().encode()
    )
    assert "names '../x', which is not a file of a cell" in restore_after("SHA256SUMS", b"00  ../x\n" + sums)
    lines = [line for line in sums.splitlines(keepends=True) if b"items" not in line]
    assert restore_after("SHA256SUMS", b"".join(lines)) == "items.jsonl is not listed in SHA256SUMS"
    assert messages() == ""


def test_a_kill_between_the_last_two_renames_leaves_an_unfinished_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = filled(tmp_path)
    replace = Path.replace

    def dying(self: Path, target: Path) -> Path:
        if Path(target).name == "run.json":
            raise KeyboardInterrupt
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", dying)
    with pytest.raises(KeyboardInterrupt), folder.writer(cell(), reopen=True) as writer:
        writer.finish(record())
    monkeypatch.undo()
    assert not folder.finished
    with folder.writer(cell()) as writer:
        assert writer.ids() == {"d0", "d1", "d2"}
        writer.finish(record())
    assert folder.verify() == []
