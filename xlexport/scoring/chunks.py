"""Cut the documents of a run into chunks, and score one chunk after the other.

Where chunks begin depends on the documents alone, so any number of processes writes the same bytes. A run that is not
divided has one chunk with all documents.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy.typing as npt

from xlexport.scoring.begin_token import chosen_bos
from xlexport.scoring.documents import CarriedColumns, documents_by_input
from xlexport.scoring.inputs import Input
from xlexport.scoring.records import Records, Scored, own_columns
from xlexport.scoring.score_options import UNITS, ScoreOptions
from xlruntime import Document, EvaluationSettings, Model
from xlruntime.scorer import Scorer
from xlruntime.scorer_state import read_scorer, resume_scorer, scorer_state
from xlruntime.tokenizers.white_space import starts_word

__all__ = ["Chunk", "ChunkScorer", "ChunkState", "Job", "Message", "chunks", "make_scorer"]

MOST_DOCUMENTS = 128
MOST_BYTES = 1 << 16  # of text; a longer document is a chunk of its own
TOKEN_BYTES = 8  # of a document that is a list of token ids

Chunk = Iterable[tuple[Input, Document]]


@dataclass(frozen=True)
class Job:
    """The description of a run; workers get one without inputs.

    Attributes:
        bundle: the folder of the bundle; runtime: arguments of `open_bundle`.
        with_speed: whether documents show tokens_per_second, which differs from run to run.
        device: of workers, if this process has another.
    """

    bundle: Path
    runtime: Mapping[str, Any]
    settings: EvaluationSettings
    options: ScoreOptions
    inputs: Sequence[Input]
    with_speed: bool = True
    device: str | None = None

    def documents(self, stdin: BinaryIO, tell: Callable[[str], None]) -> Iterator[tuple[Input, Document]]:
        """Yield all documents, each with its input.

        Args:
            tell: called with lines for people about columns of the input.

        Raises:
            TextError: columns of the input have names that records use themselves.
        """
        reading, per = self.options.reading, self.options.level
        columns = CarriedColumns(reading, own_columns(per, self.settings.values), tell, with_id=True)
        return documents_by_input(self.inputs, reading, stdin, per in UNITS, columns)


@dataclass(frozen=True)
class ChunkState:
    """A chunk between two steps: fields for JSON, and the memory of the documents that are being scored."""

    fields: Mapping[str, Any]
    arrays: Mapping[str, npt.NDArray[Any]]


Message = list[Scored] | ChunkState | None
"""Parts of documents in order, a state after these parts, or the end of a chunk."""


def chunks(documents: Chunk, divided: bool = True) -> Iterator[Chunk]:
    """Yield consecutive documents together, until they are many or long; if not `divided`, all documents at once."""
    if not divided:
        yield documents
        return
    chunk: list[tuple[Input, Document]] = []
    total = 0
    for file, document in documents:
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


def make_scorer(model: Model, settings: EvaluationSettings, options: ScoreOptions) -> Scorer:
    """Return the scorer of a run.

    Raises:
        OptionError: the options do not apply to this bundle.
    """
    return Scorer(
        model,
        settings,
        options.at_once,
        options.top,
        continuous=options.continuous,
        separator=options.between,
        keep_going=not options.strict,
        bos=chosen_bos(options.bos, model.tokenizer),
        starts_word=starts_word(model.tokenizer, model.bundle.vocab_size) if options.corrected else None,
    )


class ChunkScorer:
    """A scorer of chunks, one after another, in this process.

    Args:
        with_speed: whether documents show tokens_per_second, which differs from run to run.

    Raises:
        OptionError: the options do not apply to this bundle.
    """

    def __init__(self, model: Model, settings: EvaluationSettings, options: ScoreOptions, with_speed: bool) -> None:
        self._model, self._settings, self._options = model, settings, options
        self._with_speed = with_speed
        self._scorer = make_scorer(model, settings, options)

    def score(
        self, chunk: Chunk, state: ChunkState | None = None, is_due: Callable[[], bool] | None = None
    ) -> Iterator[Message]:
        """Score a chunk, and yield its messages.

        Args:
            state: continue from there; only documents that are not done are scored.
            is_due: returns whether to yield a state after a step; None: never. Several documents of a divided run have
                none, because their parts are put in order when all are there.

        Raises:
            StateError: the state belongs to other documents.
            XlruntimeError, OSError: with `strict`, the error of the first document that fails; otherwise only errors
                that no document causes.
        """
        scorer, records = self._scorer, Records(self._model.tokenizer, self._options, self._with_speed)
        scorer.taken = 0
        if state is None:
            documents = records.begun(chunk)
        else:
            saved = read_scorer(scorer, state.fields["scorer"], state.arrays)
            records.restore(state.fields["records"])
            documents = resume_scorer(
                scorer, saved, state.arrays, records.begun(chunk, saved.taken, saved.active.keys())
            )
        steps = scorer.steps(documents)
        if isinstance(chunk, list) and len(chunk) > 1:  # their parts alternate; such documents are short
            parts = sorted(itertools.chain.from_iterable(steps), key=lambda part: part.number)
            yield [records.take(part) for part in parts]
        else:
            for parts in steps:
                yield [records.take(part) for part in parts]
                if is_due is not None and is_due():
                    fields, arrays = scorer_state(scorer)
                    yield ChunkState({"scorer": fields, "records": records.state()}, arrays)
        yield None
