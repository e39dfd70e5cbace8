"""Fixtures of the tests of the families."""

from __future__ import annotations

from tests.helpers.fixtures import quiet_transformers
