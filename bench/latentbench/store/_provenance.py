"""Where a number came from: code, libraries, machine and command, without secrets or private paths."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution, version
from pathlib import Path

from pydantic import JsonValue

__all__ = ["provenance", "redact"]

_PACKAGE = "latentbench"
_LIBRARIES = (
    "torch",
    "transformers",
    "numpy",
    "scipy",
    "scikit-learn",
    "safetensors",
    "tokenizers",
    "sae-lens",
    "gguf",
)
_HIDDEN = "REDACTED"
_SECRET_WORDS = r"(?:api[-_]?)?key|token|secret|password|passwd|credentials?|auth|authorization|bearer"
_SECRET_NAME = re.compile(rf"(?:^|[-_.])(?:{_SECRET_WORDS})$", re.IGNORECASE)
_SECRET_VALUE = re.compile(
    r"\b(?:sk|pk|rk)-[\w-]{8,}|\bhf_\w{8,}|\bgh[opsur]_\w{8,}|\bgithub_pat_\w{8,}|\bglpat-[\w-]{8,}"
    r"|\bAKIA[0-9A-Z]{12,}|\bAIza[\w-]{20,}|\bxox[abprs]-[\w-]{8,}"
    r"|\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*|(?<=Bearer )\S+",
)
_URL_LOGIN = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_QUERY_SECRET = re.compile(rf"([?&](?:[\w-]*[-_])?(?:{_SECRET_WORDS})=)[^&\s#]+", re.IGNORECASE)
_LEAST_SECRET = 8


def provenance(
    argv: Sequence[str] | None = None, environment: Mapping[str, str] | None = None
) -> dict[str, JsonValue]:
    """What a run record says about how it was made.

    Library versions are read from installed metadata; none of the libraries is imported.

    Args:
        argv: the command line; that of this process by default.
        environment: environment variables, whose secret values are blotted out of `argv`; by default ours.

    Returns:
        JSON with `package`, `python`, `os`, `cpu`, `libraries` and `argv`.
    """
    return {
        "package": _package(),
        "python": {"implementation": platform.python_implementation(), "version": platform.python_version()},
        "os": {"system": platform.system(), "release": platform.release(), "machine": platform.machine()},
        "cpu": {"count": os.cpu_count(), "usable": _usable_cpus()},
        "libraries": {name: _version(name) for name in _LIBRARIES},
        "argv": list(redact(sys.argv if argv is None else argv, environment)),
    }


def redact(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> list[str]:
    """A command line that may be published: secrets become REDACTED, the home folder `~`, other full paths a name.

    Taken for secret: the value of an option or assignment whose name ends in key, token, secret, password,
    auth or the like (`--hf-token X`, `--api-key=X`, `OPENAI_API_KEY=X`; not `--max-tokens 64`), anything in
    the format of a well-known service's key, logins and key parameters inside of URLs, and the value of any
    environment variable with such a name. The program's path is cut to its file name.
    """
    variables = os.environ if environment is None else environment
    known = [v for name, v in variables.items() if _SECRET_NAME.search(name) and len(v) >= _LEAST_SECRET]
    clean: list[str] = []
    value_is_secret = False
    for position, argument in enumerate(argv):
        if position == 0:
            clean.append(Path(argument).name)
        elif value_is_secret and not argument.startswith("--"):
            clean.append(_HIDDEN)
        else:
            clean.append(_blot(argument, known))
        name, assigned, _ = argument.partition("=")
        value_is_secret = argument.startswith("-") and not assigned and _SECRET_NAME.search(name) is not None
    return clean


def _blot(argument: str, known: Sequence[str]) -> str:
    name, assigned, _ = argument.partition("=")
    if assigned and "/" not in name and _SECRET_NAME.search(name):
        return f"{name}={_HIDDEN}"
    for secret in known:
        argument = argument.replace(secret, _HIDDEN)
    argument = _SECRET_VALUE.sub(_HIDDEN, argument)
    argument = _URL_LOGIN.sub(_HIDDEN, argument)
    argument = _QUERY_SECRET.sub(rf"\g<1>{_HIDDEN}", argument)
    home = str(Path("~").expanduser())
    argument = argument.replace(home, "~") if len(home) > 1 else argument
    option, assigned, value = argument.rpartition("=")
    # A full path says how a machine is laid out, and nothing that anybody else could use.
    return f"{option}{assigned}{Path(value).name}" if value.startswith("/") else argument


def _package() -> dict[str, JsonValue]:
    """Version, and the commit that was installed: the installer's word (PEP 610), not a folder's."""
    try:
        found = distribution(_PACKAGE)
    except PackageNotFoundError:
        return {"name": _PACKAGE, "version": None, "commit": None, "editable": False}
    origin = _direct_url(found)
    vcs, folder = origin.get("vcs_info"), origin.get("dir_info")
    return {
        "name": _PACKAGE,
        "version": found.version,
        "commit": vcs.get("commit_id") if isinstance(vcs, dict) else None,
        "editable": bool(folder.get("editable", False)) if isinstance(folder, dict) else False,
    }


def _direct_url(found: Distribution) -> dict[str, JsonValue]:
    text = found.read_text("direct_url.json")
    if text is None:
        return {}
    origin = json.loads(text)
    return origin if isinstance(origin, dict) else {}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _usable_cpus() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
