"""Fixtures of the tests of architectures."""

from __future__ import annotations

from tests.helpers.fixtures import one_thread, reuse_graphs
from tests.helpers.tiny import cut_segments, make_model, naive, ring_driver

__all__ = ["cut_segments", "make_model", "naive", "one_thread", "reuse_graphs", "ring_driver"]
