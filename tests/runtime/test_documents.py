"""What callers give: token ids, lists of documents, text, and reading in pieces."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xlruntime import ArgumentError, Document, Model, TextError, TokenError
from xlruntime import documents as text
from xlruntime.documents import TextCounts
from xlruntime.token_reader import TokenReader
from xlruntime.tokenizers import ByteTokenizer, NoTokenizer

OUTSIDE = [
    ([5, 256], r"token 1 has id 256, expected 0 to 255 \(1 such\)"),
    ([-1], r"token 0 has id -1, expected 0 to 255 \(1 such\)"),
    ([1, 2, 300, 999, -7], r"token 2 has id 300, expected 0 to 255 \(3 such\)"),
    (np.array([2**63], np.uint64), r"token 0 has id .*, expected 0 to 255"),
]
NOT_IDS = [
    ([1.0, 2.0], r"whole numbers along one axis, found float64 of shape \(2,\)"),
    (np.zeros((2, 3), np.int64), r"whole numbers along one axis, found int64 of shape \(2, 3\)"),
    (np.zeros((0, 3), np.int64), r"along one axis, found int64 of shape \(0, 3\)"),
    (np.array(7), r"along one axis, found int64 of shape \(\)"),
    ([True, False], r"whole numbers along one axis, found bool"),
    ([1, True], r"whole numbers along one axis, found true or false among them"),
    (["a", "b"], r"whole numbers along one axis, found <U1"),
    ([2**70], r"whole numbers along one axis, found object"),
    ([[1], [2, 3]], r"whole numbers along one axis, found uneven lists"),
]


@pytest.mark.parametrize(("ids", "message"), OUTSIDE + NOT_IDS)
def test_wrong_ids_are_refused(ids: Any, message: str, bytes_model: Model) -> None:
    stream = bytes_model.stream()
    for refused in (lambda: stream.feed(ids), lambda: stream.generate(ids, max_tokens=1)):
        with pytest.raises(TokenError, match=f"^the stream: .*{message}") as caught:
            refused()
        assert "\n" not in str(caught.value)
    assert (stream.position, stream.memory.offset) == (0, 0)
    with pytest.raises(TokenError, match=f"^mine: .*{message}"):
        list(bytes_model.score([Document("mine", ids)]))


def test_wrong_id_far_into_a_stream_is_named_by_its_place(bytes_model: Model) -> None:
    stream = bytes_model.stream()
    stream.feed(bytes(100))
    with pytest.raises(TokenError, match="token 102 has id 256"):
        stream.feed([1, 2, 256])


# Methods that score several documents refuse a single one, whose parts would be scored as documents.

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
    for given in (["ab"], ("ab",), iter(["ab"]), (part for part in ["ab"]), [[97, 98]], np.array([[97, 98]])):
        (score,) = bytes_model.score(given)
        assert score.tokens == 2


# Counts of text, reading in pieces, and tokenizers.

TEXT = "  Zwölf Boxkämpfer – 日本語 \t\n\x0b\x0cjagen\r\n🙂\xa0x  "


def counts_of(raw: bytes, *cuts: int) -> TextCounts:
    counts = TextCounts()
    for start, stop in zip((0, *cuts), (*cuts, len(raw)), strict=True):
        counts.add(raw[start:stop])
    return counts


@pytest.mark.parametrize("sample", [TEXT, "", " ", "word", " word", "word ", "a b", "é", "\n\n"])
def test_counts_equal_the_counts_of_python(sample: str) -> None:
    raw = sample.encode()
    counts = counts_of(raw)
    assert (counts.bytes, counts.chars, counts.words) == (len(raw), len(sample), len(raw.split()))


def test_counts_do_not_depend_on_the_ends_of_pieces() -> None:
    raw = TEXT.encode()
    for first in range(len(raw) + 1):
        for second in range(first, len(raw) + 1, 5):
            assert counts_of(raw, first, second) == counts_of(raw)


def reader(source: Any, vocab_size: int = 256) -> TokenReader:
    return TokenReader(Document("it", source), ByteTokenizer(), vocab_size)


def test_reader_returns_the_requested_number() -> None:
    raw = bytes(range(200))
    tokens = reader(raw)
    taken = [tokens.take(n) for n in (0, 1, 7, 0, 150, 100, 5)]
    assert [len(piece) for piece in taken] == [0, 1, 7, 0, 150, 42, 0]
    assert bytes(np.concatenate([piece.ids for piece in taken]).tolist()) == raw
    np.testing.assert_array_equal(np.concatenate([piece.starts for piece in taken]), np.arange(200))
    np.testing.assert_array_equal(np.concatenate([piece.ends for piece in taken]), np.arange(1, 201))
    assert tokens.at_end


def test_reader_goes_on_across_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "PIECE_BYTES", 10)
    raw = TEXT.encode()
    tokens = reader(io.BytesIO(raw))
    found = [tokens.take(7) for _ in range(len(raw) // 7 + 1)]
    assert bytes(np.concatenate([piece.ids for piece in found]).tolist()) == raw
    np.testing.assert_array_equal(np.concatenate([piece.starts for piece in found]), np.arange(len(raw)))
    counts = counts_of(raw)
    counts.first_token_bytes = counts.first_token_chars = 1
    assert tokens.counts == counts


def test_wrong_id_in_a_later_piece_is_named_by_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "PIECE_BYTES", 4)
    tokens = reader(b"abcdefghijz", vocab_size=ord("k"))
    assert len(tokens.take(8)) == 8
    with pytest.raises(TokenError, match=r"it: token 10 has id 122, expected 0 to 106"):
        tokens.take(3)


def test_first_token_within_a_character() -> None:
    tokens = reader(b"\x80abc")
    tokens.take(4)
    assert (tokens.counts.first_token_bytes, tokens.counts.first_token_chars) == (1, 0)


def test_bytes_may_begin_at_another_id(bytes_of_band: Model) -> None:
    """Begin at id 2, as Hugging Face's byte-level Reformer: 0 and 1 are not bytes."""
    tokenizer = ByteTokenizer(2)
    ids = tokenizer.encode(TEXT)
    assert tokenizer.vocab_size == 258
    assert ids.tolist() == [byte + 2 for byte in TEXT.encode()]
    assert tokenizer.decode(ids) == TEXT
    assert tokenizer.decode(np.array([0, 67, 1, 300, 68])) == "AB"  # ids without a byte are left out

    by_text, by_ids = bytes_of_band.score([TEXT, ids])
    assert by_text.nats == by_ids.nats
    assert bytes_of_band.bundle.vocab_size == 258


def test_bundle_without_tokenizer_refuses_text(no_text_model: Model, tmp_path: Path) -> None:
    assert isinstance(no_text_model.tokenizer, NoTokenizer)
    path = tmp_path / "it.txt"
    path.write_bytes(b"some text")
    for refused in (
        lambda: no_text_model.stream().feed("some text"),
        lambda: list(no_text_model.generate(b"some", max_tokens=1)),
        lambda: list(no_text_model.score(["some text"])),
        lambda: list(no_text_model.score([path])),
    ):
        with pytest.raises(TextError, match=r"has no tokenizer, so it takes token ids.*convert .* --tokenizer"):
            refused()
    assert no_text_model.tokenizer.decode(np.array([3, 28])) == "3 28"


@pytest.mark.parametrize("unsound", ["ab\ud800cd", "ab\udfff"])
def test_half_a_surrogate_pair_is_refused(unsound: str, bytes_model: Model) -> None:
    with pytest.raises(TextError, match=r"the text: character 2 is half of a surrogate pair \(U\+D"):
        bytes_model.stream().feed(unsound)
    with pytest.raises(TextError, match=r"mine: character 2 is half of a surrogate pair"):
        list(bytes_model.score([Document("mine", unsound)]))


def test_file_opened_as_text_is_refused(bytes_model: Model, tmp_path: Path) -> None:
    path = tmp_path / "it.txt"
    path.write_text("some text", "utf-8")
    with path.open(encoding="utf-8") as file, pytest.raises(TextError, match=r"it\.txt: a file opened as text.*'rb'"):
        list(bytes_model.score([file]))  # type: ignore[list-item]  # on purpose
