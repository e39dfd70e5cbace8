"""Parameters of which the default tier uses only some."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def thinned(values: Iterable[Any], default: Collection[Any]) -> list[Any]:
    """Return the values as parameters; only `pytest -m full` runs values outside `default`."""
    found = list(values)
    assert all(value in found for value in default), (found, default)
    return [value if value in default else pytest.param(value, marks=pytest.mark.full) for value in found]
