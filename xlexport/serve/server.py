"""Run the application with uvicorn on an open socket until a signal ends it.

Connections are bounded: their number, and how long one may wait for the head of a request. uvicorn bounds neither, so
unfinished heads would hold all file descriptors for ever.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from xlexport.serve.options import ServeLimits
from xlruntime import OptionError

__all__ = ["Server", "listening_socket", "log_to"]

TICK = 0.1  # seconds between two looks for a second signal
LOGS = ("xlexport.serve", "uvicorn")
BURST = 32  # connections that asyncio accepts before it does anything else
SPARE = 128  # file descriptors for everything but connections: two bursts, bundles, states on their way
QUEUE = 1024  # connections that the system holds until they are accepted
QUIET = 60.0  # seconds between two lines about connections that cannot be accepted

logger = logging.getLogger(__name__)


class Server(uvicorn.Server):
    """A server that reports when it is ready.

    Attributes:
        should_exit: whether a signal asked it to end; cut_off: whether a second one did, so that requests are cut off.
    """

    def __init__(
        self, app: ASGIApp, limits: ServeLimits, grace: int, ready: Callable[[], None], ending: Callable[[], None]
    ) -> None:
        """Prepare to serve `app`.

        Args:
            grace: seconds for requests under way after a signal.
            ready: called when requests are answered; ending: called by the handler of the signal.
        """
        self.should_exit: bool
        self.cut_off = False
        self._connections = _Connections(limits)
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=grace,
                server_header=False,
                lifespan="on",
                backlog=BURST,
                http=self._connections.make,  # type: ignore[arg-type]  # uvicorn only calls it
                loop="asyncio",  # with its burst
                ws="none",
            )
        )
        self._ready, self._ending = ready, ending
        self._silent_until = 0.0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer requests."""
        asyncio.get_running_loop().set_exception_handler(self._log_problem)
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(QUEUE)  # asyncio made the queue as short as a burst
        self._ready()

    async def on_tick(self, counter: int) -> bool:
        """Do what uvicorn does ten times a second, and close connections that wait too long."""
        self._connections.close_late()
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Finish the requests under way; a second signal cuts them off."""
        self._ending()
        self.cut_off = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End all requests, after a second signal at once."""
        cutting = asyncio.create_task(self._cut_off())
        try:
            await super().shutdown(sockets)
        finally:
            cutting.cancel()

    def _log_problem(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log a problem of the loop. One while accepting comes back until it is over, so it is a line now and then."""
        if "socket" not in context:
            loop.default_exception_handler(context)
        elif loop.time() >= self._silent_until:
            self._silent_until = loop.time() + QUIET
            logger.warning("no connection can be accepted: %s", context.get("exception"))

    async def _cut_off(self) -> None:
        while not self.cut_off:
            await asyncio.sleep(TICK)
        for task in self.server_state.tasks:
            task.cancel()


class _Connections:
    """The open connections, which are closed if they wait for a request too long.

    When there are too many, the one that has waited longest, also for the rest of a body, makes room: clients that
    begin requests and never end them cannot keep others out.
    """

    def __init__(self, limits: ServeLimits) -> None:
        self._most = _most(limits.connections)
        self._seconds = limits.head_seconds
        self._open: set[Any] = set()  # uvicorn's own, once there was a connection
        # Connections that wait, and whether for the rest of a body, the longest wait first.
        self._since: dict[tuple[Any, Any, bool], float] = {}

    def make(self, **arguments: Any) -> asyncio.Protocol:
        """Return the protocol of a new connection, as uvicorn asks for it."""
        self._open = arguments["server_state"].connections
        if len(self._open) < self._most or self._closed_longest():
            return H11Protocol(**arguments)  # it bounds the size of a head, which httptools does not
        return _Refusal()

    def close_late(self) -> None:
        """Close the connections that have waited too long, or that came in a burst and are too many.

        The route of a request bounds the time that its body takes.
        """
        self._look()
        latest = time.monotonic() - self._seconds
        for place in [place for place, since in self._since.items() if since < latest and not place[2]]:
            self._close(place)
        while len(self._open) > self._most and self._closed_longest():
            pass

    def _closed_longest(self) -> bool:
        """Close the connection that has waited longest; return whether there was one."""
        self._look()
        if self._since:
            self._close(next(iter(self._since)))
            return True
        return False

    def _close(self, place: tuple[Any, Any, bool]) -> None:
        connection, _, _ = place
        del self._since[place]
        self._open.discard(connection)  # it would count until the loop has closed it
        connection.transport.abort()

    def _look(self) -> None:
        """Note which connections wait since when, for all of a request or for a client that should read the answer.

        Each request has a new cycle, so the wait after it is a new one.
        """
        now, waiting = time.monotonic(), {}
        for connection in self._open:
            cycle = connection.cycle
            idle = cycle is None or cycle.response_complete or connection.transport.is_closing()
            if idle or cycle.more_body:
                waiting[connection, cycle, not idle] = now
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


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens, so that a port that is taken is found before anything is opened.

    Raises:
        OptionError: the address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        reason = str(error.strerror).partition(" (")[0]  # Python adds the address a second time
        hint = "Choose another port; 0 takes a free one." if error.errno == errno.EADDRINUSE else "Give another one."
        raise OptionError(f"address {host}:{port}: {reason}.", hint=hint) from error
    # Connections inherit this. asyncio sets it only if the socket names its protocol; without it, the second part of an
    # answer waits 40 ms for the client's system to confirm the first.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


class _Lines(logging.Handler):
    """A handler that gives the text of each record to a function."""

    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__()
        self.write = write

    def emit(self, record: logging.LogRecord) -> None:
        self.write(self.format(record))


def log_to(write: Callable[[str], None], quiet: bool = False) -> None:
    """Log with `write`: a line for each request, or with `quiet` only problems. A problem may have several lines."""
    handler = _Lines(write)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    for name in LOGS:
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(logging.WARNING if quiet or name == "uvicorn" else logging.INFO)
        logger.propagate = False
