"""How consistent the contexts of a latent are, as a judge rates them (RouteSAE's interpretation score)."""
