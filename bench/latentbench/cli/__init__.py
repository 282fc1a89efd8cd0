"""The command line. Each command lives in a module of its own, imported when it is called."""

from __future__ import annotations

from latentbench.cli._main import cli, main
from latentbench.cli._output import echo_json, echo_table

__all__ = ["cli", "echo_json", "echo_table", "main"]
