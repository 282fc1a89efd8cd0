"""Reading tensors of a checkpoint, with errors that name the file."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from latentbench.errors import AdapterError

__all__ = ["read_tensors"]


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, in float32 and in memory of their own.

    Raises:
        AdapterError: the file is truncated or is no safetensors file.
    """
    try:
        # Copied: views of the mapped file change under a running job if the file is replaced, and start at
        # any byte, on which the last digits of matrix products depend.
        return {name: value.to(torch.float32, copy=True) for name, value in load_file(path).items()}
    except SafetensorError as error:
        raise AdapterError(
            f"{path.name} can't be read as safetensors ({error}): it is truncated or something else; get "
            "it again"
        ) from error
