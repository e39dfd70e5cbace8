"""A scoring run: read documents, write records, report, and save a state from time to time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict
from typing import BinaryIO

from xlexport.scoring.bos import bos_token
from xlexport.scoring.carried import own_columns
from xlexport.scoring.documents import documents_by_input
from xlexport.scoring.inputs import Input
from xlexport.scoring.items import CarriedColumns
from xlexport.scoring.partial_file import PartialFile
from xlexport.scoring.resume import SavedFields, SavedRun, of_a_state, read_run
from xlexport.scoring.run_options import Reporter, RunOptions, Sink, describe_run
from xlexport.scoring.session import Counting, Writing
from xlexport.scoring.totals import Totals
from xlruntime import EvaluationSettings, Model
from xlruntime.messages import counted
from xlruntime.scorer import Scorer
from xlruntime.scorer_state import resume_scorer, scorer_state
from xlruntime.tokenizers.white_space import starts_word

__all__ = ["make_scorer", "score_run"]


def make_scorer(model: Model, settings: EvaluationSettings, options: RunOptions) -> Scorer:
    """Return the scorer of a run.

    Raises:
        OptionError: the options do not apply to this bundle.
    """
    return Scorer(
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
    scorer = make_scorer(model, settings, options)
    output = sink if isinstance(sink, PartialFile) else None
    repeatable = output is not None and all(given.repeatable for given in inputs)
    run = describe_run(model, settings, options, inputs) if repeatable else {}
    found = read_run(output, run, SavedFields) if output is not None and resume and repeatable else None
    begun = found is not None and found[0].position > 0
    writing = Writing(model, options, with_speed=output is None)
    counting = Counting(model, settings, options, inputs, sink, reporter, begun)
    columns = CarriedColumns(options.reading, own_columns(options.per, settings.values), reporter.tell)
    given = documents_by_input(inputs, options.reading, stdin, options.per in ("line", "word", "region"), columns)
    first = next(given, None)  # an error about its columns comes before the output is opened
    given = itertools.chain([] if first is None else [first], given)
    if output is None or found is None:
        if output is not None:
            output.open()
        waiting = writing.begun(given)
    else:
        saved_fields, arrays = found
        with of_a_state(output):
            saved = writing.restore(scorer, saved_fields, arrays)
            counting.restore(saved_fields.totals)
        output.open(keep=saved_fields.position)
        reporter.tell(_resuming(output, saved_fields))
        waiting = resume_scorer(scorer, saved, arrays, writing.begun(given, saved))
    saving = SavedRun(output, run, save_every) if output is not None and repeatable else None
    try:
        for parts in scorer.steps(waiting):
            for part in parts:
                counting.take(writing.write(part))
            sink.flush()
            if saving is not None and saving.due:
                scorer_fields, scorer_arrays = scorer_state(scorer)
                fields = {"scorer": scorer_fields, "records": writing.state(), "totals": asdict(counting.totals)}
                saving.save(fields, scorer_arrays)
    finally:
        reporter.clear()  # a message about an error or Ctrl-C starts on its own line
    return counting.end()


def _resuming(output: PartialFile, fields: SavedFields) -> str:
    size = output.state_path.stat().st_size
    documents = f"{counted(fields.done, 'document')} and " if fields.done else ""
    return (
        f"{output.partial}: going on after {documents}{counted(fields.position, 'byte')} of output, from a state of "
        f"{size / 1e6:.1f} MB"
    )
