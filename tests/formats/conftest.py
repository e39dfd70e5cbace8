"""Fixtures of the tests of the register of formats."""

from __future__ import annotations

import functools

import pytest

from tests.helpers.fixtures import quiet_transformers
from tests.helpers.invoking import Invoke, invoke


@pytest.fixture
def inspect(invoke: Invoke) -> Invoke:
    """Return a function that runs `xlexport inspect` with some arguments."""
    return functools.partial(invoke, "inspect")
