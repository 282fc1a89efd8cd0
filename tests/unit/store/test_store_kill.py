"""Kill -9 at random moments, resume, and end with the same bytes as an undisturbed run."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from records_for_tests import cell, record

from latentbench.errors import StoreError
from latentbench.store import CellFolder, ResultsFolder

ITEMS = 400
WRITER = """
import sys, time
sys.path.insert(0, sys.argv[2])
from records_for_tests import cell, record
from latentbench.store import ResultsFolder

def items(done):
    for i in range({items}):
        if f"d{{i}}" not in done:
            time.sleep({pause})
            yield {{"kind": "document", "id": f"d{{i}}", "text": "x" * (37 * i % 5000)}}

folder = ResultsFolder.create(sys.argv[1]).cell(cell().key())
with folder.writer(cell()) as writer:
    writer.append(items(writer.ids()))
    {end}
"""
FINISH, HANG = "writer.finish(record())", "print('ready', flush=True); time.sleep(60)"


def start(results: Path, end: str = FINISH, pause: float = 0.0) -> subprocess.Popen[str]:
    script = WRITER.format(items=ITEMS, end=end, pause=pause)
    arguments = [sys.executable, "-c", script, str(results), str(Path(__file__).parent)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment)


def run(results: Path) -> int:
    with start(results) as process:
        return process.wait(60)


def stored_bytes(folder: CellFolder) -> int:
    path = folder.path / "items.jsonl"
    return path.stat().st_size if path.exists() else 0


def test_killed_runs_resume_to_the_same_bytes(tmp_path: Path) -> None:
    assert run(tmp_path / "calm") == 0
    calm = ResultsFolder(tmp_path / "calm").cell(cell().key())
    folder = ResultsFolder.create(tmp_path / "killed").cell(cell().key())
    for goal in sorted(random.Random(0).sample(range(1, stored_bytes(calm) * 3 // 4), 3)):
        with start(tmp_path / "killed", pause=0.002) as process:
            while process.poll() is None and stored_bytes(folder) < goal:
                time.sleep(0.0002)
            assert process.poll() is None
            process.send_signal(signal.SIGKILL)
        done = folder.item_ids()
        assert done == {f"d{i}" for i in range(len(done))}
    assert run(tmp_path / "killed") == 0
    assert folder.verify() == []
    for name in ("items.jsonl", "run.json", "SHA256SUMS"):
        assert (folder.path / name).read_bytes() == (calm.path / name).read_bytes()


def test_a_line_torn_by_a_kill_is_measured_again(tmp_path: Path) -> None:
    process = start(tmp_path, HANG)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    folder = ResultsFolder(tmp_path).cell(cell().key())
    with (
        pytest.raises(StoreError, match=f"another writer \\(process {process.pid}\\)"),
        folder.writer(cell()),
    ):
        pass
    process.kill()
    process.wait(60)
    process.stdout.close()
    path = folder.path / "items.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[: -len(whole.splitlines()[-1]) // 2])
    assert folder.item_ids() == {f"d{i}" for i in range(ITEMS - 1)}
    with folder.writer(cell()) as writer:  # the kernel freed the dead process's lock
        assert writer.ids() == {f"d{i}" for i in range(ITEMS - 1)}
        writer.append([{"kind": "document", "id": f"d{ITEMS - 1}", "text": "x" * (37 * (ITEMS - 1) % 5000)}])
        writer.finish(record())
    assert path.read_bytes() == whole
