"""Options of commands that read Reformer checkpoints, on a folder whose `config.json` has no number of buckets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers.invoking import Invoke


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write only the settings, which are checked before any weights are read."""
    path = tmp_path / "reformer"
    path.mkdir()
    settings = {"model_type": "reformer", "is_decoder": True, "num_buckets": None, "attn_layers": ["local", "lsh"]}
    (path / "config.json").write_text(json.dumps(settings))
    return path


def test_buckets_that_are_missing_are_asked_for(invoke: Invoke, folder: Path) -> None:
    asked = f"Error: {folder}: config.json has no num_buckets"
    assert invoke("convert", folder).error.startswith(asked)
    assert not invoke("convert", folder, "--config", "max_length=100").error.startswith(asked)


@pytest.mark.parametrize(("given", "shown"), [("7", "7"), ("8,7", "(8, 7)"), ("0", "0")])
def test_numbers_of_buckets_that_cannot_be_are_shown_as_given(
    invoke: Invoke, folder: Path, given: str, shown: str
) -> None:
    assert invoke("inspect", folder, "--config", f"num_buckets={given}").error == (
        f"Error: {folder}: num_buckets is {shown}, expected an even number or several, such as 64,128."
    )
