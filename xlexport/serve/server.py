"""Run the application with uvicorn on a socket that is bound before, until a signal ends it."""

from __future__ import annotations

import logging
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

__all__ = ["Server", "bound", "log_to"]

LOGS = ("xlexport.serve", "uvicorn")


class Server(uvicorn.Server):
    """A server that says when it is ready, and ends with status 0 after a signal."""

    def __init__(self, app: ASGIApp, grace: int, ready: Callable[[], None], ending: Callable[[], None]) -> None:
        """Prepare to serve `app`.

        Args:
            grace: seconds for requests under way after a signal.
            ready: called when requests are answered; ending: called by the handler of the signal.
        """
        self.should_exit: bool
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=grace,
                server_header=False,
                lifespan="on",
            )
        )
        self._ready, self._ending = ready, ending

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer requests."""
        await super().startup(sockets)
        self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Finish the requests under way; a second SIGINT ends them."""
        self._ending()
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def bound(host: str, port: int) -> socket.socket:
    """Return a socket that listens, so that a port that is taken is found before anything is opened.

    Raises:
        OSError: the address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise OSError(error.errno, error.strerror, f"{host}:{port}") from error


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
