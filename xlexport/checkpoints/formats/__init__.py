"""Formats of checkpoints, one a module: each has `NAME`, `matches(path)` and `load(path, config)`."""
