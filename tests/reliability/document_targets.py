"""Targets: tables and texts as `xlexport score` reads them, against a plainer way of reading."""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from tests.reliability.target import BrokenPromiseError, InputFile, Target
from xlexport.scoring.documents import documents
from xlexport.scoring.inputs import CHUNK, Input, Reading
from xlruntime import TextError, TokenError
from xlruntime.documents import TextCounts, TokenPiece, text_pieces
from xlruntime.token_reader import TokenReader
from xlruntime.tokenizers import ByteTokenizer
from xlruntime.tokenizers.vocabulary import Vocabulary
from xlruntime.tokenizers.vocabulary_tokenizer import VocabularyTokenizer

TEXTS = ("", "plain text\nof two lines", "naïve 日本 \U0001f642\r\n\r\n e\u0301 \u2028 end", "\ufefflone \x00 nul")
STEP = 1 << 12  # tokens requested at once
MARK = b"\xef\xbb\xbf"
Documents = list[list[int] | None]  # the tokens of each document; None: it is refused


class Table(Target):
    """A table of comma-separated values, each row with a text; it is read to its end or refused."""

    errors = (TextError, TokenError)
    words = (b"\n", b"\r\n", MARK, b"\xff", b'"', b'""', b",", b"\r", b"text", b'"\n"', b'",', b'\n,"')

    def __init__(self, folder: Path) -> None:
        self._file = InputFile(folder / "documents.csv")

    def seeds(self) -> Iterable[bytes]:
        for text in TEXTS:
            file = io.StringIO()
            csv.writer(file).writerows([["n", "text", ""], ["1", text, ""], ["2", 'a "b"', ","]])
            yield file.getvalue().encode("utf-8")
        yield MARK + b'text\n\n"a\nb"c\n"d\n"\ne\xff\nf,g\n"h'
        yield b"text,text\n1,2\n"
        yield gzip.compress(b"text\npacked\n", mtime=0)

    def read(self, raw: bytes) -> object:
        path, tokenizer = self._file.write(raw), ByteTokenizer()
        reading = Reading(field="text", binary=True, delimiter=",")
        result: Documents = []
        for document in documents([Input(str(path), path)], reading, io.BytesIO(), keep=False):
            ids: list[int] = []
            try:
                reader = TokenReader(document, tokenizer, 256)
                while len(piece := reader.take(STEP)):
                    ids += piece.ids.tolist()
            except self.errors:
                result.append(None)
            else:
                result.append(ids)
        try:
            expected = plain_rows(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
        except (OSError, EOFError, zlib.error):
            expected = [None]
        if result != expected:
            raise BrokenPromiseError(f"found {str(result)[:200]}, expected {str(expected)[:200]}")
        return result


def plain_rows(raw: bytes) -> Documents:
    """Return the text of each row in the plainest way."""
    if b"\r" in raw[:CHUNK] and b"\n" not in raw[:CHUNK]:  # lines end with CR
        raw = raw.replace(b"\r", b"\n")
    lines = re.findall(rb"[^\n]*\n|[^\n]+", raw)
    decoded = map(lambda number: lines[number].decode("utf-8" if number else "utf-8-sig"), range(len(lines)))
    reader = csv.reader(decoded, strict=True)
    names: list[str] = []
    result: Documents = []
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return result
        except (csv.Error, UnicodeDecodeError):
            result.append(None)
            if not names:
                return result
            continue
        if cells and not names:
            names = cells
            if names.count("text") != 1 or any(name and names.count(name) > 1 for name in names):
                return [None]
        elif cells:
            result.append(list(cells[names.index("text")].encode()) if len(cells) == len(names) else None)


class _Cut:
    """A file that returns fewer bytes than requested, so that readers see every possible cut."""

    def __init__(self, raw: bytes, step: int) -> None:
        self._file, self._step = io.BytesIO(raw), step

    def read(self, size: int = -1) -> bytes:
        return self._file.read(self._step if size < 0 else min(size, self._step))


class Utf8(Target):
    """A text in UTF-8, cut into pieces; the first byte is their length."""

    errors = (TextError,)
    longest = 512
    words = (b"\xc3\xa9", b"\xe6\x97\xa5", b"\xf0\x9f\x99\x82", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", MARK)

    def __init__(self, folder: Path) -> None:
        """Need nothing."""

    def seeds(self) -> Iterable[bytes]:
        yield from (bytes([step]) + text.encode() for text in TEXTS for step in (1, 2, 3, 7))

    def read(self, raw: bytes) -> object:
        step, raw = max(raw[:1], b"\1")[0], raw[1:]
        counts, expected_counts = TextCounts(), TextCounts()
        expected_counts.add(raw)
        pieces = text_pieces(cast(BinaryIO, _Cut(raw, step)), "the text", counts)
        try:
            expected = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            try:
                list(pieces)
            except TextError as refused:
                if f"byte {error.start} " in refused.message:
                    return None
            raise BrokenPromiseError(f"the text is broken at byte {error.start}, and another was named") from error
        text = "".join(pieces)
        if text != expected or counts != expected_counts:
            raise BrokenPromiseError(f"{text[:80]!r} and {counts}, expected {expected[:80]!r} and {expected_counts}")
        return text


class Words(Target):
    """A text that a vocabulary tokenizes; the first byte chooses the vocabulary, the second the length of pieces."""

    errors = (TextError, TokenError)
    longest = 512
    words = (
        b"\n",
        b"\r\n",
        MARK,
        b"\xff",
        b" ",
        b"\r",
        b"the",
        b"\xc2\xa0",
        b"\xe2\x80\xa8",
        b"\xc4\xb0",
        b"\x1c",
        b"\x85",
    )

    def __init__(self, folder: Path) -> None:
        letters, space = tuple("abcdehoftuw\u0130"), {"space": "_"}
        some = [str(byte) for byte in range(256) if byte % 7]
        vocabularies = (
            Vocabulary("words", ("<unk>", "<eos>", "the", "of"), unk="<unk>", line_end="<eos>"),
            Vocabulary("words", ("<UNK>", "<S>", "the"), unk="<UNK>", line_start="<S>", line_end="<S>"),
            Vocabulary("words", ("the", "of", "i\u0307"), lower_case=True),
            Vocabulary("characters", ("_", *letters), lower_case=True, **space),
            Vocabulary("characters", ("\n", "\r", "\ufeff", " ", "?", *letters), unk="?"),
            Vocabulary("bytes", (*some, "<unk>", "<eos>"), unk="<unk>", line_end="<eos>"),
            Vocabulary("bytes", tuple(some)),
        )
        self._tokenizers = [VocabularyTokenizer(each, skip) for each in vocabularies for skip in (False, True)]

    def seeds(self) -> Iterable[bytes]:
        texts = (*TEXTS, "the of\n\nthe\r\nof the", "  the \u0130 \r", "\ufeff\ufeffthe")
        yield from (bytes([kind, 3]) + text.encode() for text in texts for kind in range(len(self._tokenizers)))

    def read(self, raw: bytes) -> object:
        kind, step, raw = *max(raw[:2], b"\0\1").ljust(2, b"\1"), raw[2:]
        tokenizer = self._tokenizers[kind % len(self._tokenizers)]
        whole, cut = self._tokens(tokenizer, raw, len(raw) + 1), self._tokens(tokenizer, raw, max(step, 1))
        if whole != cut:
            raise BrokenPromiseError(f"cut every {step} bytes: {str(cut)[:200]}, whole: {str(whole)[:200]}")
        return whole

    def _tokens(self, tokenizer: VocabularyTokenizer, raw: bytes, step: int) -> object:
        """Return the tokens with their places and counts; None if the text is refused.

        Whether a word or a byte is refused first depends on the cuts.
        """
        counts, pieces = TextCounts(), [TokenPiece(*(np.zeros(0, np.int64) for _ in range(3)))]
        try:
            pieces += tokenizer.read(cast(BinaryIO, _Cut(raw, step)), "the text", counts)
        except self.errors:
            return None
        columns = [np.concatenate([getattr(p, name) for p in pieces]).tolist() for name in ("ids", "starts", "ends")]
        return columns, asdict(counts)
