"""The batches in which documents run their steps, and the queue of documents that wait for a row.

A step adds up the slots of a ring in the order in which they lie there. In a shared batch all documents write at the
same slots, so a document lies at other slots than it would alone, and its scores are rounded in another way. In a batch
of its own, a document gets the very numbers that it gets alone. On a CPU that costs nothing, unless a model is so large
that reading its weights takes longer than computing with them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from xlexport.serve.rows import Rows, Tenant
from xlruntime import EvaluationSettings, Model

__all__ = ["Batches"]

T = TypeVar("T", bound=Tenant)
PARKED = 4  # times as many as have rows: tenants that may wait with a memory of their own


class Batches(Generic[T]):
    """Tenants with rows in batches, and tenants that wait for one, in the order in which they came.

    Args:
        most: tenants with a row at a time, in all batches together.
        shared: whether all of them share one batch; otherwise, each has one of its own.
        turn: steps after which a tenant gives its row to one that waits, and waits itself.

    Attributes:
        waiting: the tenants without a row.
    """

    def __init__(self, engine: Model, evaluation: EvaluationSettings, most: int, shared: bool, turn: int) -> None:
        self.waiting: deque[T] = deque()
        self._most = most
        self._turn = turn
        self._batches = [Rows[T](engine, evaluation, most if shared else 1) for _ in range(1 if shared else most)]

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.waiting or any(batch.active for batch in self._batches))

    def drop(self) -> None:
        """Forget the tenants for which nobody waits."""
        for batch in self._batches:
            for row, tenant in batch.active:
                if tenant.gone:
                    batch.free(row)
        if any(tenant.gone for tenant in self.waiting):
            self.waiting = deque(tenant for tenant in self.waiting if not tenant.gone)

    def step(self, run: Callable[[Rows[T]], None]) -> None:
        """Give rows to tenants that wait, and run a step of each batch; one that fails ends the jobs of its batch."""
        self._take_turns()
        for batch in self._batches:
            while self.waiting and not batch.full:
                batch.join(self.waiting.popleft())
            if batch.active:
                try:
                    run(batch)
                except Exception as error:  # of the step: nobody's memory can be trusted
                    for tenant in batch.clear():
                        tenant.job.fail(error)

    def _take_turns(self) -> None:
        """Take rows from tenants that have had theirs for long, as many as others need."""
        free = self._most - sum(len(batch.active) for batch in self._batches)
        parked = sum(tenant.memory is not None for tenant in self.waiting)
        n_rows = min(len(self.waiting) - free, PARKED * self._most - parked)
        for batch in self._batches:
            for row, tenant in batch.active:
                if n_rows > 0 and tenant.steps >= self._turn:
                    self.waiting.append(batch.leave(row))
                    n_rows -= 1
