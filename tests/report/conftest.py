"""Fixtures of the tests of pages."""

from __future__ import annotations

from tests.helpers.fixtures import one_thread, reuse_graphs
from tests.helpers.invoking import bundle, checkpoint, invoke, prose, reuse_export
from tests.report.browsing import browser, hostile, long, model, pages, scores

__all__ = [
    "browser",
    "bundle",
    "checkpoint",
    "hostile",
    "invoke",
    "long",
    "model",
    "one_thread",
    "pages",
    "prose",
    "reuse_export",
    "reuse_graphs",
    "scores",
]
