"""Steering: does adding a latent to the model make it write about a concept, and still write well?

Latents are chosen by contrast of mean activations, the amount on one half of the prompts, and success is
reported on the other half. See `card.toml` for the metrics and `task.py` for the steps.
"""
