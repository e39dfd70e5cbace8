"""Score chunks in several processes of this machine."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from xlexport.children import environment_of_children
from xlexport.errors import WorkerError
from xlexport.scoring.backends import ChunkWorker, in_order
from xlexport.scoring.chunks import Chunk, ChunkState, Job, Message

__all__ = ["WorkerProcesses"]

PATIENCE = 5.0  # seconds in which a worker must end after it was asked to


@dataclass(frozen=True)
class WorkerProcesses:
    """Several processes of this machine, as a `Backend`."""

    count: int

    def messages(self, job: Job, cut: Iterator[Chunk], state: ChunkState | None) -> Generator[Message]:
        """Yield the messages of chunks, as `Backend.messages`."""
        workers: list[_Worker] = []
        try:
            for _ in range(self.count):
                workers.append(_started(job))
            yield from in_order(workers, _ready, cut, state)
        finally:
            for worker in workers:
                worker.process.terminate()
            for worker in workers:
                worker.process.join(PATIENCE)
                if worker.process.is_alive():
                    worker.process.kill()
                    worker.process.join()
                worker.connection.close()


@dataclass
class _Worker:
    """A worker process."""

    process: BaseProcess
    connection: Connection

    def begin(self, chunk: Chunk, state: ChunkState | None) -> None:
        """Send a chunk."""
        with contextlib.suppress(BrokenPipeError):  # it has ended, which `receive` reports
            self.connection.send((chunk, state))

    def receive(self) -> bytes:
        """Return the next answer."""
        try:
            return self.connection.recv_bytes()
        except (EOFError, OSError):
            self.process.join(PATIENCE)
            raise WorkerError(
                f"a process that scored documents ended {_how(self.process.exitcode)} before its work was done.",
                hint="Continue with --resume if there is an output file. If memory ran out, use fewer --processes.",
            ) from None


def _ready(workers: list[_Worker]) -> list[_Worker]:
    heard = {worker.connection: worker for worker in workers}
    return [heard[connection] for connection in wait(list(heard)) if isinstance(connection, Connection)]


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
    """Receive chunks, and send the messages of each, until the connection ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one ends the others
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    worker = ChunkWorker(job)
    try:
        while True:
            for answer in worker.answers(*connection.recv()):
                connection.send_bytes(answer)
    except (EOFError, BrokenPipeError, ConnectionResetError):  # nobody needs more
        return


def _end_with_parent() -> None:
    """End this process at once if the first one ends, also within a long step."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
