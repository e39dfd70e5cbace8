"""Fixtures of the tests of the conformance kit and of JavaScript."""

from __future__ import annotations

from tests.helpers.conformance_kit import kit
from tests.helpers.native import kernel_library
