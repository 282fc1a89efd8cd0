"""How many interpretable features a dictionary holds, by RouteSAE's rule."""
