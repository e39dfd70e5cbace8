"""The rows of a batch, which documents join and leave between steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from xlexport.serve.turns import QueueEntry
from xlruntime import EvaluationSettings, Memory, Model

__all__ = ["Batch", "T", "Tenant"]

PATIENCE = 16  # steps in which at most half the rows were needed, before the batch shrinks


@dataclass(eq=False)
class Tenant(QueueEntry):
    """A document that needs a row.

    Attributes:
        pending, position: as in `StreamPosition`.
        memory: its memory while it has no row, which others may share; None: fresh, or in its row.
        steps: steps since it got its row.
    """

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

    def join(self, tenant: T, more: int = 0) -> None:
        """Give a tenant a row, while so many `more` wait: with a copy of its document's memory, or with fresh memory.

        A document that has the batch for itself is at the very slots at which it would be in a memory of its own.
        """
        offset = 0 if tenant.memory is None else tenant.memory.offset
        if None not in self.tenants:
            self._grow(more + 1)
        if not self.active:
            self.memory.offset = offset
        row = self.tenants.index(None)
        if tenant.memory is None:
            self.memory.restart(row, refill=True)  # of what another document may have left
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
        """Take a row from its tenant, which no longer needs its memory."""
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
            for row in free:
                self.memory.restart(row)
            self._memory = self.memory.take(rows)
            self.tenants = [self.tenants[row] for row in rows]
            self._spare_steps = 0
        memory = self.memory
        for row, occupant in enumerate(self.tenants):
            if occupant is None and memory.room[row] < segment_len:
                memory.restart(row)
        return memory

    def _grow(self, joining: int) -> None:
        size = min(_power(len(self.tenants) + joining), _power(self.most))
        larger = self._engine.new_memory(self._evaluation, size)
        if self._memory is not None:
            larger.offset = self._memory.offset
            for row, _ in self.active:
                larger.place(row, self._memory.row(row))
        self._memory = larger
        self.tenants += [None] * (size - len(self.tenants))
        self._spare_steps = 0


def _power(n: int) -> int:
    """Return the smallest power of two that is at least n, and at least 1."""
    return 1 << max(n - 1, 0).bit_length()
