"""The batches in which documents share steps, and the queue of documents that wait for a row.

A step adds up the slots of a ring in the order in which they lie there. So if a document lay at other slots than it
would alone, its scores would be rounded in another way. Documents that are to get the very numbers that they get alone
share a batch only if they are in the same phase: if their next steps write at the same slots. The other rows of a
batch, and padding, have no effect on a row's numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from xlexport.serve.rows import Rows, Tenant, phase_of
from xlruntime.engine import Engine
from xlruntime.evaluation import EvaluationSettings

__all__ = ["Batches"]

T = TypeVar("T", bound=Tenant)
PARKED = 4  # times as many as have rows: tenants that may wait with a memory of their own


class Batches(Generic[T]):
    """Tenants with rows in batches, and tenants that wait for one, in the order in which they came.

    Args:
        most: tenants with a row at a time, in all batches together.
        in_phase: whether only tenants in the same phase share a batch; otherwise, there is one batch.
        turn: steps after which a tenant gives its row to one that waits, and waits itself.

    Attributes:
        waiting: the tenants without a row.
    """

    def __init__(self, engine: Engine, evaluation: EvaluationSettings, most: int, in_phase: bool, turn: int) -> None:
        self.waiting: deque[T] = deque()
        self._turn = turn
        self._most = most
        self._in_phase = in_phase
        self._new = lambda: Rows[T](engine, evaluation, most)
        self._first_phase = (0,) * len(evaluation.rules.rings)
        self._batches: list[Rows[T]] = []

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
        free = self._most - sum(len(batch.active) for batch in self._batches)
        while self.waiting and free:
            tenant = self.waiting.popleft()
            self._batch_for(tenant).join(tenant)
            free -= 1
        for batch in list(self._batches):
            if batch.active:
                try:
                    run(batch)
                except Exception as error:  # of the step: nobody's memory can be trusted
                    for tenant in batch.clear():
                        tenant.job.fail(error)
        empty = [batch for batch in self._batches if not batch.active]
        for batch in empty[1:]:  # one is kept, so that most requests need no new memory
            self._batches.remove(batch)

    def _take_turns(self) -> None:
        """Take rows from tenants that have had theirs for long, as many as others need."""
        parked = sum(tenant.memory is not None for tenant in self.waiting)
        wanted = min(len(self.waiting), PARKED * self._most - parked)
        for batch in self._batches:
            for row, tenant in batch.active:
                if wanted > 0 and tenant.steps >= self._turn:
                    self.waiting.append(batch.leave(row))
                    wanted -= 1

    def _batch_for(self, tenant: T) -> Rows[T]:
        """Return a batch with the tenant's phase, else an empty one, else a new one."""
        phase = self._first_phase if tenant.memory is None else phase_of(tenant.memory)
        empty = None
        for batch in self._batches:
            if not batch.active:
                empty = batch
            elif not self._in_phase or batch.phase == phase:
                return batch
        if empty is None:
            empty = self._new()
            self._batches.append(empty)
        return empty
