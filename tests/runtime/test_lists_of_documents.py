"""Methods that score several documents refuse a single one, whose parts would be scored as documents."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xlruntime import ArgumentError, Document, Model

METHODS = ("score", "score_tokens", "surprisal")
ONE_DOCUMENT = {
    "text": ("hello", "text"),
    "bytes": (b"hello", "text"),
    "path": (Path("hello.txt"), "path"),
    "document": (Document("it", "hello"), "document"),
    "file": (io.BytesIO(b"hello\nworld\n"), "file"),
    "ids": (np.arange(5), "ids"),
    "mapping": ({"it": "hello"}, "text"),
    "nothing": (None, "text"),
}


@pytest.mark.parametrize("kind", ONE_DOCUMENT)
@pytest.mark.parametrize("method", METHODS)
def test_one_document_instead_of_a_list(method: str, kind: str, bytes_model: Model) -> None:
    given, example = ONE_DOCUMENT[kind]
    with pytest.raises(ArgumentError) as caught:
        getattr(bytes_model, method)(given)  # at once, before the first result is asked for
    assert isinstance(caught.value, TypeError)
    assert caught.value.message.startswith(f"{method}: expected a list of documents, found ")
    assert caught.value.hint == f"Give a list: model.{method}([{example}])"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("given", [[72, 105], (np.int64(72),)])
def test_token_ids_of_one_document(method: str, given: Any, bytes_model: Model) -> None:
    refusal = re.escape(f"{method}: document 0 is the number 72. Give a list of documents")
    with pytest.raises(ArgumentError, match=refusal.replace("72", ".*72.*")):
        list(getattr(bytes_model, method)(given))


def test_lists_of_all_kinds_are_scored(bytes_model: Model) -> None:
    for given in (["ab"], ("ab",), iter(["ab"]), (text for text in ["ab"]), [[97, 98]], np.array([[97, 98]])):
        (score,) = bytes_model.score(given)
        assert score.tokens == 2
