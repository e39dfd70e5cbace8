"""A worker process of a run with several: it opens the bundle, and scores the chunks whose numbers it is sent."""

from __future__ import annotations

import io
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from xlexport.bundles import open_bundle
from xlexport.errors import XlexportError
from xlexport.scoring.carried import own_columns
from xlexport.scoring.chunks import Chunk, Message, chunks, score_chunk
from xlexport.scoring.documents import documents_by_input
from xlexport.scoring.inputs import Input
from xlexport.scoring.items import CarriedColumns
from xlexport.scoring.run import make_scorer
from xlexport.scoring.run_options import RunOptions
from xlexport.scoring.session import Scored
from xlruntime import EvaluationSettings

__all__ = ["Failed", "NoChunk", "Task", "work"]


@dataclass(frozen=True)
class Task:
    """The work that all workers share.

    Attributes:
        bundle: the folder of the bundle; runtime: arguments of `open_bundle`.
        with_speed: whether documents show tokens_per_second.
    """

    bundle: Path
    runtime: Mapping[str, Any]
    settings: EvaluationSettings
    options: RunOptions
    inputs: Sequence[Input]
    with_speed: bool


@dataclass(frozen=True)
class NoChunk:
    """The answer to the number of a chunk after the last one."""


@dataclass(frozen=True)
class Failed:
    """The answer if a worker cannot go on."""

    error: Exception


def work(task: Task, connection: Connection) -> None:
    """Receive numbers of chunks in rising order, and send the messages of each, until the connection ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one ends the others
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        for answer in _answers(task, connection):
            connection.send_bytes(pickle.dumps(answer))
    except (EOFError, BrokenPipeError, ConnectionResetError):  # nobody needs more
        return
    except Exception as error:
        error.add_note(traceback.format_exc())  # for a bug
        connection.send_bytes(pickle.dumps(Failed(_sendable(error))))


def _answers(task: Task, connection: Connection) -> Iterator[Message | NoChunk]:
    model = open_bundle(task.bundle, **task.runtime)
    scorer = make_scorer(model, task.settings, task.options)
    notes: list[str] = []
    columns = CarriedColumns(task.options.reading, own_columns(task.options.per, task.settings.values), notes.append)
    keep = task.options.per in ("line", "word", "region")
    cut = enumerate(chunks(documents_by_input(task.inputs, task.options.reading, io.BytesIO(), keep, columns)))
    while True:
        wanted = connection.recv()
        chunk = _skipped_to(cut, wanted, notes)
        if chunk is None:
            yield NoChunk()
            continue
        yield from notes
        notes.clear()
        for message in score_chunk(model, task.options, scorer, chunk, task.with_speed):
            yield [_with_sendable_error(scored) for scored in message] if isinstance(message, list) else message


def _skipped_to(cut: Iterator[tuple[int, Chunk]], wanted: int, notes: list[str]) -> Chunk | None:
    """Return a chunk, without the notes about those before; None after the last one."""
    while True:
        notes.clear()
        number, chunk = next(cut, (wanted, None))
        if number == wanted:
            return chunk


def _with_sendable_error(scored: Scored) -> Scored:
    error = scored.part.error
    return scored if error is None else replace(scored, part=replace(scored.part, error=_sendable(error)))


def _sendable(error: Exception) -> Exception:
    """Return an error that another process can load."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # classes of libraries may raise anything here; none may hide the error itself
        return XlexportError(f"{type(error).__name__}: {error}")
    return error


def _end_with_parent() -> None:
    """End this process at once if the first one ends, also within a long step."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
