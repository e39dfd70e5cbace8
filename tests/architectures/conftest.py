"""Fixtures of the tests of step modules."""

from __future__ import annotations

from tests.helpers.fixtures import one_thread
from tests.helpers.tiny import cut_segments, make_model, naive, ring_driver

__all__ = ["cut_segments", "make_model", "naive", "one_thread", "ring_driver"]
