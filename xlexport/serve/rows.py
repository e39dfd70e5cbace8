"""A batch whose rows documents join and leave between steps: all share a ring, of a size that follows them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from xlexport.serve.jobs import Job
from xlruntime import EvaluationSettings, Memory, Model

__all__ = ["Rows", "Tenant"]

PATIENCE = 16  # steps in which at most half the rows were needed, before the batch shrinks


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

    @property
    def gone(self) -> bool:
        """Whether nobody waits for the job any more."""
        return self.job.cancelled or self.job.over


T = TypeVar("T", bound=Tenant)


class Rows(Generic[T]):
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

    def clear(self) -> list[T]:
        """Return all tenants, and begin again without rows: after a step that failed."""
        gone = [tenant for _, tenant in self.active]
        self.tenants, self._memory, self._spare_steps = [], None, 0
        return gone

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
        for row, at_row in enumerate(self.tenants):
            if at_row is None and memory.room[row] < segment_len:
                memory.restart(row)
        return memory

    def _grow(self) -> None:
        size = min(_power(len(self.tenants) + 1), _power(self.most))
        grown = self._engine.new_memory(self._evaluation, size)
        if self._memory is not None:
            grown.offset = self._memory.offset
            for row, _ in self.active:
                grown.place(row, self._memory.row(row))
        self._memory = grown
        self.tenants += [None] * (size - len(self.tenants))
        self._spare_steps = 0


def _power(n: int) -> int:
    """Return the smallest power of two that is at least n, and at least 1."""
    return 1 << max(n - 1, 0).bit_length()
