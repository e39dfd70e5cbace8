"""Find which part of a text each of its tokens stands for: the parts of consecutive tokens, joined, are the text."""

from __future__ import annotations

import codecs
import io
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from xlruntime import GrowingText, XlruntimeError
from xlruntime.documents import TextCounts, Tokenizer
from xlruntime.tokenizers import ByteTokenizer

__all__ = ["ends_in_text", "text_of_run"]

Ends = npt.NDArray[np.int64]


def ends_in_text(tokenizer: Tokenizer, text: str, ids: Sequence[int] | Ends) -> Ends | None:
    """Return where each token ends in the text from which it comes (n,), in characters; None: it is not known.

    A character of several tokens belongs to one of them. What is behind the last token's place belongs to that token.
    """
    raw, wanted = text.encode("utf-8", "surrogatepass"), np.asarray(ids, np.int64)
    try:
        pieces = list(tokenizer.read(io.BytesIO(raw), "the prompt", TextCounts()))
    except XlruntimeError:
        return None
    found = np.concatenate([wanted[:0], *(piece.ids for piece in pieces)])[: len(wanted)]
    if not np.array_equal(found, wanted):
        return None
    ends = np.concatenate([wanted[:0], *(piece.ends for piece in pieces)])[: len(wanted)]
    if tokenizer.offsets_in_bytes:
        ends = _ends_of_bytes(raw)[1][np.maximum(ends, 1) - 1] * (ends > 0)
    ends = np.minimum(np.maximum.accumulate(ends), len(text))
    if len(ends):
        ends[-1] = len(text)
    return ends


def text_of_run(tokenizer: Tokenizer, ids: Sequence[int] | Ends, before: Sequence[int] = ()) -> tuple[str, Ends]:
    """Return the text of tokens after those `before`, and where each ends in it (n,), in characters."""
    if isinstance(tokenizer, ByteTokenizer):
        values = np.asarray(ids, np.int64) - tokenizer.first_id
        is_byte = (values >= 0) & (values < 256)
        text, ends = _ends_of_bytes(values[is_byte].astype(np.uint8).tobytes())
        return text, np.concatenate([[0], ends])[np.cumsum(is_byte)]
    growing = GrowingText(tokenizer, before)
    parts = [growing.add(int(token)) for token in ids]
    return _joined(parts, growing.end())


def _ends_of_bytes(raw: bytes) -> tuple[str, Ends]:
    """Return the characters of bytes, and the number of those that are complete after each byte (n,)."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        parts = [decoder.decode(raw[place : place + 1]) for place in range(len(raw))]
        return _joined(parts, decoder.decode(b"", final=True))
    values = np.frombuffer(raw, np.uint8)
    begins = (values & 0xC0) != 0x80
    return text, np.cumsum(np.append(begins[1:], True)[: len(values)]).astype(np.int64)


def _joined(parts: list[str], rest: str) -> tuple[str, Ends]:
    """Return a text and where each of its parts ends; the last one has the rest."""
    if parts:
        parts[-1] += rest
    return "".join(parts), np.cumsum([len(part) for part in parts], dtype=np.int64)
