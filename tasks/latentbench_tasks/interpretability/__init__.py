"""How interpretable latents are, by a judge that sees their contexts."""
