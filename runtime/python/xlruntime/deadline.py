"""End steps of ONNX Runtime that take too long: one thread per model watches all its steps."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

from .errors import OptionError

__all__ = ["Deadline"]

LONGEST_PAUSE = 1.0  # seconds between two checks
IDLE_LOOKS = 8  # checks without a step before the thread ends; the next step starts another


class Deadline:
    """A time limit for steps, exceeded by at most a quarter. Safe to share between threads.

    ONNX Runtime checks between two operators whether to stop, so a running operator is never interrupted.

    Attributes:
        seconds: how long a step may take.

    Raises:
        OptionError: it is not a positive number.
    """

    def __init__(self, seconds: float) -> None:
        if not (math.isfinite(seconds) and seconds > 0):
            raise OptionError(f"step_timeout is {seconds}, expected a positive number of seconds.")
        self.seconds = seconds
        self._lock = threading.Lock()
        self._running: dict[int, tuple[float, Any]] = {}
        self._thread: threading.Thread | None = None
        self._idle = 0

    def begin(self, options: Any) -> None:
        """Watch a run from its start until `end`; `options` are its `onnxruntime.RunOptions`."""
        with self._lock:
            self._running[id(options)] = time.monotonic() + self.seconds, options
            self._idle = 0
            if self._thread is None or not self._thread.is_alive():  # a fork has none of its parent's threads
                self._thread = threading.Thread(target=self._look, name="step deadline", daemon=True)
                self._thread.start()

    def end(self, options: Any) -> None:
        """Stop watching a run. Its options can be used again."""
        with self._lock:
            self._running.pop(id(options), None)
            options.terminate = False

    def _look(self) -> None:
        while True:
            time.sleep(min(self.seconds / 4, LONGEST_PAUSE))
            with self._lock:
                now = time.monotonic()
                for until, options in self._running.values():
                    if now > until:
                        options.terminate = True
                self._idle += not self._running
                if self._idle > IDLE_LOOKS:
                    self._thread = None
                    return
