"""Run the application with uvicorn on a socket that is bound before, until a signal ends it."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from xlexport.serve.connections import BURST, Connections
from xlexport.serve.limits import ServeLimits
from xlruntime import OptionError

__all__ = ["Server", "bound", "log_to"]

TICK = 0.1  # seconds between two looks for a second signal
LOGS = ("xlexport.serve", "uvicorn")
QUEUE = 1024  # connections that the system holds until they are accepted
QUIET = 60.0  # seconds between two lines about connections that cannot be accepted

logger = logging.getLogger(__name__)


class Server(uvicorn.Server):
    """A server that says when it is ready.

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
        self._connections = Connections(limits)
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


def bound(host: str, port: int) -> socket.socket:
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
