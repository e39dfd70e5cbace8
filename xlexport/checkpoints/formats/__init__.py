"""Checkpoint formats that people hold, one a file: each has `NAME`, `matches(path)` and `load(path, config)`."""
