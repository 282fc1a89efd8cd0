"""Checkpoint formats, one file each; registered as entry points of `latentbench.formats`."""
