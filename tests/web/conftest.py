"""Fixtures of the tests of the conformance kit and of JavaScript."""

from __future__ import annotations

from tests.helpers.conformance_kit import kit

__all__ = ["kit"]
