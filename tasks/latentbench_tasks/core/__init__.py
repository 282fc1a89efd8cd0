"""Sparsity, reconstruction and what splicing a dictionary in costs the model."""
