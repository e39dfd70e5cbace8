"""Fixtures of the tests of the families."""

from __future__ import annotations

from tests.helpers.fixtures import one_thread, quiet_transformers
