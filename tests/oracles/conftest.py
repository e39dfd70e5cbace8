"""What the tests against other code bases share."""

from __future__ import annotations

import pytest

from tests.helpers.fixtures import one_thread, quiet_transformers
from tests.oracles.comparison import Figures

__all__ = ["one_thread", "quiet_transformers"]

FIGURES = pytest.StashKey[Figures]()


@pytest.fixture(scope="session")
def figures(request: pytest.FixtureRequest) -> Figures:
    """Collects every walk's differences; the summary of the run shows the largest."""
    return request.config.stash.setdefault(FIGURES, Figures())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = config.stash.setdefault(FIGURES, Figures()).lines()
    if lines:
        terminalreporter.section("against other code bases")
    for line in lines:
        terminalreporter.write_line(line)
