"""The benchmark tasks: one folder each, found through entry points and described by their `card.toml`."""
