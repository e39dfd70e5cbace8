"""Cut the documents of a run into chunks, which processes share, and score one chunk after the other.

Where chunks begin depends on the documents alone, so any number of processes writes the same bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from xlexport.scoring.inputs import Input
from xlexport.scoring.run_options import RunOptions
from xlexport.scoring.session import Scored, Writing
from xlruntime import Document, Model
from xlruntime.scorer import Scorer

__all__ = ["Chunk", "Message", "chunks", "score_chunk"]

MOST_DOCUMENTS = 128
MOST_BYTES = 1 << 16  # of text; a longer document is a chunk of its own
TOKEN_BYTES = 8  # of a document that is a list of token ids

Chunk = list[tuple[Input, Document]]
Message = str | list[Scored] | None
"""A note for people, parts of documents in order, or the end of a chunk."""


def chunks(given: Iterable[tuple[Input, Document]]) -> Iterator[Chunk]:
    """Yield consecutive documents together, until they are many or long."""
    chunk: Chunk = []
    total = 0
    for file, document in given:
        size = _size(file, document)
        if chunk and (size is None or total + size > MOST_BYTES):
            yield chunk
            chunk, total = [], 0
        chunk.append((file, document))
        total += MOST_BYTES if size is None else size
        if len(chunk) == MOST_DOCUMENTS or total >= MOST_BYTES:
            yield chunk
            chunk, total = [], 0
    if chunk:
        yield chunk


def _size(file: Input, document: Document) -> int | None:
    """Return about how many bytes a document has; None: unknown."""
    source: Any = document.source
    if isinstance(source, list):
        return TOKEN_BYTES * len(source)
    return getattr(source, "held", 0) or file.size


def score_chunk(model: Model, options: RunOptions, scorer: Scorer, chunk: Chunk, with_speed: bool) -> Iterator[Message]:
    """Score a chunk, and yield parts in the order of the documents.

    Args:
        scorer: a scorer that is at no document.
        with_speed: as for `Writing`.

    Raises:
        XlruntimeError, OSError: with `strict`, the error of the first document that fails; otherwise only errors that
        no document causes.
    """
    writing = Writing(model, options, with_speed)
    scorer.taken = 0
    steps = scorer.steps(writing.begun(iter(chunk)))
    if len(chunk) > 1:  # their parts alternate; such documents are short
        parts = sorted(itertools.chain.from_iterable(steps), key=lambda part: part.number)
        yield [_plain(writing.write(part)) for part in parts]
    else:
        for found in steps:
            yield [_plain(writing.write(part)) for part in found]
    yield None


def _plain(scored: Scored) -> Scored:
    """Return a part without the arrays that only its records need, for other processes."""
    none = scored.part.index[:0]
    part = replace(
        scored.part,
        index=none,
        context=none,
        rank=None,
        entropy=None,
        top_ids=None,
        top_log_probs=None,
        word_ends=None,
        last_word_end=None,
        first=None,
    )
    return replace(scored, part=part)
