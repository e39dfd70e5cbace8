"""Assertion that a checkpoint is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from xlexport.errors import CheckpointError
from xlexport.formats import load


def refusal(path: Path, error: type[CheckpointError] = CheckpointError, **given: Any) -> str:
    """Return the message with which `path` is refused: assert that it is one printable line beginning with the path."""
    with pytest.raises(error) as caught:
        load(path, **given)
    message = str(caught.value)
    assert type(caught.value) is error
    assert message.startswith(str(path)), message
    assert message.isprintable(), message
    return message
