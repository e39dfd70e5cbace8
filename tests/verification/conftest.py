"""Fixtures of the tests of `verify`."""

from __future__ import annotations

from tests.helpers.bundles import band, bytes_bundle, chunk, fixed_bundle, ids_bundle, paper
from tests.helpers.tiny import make_model
