"""Fixtures of the tests of custom operators."""

from __future__ import annotations

from tests.helpers.fixtures import one_thread
