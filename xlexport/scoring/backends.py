"""Where the chunks of a run are scored: in this process, or by workers whose messages arrive in any order."""

from __future__ import annotations

import pickle
import time
import traceback
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from xlexport.bundles import open_bundle
from xlexport.errors import XlexportError
from xlexport.scoring.chunks import Chunk, ChunkScorer, ChunkState, Job, Message
from xlexport.scoring.records import Scored

__all__ = ["Backend", "ChunkWorker", "Here", "Worker", "in_order"]

MOST_WAITING = 256 << 20  # bytes of messages that wait for those of an earlier chunk


class Backend(Protocol):
    """What scores a run: this process, other processes of the machine (`processes.py`), or Ray (`xlexport.ray`)."""

    def messages(self, job: Job, cut: Iterator[Chunk], state: ChunkState | None) -> Generator[Message]:
        """Yield the messages of chunks in the order of the chunks. Closing the iterator ends all workers.

        Args:
            state: of the first chunk, if it is not at its beginning.

        Raises:
            WorkerError: a worker ended, or was killed.
            Exception: the error of the first chunk that failed.
        """


class Here:
    """This process, with a scorer of its own. `is_due` says whether the scorer shall yield its state."""

    def __init__(self, scorer: ChunkScorer, is_due: Callable[[], bool] | None) -> None:
        self._scorer, self._is_due = scorer, is_due

    def messages(self, job: Job, cut: Iterator[Chunk], state: ChunkState | None) -> Generator[Message]:
        """Yield the messages of chunks, as a `Backend`; the scorer knows the job."""
        for chunk in cut:
            yield from self._scorer.score(chunk, state, self._is_due)
            state = None


class Worker(Protocol):
    """A process that scores one chunk after another, with a `ChunkWorker`."""

    def begin(self, chunk: Chunk, state: ChunkState | None) -> None:
        """Send a chunk. The worker must be idle."""

    def receive(self) -> bytes:
        """Return the next answer about the chunk.

        Raises:
            WorkerError: the worker ended, or was killed.
        """


@dataclass(frozen=True)
class _Failed:
    """The message in place of a chunk, or of the rest of one, that cannot be scored."""

    error: Exception


class ChunkWorker:
    """The scorer of a worker, which opens the bundle at its first chunk."""

    def __init__(self, job: Job) -> None:
        self._job, self._saved_at = job, time.monotonic()
        self._scorer: ChunkScorer | None = None

    def answers(self, chunk: Chunk, state: ChunkState | None) -> Iterator[bytes]:
        """Yield the messages of a chunk as bytes, for `in_order`."""
        try:
            if self._scorer is None:
                job = self._job
                model = open_bundle(job.bundle, **job.runtime)
                self._scorer = ChunkScorer(model, job.settings, job.options, job.with_speed)
            every = self._job.options.save_every
            for message in self._scorer.score(chunk, state, lambda: time.monotonic() >= self._saved_at + every):
                yield pickle.dumps(list(map(_sendable, message)) if isinstance(message, list) else message)
                if isinstance(message, ChunkState):
                    self._saved_at = time.monotonic()
        except Exception as error:
            error.add_note(traceback.format_exc())  # for a bug
            yield pickle.dumps(_Failed(_sendable_error(error)))


W = TypeVar("W", bound=Worker)


def in_order(
    workers: Sequence[W], ready: Callable[[list[W]], list[W]], cut: Iterator[Chunk], state: ChunkState | None
) -> Generator[Message]:
    """Divide chunks among workers, and yield their messages in the order of the chunks.

    Args:
        ready: waits, and returns those of some workers that have an answer.
        cut: the chunks; state: of the first one.

    Raises:
        WorkerError, Exception: as `Backend.messages`.
    """
    idle = list(workers)
    working: dict[int, W] = {}  # by the number of the chunk
    waiting: dict[int, deque[tuple[int, Any]]] = defaultdict(deque)  # sizes and messages, by chunk
    current = following = held = 0  # held: bytes of waiting messages
    while True:
        while idle and held < MOST_WAITING:
            try:
                chunk = next(cut, None)
            except Exception as error:  # earlier chunks come first
                waiting[following].append((0, _Failed(error)))
                chunk = None
            if chunk is None:
                cut = iter(())
                break
            working[following] = worker = idle.pop(0)
            worker.begin(chunk, state)
            following, state = following + 1, None
        if not working and not waiting[current]:
            return
        while waiting[current]:
            size, message = waiting[current].popleft()
            held -= size
            if isinstance(message, _Failed):
                raise message.error
            yield message
            if message is None:
                del waiting[current]
                current += 1
                break  # an idle worker may take a chunk
        else:
            numbers = {id(worker): number for number, worker in working.items()}
            # Beyond the limit, only the messages of the current chunk are read.
            heard = [worker for number, worker in working.items() if held < MOST_WAITING or number == current]
            for worker in ready(heard):
                raw, number = worker.receive(), numbers[id(worker)]
                message = pickle.loads(raw)
                if isinstance(message, ChunkState) and number != current:
                    continue  # records before it are not written yet, and later states follow
                waiting[number].append((len(raw), message))
                held += len(raw)
                if message is None:
                    idle.append(working.pop(number))


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
