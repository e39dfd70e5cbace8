"""Score many documents at once: each batch row walks one document and takes the next when it is done."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .errors import OptionError
from .memory import RingMemory
from .spec import Evaluation
from .stream import warn_not_finite
from .text import Document, Source, TokenPiece, TokenReader, check_length

if TYPE_CHECKING:
    from .model import Model

__all__ = ["DocumentScore", "Scorer", "TokenScores"]


@dataclass(frozen=True)
class DocumentScore:
    """What a whole document scored. Ratios are None where there is nothing to divide by.

    The first token has no context and is not scored; per-byte and per-character figures leave out what it covers, and
    what no token covers because the vocabulary has no symbol for it (`dropped_bytes`, `dropped_chars`: newlines).
    With `unknown_tokens`, tokens that stand for anything the vocabulary lacks, the bits are no code for the text.
    """

    document: str
    tokens: int
    scored_tokens: int
    unknown_tokens: int
    words: int
    chars: int
    bytes: int
    dropped_chars: int
    dropped_bytes: int
    nats: float
    bits: float
    bits_per_byte: float | None
    bits_per_char: float | None
    bits_per_token: float | None
    perplexity: float | None
    segment_len: int
    mem_len: int
    n_hashes: int | None
    tokens_per_second: float


@dataclass(frozen=True)
class TokenScores:
    """Consecutive tokens of one document that got their score.

    Attributes:
        document: its name; number: its place among the documents, from 0.
        index: (n,) places of the tokens in the document, from 0.
        tokens: (n,) ids; starts, ends: (n,) where they stand in the document (see `TokenPiece`).
        log_probs: (n,) natural logarithms of their probabilities.
        context: (n,) how many tokens of the document each one's prediction attended to.
        summary: with the last tokens of a document, its total; else None.
        rank: (n,) place of each token among all by their probability, 1: the likeliest.
        entropy: (n,) of each prediction, in nats.
        top_ids: (n, k) the likeliest tokens, best first; top_log_probs: (n, k) natural logarithms of their
            probabilities. These four are None unless `detail` was asked for.
    """

    document: str
    number: int
    index: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    log_probs: npt.NDArray[np.float32]
    context: npt.NDArray[np.int64]
    summary: DocumentScore | None
    rank: npt.NDArray[np.int64] | None = None
    entropy: npt.NDArray[np.float64] | None = None
    top_ids: npt.NDArray[np.int64] | None = None
    top_log_probs: npt.NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass
class _Walk:
    """One document on its row of the batch."""

    number: int
    reader: TokenReader
    held: int  # the last token read; its successor is the next target
    position: int = 1  # index of the next target
    log_prob_sum: float = 0.0
    started: float = field(default_factory=time.perf_counter)

    @property
    def name(self) -> str:
        return self.reader.document.name


class Scorer:
    """Packs documents into the rows of a batch.

    Rows are independent: a document's scores do not depend on its neighbours. Padding stands only behind a
    document's end; a row whose document is done restarts with the next; when no document waits and half the rows
    are idle, the batch shrinks. A document that is one step has no neighbours: padding would change its scores.
    """

    def __init__(self, model: Model, evaluation: Evaluation, batch_size: int, detail: int | None = None) -> None:
        if batch_size < 1:
            raise OptionError(f"batch size is {batch_size}, at least 1 is needed.")
        if detail is not None:
            _check_detail(model, detail)
        self.model = model
        self.evaluation = evaluation
        self.batch_size = 1 if evaluation.whole else batch_size
        self.detail = detail
        self._purpose = "score" if detail is None else "detail"
        self._longest_step = model.longest_step(self._purpose, evaluation.segment_len)

    def documents(self, documents: Iterable[Document | Source]) -> Iterator[DocumentScore]:
        """The total of each document, in the order of the documents."""
        done: dict[int, DocumentScore] = {}
        following = 0
        for scores in self.tokens(documents):
            if scores.summary is not None:
                done[scores.number] = scores.summary
            while following in done:
                yield done.pop(following)
                following += 1

    def tokens(self, documents: Iterable[Document | Source]) -> Iterator[TokenScores]:
        """The scores of every document's tokens, step by step; the steps of different documents alternate."""
        waiting = enumerate(documents)
        rows: list[_Walk | None] = []
        memory: RingMemory | None = None
        while True:
            # Fill idle rows, and open new ones as long as the batch has not begun.
            while (None in rows) or (memory is None and len(rows) < self.batch_size):
                opened = next(waiting, None)
                if opened is None:
                    break
                walk = self._open(*opened)
                if isinstance(walk, TokenScores):  # nothing to score in it
                    yield walk
                elif None in rows:
                    row = rows.index(None)
                    rows[row] = walk
                    assert memory is not None
                    memory.restart(row)
                else:
                    rows.append(walk)
            active = [row for row, walk in enumerate(rows) if walk is not None]
            if not active:
                return
            if memory is None:
                memory = self.model.new_memory(self.evaluation, len(rows))
            elif len(active) <= len(rows) // 2:
                memory = memory.take(active)
                rows = [rows[row] for row in active]
            for row, scores in self._step(memory, rows):
                yield scores
                if scores.summary is not None:
                    rows[row] = None

    def _open(self, number: int, given: Document | Source) -> _Walk | TokenScores:
        """Begin a document; one of fewer than two tokens is done already."""
        document = given if isinstance(given, Document) else Document(_name(given, number), given)
        reader = TokenReader(document, self.model.tokenizer, self.model.bundle.vocab_size)
        longest = self.evaluation.longest_part
        if longest is not None and not self.evaluation.restart and reader.at_hand and reader.has(longest + 2):
            self._refuse_more_than(longest, document.name)
        first = reader.take(1)
        walk = _Walk(number, reader, int(first.ids[0]) if len(first) else 0, position=len(first))
        if not reader.at_end:
            return walk
        none = np.zeros(0, np.int64)
        detail = {} if self.detail is None else _no_detail(self.detail)
        return self._scores(walk, TokenPiece(none, none, none), np.zeros(0, np.float32), none, detail)

    def _refuse_more_than(self, longest: int, name: str) -> None:
        """Raise TextError for a document of more tokens than can be read, unless it may restart."""
        check_length(longest + 2, self.evaluation, name, f"more than {longest + 1:,} tokens")

    def _make_room(self, memory: RingMemory, rows: list[_Walk | None]) -> None:
        """Restart rows that have been read as far as the model can read, idle ones too."""
        for row in np.flatnonzero(memory.room == 0):
            walk = rows[row]
            if walk is not None:
                self._refuse_more_than(int(memory.position[row]), walk.name)
            memory.restart(int(row))

    def _step(self, memory: RingMemory, rows: list[_Walk | None]) -> Iterator[tuple[int, TokenScores]]:
        """Run one segment of every row that has a document."""
        self._make_room(memory, rows)
        longest = min(self._longest_step, int(memory.room.min()))  # padding, too, needs positions
        pieces = {row: walk.reader.take(longest) for row, walk in enumerate(rows) if walk is not None}
        S = max(len(piece) for piece in pieces.values())
        tokens = np.zeros((len(rows), S), np.int64)
        targets = np.zeros((len(rows), S), np.int64)
        for row, piece in pieces.items():
            walk = rows[row]
            assert walk is not None
            tokens[row, : len(piece)] = np.concatenate([[walk.held], piece.ids[:-1]])
            targets[row, : len(piece)] = piece.ids
        context = memory.context(S)
        outputs = self.model.step(self._purpose, memory, tokens, targets)
        log_prob = outputs["log_prob"]
        for row, piece in pieces.items():
            walk = rows[row]
            assert walk is not None
            n = len(piece)
            if not np.isfinite(log_prob[row]).all():
                memory.restart(row, refill=True)
                warn_not_finite(walk.name, walk.position + n)
            detail = {} if self.detail is None else _detail_of(outputs, row, n, self.detail)
            yield row, self._scores(walk, piece, log_prob[row, :n].copy(), context[row, :n], detail)

    def _scores(
        self,
        walk: _Walk,
        piece: TokenPiece,
        log_probs: npt.NDArray[np.float32],
        context: npt.NDArray[np.int64],
        detail: Mapping[str, npt.NDArray[Any]],
    ) -> TokenScores:
        """Count `piece` as scored; with the last one comes the document's total."""
        first = walk.position
        walk.position += len(piece)
        walk.log_prob_sum += float(log_probs.sum(dtype=np.float64))
        if len(piece):
            walk.held = int(piece.ids[-1])
        return TokenScores(
            document=walk.name,
            number=walk.number,
            index=np.arange(first, walk.position, dtype=np.int64),
            tokens=piece.ids,
            starts=piece.starts,
            ends=piece.ends,
            log_probs=log_probs,
            context=context,
            summary=self._summary(walk) if walk.reader.at_end else None,
            **detail,
        )

    def _summary(self, walk: _Walk) -> DocumentScore:
        counts, scored = walk.reader.counts, max(walk.position - 1, 0)
        nats = 0.0 - walk.log_prob_sum
        bits = nats / math.log(2)
        elapsed = time.perf_counter() - walk.started
        return DocumentScore(
            document=walk.name,
            tokens=walk.position,
            scored_tokens=scored,
            unknown_tokens=counts.unknown_tokens,
            words=counts.words,
            chars=counts.chars,
            bytes=counts.bytes,
            dropped_chars=counts.dropped_chars,
            dropped_bytes=counts.dropped_bytes,
            nats=nats,
            bits=bits,
            bits_per_byte=_ratio(bits, counts.bytes - counts.first_token_bytes - counts.dropped_bytes),
            bits_per_char=_ratio(bits, counts.chars - counts.first_token_chars - counts.dropped_chars),
            bits_per_token=_ratio(bits, scored),
            perplexity=_perplexity(nats, scored),
            segment_len=self.evaluation.segment_len,
            mem_len=self.evaluation.mem_len,
            n_hashes=self.evaluation.n_hashes,
            tokens_per_second=walk.position / elapsed if elapsed > 0 else 0.0,
        )


def _check_detail(model: Model, detail: int) -> None:
    """Refuse more alternatives than the detail graph lists, or any where there is no such graph."""
    model.session("detail")
    (top_ids,) = (tensor for tensor in model.bundle.graphs["detail"].outputs if tensor.name == "top_ids")
    most = top_ids.shape[-1]
    if detail < 0 or (isinstance(most, int) and detail > most):
        raise OptionError(f"detail is {detail}, expected 0 to {most}, the likeliest tokens that this bundle lists.")


def _detail_of(outputs: Mapping[str, npt.NDArray[Any]], row: int, n: int, k: int) -> dict[str, npt.NDArray[Any]]:
    """What the detail graph says of the first `n` positions of a row, with `k` likeliest tokens; copies."""
    return {
        "rank": outputs["rank"][row, :n].astype(np.int64),
        "entropy": outputs["entropy"][row, :n].astype(np.float64),
        "top_ids": outputs["top_ids"][row, :n, :k].astype(np.int64),
        "top_log_probs": outputs["top_log_probs"][row, :n, :k].astype(np.float64),
    }


def _no_detail(k: int) -> dict[str, npt.NDArray[Any]]:
    """The same of no positions."""
    none, no_ids = np.zeros((1, 0)), np.zeros((1, 0, k))
    return _detail_of({"rank": none, "entropy": none, "top_ids": no_ids, "top_log_probs": no_ids}, 0, 0, k)


def _ratio(amount: float, count: int) -> float | None:
    return amount / count if count > 0 else None


def _perplexity(nats: float, scored: int) -> float | None:
    """e to the mean nats of a token; infinite where that overflows."""
    if not scored:
        return None
    mean = nats / scored
    return math.inf if mean > 700 else math.exp(mean)


def _name(source: Source, number: int) -> str:
    if isinstance(source, Path):
        return str(source)
    return str(getattr(source, "name", f"document {number}"))
