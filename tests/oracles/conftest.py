"""What the tests against other code bases share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import transformers

from tests.oracles.comparison import Figures

FIGURES = pytest.StashKey[Figures]()


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small gain nothing from more threads, and lose much where other processes want the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session", autouse=True)
def quiet_transformers() -> None:
    """It says with every model that its classes are deprecated."""
    transformers.logging.set_verbosity_error()


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
