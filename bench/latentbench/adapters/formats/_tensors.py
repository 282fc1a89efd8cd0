"""Reading tensors and configs of a checkpoint, with one-line errors that name file, key, found and expected.

Nothing here runs code of a checkpoint: `.pt` files are read by torch's restricted unpickler only.
"""

from __future__ import annotations

import json
import pickle
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from latentbench.errors import AdapterError

__all__ = [
    "Shape",
    "in_float32",
    "one_of",
    "pt_entries",
    "read_json",
    "read_npz",
    "read_pt",
    "read_tensors",
    "read_weights",
    "require",
    "tensor_keys",
    "tensor_shapes",
]

Shape = tuple[int | None, ...] | None
"""A wanted shape; None in it is any length, None for it is any shape."""

_UNPICKLING = (
    "needs unpickling, which can run code; that is never done here: open it where nothing can be harmed, save "
    "its state dict as safetensors, and load that"
)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, numbers with a point in float32, in memory of their own.

    Raises:
        AdapterError: the file is truncated or is no safetensors file.
    """
    try:
        # Copied: views of the mapped file change under a running job if the file is replaced, and start at
        # any byte, on which the last digits of matrix products depend.
        return {name: in_float32(value) for name, value in load_file(path).items()}
    except SafetensorError as error:
        raise _damaged(path, "safetensors", error) from error


def read_pt(path: Path) -> dict[str, Tensor]:
    """The tensors of a file written by `torch.save`, in float32 and in memory of their own.

    Names of nested state dicts are joined by dots; plain numbers are tensors without dimensions, and what is
    neither is left out. A prefix `_orig_mod.`, which `torch.compile` adds, is dropped.

    Raises:
        AdapterError: the file is truncated, is no such file, or needs unpickling.
    """
    found: dict[str, Tensor] = {}
    for name, value in pt_entries(path).items():
        if isinstance(value, Tensor):
            found[name] = in_float32(value.detach().to_dense())
        elif isinstance(value, int | float):
            found[name] = torch.tensor(float(value))
    return found


def pt_entries(path: Path) -> dict[str, object]:
    """Everything in a file written by `torch.save`, see `read_pt`: tensors as they are, text and numbers too.

    Raises:
        AdapterError: see `read_pt`.
    """
    return _flat(_torch_load(path, mmap=False))


def read_npz(path: Path) -> dict[str, Tensor]:
    """The arrays of a numpy `.npz` file, in float32.

    Raises:
        AdapterError: the file is truncated, is no such file, or needs unpickling.
    """
    if not zipfile.is_zipfile(path):  # numpy takes whatever else there is for a pickle
        raise _damaged(path, "npz", ValueError("it is no zip archive"))
    try:
        with np.load(path, allow_pickle=False) as arrays:
            held = {name: np.asarray(arrays[name]) for name in arrays.files}
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise _damaged(path, "npz", error) from error
    except ValueError as error:
        if "allow_pickle" in str(error):
            raise AdapterError(f"{path.name} holds Python objects and {_UNPICKLING}") from error
        raise _damaged(path, "npz", error) from error
    return {
        name: torch.from_numpy(value.astype(np.float32) if value.dtype.kind == "f" else value)
        for name, value in held.items()
        if value.dtype.kind in "fiub"
    }


def in_float32(value: Tensor) -> Tensor:
    """A copy in float32; whole numbers stay what they are, so that `require` can tell them from weights."""
    return value.to(torch.float32 if value.is_floating_point() else value.dtype, copy=True)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint by its suffix: `.safetensors`, `.npz`, or a file of `torch.save`.

    Raises:
        AdapterError: see `read_tensors`, `read_pt` and `read_npz`.
    """
    if path.suffix == ".safetensors":
        return read_tensors(path)
    return read_npz(path) if path.suffix == ".npz" else read_pt(path)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        AdapterError: the file is missing, is not JSON, or holds something other than an object.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise AdapterError(f"{path.name} is missing in {path.parent.name!r}: get the whole folder") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise AdapterError(f"{path.name} of {path.parent.name!r} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise AdapterError(
            f"{path.name} of {path.parent.name!r} holds a JSON {type(found).__name__}; an object is expected"
        )
    return found


def tensor_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors of a checkpoint, without reading them: cheap for files of any size.

    Raises:
        AdapterError: see `read_weights`.
    """
    if path.suffix == ".safetensors":
        try:
            with safe_open(path, framework="pt") as opened:
                return {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise _damaged(path, "safetensors", error) from error
    if path.suffix == ".npz":
        return _npz_shapes(path)
    entries = _flat(_torch_load(path, mmap=zipfile.is_zipfile(path)))
    return {name: tuple(value.shape) for name, value in entries.items() if isinstance(value, Tensor)}


def tensor_keys(path: Path) -> set[str]:
    """Names of the tensors of a checkpoint, see `tensor_shapes`."""
    return set(tensor_shapes(path))


def require(tensors: Mapping[str, Tensor], shapes: Mapping[str, Shape], *, file: str) -> None:
    """Check that a checkpoint holds finite tensors of the wanted shapes.

    Args:
        tensors: what was read.
        shapes: a wanted shape by key.
        file: name of the file, for messages.

    Raises:
        AdapterError: the first key that is missing, of another shape, or not finite. It names the file, the key,
            what was found and what was expected; a matrix that fits when turned round is called transposed.
    """
    for key, shape in shapes.items():
        if key not in tensors:
            raise AdapterError(
                f"{file}: key {key} of shape {_shown(shape)} is expected, and it is missing; found "
                f"{_listed(tensors)}"
            )
        found = tuple(tensors[key].shape)
        if shape is not None and not _fits(found, shape):
            turned = ": it is transposed" if len(found) > 1 and _fits(found[::-1], shape) else ""
            raise AdapterError(
                f"{file}: key {key} has shape {found}, and {_shown(shape)} is expected{turned}"
                + ("" if turned else ": it is cut off, or belongs to another format")
            )
        if not tensors[key].is_floating_point():
            raise AdapterError(
                f"{file}: key {key} is of type {str(tensors[key].dtype).removeprefix('torch.')}, and a floating-point "
                "type is expected: quantised weights can't be used without their scale"
            )
        bad = int((~torch.isfinite(tensors[key])).sum())
        if bad:
            raise AdapterError(
                f"{file}: key {key} holds {bad} NaN or infinite numbers among {tensors[key].numel()}, and only "
                "finite ones are expected: it is damaged or its training diverged; it can't be measured"
            )


def one_of(tensors: Mapping[str, Tensor], keys: tuple[str, ...], *, file: str) -> str:
    """The first of several spellings of a key that a checkpoint holds.

    Raises:
        AdapterError: it holds none.
    """
    for key in keys:
        if key in tensors:
            return key
    raise AdapterError(f"{file}: key {' or '.join(keys)} is expected, and found is {_listed(tensors)}")


def _torch_load(path: Path, *, mmap: bool) -> object:
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except pickle.UnpicklingError as error:
        with path.open("rb") as opened:
            start = opened.read(2)
        # A zip archive, or a pickle with its protocol byte: a real file that asks for more than tensors.
        if start == b"PK" or start[:1] == b"\x80":
            wanted = _refused_global(str(error))
            raise AdapterError(f"{path.name} {wanted}{_UNPICKLING}") from error
        raise _damaged(path, "torch", error) from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, IndexError) as error:
        raise _damaged(path, "torch", error) from error


def _refused_global(message: str) -> str:
    """What torch refused to make, as in "holds a X and "; nothing where it names none."""
    _, found, rest = message.partition("GLOBAL ")
    return f"holds a {rest.split()[0]} and " if found and rest.split() else ""


def _flat(found: object, prefix: str = "") -> dict[str, object]:
    if isinstance(found, Tensor):
        return {prefix or "tensor": found}
    held: dict[str, object] = {}
    if not isinstance(found, Mapping):
        return {prefix: found} if prefix else held
    for key, value in found.items():
        name = str(key).removeprefix("_orig_mod.")
        held |= _flat(value, f"{prefix}.{name}" if prefix else name)
    return held


def _npz_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    shapes: dict[str, tuple[int, ...]] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                with archive.open(member) as opened:
                    shape, _, _ = readers[np.lib.format.read_magic(opened)](opened)
                shapes[member.removesuffix(".npy")] = tuple(shape)
    except (zipfile.BadZipFile, EOFError, OSError, ValueError, KeyError) as error:
        raise _damaged(path, "npz", error) from error
    return shapes


def _damaged(path: Path, kind: str, error: Exception) -> AdapterError:
    said = (str(error).splitlines() or [type(error).__name__])[0][:160]
    return AdapterError(
        f"{path.name} can't be read as {kind} ({said}): it is truncated or something else; get it again"
    )


def _fits(found: tuple[int, ...], shape: tuple[int | None, ...]) -> bool:
    return len(found) == len(shape) and all(
        want is None or have == want for have, want in zip(found, shape, strict=True)
    )


def _shown(shape: Shape) -> str:
    if shape is None:
        return "any"
    return (
        "(" + ", ".join("any" if one is None else str(one) for one in shape) + ("," * (len(shape) == 1)) + ")"
    )


def _listed(tensors: Mapping[str, Tensor]) -> str:
    names = sorted(tensors)
    return (", ".join(names[:12]) + (", ..." if len(names) > 12 else "")) if names else "no tensors at all"
