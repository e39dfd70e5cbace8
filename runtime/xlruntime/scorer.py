"""Score many documents at once: each batch row walks one document and takes the next when it is done."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .documents import Document, Source, TokenPiece, TokenReader, check_length
from .engine import Engine
from .errors import OptionError, XlruntimeError
from .evaluation import EvaluationSettings
from .memory import BatchMemory
from .scores import DocumentScore, TokenScores, total_score
from .stream import warn_not_finite

__all__ = ["Scorer", "Walk"]

UNREADABLE = (XlruntimeError, OSError)  # errors of reading a document


@dataclass
class Walk:
    """One document on its row of the batch."""

    number: int
    reader: TokenReader
    held: int  # the last token read; its successor is the next target
    position: int  # index of the next target
    first: TokenPiece | None = None  # the document's first token, until a part has reported it
    unscored: int = 1  # 0 if the first token has the context of the previous document
    log_prob_sum: float = 0.0
    begun_at: int = 0  # the position at which this process began or resumed it
    started: float = field(default_factory=time.perf_counter)

    @property
    def name(self) -> str:
        """The document's name."""
        return self.reader.document.name


class Scorer:
    """A scorer that packs documents into the rows of a batch.

    Rows are independent: a document's scores do not depend on its neighbours. Padding only follows a document's
    end. When a document ends, its row restarts with the next one. When no document waits and half the rows are idle,
    the batch shrinks. A document that is one step has no neighbours, because padding would change its scores.

    Args:
        detail: number of likeliest tokens to list, with rank and entropy; None: no such detail.
        continuous: carry memory from document to document, in order, in one row. Only the very first token has no
            context; `index` still counts each document's own tokens.
        keep_going: end an unreadable document with a part that has an `error`, instead of raising the error.

    Raises:
        OptionError: a setting is out of range, or does not apply to this bundle.

    Attributes:
        memory, rows, taken: the state that `scorer_state` saves: the memory of the batch (None before the first step),
            the document of each row, and the number of documents taken so far.
        last: the last token of the previous document, if `continuous`.
    """

    def __init__(
        self,
        engine: Engine,
        evaluation: EvaluationSettings,
        batch_size: int = 1,
        detail: int | None = None,
        *,
        continuous: bool = False,
        keep_going: bool = False,
    ) -> None:
        if batch_size < 1:
            raise OptionError(f"batch size is {batch_size}, at least 1 is needed.")
        if detail is not None:
            _check_detail(engine, detail)
        if continuous:
            _check_continuous(evaluation, batch_size)
        self.engine = engine
        self.evaluation = evaluation
        self.batch_size = 1 if evaluation.whole else batch_size
        self.detail = detail
        self.continuous = continuous
        self.keep_going = keep_going
        self.memory: BatchMemory | None = None
        self.rows: list[Walk | None] = []
        self.taken = 0
        self.last: int | None = None
        self._purpose = "score" if detail is None else "detail"
        self._longest_step = engine.longest_step(self._purpose, evaluation.segment_len)

    def documents(self, documents: Iterable[Document | Source]) -> Iterator[DocumentScore]:
        """Yield the total of each document, in the order of the documents."""
        done: dict[int, DocumentScore] = {}
        following = 0
        for scores in self.tokens(documents):
            if scores.summary is not None:
                done[scores.number] = scores.summary
            while following in done:
                yield done.pop(following)
                following += 1

    def tokens(self, documents: Iterable[Document | Source]) -> Iterator[TokenScores]:
        """Yield the scores of every document's tokens, step by step; parts of different documents alternate."""
        for parts in self.steps(documents):
            yield from parts

    def steps(self, documents: Iterable[Document | Source]) -> Iterator[list[TokenScores]]:
        """Yield the scores of all rows of a step together; between two steps, `scorer_state` can save the scorer.

        Args:
            documents: the documents that have not been taken yet.
        """
        waiting = iter(documents)
        rows = self.rows
        while True:
            # Fill idle rows; before the first step, also add rows.
            while (None in rows) or (self.memory is None and len(rows) < self.batch_size):
                given = next(waiting, None)
                if given is None:
                    break
                walk = self._open(given)
                if isinstance(walk, TokenScores):  # nothing to score in it
                    yield [walk]
                elif None in rows:
                    row = rows.index(None)
                    rows[row] = walk
                    assert self.memory is not None
                    if not self.continuous:
                        self.memory.restart(row)
                else:
                    rows.append(walk)
            active = [row for row, walk in enumerate(rows) if walk is not None]
            if not active:
                return
            if self.memory is None:
                self.memory = self.engine.new_memory(self.evaluation, len(rows))
            elif len(active) <= len(rows) // 2:
                self.memory = self.memory.take(active)
                rows[:] = [rows[row] for row in active]
            yield self._step(self.memory)

    def _open(self, given: Document | Source) -> Walk | TokenScores:
        """Begin a document; return its end at once if it has nothing to score."""
        number, self.taken = self.taken, self.taken + 1
        document = given if isinstance(given, Document) else Document(_name(given, number), given)
        reader = TokenReader(document, self.engine.tokenizer, self.engine.bundle.vocab_size)
        walk = Walk(number, reader, 0, position=0)
        try:
            longest = self.evaluation.longest_document
            if longest is not None and not self.evaluation.restart and reader.at_hand and reader.has(longest + 1):
                self._refuse_longer(document.name)
            if self.last is not None:
                walk.held, walk.unscored = self.last, 0
            elif len(first := reader.take(1)):
                walk.held, walk.position, walk.first = int(first.ids[0]), 1, first
            if not reader.at_end:
                return walk
        except UNREADABLE as error:
            return self._failed(walk, error)
        if self.continuous and walk.position:
            self.last = walk.held
        return self._scores(walk, *self._nothing())

    def _failed(self, walk: Walk, error: Exception) -> TokenScores:
        """Return the last part of an unreadable document."""
        if not self.keep_going:
            raise error
        return self._scores(walk, *self._nothing(), error=error)

    def _nothing(self) -> tuple[TokenPiece, npt.NDArray[np.float32], npt.NDArray[np.int64], dict[str, Any]]:
        none = np.zeros(0, np.int64)
        detail = {} if self.detail is None else _no_detail(self.detail)
        return TokenPiece(none, none, none), np.zeros(0, np.float32), none, detail

    def _refuse_longer(self, name: str) -> None:
        """Raise TextError for a document with more tokens than can be scored, unless it may restart."""
        longest = self.evaluation.longest_document
        assert longest is not None
        check_length(longest + 1, self.evaluation, name, f"more than {longest:,} tokens")

    def _make_room(self, memory: BatchMemory) -> Iterator[TokenScores]:
        """Restart all rows without positions left, idle ones too; yield ends of documents that must not restart."""
        for row in np.flatnonzero(memory.room == 0).tolist():
            walk = self.rows[row]
            if walk is not None:
                try:
                    self._refuse_longer(walk.name)
                except UNREADABLE as error:
                    yield self._failed(self._leave(row), error)
            memory.restart(row)

    def _step(self, memory: BatchMemory) -> list[TokenScores]:
        """Run one segment of every row that has a document."""
        found = list(self._make_room(memory))
        longest = min(self._longest_step, int(memory.room.min()))  # padding needs positions too
        pieces: dict[int, TokenPiece] = {}
        for row, walk in enumerate(self.rows):
            if walk is not None:
                try:
                    pieces[row] = self._take(walk, longest)
                except UNREADABLE as error:
                    found.append(self._failed(self._leave(row), error))
        if not pieces:
            return found
        B, S = len(self.rows), max(len(piece) for piece in pieces.values())
        if self.evaluation.reads_last and longest > S:
            S += 1  # for the document's last token, whose prediction is dropped
        tokens = np.zeros((B, S), np.int64)
        targets = np.zeros((B, S), np.int64)
        for row, piece in pieces.items():
            read = np.concatenate([[self._walk(row).held], piece.ids])
            n = S if self.evaluation.reads_last else len(piece)
            tokens[row, :n] = read[:n]
            targets[row, : len(piece)] = piece.ids
        context = memory.context(S)
        outputs = self.engine.step(self._purpose, memory, tokens, targets)
        log_prob = outputs["log_prob"]
        for row, piece in pieces.items():
            walk, n = self._walk(row), len(piece)
            if not np.isfinite(log_prob[row]).all():
                memory.restart(row, refill=True)
                warn_not_finite(walk.name, walk.position + n)
            detail = {} if self.detail is None else _detail_of(outputs, row, n, self.detail)
            scores = self._scores(walk, piece, log_prob[row, :n].copy(), context[row, :n], detail)
            found.append(scores)
            if scores.summary is not None or scores.error is not None:
                self._leave(row)
        return found

    def _take(self, walk: Walk, longest: int) -> TokenPiece:
        """Return the targets of the next step, at most `longest`."""
        piece = walk.reader.take(longest)
        if self.evaluation.reads_last and len(piece) == longest:
            self._refuse_longer(walk.name)  # the last of them could not be read
        return piece

    def _walk(self, row: int) -> Walk:
        walk = self.rows[row]
        assert walk is not None
        return walk

    def _leave(self, row: int) -> Walk:
        """Release a row, and return the walk of its document."""
        walk, self.rows[row] = self._walk(row), None
        if self.continuous:
            self.last = walk.held
        return walk

    def _scores(
        self,
        walk: Walk,
        piece: TokenPiece,
        log_probs: npt.NDArray[np.float32],
        context: npt.NDArray[np.int64],
        detail: Mapping[str, npt.NDArray[Any]],
        error: Exception | None = None,
    ) -> TokenScores:
        """Count `piece` as scored; with the last piece, add the document's total."""
        start, first = walk.position, walk.first
        walk.position += len(piece)
        walk.first = None
        walk.log_prob_sum += float(log_probs.sum(dtype=np.float64))
        if len(piece):
            walk.held = int(piece.ids[-1])
        summary = None
        if error is None:
            try:
                summary = self._summary(walk) if walk.reader.at_end else None
            except UNREADABLE as caught:
                if not self.keep_going:
                    raise
                error = caught
        return TokenScores(
            document=walk.name,
            number=walk.number,
            index=np.arange(start, walk.position, dtype=np.int64),
            tokens=piece.ids,
            starts=piece.starts,
            ends=piece.ends,
            log_probs=log_probs,
            context=context,
            summary=summary,
            first=first,
            error=error,
            **detail,
        )

    def _summary(self, walk: Walk) -> DocumentScore:
        elapsed = time.perf_counter() - walk.started
        return total_score(
            walk.name,
            walk.reader.counts,
            tokens=walk.position,
            unscored_tokens=walk.unscored,
            log_prob_sum=walk.log_prob_sum,
            evaluation=self.evaluation,
            tokens_per_second=(walk.position - walk.begun_at) / elapsed if elapsed > 0 else 0.0,
        )


def _check_continuous(evaluation: EvaluationSettings, batch_size: int) -> None:
    """Raise OptionError if memory cannot be carried from document to document."""
    if evaluation.whole:
        raise OptionError(
            "continuous: this model reads each document in one step and carries no memory.", repair="Leave it out."
        )
    if batch_size != 1:
        raise OptionError(f"continuous: documents go one after another, so batch size must be 1, not {batch_size}.")


def _check_detail(engine: Engine, detail: int) -> None:
    """Refuse more tokens than the detail graph lists, or any if the bundle lacks this graph."""
    engine.session("detail")
    (top_ids,) = (tensor for tensor in engine.bundle.graphs["detail"].outputs if tensor.name == "top_ids")
    most = top_ids.shape[-1]
    if detail < 0 or (isinstance(most, int) and detail > most):
        raise OptionError(f"detail is {detail}, expected 0 to {most}, the likeliest tokens that this bundle lists.")


def _detail_of(outputs: Mapping[str, npt.NDArray[Any]], row: int, n: int, k: int) -> dict[str, npt.NDArray[Any]]:
    """Return copies of the detail outputs for the first `n` positions of a row, with `k` likeliest tokens."""
    return {
        "rank": outputs["rank"][row, :n].astype(np.int64),
        "entropy": outputs["entropy"][row, :n].astype(np.float64),
        "top_ids": outputs["top_ids"][row, :n, :k].astype(np.int64),
        "top_log_probs": outputs["top_log_probs"][row, :n, :k].astype(np.float64),
    }


def _no_detail(k: int) -> dict[str, npt.NDArray[Any]]:
    """Return detail outputs for no positions."""
    none, no_ids = np.zeros((1, 0)), np.zeros((1, 0, k))
    return _detail_of({"rank": none, "entropy": none, "top_ids": no_ids, "top_log_probs": no_ids}, 0, 0, k)


def _name(source: Source, number: int) -> str:
    if isinstance(source, Path):
        return str(source)
    return str(getattr(source, "name", f"document {number}"))
