"""Several worker processes that score the chunks of a run; their messages come in the order of the chunks."""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import signal
from collections import defaultdict, deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from xlexport.errors import WorkerError
from xlexport.scoring.chunks import Message
from xlexport.scoring.worker import Failed, NoChunk, Task, work

__all__ = ["worker_messages"]

MOST_WAITING = 256 << 20  # bytes of messages that wait for those of an earlier chunk
END, NO_CHUNK = pickle.dumps(None), pickle.dumps(NoChunk())
PATIENCE = 5.0  # seconds in which a worker must end after it was asked to


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    chunk: int | None = None  # the chunk that it scores


def worker_messages(task: Task, processes: int, first: int) -> Generator[Message]:
    """Yield the messages of all chunks from number `first` on, in order. Closing the iterator ends all workers.

    Raises:
        WorkerError: a worker ended, or was killed.
        Exception: the error of the first chunk that failed.
    """
    workers: list[_Worker] = []
    try:
        for _ in range(processes):
            workers.append(_started(task))
        yield from _ordered(workers, first)
    finally:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.process.join(PATIENCE)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.connection.close()


def _ordered(workers: list[_Worker], first: int) -> Iterator[Message]:
    waiting: dict[int, deque[bytes]] = defaultdict(deque)  # messages by chunk
    held = 0  # bytes of them
    following = current = first
    exhausted = False
    while True:
        for worker in workers:
            if worker.chunk is None and not exhausted and held < MOST_WAITING:
                with contextlib.suppress(BrokenPipeError):  # it has ended, which `_received` reports
                    worker.connection.send(following)
                worker.chunk, following = following, following + 1
        while waiting[current]:
            raw = waiting[current].popleft()
            held -= len(raw)
            answer: Any = pickle.loads(raw)
            if isinstance(answer, Failed):
                raise answer.error
            if isinstance(answer, NoChunk):
                return
            yield answer
            if answer is None:
                del waiting[current]
                current += 1
                break  # messages of the next chunk may be there
        else:
            for worker in _ready(workers, current, held):
                raw = _received(worker)
                assert worker.chunk is not None
                waiting[worker.chunk].append(raw)
                held += len(raw)
                exhausted = exhausted or raw == NO_CHUNK
                if raw in (END, NO_CHUNK):
                    worker.chunk = None


def _ready(workers: list[_Worker], current: int, held: int) -> list[_Worker]:
    """Wait for messages, and return the workers that have some; beyond the limit only for those of this chunk."""
    heard = {
        worker.connection: worker
        for worker in workers
        if worker.chunk is not None and (held < MOST_WAITING or worker.chunk == current)
    }
    return [heard[found] for found in wait(list(heard)) if isinstance(found, Connection)]


def _received(worker: _Worker) -> bytes:
    try:
        return worker.connection.recv_bytes()
    except (EOFError, OSError):
        worker.process.join(PATIENCE)
        raise WorkerError(
            f"a process that scored documents ended {_how(worker.process.exitcode)}, expected it to go on.",
            hint="Go on with --resume if there is an output file; with fewer --processes if memory ran out.",
        ) from None


def _how(status: int | None) -> str:
    if status is None or status >= 0:
        return f"with status {status}"
    try:
        return f"by {signal.Signals(-status).name}"
    except ValueError:
        return f"by signal {-status}"


def _started(task: Task) -> _Worker:
    """Start a process that ignores Ctrl-C from the beginning."""
    context = multiprocessing.get_context("spawn")  # a fork would copy ONNX Runtime's locks without its threads
    mine, theirs = context.Pipe()
    process = context.Process(target=work, args=(task, theirs), name="xlexport score", daemon=True)
    with _without_interrupts():
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
