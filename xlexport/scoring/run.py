"""A scoring run: documents become records, here or in workers, and a state is saved from time to time."""

from __future__ import annotations

import contextlib
import itertools
import math
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, BinaryIO, Protocol

from xlexport.errors import ResumeError
from xlexport.scoring.backends import Backend, Here
from xlexport.scoring.chunks import Chunk, ChunkScorer, Job, chunks
from xlexport.scoring.output_formats import header_line
from xlexport.scoring.partial_file import HINT, PartialFile
from xlexport.scoring.records import Scored, document_fields
from xlexport.scoring.resume import Saved, SavedRun, describe_run
from xlexport.scoring.score_options import UNITS
from xlexport.scoring.totals import Totals, caveats, lacks_white_space, losses
from xlexport.scoring.traits import trait_notes
from xlruntime import DocumentScore, Model, StateError, TokenScores
from xlruntime.messages import counted, named
from xlruntime.tokenizers import ByteTokenizer

__all__ = ["Output", "Reporter", "score_documents"]

MOST_REPORTED_ERRORS = 5  # from one file of rows; further errors are only counted


class Output(Protocol):
    """The destination of records."""

    def write(self, raw: bytes, /) -> Any:
        """Add records."""


class Reporter(Protocol):
    """An object that shows a person or a program what happens in a run, in addition to its records."""

    def tell(self, line: str) -> None:
        """Show a line."""

    def fail(self, document: str, error: Exception) -> None:
        """Report why a document has no score."""

    def total(self, fields: Mapping[str, Any]) -> None:
        """Show the total of a document, if the records describe its parts."""

    def resumed(self, totals: Totals) -> None:
        """Count documents that an earlier process scored."""

    def take(self, part: TokenScores) -> None:
        """Count the tokens that a step scored."""

    def clear(self) -> None:
        """Remove the progress line from the terminal."""


def score_documents(
    model: Model,
    job: Job,
    stdin: BinaryIO,
    output: Output,
    reporter: Reporter,
    backend: Backend | None = None,
) -> Totals:
    """Score all documents, and report and count failures.

    Args:
        output: receives the records. A run into a `PartialFile` can continue later if its inputs can be read again.
        backend: the workers that score; they need a divided run, and inputs that can be read again. None: this process.

    Raises:
        ResumeError, StateError: the state belongs to another run, or is damaged.
        WorkerError: a worker ended.
        XlruntimeError, OSError: with `strict`, the error of the first document that fails; otherwise only errors that
        no document causes.
    """
    options = job.options
    file = output if isinstance(output, PartialFile) else None
    scorer = ChunkScorer(model, job.settings, options, job.with_speed)  # errors about options come before any work
    saving = None
    if file is not None and all(entry.repeatable for entry in job.inputs):
        saving = SavedRun(file, describe_run(model, job), options.save_every)
    saved = saving.read() if saving is not None and options.resume else None
    documents = job.documents(stdin, reporter.tell)
    first = next(documents, None)  # errors about columns of the input come before any output
    documents = itertools.chain([] if first is None else [first], documents)
    counting = _Counting(model, job, output, reporter, saved)
    if file is not None:
        _open(file, saved, reporter)
    done, state = (0, None) if saved is None else (saved.chunks, saved.state)
    left = _left(chunks(documents, options.by_chunks), done)
    if backend is None:
        backend = Here(scorer, None if saving is None else saving.is_due)
    else:
        model.release()  # the workers have their own
    every = math.inf if saving is None else options.save_every
    messages = backend.messages(replace(job, inputs=(), options=replace(options, save_every=every)), left, state)
    try:
        with contextlib.closing(messages):
            for message in messages:
                if isinstance(message, list):
                    for scored in message:
                        counting.take(scored)
                else:
                    done += message is None
                    if saving is not None and saving.is_due():
                        saving.save(counting.totals, done, message)
    except StateError as error:  # only a resumed run has states
        assert file is not None
        raise ResumeError(f"{file.state_path}: {error.message}", hint=HINT) from error
    finally:
        reporter.clear()  # a message about an error or Ctrl-C starts on its own line
    return counting.end()


def _left(cut: Iterator[Chunk], done: int) -> Iterator[Chunk]:
    """Yield the chunks that are not done."""
    for number in range(done):
        if next(cut, None) is None:
            raise ResumeError(f"{done:,} chunks of documents are done, but there are {number:,}.", hint=HINT)
    yield from cut


def _open(file: PartialFile, saved: Saved | None, reporter: Reporter) -> None:
    """Open the output after the bytes that belong to a state, and report it."""
    file.open(keep=None if saved is None else saved.position)
    if saved is not None:
        finished = saved.totals.documents + saved.totals.failed
        documents = f"{counted(finished, 'document')} and " if finished else ""
        reporter.tell(f"{file.partial}: going on after {documents}{counted(saved.position, 'byte')} of output")


class _Counting:
    """Writes records, counts documents, and reports.

    Args:
        saved: the state of an earlier process.
    """

    def __init__(self, model: Model, job: Job, output: Output, reporter: Reporter, saved: Saved | None) -> None:
        self._job, self._tokenizer, self._rule = job, model.tokenizer, model.bundle.tokenizer
        self._output, self._reporter = output, reporter
        self._started, self._tokens = time.monotonic(), 0
        self._in_rows = job.options.reading.field is not None  # of which a file may have many, so they get no lines
        self._several = len(job.inputs) > 1 or self._in_rows
        self._has_header = self._has_caveats = False
        self._errors: Counter[str] = Counter()  # by input
        self.totals = Totals()
        if saved is not None:
            self.totals, self._has_header = saved.totals, saved.position > 0
            reporter.resumed(saved.totals)

    def take(self, scored: Scored) -> None:
        """Write and count a part."""
        part = scored.part
        if scored.raw:
            header = b"" if self._has_header else header_line(self._job.options.format, scored.names)
            self._output.write(header + scored.raw)
            self._has_header = True
        if part.error is not None:
            self._fail(part.document, part.error, scored.file)
        if part.summary is not None:
            self._finish(part.summary)
            if scored.traits is not None:
                self.totals.add_traits(scored.traits)
        self._tokens += len(part)
        self._reporter.take(part)

    def _fail(self, document: str, error: Exception, file: str | None) -> None:
        self.totals.failed += 1
        if file is not None:
            self._errors[file] += 1
            if self._errors[file] > MOST_REPORTED_ERRORS:
                return
        self._reporter.fail(document, error)

    def _finish(self, score: DocumentScore) -> None:
        self.totals.add(score)
        if not self._has_caveats:  # not earlier: if nothing can be scored, only the error matters
            for caveat in caveats(self._job.settings, self._tokenizer):
                self._reporter.tell(caveat)
            begin, options = self._rule.begin, self._job.options
            if options.level == "word" and lacks_white_space(score):
                self._reporter.tell(
                    f"{score.document}: words end at white space, which this text hardly has. Try --per token, or "
                    "--per region with a mark (|) between words."
                )
            if begin is not None and self._rule.adds_begin and options.bos is None and not options.reading.ids:
                self._reporter.tell(
                    f"Each text is read after {named(begin.name)}, as its tokenizer's own rule says ({begin.source}); "
                    "--bos none leaves it out."
                )
            self._has_caveats = True
        if self._in_rows:
            return
        if self._job.options.level != "document":
            self._reporter.total(document_fields(score, with_speed=True))
        for loss in losses(score):
            self._reporter.tell(f"{score.document}: {loss}")

    def end(self) -> Totals:
        """Report the totals, after all documents are done, and return them."""
        totals, per = self.totals, self._job.options.level
        for file, errors in self._errors.items():
            if errors > MOST_REPORTED_ERRORS:
                self._reporter.tell(f"{file}: … and {counted(errors - MOST_REPORTED_ERRORS, 'more error')}")
        if totals.documents and (self._several or (isinstance(self._output, PartialFile) and per == "document")):
            speed = self._tokens / max(time.monotonic() - self._started, 1e-9)  # of this process
            file = f"{self._job.inputs[0].name}: " if self._in_rows and len(self._job.inputs) == 1 else ""
            self._reporter.tell(f"{file}{totals.summary()}, {speed:,.0f} tokens/s")
        for loss in losses(totals) if self._in_rows else ():
            self._reporter.tell(loss)
        for note in trait_notes(totals, self._tokenizer) if totals.documents else ():
            self._reporter.tell(note)
        if totals.without_first and per in UNITS:
            token = r"'\n'" if isinstance(self._tokenizer, ByteTokenizer) else "TOKEN"
            if (prefix := self._rule.prefix) is not None:
                token = shlex.quote(named(prefix.name))
            self._reporter.tell(
                f"The first {per} of {counted(totals.without_first, 'document')} has no score "
                f"(complete is false), because the model reads no token before it. --bos {token} gives it one."
            )
        if totals.failed and self._several:
            self._reporter.tell(
                f"{totals.failed:,} of {counted(totals.documents + totals.failed, 'document')} could not be scored"
            )
        return totals
