"""Fixtures for the tests of prepared data."""

from __future__ import annotations

from tests.helpers.invoking import invoke, prose
