"""GradSAE's second hypothesis: latents with high influence steer the answer."""
