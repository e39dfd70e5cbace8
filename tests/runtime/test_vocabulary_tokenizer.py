"""Text to ids of vocabularies: symbols, offsets and counts, for any cuts of the text."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from xlruntime import TextError, TokenError
from xlruntime import documents as text
from xlruntime.documents import TextCounts
from xlruntime.tokenizers.vocabulary import Vocabulary
from xlruntime.tokenizers.vocabulary_tokenizer import VocabularyTokenizer

WIKITEXT = Path(__file__).resolve().parents[3] / "shared/data/wikitext2_test.txt"

WIKI = Vocabulary("words", ("<eos>", "the", "sea", "<unk>", "日本"), unk="<unk>", line_end="<eos>")
LM1B = Vocabulary("words", ("<S>", "<UNK>", "the", "sea"), unk="<UNK>", line_start="<S>", line_end="<S>")
PTB = Vocabulary("words", ("<eos>", "the", "<unk>", "i̇", "ς"), unk="<unk>", line_end="<eos>", lower_case=True)
PLAIN = Vocabulary("words", ("the", "sea", "?"), unk="?")
TEXT8 = Vocabulary("characters", tuple("_abcdefghijklmnopqrstuvwxyz"), space="_", lower_case=True)
LINES = Vocabulary("characters", ("<eos>", *" abcé", "<unk>"), unk="<unk>", line_end="<eos>")
NEWLINE = Vocabulary("characters", tuple("\n abc?"), unk="?")
RETURNS = Vocabulary("characters", tuple("\r\n abc\ufeff?"), unk="?")
ENWIK8 = Vocabulary("bytes", tuple(str(byte) for byte in (32, *range(31), *range(33, 256)) if byte != 10))
BYTE_LINES = Vocabulary("bytes", ("<eos>", "32", "97", "<unk>"), unk="<unk>", line_end="<eos>")
EVERY = (WIKI, LM1B, PTB, PLAIN, TEXT8, LINES, NEWLINE, RETURNS, ENWIK8, BYTE_LINES)
REFUSING = (TEXT8, ENWIK8)
PARTS = ["the", "sea", "a", "b", "c", "é", "日本", "🙂", "İ", "Σ", "?", "\ufeff"]
PARTS += [" ", " ", "\n", "\r\n", "\r", "\t", "\u00a0", "\u2028", "\x85"]


@dataclass(frozen=True)
class Read:
    """The results of `read` for a document."""

    symbols: list[str]
    places: list[tuple[int, int]]
    counts: TextCounts

    def covered(self, document: str) -> list[str]:
        return [document[start:end] for start, end in self.places]


def read(vocabulary: Vocabulary, document: str | bytes) -> Read:
    counts = TextCounts()
    raw = document.encode() if isinstance(document, str) else document
    pieces = list(VocabularyTokenizer(vocabulary).read(io.BytesIO(raw), "it", counts))
    places = [place for piece in pieces for place in zip(piece.starts.tolist(), piece.ends.tolist(), strict=True)]
    ids = np.concatenate([piece.ids for piece in pieces])
    assert ids.dtype == np.int64
    return Read([vocabulary.symbols[number] for number in ids], places, counts)


def random_documents(seed: int, n: int) -> Iterator[str]:
    chance = random.Random(seed)
    for _ in range(n):
        yield "".join(chance.choices(PARTS, k=chance.randrange(30)))


def test_words_as_the_original_code_reads_them(tmp_path: Path) -> None:
    """Compare with universal newlines, `line.strip().lower().split()`, and `<eos>` after or `<S>` around lines."""
    path = tmp_path / "it.txt"
    for document in random_documents(1, 300):
        path.write_bytes(document.removeprefix("\ufeff").encode())
        for vocabulary in (WIKI, LM1B, PTB, PLAIN):
            expected = []
            with path.open(encoding="utf-8") as file:
                for line in file:
                    words = (line.strip().lower() if vocabulary.lower_case else line.strip()).split()
                    expected += [vocabulary.line_start, *words, vocabulary.line_end]
            known = [word if word in vocabulary.index else vocabulary.unk for word in expected if word is not None]
            assert read(vocabulary, document).symbols == known, document


@pytest.mark.skipif(not WIKITEXT.is_file(), reason=f"{WIKITEXT} is missing")
def test_wikitext_as_the_original_code_reads_it() -> None:
    with WIKITEXT.open(encoding="utf-8") as file:
        expected = [symbol for line in file for symbol in (*line.strip().split(), "<eos>")]
    symbols = tuple(dict.fromkeys(expected))
    ids = VocabularyTokenizer(Vocabulary("words", symbols, unk="<unk>", line_end="<eos>")).encode(WIKITEXT.read_bytes())
    assert [symbols[number] for number in ids] == expected
    assert len(ids) == 245_569  # the published number of tokens


@pytest.mark.parametrize("vocabulary", EVERY, ids=str)
def test_pieces_do_not_matter(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(2)
    simple = ("".join(chance.choices("ab \n", k=25)) for _ in range(60))
    for document in simple if vocabulary in REFUSING else random_documents(3, 60):
        monkeypatch.setattr(text, "PIECE_BYTES", 1 << 20)
        whole = read(vocabulary, document)
        for size in (1, 2, 3, chance.randrange(4, 40)):
            monkeypatch.setattr(text, "PIECE_BYTES", size)
            assert read(vocabulary, document) == whole, (document, size)
        ids = VocabularyTokenizer(vocabulary).encode(document)
        assert [vocabulary.symbols[number] for number in ids] == whole.symbols
        assert VocabularyTokenizer(vocabulary).encode(document.encode()).tolist() == ids.tolist()


@pytest.mark.parametrize("vocabulary", [WIKI, LM1B, PTB, PLAIN, LINES, NEWLINE, RETURNS], ids=str)
def test_offsets_lead_back_to_the_text(vocabulary: Vocabulary) -> None:
    newlines = {"\n", "\r", "\r\n"}
    for document in random_documents(4, 100):
        found = read(vocabulary, document)
        last = 0
        for symbol, (start, end), covered in zip(found.symbols, found.places, found.covered(document), strict=True):
            assert last <= start <= end <= len(document)
            last = end
            if symbol == vocabulary.line_end and covered:
                assert covered in newlines
            elif covered:
                lowered = covered.lower() if vocabulary.lower_case else covered
                known = symbol == lowered or (symbol == "\n" and covered in newlines)
                assert known or (symbol == vocabulary.unk and lowered not in vocabulary.index)
            else:
                assert symbol in (vocabulary.line_start, vocabulary.line_end)


def test_offsets_of_words_in_an_awkward_text() -> None:
    document = "\ufeffthe\u00a0 日本\t🙂\r\n\r\n sea"
    found = read(WIKI, document)
    assert found.symbols == ["the", "日本", "<unk>", "<eos>", "<eos>", "sea", "<eos>"]
    assert found.covered(document) == ["the", "日本", "🙂", "\r\n", "\r\n", "sea", ""]
    assert found.places[-1] == (len(document), len(document))


def test_line_end_follows_every_line() -> None:
    assert read(WIKI, "").symbols == []
    assert read(WIKI, "\n").symbols == ["<eos>"]
    assert read(WIKI, "the").symbols == read(WIKI, "the\n").symbols == ["the", "<eos>"]
    assert read(WIKI, "\n\nthe\n ").symbols == ["<eos>", "<eos>", "the", "<eos>", "<eos>"]
    assert read(LM1B, "the\n\nsea").symbols == ["<S>", "the", "<S>", "<S>", "<S>", "<S>", "sea", "<S>"]
    assert read(LINES, "a\n\nb").symbols == ["a", "<eos>", "<eos>", "b", "<eos>"]
    assert read(BYTE_LINES, "a\n\na").symbols == ["97", "<eos>", "<eos>", "97", "<eos>"]
    both = Vocabulary("characters", ("<eos>", "\n", "a"), line_end="<eos>")
    for without in (PLAIN, NEWLINE, ENWIK8, both):  # without line end, or the newline is an ordinary symbol
        assert "<eos>" not in read(without, "a\na").symbols


@pytest.mark.parametrize("vocabulary", EVERY, ids=str)
def test_newlines_are_spaces_for_words_without_line_end_alone(vocabulary: Vocabulary) -> None:
    tokenizer = VocabularyTokenizer(vocabulary)
    assert tokenizer.merges_newlines == (vocabulary is PLAIN)
    assert tokenizer.merges_newlines == (tokenizer.encode("a\na").tolist() == tokenizer.encode("a a").tolist())


def test_lower_casing_that_turns_one_character_into_two() -> None:
    assert read(PTB, "THE İ\n").symbols == ["the", "i̇", "<eos>"]
    vocabulary = Vocabulary("characters", ("i", "\u0307", "x"), lower_case=True)
    found = read(vocabulary, "XİX")
    assert found.symbols == ["x", "i", "\u0307", "x"]
    assert found.places == [(0, 1), (1, 2), (2, 2), (2, 3)]


def test_text8_writes_spaces_as_underlines_and_counts_missing_symbols() -> None:
    document = "\ufeff\nTo be\r\nor not\r"
    found = read(TEXT8, document)
    assert found.symbols == list("to_beor_not")
    assert found.covered(document) == list("To beor not")
    assert (found.counts.dropped_chars, found.counts.dropped_bytes) == (5, 7)
    assert (found.counts.first_token_chars, found.counts.first_token_bytes) == (1, 1)
    assert found.counts.bytes - found.counts.dropped_bytes == len(found.symbols)
    assert VocabularyTokenizer(TEXT8).decode(VocabularyTokenizer(TEXT8).encode(document)) == "to beor not"


def test_enwik8_drops_newlines_alone_and_counts_them() -> None:
    document = "\n\né – ü\n"
    raw = document.encode()
    found = read(ENWIK8, document)
    assert found.symbols == [str(byte) for byte in raw if byte != 10]
    assert found.places == [(at, at + 1) for at, byte in enumerate(raw) if byte != 10]
    assert (found.counts.dropped_bytes, found.counts.dropped_chars) == (3, 3)
    assert (found.counts.first_token_bytes, found.counts.first_token_chars) == (1, 1)
    assert (found.counts.bytes, found.counts.chars) == (len(raw), len(document))
    assert read(ENWIK8, "é").counts.first_token_bytes == 1
    assert read(ENWIK8, b"\x80\xff").counts.first_token_chars == 0  # no character begins there


def test_first_word_includes_the_text_before_it() -> None:
    counts = read(WIKI, " \t\u00a0日本 sea").counts
    assert (counts.first_token_chars, counts.first_token_bytes) == (5, 10)
    counts = read(LM1B, " the").counts  # the first token is <S>, at the place of the word
    assert (counts.first_token_chars, counts.first_token_bytes) == (1, 1)
    assert (counts.dropped_chars, counts.dropped_bytes) == (0, 0)


def test_white_space_before_the_first_word_may_fill_many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "PIECE_BYTES", 7)
    counts = read(PLAIN, "\u00a0\n" * 50 + "sea").counts
    assert (counts.first_token_chars, counts.first_token_bytes) == (103, 153)


@pytest.mark.parametrize(
    ("vocabulary", "document", "problem"),
    [
        (
            Vocabulary("words", ("a",)),
            "a c\nb d c\n",
            "'c' in line 1, 'b' in line 2, 'd' in line 2 not in the vocabulary of 1",
        ),
        (Vocabulary("words", ("a", "<eos>"), line_end="<eos>"), "a\r\n\r\nA\n", "'A' in line 3 not in"),
        (Vocabulary("words", ("a",)), "b c d e f g h i\n", "'b' in line 1, .*, 'f' in line 1 and 3 more not in"),
        (TEXT8, "ab\n\n1,\tü", r"'1' in line 3, ',' in line 3, '\\t' in line 3, 'ü' in line 3 not in .* 27 characters"),
        (Vocabulary("bytes", ("97",)), "a\nbc", r"98 \(0x62\) at byte 2, 99 \(0x63\) at byte 3 not in .* 1 bytes"),
    ],
    ids=str,
)
def test_unknown_text_is_refused_without_unk(
    vocabulary: Vocabulary, document: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for call in (VocabularyTokenizer(vocabulary).encode, lambda document: read(vocabulary, document)):
        with pytest.raises(TokenError, match=problem) as caught:
            call(document)
        assert "\n" not in str(caught.value)
    monkeypatch.setattr(text, "PIECE_BYTES", 1)
    with pytest.raises(TokenError, match="^it: " + problem.partition(", ")[0]):  # places count from the beginning
        read(vocabulary, document)


def test_unknown_may_be_skipped() -> None:
    for vocabulary, document, expected in (
        (WIKI, "the 🙂 sea\n", ["the", "sea", "<eos>"]),
        (TEXT8, "a1 b", ["a", "_", "b"]),
        (BYTE_LINES, "abé a\n", ["97", "32", "97", "<eos>"]),
    ):
        ids = VocabularyTokenizer(vocabulary, skip_unknown=True).encode(document)
        assert [vocabulary.symbols[number] for number in ids] == expected


@pytest.mark.parametrize("size", [1, 5, 7, 1000])
@pytest.mark.parametrize(
    ("raw", "at", "byte"),
    [("the sea ü".encode("latin-1"), 8, "fc"), ("the 日本".encode()[:-1], 7, "e6"), (b"the \xe6\x97sea", 4, "e6")],
)
def test_text_that_is_not_utf8_names_the_byte(
    raw: bytes, at: int, byte: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "PIECE_BYTES", size)
    for vocabulary in (WIKI, LINES):
        with pytest.raises(TextError, match=rf"^it: not UTF-8 at byte {at} \(0x{byte}\).*iconv"):
            read(vocabulary, raw)
        with pytest.raises(TextError, match=f"the text: not UTF-8 at byte {at}"):
            VocabularyTokenizer(vocabulary).encode_piece(raw, None)


def test_decoding_gives_the_text_back() -> None:
    for vocabulary, document in (
        (WIKI, "the sea\n\n<unk> 日本\n"),
        (LM1B, "the sea\nsea the\n"),
        (LINES, "ab  c\n\né\n"),
        (NEWLINE, "ab  c\n\n b\n"),
        (RETURNS, "\ufeffab\r\n c\r"),
        (BYTE_LINES, "a a\n\n"),
        (ENWIK8, "é – ü"),
    ):
        tokenizer = VocabularyTokenizer(vocabulary)
        assert tokenizer.decode(tokenizer.encode(document)) == document
        assert tokenizer.decode(np.zeros(0, np.int64)) == ""
    assert VocabularyTokenizer(ENWIK8).decode(VocabularyTokenizer(ENWIK8).encode("é")[:1]) == "\ufffd"


def test_piece_does_not_end_the_text() -> None:
    for vocabulary, expected in ((WIKI, ["the", "sea"]), (LM1B, ["<S>", "the", "sea"]), (PLAIN, ["the", "sea"])):
        ids = VocabularyTokenizer(vocabulary).encode_piece("the sea", None)
        assert [vocabulary.symbols[number] for number in ids] == expected
    tokenizer = VocabularyTokenizer(LM1B)
    assert tokenizer.encode_piece(" ", None).tolist() == []  # a line begins with its first word
    assert tokenizer.encode_piece("sea", 2).tolist() == [3]
    assert tokenizer.encode_piece("sea", 0).tolist() == [0, 3]
    assert VocabularyTokenizer(WIKI).encode_piece("\ufeffthe", None).tolist() == [1]
    assert VocabularyTokenizer(WIKI).encode_piece("\ufeffthe", 1).tolist() == [3]
    assert VocabularyTokenizer(BYTE_LINES).encode_piece("aa", 1).tolist() == [2, 2]


@pytest.mark.full
def test_long_word_does_not_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read held text only once: to read it again with each piece would be 10^11 characters."""
    monkeypatch.setattr(text, "PIECE_BYTES", 64)
    found = read(WIKI, "x" * 4_000_000)
    assert found.symbols == ["<unk>", "<eos>"]
    assert found.places[0] == (0, 4_000_000)
