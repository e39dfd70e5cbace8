"""Bound the connections of a server: their number, and how long one may wait for the head of a request.

uvicorn bounds neither: unfinished heads would hold all file descriptors for ever.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from xlexport.serve.limits import ServeLimits

__all__ = ["BURST", "Connections"]

BURST = 32  # connections that asyncio accepts before it does anything else
SPARE = 128  # file descriptors for everything but connections: two bursts, bundles, states on their way


class Connections:
    """The open connections, which are closed if they wait for a request too long.

    When there are too many, the one that has waited longest makes room: clients that begin requests and never end them
    cannot keep others out.
    """

    def __init__(self, limits: ServeLimits) -> None:
        """Start without connections."""
        self._most = _most(limits.connections)
        self._seconds = limits.head_seconds
        self._open: set[Any] = set()  # uvicorn's own, once there was a connection
        self._since: dict[tuple[Any, Any], float] = {}  # connections that wait, the longest wait first

    def make(self, **arguments: Any) -> asyncio.Protocol:
        """Return the protocol of a new connection, as uvicorn asks for it."""
        self._open = arguments["server_state"].connections
        if len(self._open) < self._most or self._closed_longest():
            return H11Protocol(**arguments)  # it bounds the size of a head, which httptools does not
        return _Refusal()

    def close_late(self) -> None:
        """Close the connections that have waited too long, or that came in a burst and are too many."""
        self._look()
        latest = time.monotonic() - self._seconds
        while self._since and (len(self._open) > self._most or next(iter(self._since.values())) < latest):
            self._closed_longest()

    def _closed_longest(self) -> bool:
        """Close the connection that has waited longest; return whether there was one."""
        self._look()
        if not self._since:
            return False
        connection, _ = place = next(iter(self._since))
        del self._since[place]
        self._open.discard(connection)  # it would count until the loop has closed it
        connection.transport.abort()
        return True

    def _look(self) -> None:
        """Note which connections wait since when, for a request or for a client that should read the last answer.

        Each request has a new cycle, so the wait after it is a new one.
        """
        now = time.monotonic()
        waiting = {
            (connection, connection.cycle): now
            for connection in self._open
            if connection.cycle is None or connection.cycle.response_complete or connection.transport.is_closing()
        }
        kept = {place: since for place, since in self._since.items() if place in waiting}
        self._since = kept | {place: now for place in waiting if place not in kept}


class _Refusal(asyncio.Protocol):
    """A connection that is closed at once."""

    def connection_made(self, transport: Any) -> None:
        """Close it."""
        transport.abort()


def _most(limit: int) -> int:
    """Return how many connections leave file descriptors for everything else."""
    if sys.platform == "win32":
        return limit
    import resource

    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit if most == resource.RLIM_INFINITY else max(1, min(limit, most - SPARE))
