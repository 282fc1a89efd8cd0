"""Reading tensors: what is accepted, and the one line that is said of everything else."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from latentbench.adapters.formats._tensors import (
    one_of,
    pt_entries,
    read_json,
    read_npz,
    read_pt,
    read_tensors,
    read_weights,
    require,
    tensor_keys,
    tensor_shapes,
)
from latentbench.errors import AdapterError

HELD = {"w": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2, dtype=torch.bfloat16)}


def refused(match: str, call: Any, *args: Any, **options: Any) -> None:
    with pytest.raises(AdapterError, match=match) as raised:
        call(*args, **options)
    assert "\n" not in str(raised.value), "one line"


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_torch_files_are_read_in_float32_with_nested_names(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / "ae.pt"
    held = {
        "sae": {"_orig_mod.w": torch.nn.Parameter(HELD["w"].double())},
        "b": HELD["b"],
        "k": 5,
        "name": "x",
    }
    torch.save(held | {"step": None}, path, _use_new_zipfile_serialization=zipped)
    found = read_pt(path)
    assert set(found) == {"sae.w", "b", "k"}
    assert {value.dtype for value in found.values()} == {torch.float32}
    assert not found["sae.w"].requires_grad
    assert torch.equal(found["sae.w"], HELD["w"])
    assert float(found["k"]) == 5
    assert pt_entries(path)["name"] == "x"
    assert tensor_shapes(path) == {"sae.w": (2, 3), "b": (2,)}
    torch.save(HELD["w"], path, _use_new_zipfile_serialization=zipped)
    assert torch.equal(read_pt(path)["tensor"], HELD["w"])


def test_reading_does_not_run_code(tmp_path: Path) -> None:
    """A pickle that would write a file when loaded."""
    marker = tmp_path / "was-here"

    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.write_text, (marker, "x"))

    path = tmp_path / "ae.pt"
    for zipped in (True, False):
        torch.save({"w": HELD["w"], "cfg": Trap()}, path, _use_new_zipfile_serialization=zipped)
        for call in (read_pt, tensor_shapes, read_weights):
            refused(r"ae\.pt .*needs unpickling, which can run code; .*safetensors", call, path)
    assert not marker.exists()
    torch.save({"made": datetime.date(2024, 1, 2)}, path)
    refused(r"ae\.pt holds a datetime\.date and needs unpickling", read_pt, path)


@pytest.mark.parametrize("name", ["a.pt", "a.safetensors", "a.npz"])
def test_truncated_and_foreign_files_are_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if path.suffix == ".pt":
        torch.save(HELD, path)
    elif path.suffix == ".npz":
        with path.open("wb") as opened:
            np.savez(opened, w=HELD["w"].numpy())
    else:
        save_file(HELD, path)
    whole = path.read_bytes()
    assert tensor_keys(path) >= {"w"}
    assert torch.equal(read_weights(path)["w"], HELD["w"])
    for content in (whole[: len(whole) // 2], b"", b"plain text, no tensors at all"):
        path.write_bytes(content)
        refused(rf"{name} can't be read as .*truncated or something else; get it again", read_weights, path)
        refused(rf"{name} can't be read as .*truncated or something else; get it again", tensor_shapes, path)


def test_npz_files_are_read_in_float32(tmp_path: Path) -> None:
    path = tmp_path / "params.npz"
    np.savez(path, w=HELD["w"].double().numpy(), k=np.int64(5), name=np.array("x"))
    found = read_npz(path)
    assert set(found) == {"w", "k"}
    assert found["w"].dtype == torch.float32
    assert tensor_shapes(path)["w"] == (2, 3)
    np.savez(path, w=np.array([{"a": 1}], dtype=object))
    refused(r"params\.npz holds Python objects and needs unpickling", read_npz, path)


def test_safetensors_are_copied_and_shapes_come_from_the_header(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file(HELD, path)
    found = read_tensors(path)
    assert found["b"].dtype == torch.float32
    assert tensor_shapes(path) == {"w": (2, 3), "b": (2,)}
    data = bytearray(path.read_bytes())
    data[-24:] = b"\xff" * 24  # the numbers, not the header
    path.write_bytes(bytes(data))
    assert torch.equal(found["w"], HELD["w"])
    assert tensor_shapes(path) == {"w": (2, 3), "b": (2,)}


def test_json_must_be_an_object(tmp_path: Path) -> None:
    path = tmp_path / "cfg.json"
    refused(r"cfg\.json is missing in", read_json, path)
    path.write_text("{")
    refused(r"cfg\.json of .* is not JSON", read_json, path)
    path.write_bytes(b"\xff\xfe{}")
    refused(r"cfg\.json of .* is not JSON", read_json, path)
    path.write_text("[1]")
    refused(r"cfg\.json of .* holds a JSON list; an object is expected", read_json, path)
    path.write_text('{"k": 3}')
    assert read_json(path) == {"k": 3}


@pytest.mark.parametrize(
    ("changes", "shapes", "message"),
    [
        ({}, {"v": (3,)}, r"a\.pt: key v of shape \(3,\) is expected, and it is missing; found b, w"),
        ({}, {"w": (3, 2)}, r"a\.pt: key w has shape \(2, 3\), and \(3, 2\) is expected: it is transposed"),
        ({}, {"w": (2, 4)}, r"a\.pt: key w has shape \(2, 3\), and \(2, 4\) is expected: it is cut off"),
        ({}, {"w": (None, 4)}, r"a\.pt: key w has shape \(2, 3\), and \(any, 4\) is expected"),
        ({}, {"b": (3,)}, r"a\.pt: key b has shape \(2,\), and \(3,\) is expected: it is cut off"),
        ({}, {"b": ()}, r"a\.pt: key b has shape \(2,\), and \(\) is expected"),
        (
            {"w": torch.tensor([[1.0, float("nan")], [float("inf"), 0.0]])},
            {"w": (2, 2)},
            r"a\.pt: key w holds 2 NaN or infinite numbers among 4, and only finite ones are expected",
        ),
        ({"w": torch.tensor([float("-inf")])}, {"w": None}, "key w holds 1 NaN or infinite"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(
    changes: dict[str, Tensor], shapes: dict[str, Any], message: str
) -> None:
    refused(message, require, HELD | changes, shapes, file="a.pt")


def test_what_fits_passes() -> None:
    require(HELD, {"w": (2, None), "b": None}, file="a.pt")
    assert one_of(HELD, ("W", "w"), file="a.pt") == "w"
    refused(r"a\.pt: key x or y is expected, and found is b, w", one_of, HELD, ("x", "y"), file="a.pt")
