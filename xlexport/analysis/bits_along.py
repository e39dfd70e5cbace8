"""Bits along a document: in windows of equal length, and from its beginning up to each place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from xlexport.callbacks import Progress, no_progress
from xlexport.errors import XlexportError
from xlruntime import Document, Model
from xlruntime.scores import LN2

__all__ = ["BitsAlong", "bits_along", "nice_window"]

WINDOWS = 200  # of the longest document, at most

Places = npt.NDArray[np.int64]
Bits = npt.NDArray[np.float64]


@dataclass(frozen=True)
class BitsAlong:
    """The cost of a document's tokens by their places in it.

    The unit of places (`unit`) is bytes for text, and tokens for a document given as ids. The bits of a token are
    spread evenly from the end of the previous token to its own end.

    Attributes:
        document: its name.
        ends: (n,) ends of the windows, in units; the last window may be shorter.
        windowed: (n,) bits per unit in each window.
        running: (n,) bits per unit from the end of the first token to the end of each window.
    """

    document: str
    unit: str
    window: int
    ends: Places
    windowed: Bits
    running: Bits

    def to_dict(self) -> dict[str, Any]:
        """Return all fields for JSON."""
        fields = asdict(self)
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in fields.items()}


def nice_window(length: int) -> int:
    """Return 1, 2 or 5 times a power of ten, so that at most 200 windows cover `length` units."""
    least = max(1.0, length / WINDOWS)
    power = 10 ** math.floor(math.log10(least))
    return next(int(factor * power) for factor in (1, 2, 5, 10) if factor * power >= least)


def bits_along(
    model: Model,
    documents: Sequence[Document],
    *,
    unit: str,
    window: int | None = None,
    batch_size: int = 1,
    progress: Progress = no_progress,
    **evaluation: Any,
) -> list[BitsAlong]:
    """Score documents and return the bits along each of them.

    Args:
        unit: `byte`, or `token` for documents given as ids. Bytes need sources that hold the text after it was read: a
            text, bytes, or a source with `kept`.
        window: units in one window; None: `nice_window` of the longest document.
        progress: called with the number of finished documents, and the number of all documents.
        evaluation: see `Model.evaluation`.

    Raises:
        XlexportError: a document has nothing to score, or scores are not finite.
        TextError, TokenError, OptionError, OSError: as in `Model.score`.
    """
    names = [document.name for document in documents]
    parts: list[list[tuple[Places, npt.NDArray[np.float32]]]] = [[] for _ in names]
    begins = [0 for _ in names]
    finished_documents = 0
    for part in model.score_tokens(documents, batch_size=batch_size, **evaluation):
        parts[part.number].append((part.ends, part.log_probs))
        if part.first is not None:
            begins[part.number] = int(part.first.ends[-1])
        if part.summary is not None and unit == "byte" and model.bundle.tokenizer.kind != "bytes":
            at = _byte_places(documents[part.number].source)
            begins[part.number] = int(at[begins[part.number]])
            parts[part.number] = [(at[ends], log_probs) for ends, log_probs in parts[part.number]]
        finished_documents += part.summary is not None
        progress(finished_documents, len(names))
    if empty := [name for name, pieces in zip(names, parts, strict=True) if not any(len(ends) for ends, _ in pieces)]:
        raise XlexportError(
            f"{', '.join(empty)}: fewer than two tokens, so nothing to score.", hint="Give longer texts."
        )
    joined = [tuple(map(np.concatenate, zip(*pieces, strict=True))) for pieces in parts]
    width = window or nice_window(max(int(ends[-1]) for ends, _ in joined))
    for name, (_, log_probs) in zip(names, joined, strict=True):
        if not np.isfinite(log_probs).all():
            raise XlexportError(
                f"{name}: some scores are not finite, so a curve cannot be drawn.", hint="Try a float32 bundle."
            )
    return [
        _curve(name, begin, ends, -log_probs.astype(np.float64) / LN2, unit, width)
        for name, begin, (ends, log_probs) in zip(names, begins, joined, strict=True)
    ]


def _byte_places(source: Any) -> Places:
    """Return the byte at which each character of a document begins, and the end of the last."""
    held = source if isinstance(source, str | bytes) else bytes(source.kept)
    text = held if isinstance(held, str) else held.decode("utf-8", "surrogateescape")
    marks = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    escaped = (marks >= 0xDC80) & (marks <= 0xDCFF)  # a byte that is not UTF-8
    lengths = np.where(escaped, 1, 1 + np.sum([marks >= least for least in (0x80, 0x800, 0x10000)], axis=0))
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _curve(name: str, begin: int, ends: Places, bits: Bits, unit: str, window: int) -> BitsAlong:
    """Cut the cumulative bits at the windows' ends.

    Args:
        begin: the end of the first token, which has no bits.
        ends, bits: (N,) of the scored tokens.
    """
    last = int(ends[-1])
    edges = np.append(np.arange(window, last, window), last)
    edges = edges[edges > begin]
    places = np.concatenate([[begin], ends])
    spent = np.interp(edges, places, np.concatenate([[0.0], np.cumsum(bits)]))
    lengths = np.diff(np.concatenate([[begin], edges]))
    return BitsAlong(
        document=name,
        unit=unit,
        window=window,
        ends=edges.astype(np.int64),
        windowed=np.diff(np.concatenate([[0.0], spent])) / lengths,
        running=spent / (edges - begin),
    )
