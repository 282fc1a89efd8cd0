"""How well selectors agree with exact ablation."""
