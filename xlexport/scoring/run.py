"""A scoring run: read documents, write records, report, and save a state from time to time."""

from __future__ import annotations

import dataclasses
import itertools
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any, BinaryIO, Protocol

import numpy as np
import numpy.typing as npt

from xlexport import __version__
from xlexport.scoring.bos import bos_token
from xlexport.scoring.carried import own_columns, with_columns
from xlexport.scoring.caveats import caveats, losses, nothing_to_score
from xlexport.scoring.documents import documents_by_input
from xlexport.scoring.inputs import Input, Reading, digest_inputs
from xlexport.scoring.items import CarriedColumns
from xlexport.scoring.output_formats import Columns, Format, encoder
from xlexport.scoring.partial_file import PartialFile
from xlexport.scoring.records import Level, Records, document_fields, make_records
from xlexport.scoring.resume import SavedFields, SavedRun, of_a_state, read_run
from xlexport.scoring.totals import Totals
from xlruntime import Document, Model, TokenScores
from xlruntime.evaluation import EvaluationSettings
from xlruntime.messages import counted
from xlruntime.providers import import_onnxruntime
from xlruntime.scorer import Scorer
from xlruntime.scorer_state import SavedScorer, read_scorer, resume_scorer, scorer_state
from xlruntime.tokenizers import ByteTokenizer
from xlruntime.tokenizers.white_space import starts_word

__all__ = ["Reporter", "RunOptions", "Sink", "describe_run", "score_run"]

MOST_REPORTED_ERRORS = 5  # from one file of JSON lines; further errors are only counted


@dataclass(frozen=True)
class RunOptions:
    """The choices of a run, except model and evaluation settings.

    Attributes:
        per: the unit of one record; kind: the format of the records.
        reading: how inputs become documents.
        separator: with `continuous`, the text between documents; its tokens belong to none of them.
        detail: number of likeliest tokens in a token's record, with rank and entropy; None: no detail at all.
        bos: name or text of a token that the model reads before each document; None: none.
        corrected: whether words and regions have surprisal with the correction for boundaries, too.
        strict: whether the first document that fails ends the run.
    """

    per: Level = "document"
    kind: Format = "text"
    reading: Reading = dataclasses.field(default_factory=Reading)
    batch_size: int = 1
    detail: int | None = None
    continuous: bool = False
    separator: str = ""
    strict: bool = False
    bos: str | None = None
    corrected: bool = False


class Sink(Protocol):
    """Where records go."""

    def write(self, raw: bytes) -> None:
        """More of them."""

    def flush(self) -> None:
        """Make everything written so far visible to readers."""


class Reporter(Protocol):
    """An object that shows a person or a program what happens in a run, in addition to its records."""

    def tell(self, line: str) -> None:
        """Show a line."""

    def fail(self, document: str, error: Exception) -> None:
        """Show why a document has no score."""

    def total(self, fields: Mapping[str, Any]) -> None:
        """Show the total of a document, if the records describe its parts."""

    def resumed(self, totals: Totals) -> None:
        """Count documents that an earlier process scored."""

    def take(self, part: TokenScores) -> None:
        """Count the tokens that a step scored."""

    def clear(self) -> None:
        """Remove the progress line from the terminal."""


def describe_run(
    model: Model, settings: EvaluationSettings, options: RunOptions, inputs: Sequence[Input]
) -> dict[str, Any]:
    """Return everything that the bytes of a run's output depend on, except the processor, for JSON.

    This reads the inputs.
    """
    reading, tokenizer = options.reading, model.bundle.tokenizer
    library = {tokenizer.kind} & {"tokenizers", "sentencepiece"}  # kinds with the name of the library that runs them
    return {
        "bundle": model.bundle.fingerprint,
        "tokenizer": {
            **asdict(tokenizer),
            "sha256": getattr(model.bundle.files.get(tokenizer.file or ""), "sha256", None),
        },
        "settings": {**settings.to_dict(), "first_memory": settings.first_memory},
        "options": {
            "--per": options.per,
            "--format": options.kind,
            "--batch-size": options.batch_size,
            "--detail, --top": options.detail,
            "--continuous": options.continuous,
            "--bos": options.bos,
            "--boundary": "corrected" if options.corrected else "plain",
            "--region-field": reading.region_field,
            "--separator": repr(options.separator),
            "--separator after contexts": None if reading.context_field is None else repr(reading.separator),
            "--ids": reading.ids,
            "--field": reading.field,
            "--id-field": reading.id_field,
            "--context-field": reading.context_field,
            "--keep": None if reading.keep is None else ",".join(reading.keep),
            "--binary": reading.binary,
            "--max-document-bytes": [reading.line_limits.bytes, reading.document_limits.bytes],
            "--device": str(model.device),
            "--threads": model.threads,
        },
        "versions": {
            "xlexport": __version__,
            "ONNX Runtime": import_onnxruntime().__version__,
            "NumPy": np.__version__,
            "kernels": str(model.kernels or "none"),
            **{name: import_module(name).__version__ for name in library},
            "machine": platform.machine(),
        },
        "inputs": digest_inputs(inputs),
    }


def score_run(
    model: Model,
    settings: EvaluationSettings,
    inputs: Sequence[Input],
    options: RunOptions,
    stdin: BinaryIO,
    sink: Sink,
    reporter: Reporter,
    save_every: float = 10.0,
    resume: bool = False,
) -> Totals:
    """Score all documents, and report and count failures.

    Args:
        sink: receives the records. A run into a `PartialFile` can continue later if its inputs can be read again.
        save_every: seconds between two states of a run that can continue later.
        resume: continue from the state of `sink`, if there is one.

    Raises:
        ResumeError, StateError: the state belongs to another run, or is damaged.
        XlruntimeError, OSError: with `strict`, the error of the first document that fails; otherwise only errors that
        no document causes.
    """
    scorer = Scorer(
        model,
        settings,
        options.batch_size,
        options.detail,
        continuous=options.continuous,
        separator=options.separator,
        keep_going=not options.strict,
        bos=None if options.bos is None else bos_token(options.bos, model.tokenizer),
        starts_word=starts_word(model.tokenizer, model.bundle.vocab_size) if options.corrected else None,
    )
    output = sink if isinstance(sink, PartialFile) else None
    repeatable = output is not None and all(given.repeatable for given in inputs)
    run = describe_run(model, settings, options, inputs) if repeatable else {}
    found = read_run(output, run) if output is not None and resume and repeatable else None
    begun = found is not None and found[0].position > 0
    session = _Session(model, settings, options, inputs, sink, reporter, begun)
    columns = CarriedColumns(options.reading, own_columns(options.per, settings.values), reporter.tell)
    given = documents_by_input(inputs, options.reading, stdin, options.per in ("line", "word", "region"), columns)
    first = next(given, None)  # an error about its columns comes before the output is opened
    given = itertools.chain([] if first is None else [first], given)
    if output is None or found is None:
        if output is not None:
            output.open()
        waiting = session.begun(given)
    else:
        fields, arrays = found
        with of_a_state(output):
            saved = session.restore(scorer, fields, arrays)
        output.open(keep=fields.position)
        reporter.tell(_resuming(output, fields))
        waiting = resume_scorer(scorer, saved, arrays, session.begun(given, saved))
        with of_a_state(output):
            session.check_sources()
    saving = SavedRun(output, run, save_every) if output is not None and repeatable else None
    try:
        for parts in scorer.steps(waiting):
            session.take(parts)
            if saving is not None and saving.due:
                scorer_fields, scorer_arrays = scorer_state(scorer)
                saving.save({"scorer": scorer_fields, **session.state()}, scorer_arrays)
    finally:
        reporter.clear()  # a message about an error or Ctrl-C starts on its own line
    return session.end()


def _resuming(output: PartialFile, fields: SavedFields) -> str:
    size = output.state_path.stat().st_size
    documents = f"{counted(fields.done, 'document')} and " if fields.done else ""
    return (
        f"{output.partial}: going on after {documents}{counted(fields.position, 'byte')} of output, from a state of "
        f"{size / 1e6:.1f} MB"
    )


class _Session:
    """Everything that a run keeps between its steps, except the scorer."""

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
        in_file = isinstance(sink, PartialFile)
        self._model, self._settings, self._options = model, settings, options
        self._sink, self._reporter = sink, reporter
        self._started, self._tokens = time.monotonic(), 0
        self._records: Records = make_records(
            options.per, options.kind, model.tokenizer, options.detail is not None, not in_file, options.corrected
        )
        self._encode: Callable[[Columns], bytes] = encoder(options.kind, header=not begun)
        self._totals = Totals()
        self._several = len(inputs) > 1 or options.reading.field is not None
        self._in_file = in_file
        self._noted = False
        self._of_lines = options.reading.field is not None
        self._file_of: dict[int, str] = {}  # of unfinished documents, if an input has several
        self._columns: dict[int, Columns] = {}  # of unfinished documents, for the records of their parts
        self._errors: Counter[str] = Counter()  # number of errors of such an input

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
        """Check all of a state, continue from it, and return the argument of `resume_scorer`.

        Raises:
            StateError, ValueError: the state does not fit such a run.
        """
        saved = read_scorer(scorer, fields.scorer, arrays)
        if fields.done != saved.taken - len(saved.active):
            raise ValueError(f"{fields.done} documents are done, expected {saved.taken - len(saved.active)}")
        self._records.restore(fields.records, saved)
        self._totals = fields.totals
        self._reporter.resumed(self._totals)
        return saved

    def check_sources(self) -> None:
        """Compare the documents with the state, like `Records.check_sources`."""
        self._records.check_sources()

    def take(self, parts: Sequence[TokenScores]) -> None:
        """Write and count the results of a step."""
        for given in parts:
            part = self._judged(given)
            carried = self._columns.get(part.number, {})
            raw = b"".join(self._encode(with_columns(record, carried)) for record in self._records.take(part))
            if part.error is not None or part.summary is not None:
                self._columns.pop(part.number, None)
            if raw:
                self._sink.write(raw)
            if part.error is not None:
                self._fail(part, part.error)
            if part.summary is not None:
                self._finish(part)
            self._tokens += len(part)
            self._reporter.take(part)
        self._sink.flush()

    def _judged(self, part: TokenScores) -> TokenScores:
        """Return a part with an error if its document ends without a score, else the part itself."""
        error = None if part.summary is None else nothing_to_score(part.summary)
        if error is None:
            return part
        if self._options.strict:
            raise error
        return dataclasses.replace(part, summary=None, error=error)

    def _fail(self, part: TokenScores, error: Exception) -> None:
        self._totals.failed += 1
        file = self._file_of.pop(part.number, None)
        if file is not None:
            self._errors[file] += 1
            if self._errors[file] > MOST_REPORTED_ERRORS:
                return
        self._reporter.fail(part.document, error)

    def _finish(self, part: TokenScores) -> None:
        assert part.summary is not None
        self._totals.add(part.summary)
        self._file_of.pop(part.number, None)
        if not self._noted:  # not earlier: if nothing can be scored, only the error matters
            for said in caveats(self._settings, self._model.tokenizer):
                self._reporter.tell(said)
            self._noted = True
        if self._options.per != "document":
            self._reporter.total(document_fields(part.summary, with_speed=True))
        for said in losses(part.summary):
            self._reporter.tell(f"{part.summary.document}: {said}")

    def state(self) -> dict[str, Any]:
        """Return the state for JSON."""
        return {"records": self._records.state(), "totals": asdict(self._totals)}

    def end(self) -> Totals:
        """Report the totals, after all documents are done, and return them."""
        totals = self._totals
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
