"""The two halves of a scoring run between the scorer and its output: make records, and count and report.

With several processes, each worker has the first half, and the process that writes has the second.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from xlexport.scoring.carried import with_columns
from xlexport.scoring.caveats import caveats, losses, nothing_to_score
from xlexport.scoring.inputs import Input
from xlexport.scoring.output_formats import Columns, encoder, header_line
from xlexport.scoring.partial_file import PartialFile
from xlexport.scoring.records import Records, document_fields, make_records
from xlexport.scoring.resume import SavedFields
from xlexport.scoring.run_options import Reporter, RunOptions, Sink
from xlexport.scoring.totals import Totals
from xlruntime import Document, EvaluationSettings, Model, TokenScores
from xlruntime.messages import counted
from xlruntime.scorer import Scorer
from xlruntime.scorer_state import SavedScorer, read_scorer
from xlruntime.tokenizers import ByteTokenizer

__all__ = ["Counting", "Scored", "Writing"]

MOST_REPORTED_ERRORS = 5  # from one file of JSON lines; further errors are only counted


@dataclass(frozen=True)
class Scored:
    """A part of a document with the bytes of the records that it completes.

    Attributes:
        header: bytes that the output begins with, if these are its first records.
        file: the name of the document's input, if an input has several documents.
    """

    part: TokenScores
    raw: bytes
    header: bytes
    file: str | None


class Writing:
    """The half that makes records: everything about unfinished documents, except the scorer.

    Args:
        with_speed: whether documents show tokens_per_second, which differs from run to run.
    """

    def __init__(self, model: Model, options: RunOptions, with_speed: bool) -> None:
        self._options = options
        self._records: Records = make_records(
            options.per, options.kind, model.tokenizer, options.detail is not None, with_speed, options.corrected
        )
        self._encode: Callable[[Columns], bytes] = encoder(options.kind, header=False)
        self._of_lines = options.reading.field is not None
        self._file_of: dict[int, str] = {}  # of unfinished documents, if an input has several
        self._columns: dict[int, Columns] = {}  # of unfinished documents, for the records of their parts

    def begun(self, given: Iterator[tuple[Input, Document]], saved: SavedScorer | None = None) -> Iterator[Document]:
        """Yield the documents that are not done yet, each after the records learn of it."""
        taken, active = (0, {}) if saved is None else (saved.taken, saved.active)
        for number, (file, document) in enumerate(given):
            if number >= taken or number in active:
                if self._of_lines:
                    self._file_of[number] = file.name
                if self._options.per != "document":  # these records keep them until the documents before are done
                    self._columns[number] = document.columns
                self._records.begin(number, document)
            yield document

    def restore(self, scorer: Scorer, fields: SavedFields, arrays: Mapping[str, npt.NDArray[Any]]) -> SavedScorer:
        """Continue from a state, and return the argument of `resume_scorer`.

        Raises:
            StateError, ValueError: the state does not fit such a run.
        """
        self._records.restore(fields.records)
        return read_scorer(scorer, fields.scorer, arrays)

    def write(self, given: TokenScores) -> Scored:
        """Return a part with its records.

        Raises:
            XlruntimeError: with `strict`, its document ends without a score.
        """
        part = self._judged(given)
        carried = self._columns.get(part.number, {})
        found = [with_columns(record, carried) for record in self._records.take(part)]
        file = self._file_of.get(part.number)
        if part.error is not None or part.summary is not None:
            self._columns.pop(part.number, None)
            self._file_of.pop(part.number, None)
        header = header_line(self._options.kind, found[0]) if found else b""
        return Scored(part, b"".join(map(self._encode, found)), header, file)

    def _judged(self, part: TokenScores) -> TokenScores:
        """Return a part with an error if its document ends without a score, else the part itself."""
        error = None if part.summary is None else nothing_to_score(part.summary)
        if error is None:
            return part
        if self._options.strict:
            raise error
        return dataclasses.replace(part, summary=None, error=error)

    def state(self) -> Any:
        """Return the records that are not complete, for JSON."""
        return self._records.state()


class Counting:
    """The half that writes records, counts documents, and reports.

    Args:
        begun: whether the output has records of an earlier process.
    """

    def __init__(
        self,
        model: Model,
        settings: EvaluationSettings,
        options: RunOptions,
        inputs: Sequence[Input],
        sink: Sink,
        reporter: Reporter,
        begun: bool,
    ) -> None:
        self._model, self._settings, self._options = model, settings, options
        self._sink, self._reporter = sink, reporter
        self._started, self._tokens = time.monotonic(), 0
        self._several = len(inputs) > 1 or options.reading.field is not None
        self._in_file = isinstance(sink, PartialFile)
        self._begun = begun
        self._noted = False
        self._errors: Counter[str] = Counter()  # by input
        self.totals = Totals()

    def restore(self, totals: Totals) -> None:
        """Continue from the sums of an earlier process."""
        self.totals = totals
        self._reporter.resumed(totals)

    def take(self, found: Scored) -> None:
        """Write and count a part."""
        part = found.part
        if found.raw:
            self._sink.write(found.raw if self._begun else found.header + found.raw)
            self._begun = True
        if part.error is not None:
            self._fail(part, part.error, found.file)
        if part.summary is not None:
            self._finish(part)
        self._tokens += len(part)
        self._reporter.take(part)

    def _fail(self, part: TokenScores, error: Exception, file: str | None) -> None:
        self.totals.failed += 1
        if file is not None:
            self._errors[file] += 1
            if self._errors[file] > MOST_REPORTED_ERRORS:
                return
        self._reporter.fail(part.document, error)

    def _finish(self, part: TokenScores) -> None:
        assert part.summary is not None
        self.totals.add(part.summary)
        if not self._noted:  # not earlier: if nothing can be scored, only the error matters
            for said in caveats(self._settings, self._model.tokenizer):
                self._reporter.tell(said)
            self._noted = True
        if self._options.per != "document":
            self._reporter.total(document_fields(part.summary, with_speed=True))
        for said in losses(part.summary):
            self._reporter.tell(f"{part.summary.document}: {said}")

    def end(self) -> Totals:
        """Report the totals, after all documents are done, and return them."""
        totals = self.totals
        for file, errors in self._errors.items():
            if errors > MOST_REPORTED_ERRORS:
                self._reporter.tell(f"{file}: … and {counted(errors - MOST_REPORTED_ERRORS, 'more error')}")
        if totals.documents and (self._several or (self._in_file and self._options.per == "document")):
            speed = self._tokens / max(time.monotonic() - self._started, 1e-9)  # of this process
            self._reporter.tell(f"{totals.summary()}, {speed:,.0f} tokens/s")
        if totals.without_first and self._options.per in ("line", "word", "region"):
            token = r"'\n'" if isinstance(self._model.tokenizer, ByteTokenizer) else "TOKEN"
            self._reporter.tell(
                f"The first {self._options.per} of {counted(totals.without_first, 'document')} has no complete score "
                f"(complete is false), because the model reads no token before it. --bos {token} gives it one."
            )
        if totals.failed and self._several:
            self._reporter.tell(
                f"{totals.failed:,} of {counted(totals.documents + totals.failed, 'document')} could not be scored"
            )
        return totals
