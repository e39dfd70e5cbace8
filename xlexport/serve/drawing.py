"""Draw the next tokens of many continuations in shared steps of one token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xlexport.serve.batches import Batches
from xlexport.serve.counts import Counts
from xlexport.serve.jobs import Job, Place, likeliest
from xlexport.serve.reading import Reader, not_finite
from xlexport.serve.rows import Rows, Tenant
from xlruntime import EvaluationSettings, Memory, Model, Random, Sampling
from xlruntime.documents import check_length

__all__ = ["Drawer", "Drawing"]

TURN = 64  # tokens that are drawn for a continuation while others wait


@dataclass(eq=False)
class Drawer(Tenant):
    """One continuation of a job.

    Attributes:
        choice: its place among the job's continuations; left: tokens that may still be drawn.
    """

    choice: int
    sampling: Sampling
    rng: Random
    left: int


class Drawing:
    """The continuations that are being drawn, in the order in which they came."""

    def __init__(self, engine: Model, evaluation: EvaluationSettings, most: int, counts: Counts, shared: bool) -> None:
        """Start without continuations; at most `most` of them have rows, in batches as `Batches` has them."""
        self.engine = engine
        self.evaluation = evaluation
        self.counts = counts
        self.batches: Batches[Drawer] = Batches(engine, evaluation, most, shared, TURN)
        self._ends: dict[Job, dict[int, Place | None]] = {}

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return self.batches.idle

    def add(self, reader: Reader, memory: Memory | None) -> None:
        """Take the continuations of a job that has been read."""
        job = reader.job
        self._ends[job] = {}
        for choice, sampling in enumerate(job.work.samplings):
            place = job, reader.pending, reader.position, memory
            self.batches.waiting.append(Drawer(*place, choice, sampling, sampling.rng(), job.work.max_tokens))

    def drop(self) -> None:
        """Forget the jobs for which nobody waits."""
        self.batches.drop()
        for job in [job for job in self._ends if job.cancelled or job.over]:
            del self._ends[job]

    def step(self) -> None:
        """Draw one token for every row."""
        self.batches.step(self._step_rows)

    def _step_rows(self, rows: Rows[Drawer]) -> None:
        for row, _ in rows.active:
            if not rows.memory.room[row]:
                check_length(int(rows.memory.position[row]) + 2, self.evaluation, "the document")
                rows.memory.restart(row)
        memory, active = rows.before_step(1), rows.active
        tokens = np.zeros((memory.batch_size, 1), np.int64)
        for row, drawer in active:
            tokens[row, 0] = drawer.pending
        logits = self.engine.step("generate", memory, tokens, tokens)["logits"]  # any targets
        self.counts.step(memory.batch_size, len(active))
        for row, drawer in active:
            if not np.isfinite(logits[row]).all():
                memory.restart(row, refill=True)
                rows.free(row)
                drawer.job.fail(not_finite(drawer.position))
            elif self._draw(drawer, logits[row]):
                self._end(drawer, rows, row)

    def _draw(self, drawer: Drawer, logits: np.ndarray[tuple[int], np.dtype[np.float32]]) -> bool:
        """Draw the next token; return whether the continuation ends."""
        token = drawer.sampling.draw(logits, drawer.rng)
        drawer.pending, drawer.position, drawer.left = token, drawer.position + 1, drawer.left - 1
        self.counts.drawn += 1
        enough = drawer.job.listener.drew(drawer.choice, likeliest(logits, token, drawer.job.work.top))
        return enough or not drawer.left

    def _end(self, drawer: Drawer, rows: Rows[Drawer], row: int) -> None:
        job = drawer.job
        place = Place(rows.memory.row(row), drawer.pending, drawer.position) if job.work.keep else None
        rows.free(row)
        ends = self._ends.get(job)
        if ends is None:  # another continuation of the job has failed
            return
        ends[drawer.choice] = place
        if len(ends) == len(job.work.samplings):
            del self._ends[job]
            job.finish([end for _, end in sorted(ends.items()) if end is not None])
