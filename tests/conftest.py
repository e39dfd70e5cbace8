"""Fixtures and hooks of all tests."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import export_cache
from tests.helpers.export_cache import CACHE
from tests.helpers.figures import FIGURES
from tests.helpers.paths import SHARED_DATA
from tests.helpers.tiers import pytest_collection_modifyitems, pytest_configure
from xlexport.extras import disable_telemetry

# No line of progress, which a busy machine would add to the output that tests compare; also in other processes.
os.environ["XLEXPORT_PROGRESS_SECONDS"] = "inf"
# One thread here and in other processes: small models gain nothing from more, and lose much if processes share cores.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.pop("PYTHONUNBUFFERED", None)  # users' processes keep what they print until they flush it
os.environ["XDG_CACHE_HOME"] = str(CACHE.folder.parent / "user")  # not the user's own
disable_telemetry()

__all__ = ["pytest_collection_modifyitems", "pytest_configure"]  # the tiers


def pytest_collection_finish() -> None:
    """Exclude imported objects from later garbage collections: they live as long as the run."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of long public-domain texts; skip the test if the folder is missing."""
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
    """Collect a pytest-xdist worker's differences from other code bases."""
    node.config.stash.setdefault(FIGURES, []).extend(getattr(node, "workeroutput", {}).get("figures", []))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send a worker's figures to the main process; in the main process, tidy the cache of exports."""
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
