"""Fixtures of the tests of architectures."""

from __future__ import annotations

from tests.helpers.fixtures import one_thread, reuse_graphs
from tests.helpers.tiny import naive

__all__ = ["naive", "one_thread", "reuse_graphs"]
