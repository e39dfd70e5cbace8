"""Fixtures of the tests against other code bases."""

from __future__ import annotations

import pytest

from tests.helpers.figures import FIGURES
from tests.helpers.fixtures import quiet_transformers
from tests.oracles.comparison import Figures


@pytest.fixture(scope="session")
def figures(request: pytest.FixtureRequest) -> Figures:
    """Collect every walk's differences; the summary of the run shows the largest."""
    return Figures(request.config.stash.setdefault(FIGURES, []))
