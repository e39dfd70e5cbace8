"""A text in pieces has the tokens of the whole, for every kind of tokenizer: in streams, documents and in a row."""

from __future__ import annotations

import io
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.tokenizer_kinds import KINDS, opened
from xlruntime.coming_documents import PEEKED, ComingDocuments
from xlruntime.documents import PIECE_BYTES, Document, TextCounts, TextPart, Tokenizer
from xlruntime.errors import TokenError
from xlruntime.held_text import MOST_HELD, HeldText
from xlruntime.stops import GrowingText, token_texts
from xlruntime.token_reader import EarlierText, TokenReader
from xlruntime.tokenizers import TrieTokenizer, Vocabulary

TEXTS = (
    "Hello world, it's  a   test.\n\nNew line\r\n  they'll rest \t\tx \u00a0 nbsp 123456 3.14 end",
    "naive e\u0301te\u0301 \U0001f468\u200d\U0001f469\u200d\U0001f467 <|end|> after <|en of 。\nx <s>y</s> [SEP]",
    "日本語の文章。これは、テスト。 Старик шёл к реке. 'LL don't THEY'RE\n\n\n  x",
    " leading, and" + " " * 30 + "a run\n\n\n\n    return 'we'll' + \"I'M\"\n  \n",
    "CC(=O)ClBrCl[C@@H]c1[nH]2\nthe old man。\n",
    "a",
)


# Kinds whose tokens show the whole text; the others join white space, lack symbols, or lower-case.
LOSSLESS = ("bytes", "gpt2", "neox", "llama3", "gpt4o", "other_pattern", "llama", "metaspace", "byte_symbols", "trie")


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return opened(request.param, tmp_path_factory.mktemp(request.param))


def whole(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the tokens of a text that does not end the last line."""
    return tokenizer.tokens(TextPart(tokenizer.in_units(text, "the text"))).ids.tolist()


def in_pieces(tokenizer: Tokenizer, raw: bytes, cuts: Sequence[int]) -> list[int]:
    """Return the tokens of a text that grows by pieces."""
    held, ids = HeldText(), list[int]()
    for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        piece, held = held.grown(raw[start:end], tokenizer, ids[-1] if ids else None)
        ids += piece.ids.tolist()
    assert held.unsettled_cuts == 0
    return ids + held.ended(tokenizer, ids[-1] if ids else None)[0].ids.tolist()


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_every_cut_gives_the_tokens_of_the_whole(text: str, tokenizer: Tokenizer) -> None:
    raw, expected = text.encode(), whole(tokenizer, text)
    for cut in range(len(raw) + 1):
        assert in_pieces(tokenizer, raw, [cut]) == expected, raw[:cut]
    assert in_pieces(tokenizer, raw, range(1, len(raw))) == expected
    rng = random.Random(0)
    for _ in range(30):
        cuts = sorted(rng.sample(range(len(raw) + 1), min(len(raw), rng.randint(2, 9))))
        assert in_pieces(tokenizer, raw, cuts) == expected, cuts


def test_documents_are_read_in_parts_with_the_tokens_of_the_whole(tokenizer: Tokenizer) -> None:
    text = "".join(random.Random(1).choices(TEXTS, k=200)) * 2
    assert len(text.encode()) > PIECE_BYTES
    parts = list(tokenizer.read(io.BytesIO(text.encode()), "it", TextCounts()))
    assert len(parts) > 1
    np.testing.assert_array_equal(np.concatenate([part.ids for part in parts]), tokenizer.encode(text))


def test_places_of_tokens_cover_the_text(tokenizer: Tokenizer) -> None:
    """Check that places rise, and that no text that is visible lies between them."""
    for text in TEXTS:
        units = tokenizer.in_units(text, "the text")
        piece, end = tokenizer.tokens(TextPart(units)), 0
        for start, stop in zip(piece.starts.tolist(), piece.ends.tolist(), strict=True):
            between = units[end:start]
            lost = between if isinstance(between, str) else between.decode()
            assert start <= stop and not set(lost) - set(" \n\r\t\u00a0\u0301\u200d")
            end = max(end, stop)


@pytest.mark.parametrize("kind", LOSSLESS)
def test_texts_of_tokens_joined_are_the_text(kind: str, tmp_path: Path) -> None:
    """Check also that places cut the text into them; a character of several tokens belongs to the last."""
    tokenizer = opened(kind, tmp_path)
    for text in (TEXTS[0], TEXTS[3].lstrip(), "a Café 🙂👍🏽 日本, end"):
        piece = tokenizer.tokens(TextPart(tokenizer.in_units(text, "the text")))
        growing = GrowingText(tokenizer, piece.ids[:1])
        texts = [tokenizer.decode(piece.ids[:1]), *token_texts(tokenizer, piece.ids[1:].tolist(), growing)]
        assert "".join([*texts, growing.end()]) == text
        if tokenizer.offsets_in_bytes:
            assert piece.starts[1:].tolist() == piece.ends[:-1].tolist()
            continue
        for own, start, end in zip(texts, piece.starts.tolist(), piece.ends.tolist(), strict=True):
            shown = text[start:end]
            assert own.strip() in shown and len(shown) - len(own) <= 1  # a place has all of a character


def joined(parts: Sequence[str], separator: str) -> str:
    text = ""
    for number, part in enumerate(parts):
        text += part if not number or text[-1] in " \n\t\r" else separator + part
    return text


@pytest.mark.parametrize("separator", ["", " ", "\n"])
def test_documents_in_a_row_have_the_tokens_of_one_text(separator: str, tokenizer: Tokenizer) -> None:
    if not tokenizer.joins:
        pytest.skip("its tokens do not depend on the text behind them, or each document ends a line")
    rng = random.Random(2)
    for text in TEXTS[:4]:
        for _ in range(8):
            cuts = sorted(rng.sample(range(1, len(text)), 5))
            parts = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
            coming = ComingDocuments((Document(str(number), part) for number, part in enumerate(parts)), separator)
            held, last, spaced, ids = HeldText(), None, False, list[int]()
            for number, document in enumerate(coming):
                between = separator.encode() if number and not spaced else b""
                reader = TokenReader(document, tokenizer, 1 << 20, None, EarlierText(held, between, last, coming.text))
                while len(piece := reader.take(7)):
                    ids += piece.ids.tolist()
                held, last, spaced = reader.held, ids[-1] if ids else None, reader.counts.ends_in_space
            assert ids == whole(tokenizer, joined(parts, separator)), parts


def test_run_without_a_boundary_is_cut_and_counted(tokenizer: Tokenizer) -> None:
    """Feed a run of 10 kB in pieces: not more than a bounded text is held."""
    run, held, previous = b"x" * 10_000, HeldText(), None
    for start in range(0, len(run), 100):
        piece, held = held.grown(run[start : start + 100], tokenizer, previous)
        previous = int(piece.ids[-1]) if len(piece) else previous
        assert len(held.raw) <= MOST_HELD
    piece, held = held.ended(tokenizer, previous)
    assert not held.raw
    assert (held.unsettled_cuts > 0) == (tokenizer.settled(tokenizer.in_units("x" * 5000, "it")) < 900)


def test_context_of_a_document_counts_as_a_stream_counts_it(tokenizer: Tokenizer) -> None:
    """Compare a document behind a context with the continuation of a stream that has read the context."""
    context, text = "The kitchen was full of steam. ", "The cook stirred the pot."
    reader = TokenReader(Document("it", text, context=context), tokenizer, 1 << 20)
    read = reader.take(1000)
    piece, held = HeldText().grown(context, tokenizer, None)
    ids, before = held.continued(text, tokenizer, int(piece.ids[-1]) if len(piece) else None)
    ends_line = len(tokenizer.encode(text)) - len(whole(tokenizer, text))  # a vocabulary's mark, which no stream adds
    own = read.ids[read.context : len(read) - ends_line].tolist()
    assert (own, read.context) == (ids[before:].tolist(), len(piece) + before)


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("gpt2", "Жук", (1, 1)),
        ("neox", "Ж\u0301", (1, 1)),
        ("gpt2", " they", (5, 5)),
        ("roberta", "The", (3, 3)),
        ("roberta", "Hello", (0, 0)),
        ("llama", "Жук", (0, 0)),
        ("sentencepiece_bpe", "Жук", (0, 0)),
        ("trie", "🙂", (3, 1)),
        ("trie", "日本", (6, 2)),
        ("symbols", "Cl", (2, 2)),
        ("bytes", "Ж", (1, 1)),
    ],
)
def test_first_token_covers_the_bytes_that_it_stands_for(
    kind: str, text: str, expected: tuple[int, int], tmp_path: Path
) -> None:
    """It may be a part of a character, or the space that a library puts before a text."""
    counts, tokenizer = TextCounts(), opened(kind, tmp_path)
    list(tokenizer.read(io.BytesIO(text.encode()), "it", counts))
    assert (counts.first_token_bytes, counts.first_token_chars) == expected


def test_text_to_come_ends_where_it_was_not_read() -> None:
    coming = ComingDocuments([Document("it", text) for text in ("a", "b", "x" * 5000, "y")], "-")
    next(coming)
    assert list(coming.text(False)) == [b"-b", b"-" + b"x" * PEEKED]
    assert [document.source for document in coming] == ["b", "x" * 5000, "y"]


def test_unknown_byte_is_named_by_its_place_in_the_document() -> None:
    tokenizer = TrieTokenizer(Vocabulary("trie", ("61", "6162")))
    raw = b"ab" * PIECE_BYTES + b"z"
    with pytest.raises(TokenError, match=rf"^it: no symbol .* 0x7a, as the text does at byte {len(raw) - 1:,}\."):
        list(tokenizer.read(io.BytesIO(raw), "it", TextCounts()))


def test_text_of_tokens_goes_on_within_a_character(tokenizer: Tokenizer) -> None:
    ids = whole(tokenizer, "a Café 🙂👍🏽 日本, end")
    growing = GrowingText(tokenizer, ids[:1])
    expected = [growing.add(token) for token in ids[1:]]
    for cut in range(1, len(ids)):
        first = GrowingText(tokenizer, ids[:1])
        found = [first.add(token) for token in ids[1:cut]]
        before, incomplete = first.tokens()
        second = GrowingText(tokenizer, before)
        for token in incomplete:
            second.add(token)
        assert found + [second.add(token) for token in ids[cut:]] == expected
