"""`doctor` and `describe dict`: what they print, and how they exit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from latentbench.adapters import SparseAutoencoder, zoo_folder
from latentbench.adapters.formats.native import save_dictionary
from latentbench.cli._main import _run
from latentbench.testing import fitted_sae, toy_lm, toy_tokenizer


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound dictionary, and the same without its pre-bias."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("checkpoints")
    sae = fitted_sae(toy_lm(tokenizer=toy_tokenizer()), "resid_post.1")
    broken = SparseAutoencoder(sae.card, replace(sae.weights, b_pre=None), sae.gate, sae.transform)
    save_dictionary(folder, "sound", sae, torch.float32)
    save_dictionary(folder, "broken", broken, torch.float32)
    return folder


@pytest.fixture(autouse=True)
def _toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "latentbench.lm.load_lm", lambda name, device, dtype: toy_lm(tokenizer=toy_tokenizer())
    )


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int) -> tuple[str, str]:
    assert _run(arguments) == code
    out, err = capsys.readouterr()
    return out, err


class TestDoctor:
    """Three kinds of things to examine."""

    def test_sound(self, capsys: pytest.CaptureFixture[str], checkpoints: Path) -> None:
        arguments = ("doctor", "dict", str(checkpoints / "sound.safetensors"), "--lm", "toy")
        out, err = run(capsys, *arguments, code=0)
        assert out.splitlines()[-1] == "22 passed, 0 failed, 1 skipped"
        assert "loading toy ..." in err
        assert run(capsys, *arguments, code=0)[0] == out

    def test_broken(self, capsys: pytest.CaptureFixture[str], checkpoints: Path) -> None:
        path = str(checkpoints / "broken.safetensors")
        out, _ = run(capsys, "doctor", "dict", path, "--lm", "toy", code=1)
        assert "pre-bias - likely cause: forgotten pre-bias\n" in out
        assert "Subtract the decoder bias before encoding" in out
        found = json.loads(run(capsys, "doctor", "dict", path, "--lm", "toy", "--json", code=1)[0])
        assert found["passed"] is False
        assert found["likely_causes"] == ["forgotten pre-bias"]
        assert [check["name"] for check in found["checks"] if check["state"] == "failed"] == ["pre-bias"]

    def test_texts(self, capsys: pytest.CaptureFixture[str], checkpoints: Path, tmp_path: Path) -> None:
        path, texts = str(checkpoints / "sound.safetensors"), tmp_path / "texts.txt"
        texts.write_text("one line of text, and then some more\n\n" * 30, encoding="utf-8")
        out, _ = run(capsys, "doctor", "dict", path, "--lm", "toy", "--texts", str(texts), "--json", code=0)
        assert "1,050 tokens" in json.dumps(
            json.loads(out)
        )  # 30 texts of 36 characters, less the first of each
        texts.write_text("\n \n", encoding="utf-8")
        _, err = run(capsys, "doctor", "dict", path, "--lm", "toy", "--texts", str(texts), code=2)
        assert err.splitlines()[-1].endswith("the file holds no text")

    def test_judge_and_task(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        options = ("--option", "budget_tokens=300", "--option", "calibration_tokens=100")
        out, _ = run(capsys, "doctor", "task", "core", *options, code=0)
        assert out.splitlines()[-1] == "12 passed, 0 failed"
        from latentbench.registry import Registry
        from latentbench.testing import ToyJudge

        monkeypatch.setattr(Registry, "load", lambda self, name: ToyJudge)
        out, _ = run(capsys, "doctor", "judge", "toy", code=0)
        assert out.splitlines()[-1] == "8 passed, 0 failed, 6 skipped"  # what judges of rubrics are asked

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("dict", "./missing", "--lm", "toy"), "error: unknown dictionary './missing'"),
            (("dict", "zo:x", "--lm", "toy"), "error: unknown dictionary 'zo:x'"),
            (("dict", "zoo:x"), "Usage: "),
            (("task", "stering"), "error: unknown task 'stering': did you mean 'steering'"),
            (("task", "core", "--option", "budget"), "error: --option 'budget': write KEY=VALUE"),
            (("task", "core", "--option", "budget_token=3"), "error: task 'core': 1 validation error"),
            (("judge", "embd"), "error: unknown judge 'embd': did you mean 'embed'?"),
        ],
    )
    def test_wrong_input(
        self, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
    ) -> None:
        _, err = run(capsys, "doctor", *arguments, code=2)
        assert err.startswith(message)


class TestDescribeDict:
    """The dictionary at a path."""

    def test_path(self, capsys: pytest.CaptureFixture[str], checkpoints: Path) -> None:
        path = str(checkpoints / "sound.safetensors")
        out, _ = run(capsys, "describe", "dict", path, code=0)
        for line in (
            f"dictionary {path}",
            "  format: native",
            "  recognised by: sound.safetensors with its card sound.json",
            "  family: topk",
            "  sites: resid_post.1",
            "  d_model: 16",
            "  latents: 48",
            "    k: 4",
            "  normalisation: none",
        ):
            assert line in " ".join(out.split("\n    sound")).splitlines() or line in out, line
        found: dict[str, Any] = json.loads(run(capsys, "describe", "dict", path, "--json", code=0)[0])
        assert len(found["sha256"]) == 64
        assert found["recognised by"] == "sound.safetensors with its card sound.json"

    def test_options_change_what_is_described(self, capsys: pytest.CaptureFixture[str]) -> None:
        name = "zoo:smollm2-topk-r21-k64"
        found = json.loads(run(capsys, "describe", "dict", name, "--k", "7", "--json", code=0)[0])
        assert found["options"]["k"] == 7

    def test_listed_ones_as_before(self, capsys: pytest.CaptureFixture[str]) -> None:
        name = "zoo:smollm2-topk-r21-k64"
        short = run(capsys, "describe", "dict", name, code=0)
        assert short == run(capsys, "describe", "dictionary", name, code=0)

    def test_nothing_known(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("?", encoding="utf-8")
        _, err = run(capsys, "describe", "dict", str(tmp_path), code=2)
        assert "no checkpoint of a format known here" in err
        assert err.count("\n") == 1

    def test_recognised_but_damaged(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        card = (zoo_folder() / "smollm2-topk-r21-k64.json").read_text(encoding="utf-8")
        (tmp_path / "x.json").write_text(card, encoding="utf-8")
        (tmp_path / "x.safetensors").write_bytes(b"short")
        _, err = run(capsys, "describe", "dict", str(tmp_path), code=2)
        assert err.startswith("error: recognised as native (x.safetensors with its card x.json), but: ")
        assert err.count("\n") == 1
