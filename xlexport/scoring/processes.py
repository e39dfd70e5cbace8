"""Score the chunks of a run in several processes; their messages arrive in the order of the chunks."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
from collections import defaultdict, deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from xlexport.bundles import open_bundle
from xlexport.children import environment_of_children
from xlexport.errors import WorkerError, XlexportError
from xlexport.scoring.chunks import ChunkScorer, ChunkState, Job, Message, chunks
from xlexport.scoring.records import Scored

__all__ = ["worker_messages"]

MOST_WAITING = 256 << 20  # bytes of messages that wait for those of an earlier chunk
PATIENCE = 5.0  # seconds in which a worker must end after it was asked to


@dataclass(frozen=True)
class _NoChunk:
    """The answer to the number of a chunk after the last one."""


@dataclass(frozen=True)
class _Failed:
    """The answer if a worker cannot continue."""

    error: Exception


@dataclass
class _Worker:
    """A worker process, and the number of the chunk that it scores."""

    process: BaseProcess
    connection: Connection
    chunk: int | None = None


def worker_messages(job: Job, processes: int, first: int, state: ChunkState | None) -> Generator[Message]:
    """Yield the messages of all chunks from number `first` on, in order. Closing the iterator ends all workers.

    Args:
        state: of the first of these chunks, if it is not at its beginning.

    Raises:
        WorkerError: a worker ended, or was killed.
        Exception: the error of the first chunk that failed.
    """
    workers: list[_Worker] = []
    try:
        for _ in range(processes):
            workers.append(_started(job))
        yield from _ordered(workers, first, state)
    finally:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.process.join(PATIENCE)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.connection.close()


def _ordered(workers: list[_Worker], first: int, state: ChunkState | None) -> Iterator[Message]:
    waiting: dict[int, deque[tuple[int, Any]]] = defaultdict(deque)  # sizes and answers, by chunk
    held = 0  # bytes of them
    following = current = first
    exhausted = False
    while True:
        for worker in workers:
            if worker.chunk is None and not exhausted and held < MOST_WAITING:
                with contextlib.suppress(BrokenPipeError):  # it has ended, which `_received` reports
                    worker.connection.send((following, state))
                worker.chunk, following, state = following, following + 1, None
        while waiting[current]:
            size, answer = waiting[current].popleft()
            held -= size
            if isinstance(answer, _Failed):
                raise answer.error
            if isinstance(answer, _NoChunk):
                return
            yield answer
            if answer is None:
                del waiting[current]
                current += 1
                break  # messages of the next chunk may be there
        else:
            for worker in _ready(workers, current, held):
                raw = _received(worker)
                answer = pickle.loads(raw)
                assert worker.chunk is not None
                if isinstance(answer, ChunkState) and worker.chunk != current:
                    continue  # records before it are not written yet, and later states follow
                waiting[worker.chunk].append((len(raw), answer))
                held += len(raw)
                exhausted = exhausted or isinstance(answer, _NoChunk)
                if answer is None or isinstance(answer, _NoChunk):
                    worker.chunk = None


def _ready(workers: list[_Worker], current: int, held: int) -> list[_Worker]:
    """Wait for messages, and return the workers that have some; beyond the limit only for those of this chunk."""
    heard = {
        worker.connection: worker
        for worker in workers
        if worker.chunk is not None and (held < MOST_WAITING or worker.chunk == current)
    }
    return [heard[connection] for connection in wait(list(heard)) if isinstance(connection, Connection)]


def _received(worker: _Worker) -> bytes:
    try:
        return worker.connection.recv_bytes()
    except (EOFError, OSError):
        worker.process.join(PATIENCE)
        raise WorkerError(
            f"a process that scored documents ended {_how(worker.process.exitcode)} before its work was done.",
            hint="Continue with --resume if there is an output file. If memory ran out, use fewer --processes.",
        ) from None


def _how(status: int | None) -> str:
    if status is None or status >= 0:
        return f"with status {status}"
    try:
        return f"by {signal.Signals(-status).name}"
    except ValueError:
        return f"by signal {-status}"


def _started(job: Job) -> _Worker:
    """Start a process that ignores Ctrl-C from the beginning."""
    context = multiprocessing.get_context("spawn")  # a fork would copy ONNX Runtime's locks without its threads
    mine, theirs = context.Pipe()
    process = context.Process(target=_work, args=(job, theirs), name="xlexport score", daemon=True)
    with _without_interrupts(), environment_of_children():
        process.start()
    theirs.close()
    return _Worker(process, mine)


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Block Ctrl-C in this thread, and so in processes that it starts; one that comes meanwhile waits."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(job: Job, connection: Connection) -> None:
    """Receive numbers of chunks in rising order, and send the messages of each, until the connection ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one ends the others
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        for answer in _answers(job, connection):
            connection.send_bytes(pickle.dumps(answer))
    except (EOFError, BrokenPipeError, ConnectionResetError):  # nobody needs more
        return
    except Exception as error:
        error.add_note(traceback.format_exc())  # for a bug
        connection.send_bytes(pickle.dumps(_Failed(_sendable_error(error))))


def _answers(job: Job, connection: Connection) -> Iterator[Message | _NoChunk]:
    scorer = ChunkScorer(open_bundle(job.bundle, **job.runtime), job.settings, job.options, job.with_speed)
    notes: list[str] = []
    cut = enumerate(chunks(job.documents(io.BytesIO(), notes.append)))
    saved_at = time.monotonic()

    def is_due() -> bool:
        return time.monotonic() >= saved_at + job.save_every

    while True:
        target, state = connection.recv()
        number, chunk = -1, None
        while number < target:
            notes.clear()  # about chunks of other processes
            number, chunk = next(cut, (target, None))
        if chunk is None:
            yield _NoChunk()
            continue
        yield from notes
        notes.clear()
        for message in scorer.score(chunk, state, is_due):
            yield list(map(_sendable, message)) if isinstance(message, list) else message
            if isinstance(message, ChunkState):
                saved_at = time.monotonic()


def _sendable(scored: Scored) -> Scored:
    """Return what the first process needs, without arrays that only records needed."""
    part, none = scored.part, scored.part.index[:0]
    light = replace(
        part, index=none, context=none, rank=None, entropy=None, top_ids=None, top_log_probs=None, first=None,
        word_ends=None, last_word_end=None, error=part.error and _sendable_error(part.error),
    )  # fmt: skip
    return replace(scored, part=light)


def _sendable_error(error: Exception) -> Exception:
    """Return an error that another process can load."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # classes of libraries may raise anything here; none may hide the error itself
        return XlexportError(f"{type(error).__name__}: {error}")
    return error


def _end_with_parent() -> None:
    """End this process at once if the first one ends, also within a long step."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
