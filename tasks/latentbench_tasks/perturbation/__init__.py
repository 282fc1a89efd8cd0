"""GradSAE's first hypothesis: some active latents matter more for the answer than others."""
