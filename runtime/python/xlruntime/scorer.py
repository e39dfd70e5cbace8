"""Score many documents at once: each batch row reads one document and takes the next when it is done."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .coming_documents import ComingDocuments
from .documents import Document, Source, TokenPiece, check_length
from .engine import Engine
from .errors import ArgumentError, OptionError, TextError, XlruntimeError
from .evaluation import EvaluationSettings
from .fitting import AUTO, BatchSize, Fitting, Opened, formed, most_rows, rows_of_long
from .held_text import HeldText
from .memory import Memory
from .messages import shown
from .prefix_cache import PrefixCache
from .scores import DocumentScore, Sum, TokenScores, total_score
from .stream import warn_not_finite
from .token_reader import EarlierText, TokenReader
from .word_ends import WordEnds

__all__ = ["ActiveDocument", "BatchSize", "Progress", "Scorer", "WordEnds", "check_top", "detail_of"]

TOGETHER = 128  # documents of which batches are formed
UNREADABLE = (XlruntimeError, OSError)  # errors of reading a document


@dataclass(eq=False)
class Progress:
    """The place in a document that is being scored, and its sum so far; `scorer_state` saves it.

    Attributes:
        held: the last token read; its successor is the next target.
        position: index of the next target, among the document's own tokens.
        context: number of tokens read of what comes before the document.
        unscored: 0 if the first token has a context.
    """

    number: int
    name: str
    held: int
    position: int
    context: int = 0
    unscored: int = 1
    log_probs: Sum = field(default_factory=Sum)


@dataclass(kw_only=True, eq=False)
class ActiveDocument(Progress):
    """A document on its row of the batch.

    Attributes:
        tokens: as `Opened` has it.
        first: the document's first token, until a part has reported it.
        memory: what it remembers of its context, until it has a row; None: nothing.
        begun_at: the position at which this process began or resumed it.
    """

    reader: TokenReader
    tokens: int | None
    first: TokenPiece | None = None
    memory: Memory | None = None
    begun_at: int = 0
    started: float = field(default_factory=time.perf_counter)


class Scorer:
    """A scorer that packs documents into the rows of a batch.

    Rows are independent: a document's scores do not depend on its neighbours. Padding only follows a document's
    end. When a document ends, its row restarts with the next one. When no document waits and half the rows are idle,
    the batch shrinks. A document that is one step has no neighbours, because padding would change its scores.

    Rings are as large as the documents of a batch need, if their lengths can be known without waiting (`fitting`).
    With a batch size of 1, a document's scores do not depend on other documents, to the last bit.

    Args:
        batch_size: most documents at a time; on a CPU never more than make steps faster. `auto`: batches of similar
            lengths, formed of the next 128 documents. Parts then come in another order, and only a scorer of a single
            document can be saved.
        top: number of likeliest tokens to list, with rank and entropy; None: none, and no rank.
        continuous: carry memory from document to document, in order, in one row. Only the very first token has no
            context; `index` still counts each document's own tokens.
        separator: with `continuous`, text between a document and the next, unless the first ends in white space. Its
            tokens are read, but belong to no document.
        keep_going: end an unreadable document with a part that has an `error`, instead of raising the error.
        bos: id of a token that the model reads before each document, so that the first token has a score, too. It does
            not belong to the document. If `continuous`, only the first document has it. None: the bundle's begin token
            before each text, if its tokenizer's own rule puts it there (`adds_begin`); False: no token.
        starts_word: (n_token,) whether a token begins with white space. If given, parts have `word_ends`. That needs
            each prediction's full distribution, so each token runs twice, the second time in steps of a word.
        prefixes: a cache with which equal contexts of documents are read once, in steps of their own.

    Raises:
        OptionError: a setting is out of range, or does not apply to this bundle.
        ArgumentError: `prefixes` is no cache.

    Attributes:
        memory, rows, taken: the state that `scorer_state` saves: the memory of the batch (None before the first step),
            the document of each row, and the number of documents taken so far.
        last: the last token of the previous document, if `continuous`; spaced: whether that document ended in white
            space; held: its last text, on which the next document's tokens depend.
    """

    def __init__(
        self,
        engine: Engine,
        evaluation: EvaluationSettings,
        batch_size: BatchSize = 1,
        top: int | None = None,
        *,
        continuous: bool = False,
        separator: str = "",
        keep_going: bool = False,
        bos: int | bool | None = None,
        starts_word: npt.NDArray[np.bool_] | None = None,
        prefixes: PrefixCache | None = None,
    ) -> None:
        if batch_size != AUTO and batch_size < 1:
            raise OptionError(f"batch size is {batch_size}, at least 1 is needed.")
        if top is not None:
            check_top(engine, top)
        if continuous:
            _check_continuous(engine, evaluation, batch_size, separator)
        if prefixes is not None:
            _check_prefixes(engine, evaluation, prefixes, continuous)
        if bos is True or (bos is not None and bos is not False and not 0 <= bos < engine.bundle.vocab_size):
            raise OptionError(f"bos is {bos}, expected 0 to {engine.bundle.vocab_size - 1}, or False for no token.")
        if starts_word is not None and batch_size != 1:
            raise OptionError(f"the ends of words are for one document at a time, but batch size is {batch_size}.")
        self.engine = engine
        self.evaluation = evaluation
        self.batch_size: BatchSize = 1 if evaluation.full_document else batch_size
        if self.batch_size in (1, AUTO):
            self.batch_size = engine.bundle.fixed.get("batch", self.batch_size)
        self.top = top
        self.continuous = continuous
        self.separator = separator
        self.keep_going = keep_going
        rule = engine.bundle.tokenizer
        self.bos = None if bos is False else bos
        self._own_bos = rule.begin.id if bos is None and rule.adds_begin and rule.begin is not None else None
        self._word_ends = None if starts_word is None else WordEnds(engine, evaluation, starts_word)
        self.memory: Memory | None = None
        self._buffers: Memory | None = None  # of a batch, for later ones of at most as many rows
        self.rows: list[ActiveDocument | None] = []
        self.taken = 0
        self.last: int | None = None
        self.spaced = False
        self.held = HeldText()
        self._coming: ComingDocuments | None = None
        self._prefixes = prefixes
        # One document at a time has the rings of a stream: its scores are those of all runtimes, bit for bit.
        sized = self.batch_size != 1 and not continuous and starts_word is None and self._prefixes is None
        self.fitting = Fitting(evaluation, each=self.batch_size == AUTO, sized=sized)
        self._purpose = "score" if top is None else "detail"
        self._longest_step = engine.longest_step(self._purpose, evaluation.segment_len)
        if self._word_ends is not None and evaluation.segmentation_matters:  # both passes need equal segments
            self._longest_step = min(self._longest_step, engine.longest_step("generate", evaluation.segment_len))

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
        """Yield the scores of all rows of a step together; between two steps, `scorer_state` can save the scorer."""
        several = self.coming(documents) if self.joins else documents
        opened = (self.open(number, document) for number, document in enumerate(several, self.taken))
        if self.batch_size != AUTO:
            yield from self._rolling(opened, self.batch_size)
            return
        if any(row is not None for row in self.rows):  # a resumed scorer
            yield from self._rolling(iter(()), len(self.rows))
        threads = self.engine.threads or 1
        while together := list(itertools.islice(opened, TOGETHER)):
            measured = [document for document in together if document.tokens is not None]
            for batch in formed(measured, self._longest_step, threads):
                yield from self._rolling(iter(batch), len(batch))
            others = (document for document in together if document.tokens is None)
            yield from self._rolling(others, rows_of_long(self.engine))

    @property
    def joins(self) -> bool:
        """Whether documents in a row are read as one text, because the tokens at their ends depend on it."""
        return self.continuous and self.engine.tokenizer.joins

    def coming(self, documents: Iterable[Document | Source]) -> ComingDocuments:
        """Return the documents to come, of which readers see the beginnings."""
        if not isinstance(documents, ComingDocuments):
            named = (_document(entry, number) for number, entry in enumerate(documents, self.taken))
            documents = ComingDocuments(named, self.separator)
        self._coming = documents
        return documents

    def open(self, number: int, entry: Document | Source) -> Opened:
        """Return a document after reading as much of it as the choice of rings needs."""
        document = _document(entry, number)
        opened = Opened(number, document, reader := self.reader(document))
        ahead = self.fitting.read_ahead
        if not ahead or not reader.at_hand:
            return opened
        try:
            return opened if reader.has(ahead + 1) else replace(opened, tokens=reader.ahead)
        except UNREADABLE as error:
            return replace(opened, tokens=0, error=error)

    def _rolling(self, waiting: Iterator[Opened], most: int) -> Iterator[list[TokenScores]]:
        """Score documents in at most so many rows; a row takes the next document when its own is done."""
        rows, late = self.rows, None
        while True:
            # Fill idle rows; before the first step, also add rows.
            while (None in rows) or (self.memory is None and len(rows) < self._useful(most)):
                opened, late = late or next(waiting, None), None
                if opened is None:
                    break
                if self.memory is not None and not self.fitting.takes(opened.tokens):
                    late = opened  # it waits until all rows are idle, because the rings have another size
                    break
                if isinstance(document := self._begin(opened), TokenScores):  # nothing to score in it
                    yield [document]
                else:
                    self._seat(document)
            active = [row for row, document in enumerate(rows) if document is not None]
            if not active:
                if not self.continuous:
                    self.memory, rows[:] = None, []
                if late is None:
                    return
                continue
            if self.memory is None:
                rows += [None] * (self.engine.bundle.fixed.get("batch", 0) - len(rows))
                self.memory = self._new_memory(self.fitting.choose(self._longest), len(rows))
                for row in (row for row, document in enumerate(rows) if document is not None and document.memory):
                    self._start(self.memory, row)
            elif len(active) <= len(rows) // 2 and not self.engine.bundle.fixed:
                self.memory, self._buffers = self.memory.take(active), None
                rows[:] = [rows[row] for row in active]
            yield self._step(self.memory)

    def _new_memory(self, evaluation: EvaluationSettings, batch_size: int) -> Memory:
        """Return memory for new documents, in the buffers of an earlier batch if they are large enough."""
        buffers, on_host = self._buffers, self.engine.device.on_host
        if buffers is not None and buffers.evaluation is evaluation and buffers.batch_size >= batch_size and on_host:
            return buffers.again(batch_size)
        self._buffers = buffers = None  # frees them before others are made
        self._buffers = self.engine.new_memory(evaluation, batch_size)
        return self._buffers

    def _seat(self, document: ActiveDocument) -> None:
        """Give a document the first idle row, or a further one."""
        if None not in self.rows:
            self.rows.append(document)
            return
        self.rows[row := self.rows.index(None)] = document
        if self.memory is not None and not self.continuous:
            self._start(self.memory, row)

    def _start(self, memory: Memory, row: int) -> None:
        """Begin a document on a row of the batch, with what it remembers of its context."""
        known, self._active(row).memory = self._active(row).memory, None
        if self.batch_size == 1:  # its scores do not depend on the documents before, to the last bit
            memory.offset = 0 if known is None else known.offset
        if known is None:
            memory.restart(row)
        else:
            memory.place(row, known)

    @property
    def _longest(self) -> int | None:
        """Number of tokens of the longest document in the rows; None: unknown."""
        lengths = [document.tokens for document in self.rows if document is not None]
        return None if None in lengths else max((tokens for tokens in lengths if tokens is not None), default=0)

    def _useful(self, most: int) -> int:
        """Return the number of rows, at most `most`, that make the next steps faster."""
        if not self.rows or self.batch_size == AUTO:
            return most
        longest = self._longest_step if self._longest is None else max(min(self._longest, self._longest_step), 1)
        useful = most_rows(self.engine, longest)
        return most if useful is None else min(most, useful)

    def _begin(self, opened: Opened) -> ActiveDocument | TokenScores:
        """Begin a document; return its end at once if it has nothing to score."""
        self.taken = opened.number + 1
        reader, context = opened.reader, None
        document = ActiveDocument(opened.number, opened.document.name, 0, 0, reader=reader, tokens=opened.tokens)
        if opened.error is not None:
            return self._failed(document, opened.error)
        try:
            longest = self.evaluation.longest_document
            if longest is not None and not self.evaluation.restart and reader.at_hand and reader.has(longest + 1):
                self._refuse_longer(document.name)
            if self.last is not None:
                document.held, document.unscored = self.last, 0
            elif len(first := reader.take(1)):
                document.held = int(first.ids[0])
                if first.context:
                    document.context, document.unscored = 1, 0
                    context = None if self._prefixes is None else reader.context()
                else:
                    document.position, document.first = 1, first
            ended = reader.at_end
        except UNREADABLE as error:
            return self._failed(document, error)
        if not ended:
            if context is not None:
                self._read_context(document, context)
            return document
        if document.position or document.context:
            self._end(document)
        return self._scores(document, *self._nothing())

    def _read_context(self, document: ActiveDocument, context: npt.NDArray[np.int64]) -> None:
        """Read what is left of a document's context (n,) with the cache of prefixes, as far as possible."""
        assert self._prefixes is not None
        ids, work = np.append(document.held, context), (self._purpose, self._longest_step)
        read, document.memory = self._prefixes.read(self.engine, self.evaluation, *work, ids)
        document.context += len(document.reader.take(read))
        document.held = int(ids[read])

    def reader(self, document: Document) -> TokenReader:
        """Return the reader of the next document, which first returns the separator or `bos` if one is due."""
        tokenizer, before = self.engine.tokenizer, None
        first = self._own_bos if self.bos is None and document.begins_with_text else self.bos
        if first is not None and self.last is None:
            before = np.array([first], np.int64)
        between = self.separator if self.last is not None and not self.spaced else ""
        earlier = None
        if self._coming is not None:
            earlier = EarlierText(self.held, between.encode("utf-8"), self.last, self._coming.text)
        elif between:
            before = tokenizer.encode_piece(between, self.last)
        return TokenReader(document, tokenizer, self.engine.bundle.vocab_size, before, earlier)

    def _end(self, document: ActiveDocument) -> None:
        """Record how a document ended, for the next one."""
        if self.continuous:
            self.last, self.held = document.held, document.reader.held
            self.spaced = document.reader.counts.ends_in_space or _is_space(self.engine, document.held)

    def _failed(self, document: ActiveDocument, error: Exception) -> TokenScores:
        """Return the last part of an unreadable document."""
        if not self.keep_going:
            raise error
        return self._scores(document, *self._nothing(), error=error)

    def _nothing(self) -> tuple[TokenPiece, npt.NDArray[np.float32], npt.NDArray[np.int64], dict[str, Any]]:
        none = np.zeros(0, np.int64)
        detail = {} if self.top is None else _no_detail(self.top)
        return TokenPiece(none, none, none), np.zeros(0, np.float32), none, detail

    def _refuse_longer(self, name: str) -> None:
        """Raise TextError for a document with more tokens than can be scored, unless it may restart."""
        longest = self.evaluation.longest_document
        assert longest is not None
        with_bos = "" if self.bos is None and self._own_bos is None else " with the one before it"
        check_length(longest + 1, self.evaluation, name, f"more than {longest:,} tokens{with_bos}")

    def _make_room(self, memory: Memory) -> Iterator[TokenScores]:
        """Restart all rows that have no positions left; yield ends of documents that must not restart."""
        for row in np.flatnonzero(memory.room == 0).tolist():
            document = self.rows[row]
            if document is not None:
                try:
                    self._refuse_longer(document.name)
                except UNREADABLE as error:
                    yield self._failed(self._leave(row), error)
            memory.restart(row)

    def _step(self, memory: Memory) -> list[TokenScores]:
        """Run one segment of every row that has a document."""
        results = list(self._make_room(memory))
        longest = min(self._longest_step, int(memory.room.min()))  # padding needs positions too
        pieces: dict[int, TokenPiece] = {}
        for row, document in enumerate(self.rows):
            if document is not None:
                try:
                    pieces[row] = self._take(document, longest)
                except UNREADABLE as error:
                    results.append(self._failed(self._leave(row), error))
        if not pieces:
            return results
        B, S = len(self.rows), max(len(piece) for piece in pieces.values())
        if self.evaluation.bidirectional and longest > S:
            S += 1  # for the document's last token, whose prediction is dropped
        tokens = np.zeros((B, S), np.int64)
        targets = np.zeros((B, S), np.int64)
        for row, piece in pieces.items():
            read = np.concatenate([[self._active(row).held], piece.ids])
            n = S if self.evaluation.bidirectional else len(piece)
            tokens[row, :n] = read[:n]
            targets[row, : len(piece)] = piece.ids
        context = memory.context(S)
        ends = None if self._word_ends is None else self._word_ends.before(memory, tokens[0], targets[0])
        log_prob = (outputs := self.engine.step(self._purpose, memory, tokens, targets))["log_prob"]
        for row, piece in pieces.items():
            document, n, before = self._active(row), len(piece), piece.context
            document.context += before
            if not np.isfinite(log_prob[row]).all():
                memory.restart(row, refill=True)
                if math.isfinite(document.log_probs.value):  # once for a document
                    warn_not_finite(document.name, document.position + n)
            own = slice(before, n)
            detail = {} if self.top is None else detail_of(outputs, row, own, self.top)
            scores = self._scores(document, piece, log_prob[row, own].copy(), context[row, own], detail)
            if self._word_ends is not None and ends is not None:
                last = None if scores.summary is None else self._word_ends.after(memory, document.held)
                scores = replace(scores, word_ends=ends[own], last_word_end=last)
            if before < n or scores.summary is not None or scores.error is not None:
                results.append(scores)
            if scores.summary is not None or scores.error is not None:
                self._leave(row)
        return results

    def _take(self, document: ActiveDocument, longest: int) -> TokenPiece:
        """Return the targets of the next step, at most `longest`."""
        piece = document.reader.take(longest)
        if self.evaluation.bidirectional and len(piece) == longest:
            self._refuse_longer(document.name)  # the last of them could not be read
        return piece

    def _active(self, row: int) -> ActiveDocument:
        document = self.rows[row]
        assert document is not None
        return document

    def _leave(self, row: int) -> ActiveDocument:
        """Release a row, and return its document."""
        document, self.rows[row] = self._active(row), None
        self._end(document)
        return document

    def _scores(
        self,
        document: ActiveDocument,
        piece: TokenPiece,
        log_probs: npt.NDArray[np.float32],
        context: npt.NDArray[np.int64],
        detail: Mapping[str, Any],
        error: Exception | None = None,
    ) -> TokenScores:
        """Count `piece` as read, and its own tokens as scored; with the last piece, add the document's total."""
        start, first, before = document.position, document.first, piece.context
        document.position += len(piece) - before
        document.first = None
        document.log_probs.add(log_probs)
        if len(piece):
            document.held = int(piece.ids[-1])
        summary = None
        if error is None:
            try:
                summary = self._summary(document) if document.reader.at_end else None
            except UNREADABLE as caught:
                if not self.keep_going:
                    raise
                error = caught
        return TokenScores(
            document=document.name,
            number=document.number,
            index=np.arange(start, document.position, dtype=np.int64),
            tokens=piece.ids[before:],
            starts=piece.starts[before:],
            ends=piece.ends[before:],
            log_probs=log_probs,
            context=context,
            summary=summary,
            first=first,
            error=error,
            **detail,
        )

    def _summary(self, document: ActiveDocument) -> DocumentScore:
        elapsed = time.perf_counter() - document.started
        return total_score(
            document.name,
            document.reader.counts,
            tokens=document.position,
            unscored_tokens=document.unscored,
            log_prob_sum=document.log_probs.value,
            evaluation=self.evaluation,
            tokens_per_second=(document.position - document.begun_at) / elapsed if elapsed > 0 else 0.0,
        )


def _document(entry: Document | Source, number: int) -> Document:
    if isinstance(entry, Document):
        return entry
    name = str(entry) if isinstance(entry, Path) else str(getattr(entry, "name", f"document {number + 1}"))
    return Document(name, entry)


def _check_continuous(engine: Engine, evaluation: EvaluationSettings, batch_size: BatchSize, separator: str) -> None:
    """Refuse to carry memory between documents if the model cannot, or if the separator has no tokens."""
    if evaluation.full_document:
        raise OptionError(
            "continuous: this model reads each document in one step and carries no memory.", hint="Leave it out."
        )
    if batch_size != 1:
        raise OptionError(f"continuous: documents go one after another, so batch size must be 1, not {batch_size}.")
    try:
        if separator:
            engine.tokenizer.encode_piece(separator, None)
        if engine.tokenizer.joins:
            engine.tokenizer.settled(b"" if engine.tokenizer.offsets_in_bytes else "")
    except XlruntimeError as error:
        raise OptionError(
            f"separator: {error.message}", hint="Give another separator, or an empty one for none."
        ) from error


def _check_prefixes(engine: Engine, evaluation: EvaluationSettings, prefixes: object, continuous: bool) -> None:
    """Refuse a cache that is none, or in which nothing could be kept."""
    if not isinstance(prefixes, PrefixCache):
        raise ArgumentError(
            f"prefixes: expected an xlruntime.PrefixCache, found {shown(prefixes)}.", hint="Give PrefixCache(BYTES)."
        )
    if continuous:
        raise OptionError("a prefix cache: continuous documents do not begin afresh.", hint="Leave one of both out.")
    prefixes.check(engine, evaluation)


def _is_space(engine: Engine, token: int) -> bool:
    """Return whether the text of a token ends in white space, as that of a line's end does."""
    try:
        return engine.tokenizer.decode([token])[-1:].isspace()
    except TextError:  # the library cannot show a token on its own
        return False


def check_top(engine: Engine, top: int) -> None:
    """Refuse more tokens than the detail graph lists, or any if the bundle lacks this graph."""
    engine.session("detail")
    most = engine.bundle.graphs["detail"].outputs["top_ids"].shape[-1]
    if top < 0 or (isinstance(most, int) and top > most):
        raise OptionError(f"top is {top}, expected 0 to {most}, the likeliest tokens that this bundle lists.")


def detail_of(outputs: Mapping[str, npt.NDArray[Any]], row: int, at: slice, k: int) -> dict[str, npt.NDArray[Any]]:
    """Return copies of the detail outputs for the positions `at` of a row, with `k` likeliest tokens."""
    return {
        "rank": outputs["rank"][row, at].astype(np.int64),
        "entropy": outputs["entropy"][row, at].astype(np.float64),
        "top_ids": outputs["top_ids"][row, at, :k].astype(np.int64),
        "top_log_probs": outputs["top_log_probs"][row, at, :k].astype(np.float64),
    }


def _no_detail(k: int) -> dict[str, npt.NDArray[Any]]:
    """Return detail outputs for no positions."""
    none, no_ids = np.zeros((1, 0)), np.zeros((1, 0, k))
    return detail_of({"rank": none, "entropy": none, "top_ids": no_ids, "top_log_probs": no_ids}, 0, slice(0), k)
