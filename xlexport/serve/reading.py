"""Read the tokens of many jobs in shared steps.

Each document is cut as `Stream.feed` cuts it. Its neighbours do not matter: without `same_length`, scores depend on the
cuts. So a row whose last piece is shorter than the step is padded. If its memory is needed afterwards, the padding is
taken back, which only rings can do. Other memories run such a piece in a step of their own.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from xlexport.serve.counts import Counts
from xlexport.serve.jobs import Job, Part, Place
from xlexport.serve.rows import Rows
from xlruntime.detail import detail_of
from xlruntime.documents import check_length
from xlruntime.engine import Engine
from xlruntime.errors import XlruntimeError
from xlruntime.evaluation import EvaluationSettings
from xlruntime.memory import BatchMemory

__all__ = ["Reader", "Reading", "not_finite"]


@dataclass(eq=False)
class Reader:
    """A job whose tokens are being read.

    Attributes:
        targets: (n,) the tokens that have no score yet; pending: the token before them; position: as in `Place`.
        memory: its memory while it has no row; None: fresh, or in its row.
        length: tokens of its next step.
    """

    job: Job
    targets: npt.NDArray[np.int64]
    pending: int
    position: int
    memory: BatchMemory | None
    length: int = 0

    @classmethod
    def of(cls, job: Job) -> Reader:
        """Return the reader of a new job; there must be a token before its targets."""
        start, ids = job.work.start, job.work.ids
        if start is None:
            return cls(job, ids[1:], int(ids[0]), 1, None)
        return cls(job, ids, start.pending, start.position, start.memory)

    @property
    def gone(self) -> bool:
        """Whether nobody waits for the job any more."""
        return self.job.cancelled or self.job.over

    def place(self, memory: BatchMemory) -> Place:
        """Return the place that was reached."""
        return Place(memory, self.pending, self.position)

    def take(self, n: int) -> None:
        """Count `n` tokens as read."""
        self.pending, self.position = int(self.targets[n - 1]), self.position + n
        self.targets = self.targets[n:]


class Reading:
    """The jobs that read, in the order in which they came.

    Attributes:
        done: readers that reached their end and go on, with copies of their memories; None: still fresh.
    """

    def __init__(self, engine: Engine, evaluation: EvaluationSettings, most: int, counts: Counts) -> None:
        """Start without jobs; at most `most` of them share a step."""
        self.engine = engine
        self.evaluation = evaluation
        self.counts = counts
        self.rows: Rows[Reader] = Rows(engine, evaluation, most)
        self.waiting: deque[Reader] = deque()
        self.done: list[tuple[Reader, BatchMemory | None]] = []
        self._alone: deque[Reader] = deque()  # their next piece needs a step of its own
        lengths = [engine.longest_step(purpose, evaluation.segment_len) for purpose in ("score", "detail")]
        self._longest = min(evaluation.segment_len, *lengths)
        self._can_go_back = all(entry.layout == "ring" for entry in engine.bundle.memory)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.waiting or self._alone or self.rows.active)

    def add(self, job: Job) -> None:
        """Take a job."""
        reader = Reader.of(job)
        if len(reader.targets):
            self.waiting.append(reader)
        else:
            self._end(reader, reader.memory)

    def drop(self) -> None:
        """Forget the jobs for which nobody waits."""
        for row, reader in self.rows.active:
            if reader.gone:
                self.rows.free(row)
        for queue in (self.waiting, self._alone):
            if any(reader.gone for reader in queue):
                kept = [reader for reader in queue if not reader.gone]
                queue.clear()
                queue.extend(kept)

    def step(self) -> None:
        """Run one step for all rows, and one for a reader that needs a step of its own."""
        while self.waiting and not self.rows.full:
            reader = self.waiting.popleft()
            self.rows.join(reader, reader.memory)
            reader.memory = None
        if self.rows.active:
            try:
                self._step_rows()
            except Exception as error:  # of the step: nobody's memory can be trusted
                for reader in self.rows.clear():
                    reader.job.fail(error)
        if self._alone:
            reader = self._alone.popleft()
            try:
                self._step_alone(reader)
            except Exception as error:
                reader.job.fail(error)

    def _step_rows(self) -> None:
        memory = self.rows.memory
        for row, reader in self.rows.active:
            reader.length = self._length(memory, row, reader)
        S = max(reader.length for _, reader in self.rows.active)
        for row, reader in self.rows.active:
            if reader.length < S and not self._can_pad(memory, row, reader, S):
                reader.memory = memory.row(row)
                self.rows.free(row)
                self._alone.append(reader)
        memory = self.rows.before_step(S)
        B, active = memory.batch_size, self.rows.active
        tokens, targets = np.zeros((B, S), np.int64), np.zeros((B, S), np.int64)
        for row, reader in active:
            _fill(tokens[row], targets[row], reader)
        context = memory.context(S)
        outputs = self.engine.step(self._purpose([reader for _, reader in active]), memory, tokens, targets)
        self.counts.step(B, len(active))
        for row, reader in active:
            if not np.isfinite(outputs["log_prob"][row]).all():
                memory.restart(row, refill=True)
                self.rows.free(row)
                reader.job.fail(not_finite(reader.position))
                continue
            n = reader.length
            self._report(reader, outputs, row, context[row])
            if not len(reader.targets):
                if not reader.gone:  # the listener may have had enough
                    self._end(reader, memory.row(row, S - n) if reader.job.work.continues else None)
                self.rows.free(row)

    def _step_alone(self, reader: Reader) -> None:
        """Run the next piece in a step of its own; if there are more, they wait for a row before all others."""
        assert reader.memory is not None
        memory = reader.memory
        reader.length = self._length(memory, 0, reader)
        tokens, targets = np.zeros((1, reader.length), np.int64), np.zeros((1, reader.length), np.int64)
        _fill(tokens[0], targets[0], reader)
        context = memory.context(reader.length)
        outputs = self.engine.step(self._purpose([reader]), memory, tokens, targets)
        self.counts.step(1, 1)
        if not np.isfinite(outputs["log_prob"]).all():
            reader.job.fail(not_finite(reader.position))
            return
        self._report(reader, outputs, 0, context[0])
        if len(reader.targets):
            self.waiting.appendleft(reader)
        else:
            self._end(reader, memory)

    def _length(self, memory: BatchMemory, row: int, reader: Reader) -> int:
        """Return the tokens of the next step; a document without positions left begins again, if it may."""
        if not memory.room[row]:
            check_length(int(memory.position[row]) + 2, self.evaluation, "the document")
            memory.restart(row)
        return min(self._longest, memory.max_segment, len(reader.targets), int(memory.room[row]))

    def _can_pad(self, memory: BatchMemory, row: int, reader: Reader, segment_len: int) -> bool:
        if memory.room[row] < segment_len or reader.length < len(reader.targets):
            return False
        return self._can_go_back or not reader.job.work.continues

    def _purpose(self, readers: list[Reader]) -> str:
        wanted = any(reader.job.work.top and reader.job.work.scores for reader in readers)
        return "detail" if wanted else "score"

    def _report(self, reader: Reader, outputs: dict[str, npt.NDArray[Any]], row: int, context: Any) -> None:
        """Report the scores of a row, and count its tokens as read."""
        n, work = reader.length, reader.job.work
        if work.scores:
            detail = detail_of(outputs, row, slice(0, n), work.top) if work.top else {}
            detail.pop("entropy", None)
            reader.job.listener.scored(Part(outputs["log_prob"][row, :n].copy(), context[:n].copy(), **detail))
        reader.take(n)
        self.counts.read += n

    def _end(self, reader: Reader, memory: BatchMemory | None) -> None:
        work = reader.job.work
        if work.max_tokens:
            self.done.append((reader, memory))
        elif work.keep:
            kept = self.engine.new_memory(self.evaluation) if memory is None else memory
            reader.job.finish([reader.place(kept)])
        else:
            reader.job.finish()


def not_finite(position: int) -> XlruntimeError:
    """Return the error for a document on which the model fails."""
    return XlruntimeError(
        f"the model gave scores that are not finite near token {position:,}.", repair="Give another text."
    )


def _fill(tokens: npt.NDArray[np.int64], targets: npt.NDArray[np.int64], reader: Reader) -> None:
    n = reader.length
    tokens[0], tokens[1:n] = reader.pending, reader.targets[: n - 1]
    targets[:n] = reader.targets[:n]
