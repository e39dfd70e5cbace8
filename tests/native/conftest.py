"""Fixtures of the tests of native code."""

from __future__ import annotations

from tests.helpers.bundles import band, bytes_bundle, chunk
from tests.helpers.conformance_kit import kit
from tests.helpers.invoking import invoke
from tests.helpers.native import kernel_library

__all__ = ["band", "bytes_bundle", "chunk", "invoke", "kernel_library", "kit"]
