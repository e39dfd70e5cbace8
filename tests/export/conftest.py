"""Fixtures of the tests of exported files."""

from __future__ import annotations

from tests.helpers.bundles import band, bytes_bundle, chunk, ids_bundle, paper
from tests.helpers.fixtures import one_thread
from tests.helpers.tiny import make_model, ring_driver

__all__ = ["band", "bytes_bundle", "chunk", "ids_bundle", "make_model", "one_thread", "paper", "ring_driver"]
