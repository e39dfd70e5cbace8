"""What the tests of the checkpoint formats share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import transformers


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
