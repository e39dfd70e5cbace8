"""A small conformance kit, written once for all tests of a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.write import write_kit
from tests.helpers.shared import shared_folder


@pytest.fixture(scope="session")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a kit without the samples; tests must not change it."""

    def make(folder: Path) -> None:
        write_kit(folder / "kit", names=())

    folder, _ = shared_folder(tmp_path_factory, "conformance_kit", make)
    return folder / "kit"
