"""What all tests share."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from tests.helpers.paths import SHARED_DATA


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
