"""What all tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.helpers")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of long public-domain texts that is kept beside the checkout, not in it."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the texts of ../shared/data are not here")
    return folder
