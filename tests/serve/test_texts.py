"""Continuations as text, token by token."""

from __future__ import annotations

import pytest

from tests.helpers.paths import CHUNK, golden_bundle
from xlexport.serve.texts import GrowingText, TokenTexts
from xlruntime import load
from xlruntime.tokenizers import ByteTokenizer


def grown(text: bytes, *stops: str, before: bytes = b"") -> tuple[list[str], str, bool]:
    """Return the texts of each byte, the rest, and whether a stop was found."""
    growing = GrowingText(ByteTokenizer(), list(before), stops)
    found = [growing.add(token) for token in text]
    return found, growing.end(), growing.stopped


@pytest.mark.parametrize("before", [b"", b"0123456789", "é".encode()])
def test_characters_appear_when_they_are_complete(before: bytes) -> None:
    found, rest, _ = grown("aé€b".encode(), before=before)
    assert found == ["a", "", "é", "", "", "€", "b"]
    assert rest == ""


def test_broken_characters_appear_in_the_end() -> None:
    assert grown(b"a\xe2\x82") == (["a", "", ""], "\ufffd", False)
    found, rest, _ = grown(b"\x80" * 100)
    assert len("".join(found) + rest) == 100


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        (b"one. two", (". ",), "one"),
        (b"one. two", ("two", "e"), "on"),
        (b"one.", (". ",), "one."),
        (b"aab", ("ab",), "a"),
        (b"aabc", ("abc", "b"), "aa"),  # the stop that is complete first
        (b"one", ("",), "one"),
    ],
)
def test_text_ends_before_the_first_stop(text: bytes, stops: tuple[str, ...], expected: str) -> None:
    found, rest, stopped = grown(text, *stops)
    assert "".join(found) + rest == expected
    assert stopped == (expected != text.decode())
    assert all(expected.startswith("".join(found[:n])) for n in range(len(found)))


def test_tokens_after_a_stop_have_no_effect() -> None:
    growing = GrowingText(ByteTokenizer(), [], ["b"])
    assert [growing.add(token) for token in b"abcab"] == ["a", "", "", "", ""]


def test_texts_of_tokens_differ() -> None:
    texts = TokenTexts(ByteTokenizer())
    assert [texts[token] for token in (97, 10, 0xE4, 0xFF)] == ["a", "\n", "bytes:\\xe4", "bytes:\\xff"]
    assert len(set(texts.keys(list(range(256))))) == 256
    ids = TokenTexts(load(golden_bundle(CHUNK), threads=1).tokenizer)
    assert ids.keys([3, 14]) == ["3", "14"]
