"""The byte-level BPE that bundles carry for C: which files have one, and files of strangers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.helpers.tokenizer_kinds import byte_level
from xlexport.byte_pair_file import byte_pair_file


@pytest.fixture
def fields() -> dict[str, Any]:
    pytest.importorskip("tokenizers")
    made: dict[str, Any] = json.loads(byte_level(spaces=True).to_str())
    return made


@pytest.mark.parametrize("number", [4_000_000_000, -7, "x", None, 2.5])
def test_ids_that_no_table_has_give_no_file(number: Any, fields: dict[str, Any]) -> None:
    """Check that a number in the file is never a size of memory."""
    assert byte_pair_file(json.dumps(fields).encode()) is not None
    for entries, key in ((fields["added_tokens"][0], "id"), (fields["model"]["vocab"], "a")):
        before, entries[key] = entries[key], number
        assert byte_pair_file(json.dumps(fields).encode()) is None
        entries[key] = before
