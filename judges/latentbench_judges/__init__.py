"""Judges: what gives verdicts on stored items. Each is one file and one entry point of `latentbench.judges`."""
