"""Targets: documents as `xlexport score` reads them. If there is a plainer way of reading, both must agree."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO, ClassVar, cast

import numpy as np

from reliability.guided.target import BrokenPromiseError, InputFile, Target
from xlexport.scoring.documents import documents
from xlexport.scoring.inputs import Input, Reading
from xlruntime import TextError, TokenError
from xlruntime.documents import TextCounts, TokenPiece, text_pieces
from xlruntime.token_reader import TokenReader
from xlruntime.tokenizers import ByteTokenizer
from xlruntime.tokenizers.vocabulary import Vocabulary
from xlruntime.tokenizers.vocabulary_tokenizer import VocabularyTokenizer

__all__ = ["Gzip", "Ids", "JsonIds", "JsonLines", "Regions", "Table", "Utf8", "Words"]

TEXTS = ("", "plain text\nof two lines", "naïve 日本 \U0001f642\r\n\r\n e\u0301 \u2028 end", "\ufefflone \x00 nul")
MOST_IDS = 1000
STEP = 1 << 12  # tokens requested at once


class _Documents(Target):
    """A file of documents; each is read to its end or refused."""

    errors = (TextError, TokenError)
    reading = Reading(binary=True)
    suffix = ""

    def __init__(self, folder: Path) -> None:
        self._file = InputFile(folder / f"documents{self.suffix}")

    def documents(self, raw: bytes) -> list[list[int] | None]:
        """Return the tokens of each document, or None for a refused document."""
        path, tokenizer = self._file.write(raw), ByteTokenizer()
        found: list[list[int] | None] = []
        for document in documents([Input(str(path), path)], self.reading, io.BytesIO(), keep=False):
            ids: list[int] = []
            try:
                reader = TokenReader(document, tokenizer, MOST_IDS)
                while len(piece := reader.take(STEP)):
                    ids += piece.ids.tolist()
            except self.errors:
                found.append(None)
            else:
                found.append(ids)
        return found

    def expected(self, raw: bytes) -> list[list[int] | None]:
        """Return the result of the plainest way of reading."""
        raise BrokenPromiseError("nothing to compare with")

    def read(self, raw: bytes) -> object:
        found, expected = self.documents(raw), self.expected(raw)
        if found != expected:
            raise BrokenPromiseError(f"found {str(found)[:200]}, expected {str(expected)[:200]}")
        return found


class JsonLines(_Documents):
    """JSON lines, each with a text."""

    reading = Reading(field="text", id_field="id", binary=True)
    words: ClassVar[tuple[bytes, ...]] = (
        b'{"text":',
        b'"id"',
        b"\\ud800",
        b"\\u00e9",
        b"\xef\xbb\xbf",
        b'"text": "',
        b"\n",
        b"\r\n",
        b"NaN",
        b"1e999",
    )

    def seeds(self) -> Iterable[bytes]:
        yield "\n".join(json.dumps({"text": text, "id": place}) for place, text in enumerate(TEXTS)).encode()
        yield b'{"text": "a", "id": [1, {"b": null}]}\n\n{"text": 3}\n[]\nnot JSON\n{"text": "\\ud800"}'
        yield gzip.compress(b'{"text": "packed"}\n', mtime=0)

    def expected(self, raw: bytes) -> list[list[int] | None]:
        lines = _unpacked(raw)
        return [None] if lines is None else [self.of_line(line) for line in lines.split(b"\n") if line.strip()]

    def of_line(self, line: bytes) -> list[int] | None:
        """Return the tokens of one line."""
        try:
            value = json.loads(line.strip().decode("utf-8-sig"))
            text = value["text"]
            return list(text.encode("utf-8")) if isinstance(value, dict) and isinstance(text, str) else None
        except (ValueError, RecursionError, KeyError, TypeError, IndexError):
            return None


class JsonIds(JsonLines):
    """JSON lines, each with a list of token ids."""

    reading = Reading(field="text", ids=True, binary=True)
    words = (b'{"text": [', b"[1, 2]", b"true", b"-1", b"1000", b"1.0", b"9223372036854775808", b"[[1]]", b"null")

    def seeds(self) -> Iterable[bytes]:
        yield b'{"text": [1, 2, 999]}\n{"text": []}\n{"text": [1000]}\n{"text": [true, 1]}\n{"text": [1.5]}'
        yield b'{"text": "a"}\n{"text": [[1], [2]]}\n{"text": [9223372036854775808]}\n'

    def of_line(self, line: bytes) -> list[int] | None:
        try:
            value = json.loads(line.strip().decode("utf-8-sig"))
            ids = value["text"]
        except (ValueError, RecursionError, KeyError, TypeError, IndexError):
            return None
        is_good = isinstance(value, dict) and isinstance(ids, list) and all(type(token) is int for token in ids)
        return ids if is_good and all(0 <= token < MOST_IDS for token in ids) else None


class Table(_Documents):
    """A table of comma-separated values, each row with a text."""

    suffix = ".csv"
    reading = Reading(field="text", binary=True)
    words = (b'"', b'""', b",", b"\n", b"\r\n", b"\r", b"text", b"\xef\xbb\xbf", b'"\n"', b'",', b'\n,"', b"\xff")

    def seeds(self) -> Iterable[bytes]:
        for text in TEXTS:
            file = io.StringIO()
            csv.writer(file).writerows([["n", "text", ""], ["1", text, ""], ["2", 'a "b"', ","]])
            yield file.getvalue().encode("utf-8")
        yield b'\xef\xbb\xbftext\n\n"a\nb"c\n"d\n"\ne\xff\nf,g\n"h'
        yield b"text,text\n1,2\n"
        yield gzip.compress(b"text\npacked\n", mtime=0)

    def expected(self, raw: bytes) -> list[list[int] | None]:
        text = _unpacked(raw)
        if text is None:
            return [None]
        lines = re.findall(rb"[^\n]*\n|[^\n]+", text)
        decoded = map(lambda number: lines[number].decode("utf-8" if number else "utf-8-sig"), range(len(lines)))
        reader = csv.reader(decoded, strict=True)
        found: list[list[int] | None] = []
        names: list[str] | None = None
        while True:
            try:
                cells = next(reader, None)
            except (csv.Error, UnicodeDecodeError):
                found.append(None)
                if names is None:
                    return found
                continue
            if cells is None:
                return found
            if cells and names is None:
                names = cells
                if names.count("text") != 1 or any(name and names.count(name) > 1 for name in names):
                    return [None]
            elif cells and names is not None:
                found.append(list(cells[names.index("text")].encode()) if len(cells) == len(names) else None)


class Ids(_Documents):
    """A file of token ids, separated by white space."""

    reading = Reading(ids=True, binary=True)
    words = (b" ", b"\n", b"\t", b"-1", b"999", b"1000", b"1_0", b"\xef\xbb\xbf", b"0x1", b"9223372036854775808")

    def seeds(self) -> Iterable[bytes]:
        yield from (b"1 2 3\n999\t0\r\n", b"\xef\xbb\xbf7 8", b"", b" \n", b"1 two 3", b"1000", b"-1", b"9" * 30)
        yield gzip.compress(b"4 5 6", mtime=0)

    def expected(self, raw: bytes) -> list[list[int] | None]:
        text = _unpacked(raw)
        try:
            ids = None if text is None else [int(word) for word in text.removeprefix(b"\xef\xbb\xbf").split()]
        except ValueError:
            ids = None
        return [ids if ids is not None and all(0 <= token < MOST_IDS for token in ids) else None]


class Regions(_Documents):
    """A text with marks between regions, which are removed."""

    reading = Reading(cut="marks", binary=True)
    words = (b"|", b" | ", b"||", b"|\n", b"\t|", b"\xc3\xa9")

    def seeds(self) -> Iterable[bytes]:
        yield from (b"The horse | raced |past\n", b"|one|", b" | a |\n", b"a||b", b"| |", b"un|kind", b"", b"no mark")

    def expected(self, raw: bytes) -> list[list[int] | None]:
        packed = _unpacked(raw)
        if packed is None:
            return [None]
        regions = packed.split(b"|")
        if len(regions) > 1 and not regions[0].strip():
            del regions[0]
        if len(regions) > 1 and not regions[-1].strip():
            del regions[-1]
        if len(regions) > 1 and not all(region.strip() for region in regions):
            return [None]
        return [list(re.sub(rb"(?<=[ \t\n\r\v\f])\|+[ \t\n\r\v\f]*", b"", packed).replace(b"|", b""))]


class Gzip(_Documents):
    """A packed text, of one member or several."""

    suffix = ".gz"
    longest = 1024  # unpacked it is a thousand times as long
    of_library = True
    words = (b"\x1f\x8b\x08", b"\x00\x00\x00\x00", b"\x02\xff", b"name\x00")

    def seeds(self) -> Iterable[bytes]:
        packed = [gzip.compress(text.encode(), mtime=0) for text in TEXTS]
        yield from (*packed, b"".join(packed), packed[1] + bytes(8), packed[1][:-4], b"not packed")
        with_name = io.BytesIO()
        with gzip.GzipFile("name", "wb", fileobj=with_name, mtime=0) as file:
            file.write(b"named")
        yield with_name.getvalue()

    def expected(self, raw: bytes) -> list[list[int] | None]:
        text = _unpacked(raw, named=True)
        return [None if text is None else list(text)]


def _unpacked(raw: bytes, named: bool = False) -> bytes | None:
    """Return the text of a file; None if it is broken."""
    if not named and raw[:2] != b"\x1f\x8b":
        return raw
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error):
        return None


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
    words = (
        b"\xc3\xa9",
        b"\xe6\x97\xa5",
        b"\xf0\x9f\x99\x82",
        b"\xed\xa0\x80",
        b"\xc0\x80",
        b"\xf4\x90\x80\x80",
        b"\xef\xbb\xbf",
    )

    def __init__(self, folder: Path) -> None:
        """Need nothing."""

    def seeds(self) -> Iterable[bytes]:
        yield from (bytes([step]) + text.encode() for text in TEXTS for step in (1, 2, 3, 7))

    def read(self, raw: bytes) -> object:
        step, raw = max(raw[:1], b"\1")[0], raw[1:]
        counts, whole = TextCounts(), TextCounts()
        whole.add(raw)
        try:
            expected = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            try:
                list(text_pieces(cast(BinaryIO, _Cut(raw, step)), "the text", counts))
            except TextError as refused:
                if f"byte {error.start} " in refused.message:
                    return None
            raise BrokenPromiseError(f"the text is broken at byte {error.start}, and another was named") from error
        found = "".join(text_pieces(cast(BinaryIO, _Cut(raw, step)), "the text", counts))
        if found != expected or counts != whole:
            raise BrokenPromiseError(f"{found[:80]!r} and {counts}, expected {expected[:80]!r} and {whole}")
        return found


class Words(Target):
    """A text that a vocabulary tokenizes; the first byte chooses the vocabulary, the second the length of pieces."""

    errors = (TextError, TokenError)
    longest = 512
    words = (
        b" ",
        b"\n",
        b"\r",
        b"\r\n",
        b"\xef\xbb\xbf",
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
        self._tokenizers = [
            VocabularyTokenizer(vocabulary, skip_unknown)
            for vocabulary in (
                Vocabulary("words", ("<unk>", "<eos>", "the", "of"), unk="<unk>", line_end="<eos>"),
                Vocabulary("words", ("<UNK>", "<S>", "the"), unk="<UNK>", line_start="<S>", line_end="<S>"),
                Vocabulary("words", ("the", "of", "i\u0307"), lower_case=True),
                Vocabulary("characters", ("_", *letters), lower_case=True, **space),
                Vocabulary("characters", ("\n", "\r", "\ufeff", " ", "?", *letters), unk="?"),
                Vocabulary("bytes", (*some, "<unk>", "<eos>"), unk="<unk>", line_end="<eos>"),
                Vocabulary("bytes", tuple(some)),
            )
            for skip_unknown in (False, True)
        ]

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
