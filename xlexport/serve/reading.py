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

from xlexport.serve.batches import Batches
from xlexport.serve.counts import Counts
from xlexport.serve.jobs import Job, Part, Place
from xlexport.serve.rows import Rows, Tenant
from xlruntime import EvaluationSettings, Memory, Model, XlruntimeError
from xlruntime.documents import check_length
from xlruntime.scorer import detail_of

__all__ = ["Reader", "Reading", "not_finite"]

TURN = 8  # segments that a document reads while others wait


@dataclass(eq=False)
class Reader(Tenant):
    """A job whose tokens are being read.

    Attributes:
        targets: (n,) the tokens that have no score yet; `pending` is the token before them.
        length: tokens of its next step.
    """

    targets: npt.NDArray[np.int64]
    length: int = 0

    @classmethod
    def of(cls, job: Job) -> Reader:
        """Return the reader of a new job; there must be a token before its targets."""
        start, ids = job.work.start, job.work.ids
        if start is None:
            return cls(job, int(ids[0]), 1, None, ids[1:])
        return cls(job, start.pending, start.position, start.memory, ids)

    def place(self, memory: Memory) -> Place:
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

    def __init__(self, engine: Model, evaluation: EvaluationSettings, most: int, counts: Counts, shared: bool) -> None:
        """Start without jobs; at most `most` of them have rows, in batches as `Batches` has them."""
        self.engine = engine
        self.evaluation = evaluation
        self.counts = counts
        self.batches: Batches[Reader] = Batches(engine, evaluation, most, shared, TURN)
        self.done: list[tuple[Reader, Memory | None]] = []
        self._alone: deque[Reader] = deque()  # their next piece needs a step of its own
        lengths = [engine.longest_step(purpose, evaluation.segment_len) for purpose in ("score", "detail")]
        self._longest = min(evaluation.segment_len, *lengths)
        self._can_go_back = all(entry.layout == "ring" for entry in engine.bundle.memory)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return self.batches.idle and not self._alone

    def add(self, job: Job) -> None:
        """Take a job."""
        reader = Reader.of(job)
        if len(reader.targets):
            self.batches.waiting.append(reader)
        else:
            self._end(reader, reader.memory)

    def drop(self) -> None:
        """Forget the jobs for which nobody waits."""
        self.batches.drop()
        self._alone = deque(reader for reader in self._alone if not reader.gone)

    def step(self) -> None:
        """Run a step of each batch, and a step for each reader that needs one of its own."""
        self.batches.step(self._step_rows)
        for reader in self._alone:
            try:
                self._step_alone(reader)
            except Exception as error:
                reader.job.fail(error)
        self._alone.clear()

    def _step_rows(self, rows: Rows[Reader]) -> None:
        for row, reader in rows.active:
            reader.length = self._length(rows.memory, row, reader)
        S = max(reader.length for _, reader in rows.active)
        for row, reader in rows.active:
            if reader.length < S and not self._can_pad(rows.memory, row, reader, S):
                self._alone.append(rows.leave(row))
        memory, active = rows.before_step(S), rows.active
        tokens, targets = np.zeros((memory.batch_size, S), np.int64), np.zeros((memory.batch_size, S), np.int64)
        for row, reader in active:
            _fill(tokens[row], targets[row], reader)
        context = memory.context(S)
        outputs = self.engine.step(self._purpose([reader for _, reader in active]), memory, tokens, targets)
        self.counts.step(memory.batch_size, len(active))
        for row, reader in active:
            if not np.isfinite(outputs["log_prob"][row]).all():
                memory.restart(row, refill=True)
                rows.free(row)
                reader.job.fail(not_finite(reader.position))
                continue
            n = reader.length
            self._report(reader, outputs, row, context[row])
            if not len(reader.targets):
                if not reader.gone:  # the listener may have had enough
                    self._end(reader, memory.row(row, S - n) if reader.job.work.continues else None)
                rows.free(row)

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
            self.batches.waiting.appendleft(reader)
        else:
            self._end(reader, memory)

    def _length(self, memory: Memory, row: int, reader: Reader) -> int:
        """Return the tokens of the next step; a document without positions left begins again, if it may."""
        if not memory.room[row]:
            check_length(int(memory.position[row]) + 2, self.evaluation, "the document")
            memory.restart(row)
        return min(self._longest, memory.max_segment, len(reader.targets), int(memory.room[row]))

    def _can_pad(self, memory: Memory, row: int, reader: Reader, segment_len: int) -> bool:
        if reader.length < len(reader.targets) or memory.room[row] < segment_len:
            return False
        return self._can_go_back or not reader.job.work.continues

    def _purpose(self, readers: list[Reader]) -> str:
        detailed = any(reader.job.work.top and reader.job.work.scores for reader in readers)
        return "detail" if detailed else "score"

    def _report(self, reader: Reader, outputs: dict[str, npt.NDArray[Any]], row: int, context: Any) -> None:
        """Report the scores of a row, and count its tokens as read."""
        n, work = reader.length, reader.job.work
        if work.scores:
            detail = detail_of(outputs, row, slice(0, n), work.top) if work.top else {}
            detail.pop("entropy", None)
            reader.job.listener.scored(Part(outputs["log_prob"][row, :n].copy(), context[:n].copy(), **detail))
        reader.take(n)
        self.counts.read += n

    def _end(self, reader: Reader, memory: Memory | None) -> None:
        work = reader.job.work
        if work.max_tokens:
            self.done.append((reader, memory))
        elif work.keep:
            state = self.engine.new_memory(self.evaluation) if memory is None else memory
            reader.job.finish([reader.place(state)])
        else:
            reader.job.finish()


def not_finite(position: int) -> XlruntimeError:
    """Return the error for a document on which the model fails."""
    return XlruntimeError(
        f"the model gave scores that are not finite near token {position:,}.", hint="Give another text."
    )


def _fill(tokens: npt.NDArray[np.int64], targets: npt.NDArray[np.int64], reader: Reader) -> None:
    n = reader.length
    tokens[0], tokens[1:n] = reader.pending, reader.targets[: n - 1]
    targets[:n] = reader.targets[:n]
