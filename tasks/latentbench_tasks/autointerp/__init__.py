"""Explain, then score: does an explanation of a latent tell where it is active?"""
