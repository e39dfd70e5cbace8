"""Fixtures of the tests of `convert`."""

from __future__ import annotations

from tests.helpers.bundles import band, bytes_bundle, chunk, ids_bundle, paper, reuse_export
from tests.helpers.fixtures import reuse_graphs
from tests.helpers.invoking import invoke
