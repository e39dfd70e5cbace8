"""The sessions of a server: places in documents, kept within a limit of memory until they expire."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from xlexport.serve.answers import ApiError, busy
from xlexport.serve.jobs import Place
from xlexport.serve.limits import ServeLimits
from xlexport.serve.models import Served

__all__ = ["Session", "SessionStore"]


@dataclass(eq=False)
class Session:
    """One document that grows.

    Attributes:
        id: its name, which nobody can guess; model: its bundle.
        place: where it is; None: nothing was read.
        created: in seconds since 1970; ttl: seconds after which an idle session is deleted; used: when it was used.
        busy: whether a request is changing it.
    """

    id: str
    model: Served
    nbytes: int
    ttl: float
    created: int
    used: float
    place: Place | None = None
    busy: bool = False

    def describe(self) -> dict[str, Any]:
        """Return what an answer shows of it."""
        return {
            "id": self.id,
            "object": "session",
            "model": self.model.name,
            "created": self.created,
            "tokens": 0 if self.place is None else self.place.position,
            "bytes": self.nbytes,
            "ttl_seconds": self.ttl,
        }


class SessionStore:
    """All sessions. Only the thread of the server's loop uses it."""

    def __init__(self, limits: ServeLimits) -> None:
        """Start without sessions."""
        self._limits = limits
        self._sessions: dict[str, Session] = {}
        self._sizes: dict[str, int] = {}  # bytes of a session, by bundle

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def nbytes(self) -> int:
        """Memory of all sessions in bytes. Each counts in full, though forks share theirs until they go on."""
        return sum(session.nbytes for session in self._sessions.values())

    def all(self) -> list[Session]:
        """Return the sessions that have not expired, the oldest first."""
        self.expire()
        return list(self._sessions.values())

    def create(self, model: Served, ttl: float | None = None, place: Place | None = None) -> Session:
        """Begin a session.

        Raises:
            ApiError: one more does not fit, or the bundle cannot carry memory.
        """
        if model.scheduler.evaluation.full_document:
            message = f"{model.name} reads each document in one step and carries no memory, so it has no sessions."
            raise ApiError(400, message, "no_sessions", "model")
        self.expire()
        size = self.size(model)
        if len(self) >= self._limits.sessions:
            raise busy(f"{len(self):,} sessions are open, as many as are possible.", self._wait())
        if self.nbytes + size > self._limits.session_bytes:
            usage = f"{len(self):,} sessions hold {self.nbytes:,} of {self._limits.session_bytes:,} bytes"
            raise busy(f"{usage}, and one more takes {size:,}.", self._wait())
        lasts = self._limits.session_seconds if ttl is None else min(ttl, self._limits.session_seconds)
        session = Session(
            f"sess-{secrets.token_hex(16)}", model, size, lasts, int(time.time()), time.monotonic(), place
        )
        self._sessions[session.id] = session
        return session

    def get(self, name: str) -> Session:
        """Return a session.

        Raises:
            ApiError: there is none of this name, or it has expired.
        """
        self.expire()
        session = self._sessions.get(name)
        if session is None:
            raise ApiError(404, "no such session: it was deleted, or it expired.", "session_not_found")
        session.used = time.monotonic()
        return session

    @contextlib.contextmanager
    def changing(self, name: str) -> Iterator[Session]:
        """Lend a session to one request that changes it; it does not expire meanwhile.

        Raises:
            ApiError: as `get`, or another request is changing it.
        """
        session = self.get(name)
        if session.busy:
            raise ApiError(409, "another request is changing this session.", "session_busy", retry_after=1)
        session.busy = True
        try:
            yield session
        finally:
            session.busy = False
            session.used = time.monotonic()

    def delete(self, name: str) -> None:
        """End a session. A request that is changing it goes on, for nothing.

        Raises:
            ApiError: as `get`.
        """
        del self._sessions[self.get(name).id]

    def expire(self) -> None:
        """Delete the sessions that have been idle for too long."""
        now = time.monotonic()
        for session in list(self._sessions.values()):
            if not session.busy and now - session.used > session.ttl:
                del self._sessions[session.id]

    def size(self, model: Served) -> int:
        """Return the bytes of a session of this bundle."""
        if model.name not in self._sizes:
            scheduler = model.scheduler
            self._sizes[model.name] = scheduler.engine.new_memory(scheduler.evaluation).nbytes
        return self._sizes[model.name]

    def _wait(self) -> int:
        """Return the seconds until the next session may expire, at least 1."""
        now = time.monotonic()
        return max(1, round(min((session.used + session.ttl - now for session in self._sessions.values()), default=1)))
