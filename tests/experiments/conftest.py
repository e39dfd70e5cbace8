"""Fixtures for the tests of experiments."""

from __future__ import annotations

from tests.helpers.invoking import invoke
