"""Serve bundles over HTTP: one scheduler a bundle, whose batch rows requests join and leave between steps."""

__all__: list[str] = []
