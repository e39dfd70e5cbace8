"""Fixtures of the tests of pages."""

from __future__ import annotations

from tests.helpers.fixtures import one_thread, reuse_graphs
from tests.helpers.invoking import bundle, checkpoint, invoke, prose, reuse_export

__all__ = ["bundle", "checkpoint", "invoke", "one_thread", "prose", "reuse_export", "reuse_graphs"]
