"""Fixtures of the tests of analyses."""

from __future__ import annotations

from tests.helpers.fixtures import one_thread
