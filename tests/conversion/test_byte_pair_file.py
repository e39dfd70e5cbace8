"""The byte-level BPE that bundles carry for C: which files have one, and files of strangers."""

from __future__ import annotations

import json
from collections.abc import Callable
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
@pytest.mark.full
def test_ids_that_no_table_has_give_no_file(number: Any, fields: dict[str, Any]) -> None:
    """Check that a number in the file is never a size of memory."""
    assert byte_pair_file(json.dumps(fields).encode()) is not None
    for entries, key in ((fields["added_tokens"][0], "id"), (fields["model"]["vocab"], "a")):
        before, entries[key] = entries[key], number
        assert byte_pair_file(json.dumps(fields).encode()) is None
        entries[key] = before


OTHER_KINDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a space before each text": lambda f: f.update(pre_tokenizer={**f["pre_tokenizer"], "add_prefix_space": True}),
    "another pattern": lambda f: f.update(pre_tokenizer={"type": "Whitespace"}),
    "no pattern": lambda f: f.update(pre_tokenizer={**f["pre_tokenizer"], "use_regex": False}),
    "two parts": lambda f: f.update(
        pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "Whitespace"}, f["pre_tokenizer"]]}
    ),
    "another form": lambda f: f.update(normalizer={"type": "NFKC"}),
    "another decoder": lambda f: f.update(decoder={"type": "WordPiece", "prefix": "##", "cleanup": True}),
    "another model": lambda f: f["model"].update(type="WordLevel"),
    "a prefix": lambda f: f["model"].update(continuing_subword_prefix="##"),
    "a token that takes the space before it": lambda f: f["added_tokens"][0].update(lstrip=True),
    "no token for a byte": lambda f: f["model"]["vocab"].pop("a"),
    "no merges": lambda f: f["model"].pop("merges"),
}


@pytest.mark.parametrize("change", OTHER_KINDS.values(), ids=OTHER_KINDS)
def test_other_tokenizers_have_no_file(change: Callable[[Any], Any], fields: dict[str, Any]) -> None:
    change(fields)
    assert byte_pair_file(json.dumps(fields).encode()) is None
