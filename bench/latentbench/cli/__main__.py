"""`python -m latentbench.cli`, the same as the `latentbench` command."""

from __future__ import annotations

from latentbench.cli._main import main

main()
