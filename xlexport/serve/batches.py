"""Batches whose rows documents join and leave between steps, and the queue of documents that wait for a row.

A step adds up the slots of a ring in the order in which they lie there. In a shared batch all documents write at the
same slots, so a document lies at other slots than it would alone, and its scores are rounded in another way. In a batch
of its own, a document gets the very numbers that it gets alone. On a CPU that costs nothing, unless a model is so large
that reading its weights takes longer than computing with them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

from xlexport.serve.jobs import Job
from xlruntime import EvaluationSettings, Memory, Model

__all__ = ["Batch", "Counts", "Stage", "Tenant"]

PATIENCE = 16  # steps in which at most half the rows were needed, before the batch shrinks
PARKED = 4  # times as many as have rows: tenants that may wait with a memory of their own


@dataclass
class Counts:
    """The counters of one scheduler.

    Attributes:
        jobs: jobs submitted; finished, failed, cancelled: jobs that ended, by how they ended.
        read: tokens read, without padding; drawn: tokens drawn.
        steps: steps run; row_steps: rows of all steps together; busy_row_steps: those of them with a document.
    """

    jobs: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    read: int = 0
    drawn: int = 0
    steps: int = 0
    row_steps: int = 0
    busy_row_steps: int = 0

    def step(self, rows: int, busy: int) -> None:
        """Count a step."""
        self.steps += 1
        self.row_steps += rows
        self.busy_row_steps += busy


@dataclass(eq=False)
class Tenant:
    """A document that needs a row.

    Attributes:
        job: the job that it belongs to.
        pending, position: as in `Place`.
        memory: its memory while it has no row, which others may share; None: fresh, or in its row.
        steps: steps since it got its row.
    """

    job: Job
    pending: int
    position: int
    memory: Memory | None
    steps: int = field(default=0, init=False)


T = TypeVar("T", bound=Tenant)


class Batch(Generic[T]):
    """The rows of one batch, each free or with a tenant.

    The batch has a power of two of rows: it grows as soon as a tenant needs a row, and shrinks after a while. A row
    costs as much as any other, free or not.

    Attributes:
        tenants: the tenant of each row; None: the row is free.
        most: most tenants at a time.
    """

    def __init__(self, engine: Model, evaluation: EvaluationSettings, most: int) -> None:
        """Start without rows."""
        self.most = most
        self.tenants: list[T | None] = []
        self._engine = engine
        self._evaluation = evaluation
        self._memory: Memory | None = None
        self._spare_steps = 0

    @property
    def memory(self) -> Memory:
        """The memory of the batch; there must be a row."""
        assert self._memory is not None
        return self._memory

    @property
    def active(self) -> list[tuple[int, T]]:
        """The rows that have a tenant, with their tenants."""
        return [(row, tenant) for row, tenant in enumerate(self.tenants) if tenant is not None]

    @property
    def full(self) -> bool:
        """Whether no further tenant fits."""
        return len(self.active) >= self.most

    def join(self, tenant: T) -> None:
        """Give a tenant a row: with a copy of the memory of its document, or with fresh memory.

        A document that has the batch for itself is at the very slots at which it would be in a memory of its own.
        """
        offset = 0 if tenant.memory is None else tenant.memory.offset
        if None not in self.tenants:
            self._grow()
        if not self.active:
            self.memory.offset = offset
        row = self.tenants.index(None)
        if tenant.memory is None:
            self.memory.restart(row)
        else:
            self.memory.place(row, tenant.memory)
            tenant.memory = None
        self.tenants[row], tenant.steps = tenant, 0

    def leave(self, row: int) -> T:
        """Take a row from its tenant, which keeps its memory, and return the tenant."""
        tenant = self.tenants[row]
        assert tenant is not None
        tenant.memory, self.tenants[row] = self.memory.row(row), None
        return tenant

    def free(self, row: int) -> None:
        """Take a row from its tenant, which needs its memory no more."""
        self.tenants[row] = None

    def discard(self, row: int) -> None:
        """Take a row from a tenant whose memory is not finite."""
        self.memory.restart(row, refill=True)
        self.free(row)

    def clear(self) -> list[T]:
        """Return all tenants, and begin again without rows: after a step that failed."""
        tenants = [tenant for _, tenant in self.active]
        self.tenants, self._memory, self._spare_steps = [], None, 0
        return tenants

    def before_step(self, segment_len: int) -> Memory:
        """Return the memory for a step: a smaller one if many rows are free, with room for the step in free rows."""
        active = [row for row, _ in self.active]
        for _, tenant in self.active:
            tenant.steps += 1
        n_rows = _power(len(active))
        self._spare_steps = self._spare_steps + 1 if n_rows <= len(self.tenants) // 2 else 0
        if self._spare_steps > PATIENCE:
            free = [row for row, tenant in enumerate(self.tenants) if tenant is None]
            rows = [*active, *free[: n_rows - len(active)]]
            self._memory = self.memory.take(rows)
            self.tenants = [self.tenants[row] for row in rows]
            self._spare_steps = 0
        memory = self.memory
        for row, occupant in enumerate(self.tenants):
            if occupant is None and memory.room[row] < segment_len:
                memory.restart(row)
        return memory

    def _grow(self) -> None:
        size = min(_power(len(self.tenants) + 1), _power(self.most))
        larger = self._engine.new_memory(self._evaluation, size)
        if self._memory is not None:
            larger.offset = self._memory.offset
            for row, _ in self.active:
                larger.place(row, self._memory.row(row))
        self._memory = larger
        self.tenants += [None] * (size - len(self.tenants))
        self._spare_steps = 0


class Stage(ABC, Generic[T]):
    """Documents at the same stage of their jobs: tenants with rows, and tenants that wait, in the order of arrival.

    Args:
        most: tenants with a row at a time, in all batches together.
        shared: whether all of them share one batch; otherwise, each has one of its own.

    Attributes:
        turn: steps after which a tenant gives its row to one that waits, and waits itself.
        waiting: the tenants without a row.
    """

    turn: ClassVar[int]

    def __init__(self, engine: Model, evaluation: EvaluationSettings, counts: Counts, most: int, shared: bool) -> None:
        self.engine = engine
        self.evaluation = evaluation
        self.counts = counts
        self.most = most
        self.waiting: deque[T] = deque()
        self._batches = [Batch[T](engine, evaluation, most if shared else 1) for _ in range(1 if shared else most)]

    @abstractmethod
    def run(self, batch: Batch[T]) -> None:
        """Run a step of a batch, which has a tenant, and report its results."""

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.waiting or any(batch.active for batch in self._batches))

    def drop(self) -> None:
        """Forget the tenants whose jobs have ended."""
        for batch in self._batches:
            for row, tenant in batch.active:
                if tenant.job.done():
                    batch.free(row)
        if any(tenant.job.done() for tenant in self.waiting):
            self.waiting = deque(tenant for tenant in self.waiting if not tenant.job.done())

    def step(self) -> None:
        """Give rows to tenants that wait, and run a step of each batch. One that fails ends the jobs of its batch."""
        self._take_turns()
        for batch in self._batches:
            while self.waiting and not batch.full:
                batch.join(self.waiting.popleft())
            if batch.active:
                try:
                    self.run(batch)
                except Exception as error:  # nobody's memory can be trusted
                    for tenant in batch.clear():
                        tenant.job.fail(error)

    def _take_turns(self) -> None:
        """Take rows from tenants that have had theirs for long, as many as others need."""
        free = self.most - sum(len(batch.active) for batch in self._batches)
        parked = sum(tenant.memory is not None for tenant in self.waiting)
        n_rows = min(len(self.waiting) - free, PARKED * self.most - parked)
        for batch in self._batches:
            for row, tenant in batch.active:
                if n_rows > 0 and tenant.steps >= self.turn:
                    self.waiting.append(batch.leave(row))
                    n_rows -= 1


def _power(n: int) -> int:
    """Return the smallest power of two that is at least n, and at least 1."""
    return 1 << max(n - 1, 0).bit_length()
