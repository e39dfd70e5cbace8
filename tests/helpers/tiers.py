"""Parameters of which a tier uses only some."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def thinned(
    values: Iterable[Any], default: Collection[Any], rest: pytest.MarkDecorator = pytest.mark.full
) -> list[Any]:
    """Return the values as parameters; those outside `default` have the mark `rest`, which names a later tier."""
    found = list(values)
    assert all(value in found for value in default), (found, default)
    return [value if value in default else pytest.param(value, marks=rest) for value in found]
