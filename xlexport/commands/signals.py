"""Ctrl-C and SIGTERM end a command in good order, or at once if it is in a call that does not return.

Python handles a signal only between two of its own instructions, and ONNX Runtime or PyTorch may not return for hours.
So a thread ends the process if the first signal has no effect for long, or if a second one arrives.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

__all__ = ["PATIENCE", "SECOND_CHANCE", "acknowledged", "handle_signals", "noticed"]

PATIENCE = 20.0  # seconds in which Python must notice a SIGTERM; a machine that shuts down gives 30 or 90
SECOND_CHANCE = 1.0  # seconds in which the command must end after a second signal

_noticed = threading.Event()  # whether Python has handled a SIGTERM
_acknowledgements: list[Callable[[], None]] = []  # of the command, if it goes on for a while after the first signal


def handle_signals() -> None:
    """Make SIGTERM act like Ctrl-C, and let both end calls that do not return. Only for the process of a command."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)  # Python writes here at once, also during a long call
    signal.signal(signal.SIGTERM, _end_as_after_ctrl_c)
    threading.Thread(target=_watch, args=(reading,), name="signals", daemon=True).start()


@contextlib.contextmanager
def acknowledged(by: Callable[[], None]) -> Iterator[None]:
    """Call `by` at the first Ctrl-C or SIGTERM in the block: at once, on a thread, even within a long call."""
    _acknowledgements.append(by)
    try:
        yield
    finally:
        _acknowledgements.remove(by)


def noticed() -> None:
    """Say that Python handles a SIGTERM, for a command with a handler of its own."""
    _noticed.set()


def _end_as_after_ctrl_c(number: int, frame: FrameType | None) -> None:
    """Let the command clean up or save, even if the shell makes background jobs ignore Ctrl-C."""
    _noticed.set()
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):
        raise KeyboardInterrupt
    handler(number, frame)


def _watch(reading: int) -> None:
    came = 0
    while byte := os.read(reading, 1):
        number = byte[0]
        if number not in (signal.SIGINT, signal.SIGTERM):
            continue
        came += 1
        if came == 1:
            for acknowledge in tuple(_acknowledgements):
                acknowledge()
        if came > 1:
            time.sleep(SECOND_CHANCE)
            _end(number)
        if number == signal.SIGTERM:
            threading.Thread(target=_end_unless_noticed, name="patience", daemon=True).start()


def _end_unless_noticed() -> None:
    if not _noticed.wait(PATIENCE):
        _end(signal.SIGTERM)


def _end(number: int) -> None:
    """End the process from any thread, with the status that shells use after a signal."""
    os.write(2, b"Error: ended at once, within a call that did not return. Run the command again.\n")
    os._exit(128 + number)
