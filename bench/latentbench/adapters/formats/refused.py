"""Checkpoints that are known and can't be loaded: recognised so that the reason can be given.

Temporal SAEs have codes that depend on the tokens before. Cross-layer transcoders read one layer and write all those
after it. A `.pt` or pickle file that torch's restricted unpickler refuses would run code of its author. A truncated
file shows nobody's keys.
"""

from __future__ import annotations

from pathlib import Path

from latentbench.adapters._dictionary import Dictionary
from latentbench.adapters._format import Format, LoadOptions
from latentbench.adapters.formats._names import keys_of, only_file
from latentbench.adapters.formats._tensors import tensor_keys
from latentbench.errors import AdapterError

__all__ = ["FORMAT", "RefusedFormat"]

_PICKLES = ("*.pkl", "*.pickle", "*.pkl.gz")
_READ = (("*.pt", "*.pth"), ("*.safetensors", "*.npz"), ("checkpoints/final.*", "checkpoints/pruned.*"))
"""Files that are tried; of each kind only if it is the only one in its folder."""


class RefusedFormat:
    """See the module."""

    def recognise(self, path: Path) -> str | None:
        """See `Format.recognise`; the reason is why it is refused."""
        folder = path if path.is_dir() else path.parent
        if (folder / "conf.yaml").is_file() and (folder / "latest_ckpt.safetensors").is_file():
            return (
                "conf.yaml and latest_ckpt.safetensors: a temporal SAE, whose codes depend on the tokens before, and "
                "a code here is that of one token"
            )
        layers = only_file(path, "W_dec_*.safetensors") or only_file(path, "W_enc_*.safetensors")
        if layers is not None and any(key.startswith(("W_dec_", "W_enc_")) for key in keys_of(layers)):
            return (
                f"{layers.name}: part of a cross-layer transcoder, which reads one layer and writes all those after "
                "it; that can't be loaded"
            )
        pickled = only_file(path, *_PICKLES)
        if pickled is not None:
            return (
                f"{pickled.name} is a pickle and needs unpickling, which can run code; that is never done here: open "
                "it where nothing can be harmed, save its tensors as safetensors, and load that"
            )
        return _unreadable(folder if path.suffix == ".json" else path)

    def load(self, path: Path, options: LoadOptions) -> Dictionary:
        """Refused.

        Raises:
            AdapterError: always, with the reason.
        """
        raise AdapterError(self.recognise(path) or f"{path.name} can't be loaded")


FORMAT: Format = RefusedFormat()


def _unreadable(path: Path) -> str | None:
    for patterns in _READ:
        file = only_file(path, *patterns)
        if file is None or _taken(file):
            continue
        try:
            tensor_keys(file)
        except AdapterError as error:
            return str(error)
    return None


def _taken(file: Path) -> bool:
    """Whether a format knows such a file by its name alone, and says itself what is wrong with it."""
    return file.name == "ae.pt" or (file.parent / "cfg.json").is_file() or file.with_suffix(".json").is_file()
