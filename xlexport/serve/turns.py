"""Turns of documents: clients take turns, then the requests of each client, then the documents of each request."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from xlexport.serve.jobs import Owner, RequestJob

__all__ = ["QueueEntry", "Queues", "in_turn"]


@dataclass(eq=False)
class QueueEntry:
    """A document that takes turns.

    Attributes:
        job: the job that it belongs to.
        last: the round in which it had its last turn, or began to take turns.
    """

    job: RequestJob
    last: int = field(default=0, init=False)


D = TypeVar("D", bound=QueueEntry)


class Queues(dict[Owner, deque[D]]):
    """Documents that wait: a queue for each request. The request that was served last is the last one."""

    _lost = 0

    def add(self, document: D, first: bool = False) -> None:
        """Add a document at the end of its queue, or at the beginning."""
        queue = self.setdefault(document.job.owner, deque())
        (queue.appendleft if first else queue.append)(document)

    def take(self, owner: Owner) -> D:
        """Remove the first document of a request, and return it."""
        queue = self.pop(owner)
        document = queue.popleft()
        if queue:
            self[owner] = queue
        return document

    def drop(self, lost: int) -> None:
        """Remove the documents whose jobs have ended, if `lost`, the number of jobs that ended early, has grown."""
        if lost == self._lost:  # thousands may wait
            return
        self._lost = lost
        for owner, queue in list(self.items()):
            self[owner] = deque(document for document in queue if not document.job.done())
            if not self[owner]:
                del self[owner]


def in_turn(documents: Iterable[D]) -> list[D]:
    """Return the document of each client whose turn it is; of one client, that of each request; of one request, all.

    The first had its turn longest ago.
    """
    documents, last = list(documents), dict[str | Owner, int]()
    for document in documents:
        for key in document.job.owner.keys:
            last[key] = max(last.get(key, 0), document.last)
    documents.sort(key=lambda one: (*(last[key] for key in one.job.owner.keys), one.last))
    for level in range(2):
        firsts = dict[str | Owner, D]()
        for document in documents:
            firsts.setdefault(document.job.owner.keys[level], document)
        if len(firsts) > 1:
            return list(firsts.values())
    return documents
