"""Loading a language model by asset name, hub id or folder."""

from __future__ import annotations

import contextlib
import io
import logging
import os
from pathlib import Path
from typing import Any

import torch

from latentbench.errors import UserError, unknown_name
from latentbench.identity import sha256_file, sha256_json
from latentbench.lm._lm import LM

__all__ = ["DTYPES", "load_lm"]

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
"""Names of the floating-point types a model or dictionary can be loaded in."""


def load_lm(
    name: str,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    revision: str | None = None,
    attention: str | None = None,
) -> LM:
    """Load a causal language model.

    Args:
        name: an asset (`smollm2-135m-q4`, or `smollm2-135m` for short), a folder with a Hugging Face model or
            one GGUF file, or a Hugging Face hub id.
        device: "cpu", "cuda", "cuda:1", ...
        dtype: "float32", "bfloat16", "float16" or "float64".
        revision: commit of the hub repository; None takes what the hub gives and records its commit.
        attention: Hugging Face attention implementation; None takes the model's default.

    Raises:
        UserError: the name, device or dtype can't be used; the message says what to do.
    """
    if dtype not in DTYPES:
        raise unknown_name("dtype", dtype, DTYPES)
    _check_device(device)
    options: dict[str, Any] = {"dtype": DTYPES[dtype]}
    if attention:
        options["attn_implementation"] = attention
    name, folder = _locate(name)
    if folder is not None:
        files = _weight_files(folder)
        gguf = [file for file in files if file.suffix == ".gguf"]
        if gguf:
            options["gguf_file"] = gguf[0].name
        found_revision = sha256_json({file.name: sha256_file(file) for file in files})
        source = str(folder)
    else:
        source, found_revision = name, ""
        options["revision"] = revision
    model, tokenizer = _from_pretrained(source, options)
    if folder is None:
        found_revision = str(getattr(model.config, "_commit_hash", None) or revision or "unknown")
    return LM(model.to(device), tokenizer, name=name, revision=found_revision)


def _locate(name: str) -> tuple[str, Path | None]:
    """The canonical name and, unless it is a hub id, the folder to load from."""
    from latentbench.data import asset_path, catalogue, resolve_asset

    known = resolve_asset(name)
    if known is not None:
        path = asset_path(known)
        return known, path if path.is_dir() else path.parent
    path = Path(name)
    if path.is_dir():
        return name, path
    if path.suffix == ".gguf" and path.is_file():
        return name, path.parent
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise unknown_name(
            "language model", name, catalogue(), hint="Or give a folder or a hub id (owner/name)."
        )
    return name, None


def _weight_files(folder: Path) -> list[Path]:
    files = sorted(file for pattern in ("*.gguf", "*.safetensors") for file in folder.glob(pattern))
    if not files:
        raise UserError(
            f"{folder} holds no *.safetensors and no *.gguf file, so there is no model to load in it"
        )
    gguf = [file for file in files if file.suffix == ".gguf"]
    if len(gguf) > 1:
        raise UserError(
            f"{folder} holds {len(gguf)} GGUF files ({', '.join(f.name for f in gguf)}): keep one"
        )
    return files


def _check_device(device: str) -> None:
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise UserError(f"unknown device {device!r}: write 'cpu', 'cuda' or 'cuda:1'") from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device {device!r} was asked for, but PyTorch sees no CUDA device here: use 'cpu'")


def _from_pretrained(source: str, options: dict[str, Any]) -> tuple[Any, Any]:
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as hf_logging

    hf_logging.disable_progress_bar()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    token_options = {key: options[key] for key in ("gguf_file", "revision") if options.get(key)}
    offline = os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0")
    try:
        # Its GGUF reader draws a progress bar that nothing else turns off.
        with (
            contextlib.redirect_stderr(io.StringIO()) if "gguf_file" in options else contextlib.nullcontext()
        ):
            model, report = AutoModelForCausalLM.from_pretrained(source, **options, output_loading_info=True)
        tokenizer = AutoTokenizer.from_pretrained(source, **token_options)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        first = str(error).strip().splitlines()[0]
        hint = " HF_HUB_OFFLINE is set, so only files in the local cache can be used." if offline else ""
        raise UserError(f"language model {source!r} can't be loaded: {first}{hint}") from error
    missing = sorted(report["missing_keys"])
    if missing:  # transformers draws them at random and goes on
        raise UserError(
            f"language model {source!r} lacks {len(missing)} weights that its config asks for "
            f"({missing[0]}, ...): the checkpoint is incomplete or belongs to another architecture"
        )
    return model, tokenizer
