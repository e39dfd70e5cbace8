"""A scoring run by chunks of documents, in this process or in several; the output is the same, byte for byte."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, BinaryIO

from xlexport.errors import ResumeError
from xlexport.scoring.carried import own_columns
from xlexport.scoring.chunks import Message, chunks, score_chunk
from xlexport.scoring.documents import documents_by_input
from xlexport.scoring.inputs import Input
from xlexport.scoring.items import CarriedColumns
from xlexport.scoring.partial_file import HINT, PartialFile
from xlexport.scoring.resume import SavedChunks, SavedRun, read_run
from xlexport.scoring.run import make_scorer
from xlexport.scoring.run_options import Reporter, RunOptions, Sink, describe_run
from xlexport.scoring.session import Counting
from xlexport.scoring.totals import Totals
from xlexport.scoring.worker import Task
from xlexport.scoring.workers import worker_messages
from xlruntime import Document, EvaluationSettings, Model
from xlruntime.messages import counted

__all__ = ["score_by_chunks"]


def score_by_chunks(
    model: Model,
    settings: EvaluationSettings,
    inputs: Sequence[Input],
    options: RunOptions,
    stdin: BinaryIO,
    sink: Sink,
    reporter: Reporter,
    save_every: float = 10.0,
    resume: bool = False,
    processes: int = 1,
    runtime: Mapping[str, Any] | None = None,
) -> Totals:
    """Score all documents like `score_run`, but save states only between chunks of documents.

    Args:
        processes: number of processes that score. More than one need inputs that can be read several times.
        runtime: the arguments of `open_bundle` with which each of several processes opens the bundle.

    Raises:
        WorkerError: one of several processes ended. Others: as `score_run`.
    """
    options = RunOptions(**{**vars(options), "by_chunks": True})
    output = sink if isinstance(sink, PartialFile) else None
    repeatable = output is not None and all(given.repeatable for given in inputs)
    run = describe_run(model, settings, options, inputs) if repeatable else {}
    make_scorer(model, settings, options)  # an error about the options comes before the output is opened
    found = read_run(output, run, SavedChunks) if output is not None and resume and repeatable else None
    saved = None if found is None else found[0]
    counting = Counting(model, settings, options, inputs, sink, reporter, saved is not None and saved.position > 0)
    columns = CarriedColumns(options.reading, own_columns(options.per, settings.values), reporter.tell)
    given = documents_by_input(inputs, options.reading, stdin, options.per in ("line", "word", "region"), columns)
    first = next(given, None)  # so does an error about its columns
    done = 0
    if output is not None:
        output.open(keep=None if saved is None else saved.position)
    if saved is not None and output is not None:
        done = saved.chunks
        counting.restore(saved.totals)
        reporter.tell(
            f"{output.partial}: going on after {counted(saved.totals.documents + saved.totals.failed, 'document')} and "
            f"{counted(saved.position, 'byte')} of output"
        )
    saving = SavedRun(output, run, save_every) if output is not None and repeatable else None
    if processes > 1:
        model.release()  # the workers have their own
        task = Task(model.folder, dict(runtime or {}), settings, options, inputs, with_speed=output is None)
        messages = worker_messages(task, processes, done)
    else:
        documents = itertools.chain([] if first is None else [first], given)
        messages = _messages_here(model, settings, options, documents, done, output is None)
    try:
        with contextlib.closing(messages):
            for message in messages:
                if isinstance(message, str):
                    reporter.tell(message)
                elif message is not None:
                    for scored in message:
                        counting.take(scored)
                    sink.flush()
                else:
                    done += 1
                    if saving is not None and saving.due:
                        saving.save({"chunks": done, "totals": asdict(counting.totals)}, {})
    finally:
        reporter.clear()
    return counting.end()


def _messages_here(
    model: Model,
    settings: EvaluationSettings,
    options: RunOptions,
    given: Iterable[tuple[Input, Document]],
    done: int,
    with_speed: bool,
) -> Generator[Message]:
    """Yield the messages of all chunks that are not done, scored in this process."""
    scorer = make_scorer(model, settings, options)
    number = -1
    for number, chunk in enumerate(chunks(given)):
        if number >= done:
            yield from score_chunk(model, options, scorer, chunk, with_speed)
    if number + 1 < done:
        raise ResumeError(f"{done:,} chunks of documents are done, but there are {number + 1:,}.", hint=HINT)
