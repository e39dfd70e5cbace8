"""Draw the next tokens of many continuations in shared steps of one token."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from xlexport.serve.counts import Counts
from xlexport.serve.jobs import Job, Place, likeliest
from xlexport.serve.reading import Reader, not_finite
from xlexport.serve.rows import Rows
from xlruntime import Sampling
from xlruntime.documents import check_length
from xlruntime.engine import Engine
from xlruntime.evaluation import EvaluationSettings
from xlruntime.memory import BatchMemory

__all__ = ["Drawer", "Drawing"]


@dataclass(eq=False)
class Drawer:
    """One continuation of a job.

    Attributes:
        choice: its place among the job's continuations; left: tokens that may still be drawn.
        pending, position: as in `Place`; memory: its memory until it has a row, shared with the other continuations.
    """

    job: Job
    choice: int
    sampling: Sampling
    rng: np.random.Generator
    left: int
    pending: int
    position: int
    memory: BatchMemory | None

    @property
    def gone(self) -> bool:
        """Whether nobody waits for the job any more."""
        return self.job.cancelled or self.job.over


class Drawing:
    """The continuations that are being drawn, in the order in which they came."""

    def __init__(self, engine: Engine, evaluation: EvaluationSettings, most: int, counts: Counts) -> None:
        """Start without continuations; at most `most` of them share a step."""
        self.engine = engine
        self.evaluation = evaluation
        self.counts = counts
        self.rows: Rows[Drawer] = Rows(engine, evaluation, most)
        self.waiting: deque[Drawer] = deque()
        self._ends: dict[Job, dict[int, Place | None]] = {}

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.waiting or self.rows.active)

    def add(self, reader: Reader, memory: BatchMemory | None) -> None:
        """Take the continuations of a job that has been read."""
        work = reader.job.work
        self._ends[reader.job] = {}
        for choice, sampling in enumerate(work.samplings):
            drawer = Drawer(
                reader.job,
                choice,
                sampling,
                sampling.rng(),
                work.max_tokens,
                reader.pending,
                reader.position,
                memory,
            )
            self.waiting.append(drawer)

    def drop(self) -> None:
        """Forget the jobs for which nobody waits."""
        for row, drawer in self.rows.active:
            if drawer.gone:
                self.rows.free(row)
        if any(drawer.gone for drawer in self.waiting):
            self.waiting = deque(drawer for drawer in self.waiting if not drawer.gone)
        for job in [job for job in self._ends if job.cancelled or job.over]:
            del self._ends[job]

    def step(self) -> None:
        """Draw one token for every row."""
        while self.waiting and not self.rows.full:
            drawer = self.waiting.popleft()
            self.rows.join(drawer, drawer.memory)
            drawer.memory = None
        if self.rows.active:
            try:
                self._step_rows()
            except Exception as error:  # of the step: nobody's memory can be trusted
                for drawer in self.rows.clear():
                    drawer.job.fail(error)

    def _step_rows(self) -> None:
        for row, _ in self.rows.active:
            if not self.rows.memory.room[row]:
                check_length(int(self.rows.memory.position[row]) + 2, self.evaluation, "the document")
                self.rows.memory.restart(row)
        memory, active = self.rows.before_step(1), self.rows.active
        tokens = np.zeros((memory.batch_size, 1), np.int64)
        for row, drawer in self.rows.active:
            tokens[row, 0] = drawer.pending
        logits = self.engine.step("generate", memory, tokens, tokens)["logits"]  # any targets
        self.counts.step(memory.batch_size, len(active))
        for row, drawer in active:
            if not np.isfinite(logits[row]).all():
                memory.restart(row, refill=True)
                self.rows.free(row)
                drawer.job.fail(not_finite(drawer.position))
            elif self._draw(drawer, logits[row]):
                self._end(drawer, memory, row)

    def _draw(self, drawer: Drawer, logits: np.ndarray[tuple[int], np.dtype[np.float32]]) -> bool:
        """Draw the next token; return whether the continuation ends."""
        token = drawer.sampling.draw(logits, drawer.rng)
        drawer.pending, drawer.position, drawer.left = token, drawer.position + 1, drawer.left - 1
        self.counts.drawn += 1
        enough = drawer.job.listener.drew(drawer.choice, likeliest(logits, token, drawer.job.work.top))
        return enough or not drawer.left

    def _end(self, drawer: Drawer, memory: BatchMemory, row: int) -> None:
        job = drawer.job
        place = Place(memory.row(row), drawer.pending, drawer.position) if job.work.keep else None
        self.rows.free(row)
        ends = self._ends.get(job)
        if ends is None:  # another continuation of the job has failed
            return
        ends[drawer.choice] = place
        if len(ends) == len(job.work.samplings):
            del self._ends[job]
            job.finish([found for _, found in sorted(ends.items()) if found is not None])
