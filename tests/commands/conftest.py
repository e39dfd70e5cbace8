"""Fixtures for the tests of the command line."""

from __future__ import annotations

from tests.helpers.fixtures import reuse_graphs
from tests.helpers.invoking import (
    bundle,
    call,
    checkpoint,
    command,
    environment,
    invoke,
    make_checkpoint,
    own_bundle,
    prose,
    refuse,
    reuse_export,
)
