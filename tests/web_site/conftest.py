"""Fixtures of the tests of sites: npm packages that are none, and built sites."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.invoking import invoke
from tests.web_site.packages import fake_packages

__all__ = ["invoke", "npm"]


@pytest.fixture
def npm(tmp_path: Path) -> Path:
    """Return a folder in which npm seems to have installed what a site needs."""
    return fake_packages(tmp_path / "app")
