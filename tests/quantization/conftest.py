"""Fixtures of the tests of quantized graphs."""

from __future__ import annotations

from tests.helpers.fixtures import one_thread
