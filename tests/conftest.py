"""What all tests share."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import export_cache
from tests.helpers.export_cache import CACHE
from tests.helpers.figures import FIGURES
from tests.helpers.paths import SHARED_DATA


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests of `convert`: a second worker then seldom waits for the bundles that they make."""
    items.sort(key=lambda item: not item.nodeid.startswith("tests/convert/"))


def pytest_collection_finish() -> None:
    """Spare later garbage collections what has been imported: it lives as long as the run."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of long public-domain texts; skip the test if there is none."""
    if not SHARED_DATA.is_dir():
        pytest.skip("the texts of ../shared/data are not here")
    return SHARED_DATA


@pytest.fixture
def cached_exports() -> Iterator[None]:
    """Let this test's conversions take graphs from the cache of exports."""
    with export_cache.cached_exports():
        yield


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Collect what a worker of pytest-xdist found out against other code bases."""
    node.config.stash.setdefault(FIGURES, []).extend(getattr(node, "workeroutput", {}).get("figures", []))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send a worker's figures to the process that prints the summary; there, tidy the cache of exports."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["figures"] = session.config.stash.get(FIGURES, [])
    else:
        CACHE.shrink()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Show the largest difference from each other code base."""
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for what, batch_size, nats, memory in config.stash.get(FIGURES, []):
        found.setdefault((what, batch_size), []).append((nats, memory))
    if found:
        terminalreporter.section("against other code bases")
    for (what, batch_size), differences in sorted(found.items()):
        nats, memory = (max(values) for values in zip(*differences, strict=True))
        line = f"{what}, batch {batch_size}: {len(differences)} configurations, largest difference {nats:.1e} nats"
        terminalreporter.write_line(f"{line}, {memory:.1e} in memory" if memory else line)
