"""Capability: what the model loses in accuracy and likelihood when a dictionary is spliced in or steers it."""
