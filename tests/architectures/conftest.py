"""Fixtures of the tests of architectures."""

from __future__ import annotations

from tests.helpers.fixtures import one_thread

__all__ = ["one_thread"]
