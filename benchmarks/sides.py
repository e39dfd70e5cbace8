"""Sides of a benchmark: each starts in its own process, then waits, and is measured when its turn comes.

A side is a function, `module:name`, whose arguments are plain JSON. In its process it returns `Ready`, which holds the
step to measure. So no process has the libraries, threads or allocator of another side. All sides are warm, and slow
preparations (an export, a compilation) happen once, outside the measurement.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

__all__ = ["ROOT", "Ready", "Side", "SideError", "Turn", "run_once", "sides_of", "text_ids"]

ROOT = Path(__file__).parents[1]


class SideError(click.ClickException):
    """A side's process ended before it answered."""


@dataclass
class Ready:
    """The content of a side's own process.

    Attributes:
        step: the work that is timed; returns scores of its tokens in nats, or None.
        facts: further facts about the side, as plain JSON.
        warm: steps before the first turn.
    """

    step: Callable[[], npt.NDArray[Any] | None]
    facts: dict[str, Any] = field(default_factory=dict)
    warm: int = 2


@dataclass(frozen=True)
class Turn:
    """Several steps of a side in a row: wall time of each, and the process's mean user and system time per step."""

    seconds: list[float]
    user: float
    system: float
    peak_rss_mb: float
    scores: list[float]  # returned by all these steps


class Side:
    """A process that holds one side, ready."""

    def __init__(
        self, function: Callable[..., Ready], *arguments: object, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start the process and wait until it is ready, so that it does not run while another side is measured.

        Raises:
            SideError: the side could not start; stderr has the reason.
        """
        self.name = function.__name__
        self._process = _start(function, arguments, environment)
        self.facts: dict[str, Any] = self._answer()

    def measure(self, repeats: int) -> Turn:
        """Measure `repeats` steps."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{repeats}\n")
        self._process.stdin.flush()
        return Turn(**self._answer())

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SideError(f"side {self.name} ended with status {self._process.wait()}; its output is above.")
        return json.loads(line)


@contextlib.contextmanager
def sides_of(makers: Mapping[str, Callable[[], Side]]) -> Iterator[dict[str, Side]]:
    """Start all sides, one after the other, and end all of them, also after an error."""
    started: dict[str, Side] = {}
    try:
        for name, make in makers.items():
            print(f"getting ready: {name}", file=sys.stderr)
            started[name] = make()
        yield started
    finally:
        for side in started.values():
            side.close()


def run_once(function: Callable[..., Any], *arguments: object) -> Any:
    """Run a function in a separate process and return its result."""
    process = _start(function, arguments, None)
    out, _ = process.communicate()
    if process.returncode:
        raise SideError(f"{function.__name__} ended with status {process.returncode}; its output is above.")
    return json.loads(out.splitlines()[0])


def _start(
    function: Callable[..., Any], arguments: tuple[object, ...], environment: Mapping[str, str] | None
) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.sides"],
        cwd=ROOT,
        env={**os.environ, "TRANSFORMERS_VERBOSITY": "error", **(environment or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    plain = [str(part) if isinstance(part, Path) else part for part in arguments]
    process.stdin.write(json.dumps([function.__module__, function.__qualname__, plain]) + "\n")
    process.stdin.flush()
    return process


def _serve() -> None:
    """Serve one request to get ready, then turns until the input of the process ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps the output of libraries out of the answers
    module, name, arguments = json.loads(sys.stdin.readline())
    found = getattr(importlib.import_module(module), name)(*arguments)
    if not isinstance(found, Ready):
        print(json.dumps(found), file=answers, flush=True)
        return
    started = time.perf_counter()
    found.step()
    found.facts["first_step_seconds"] = time.perf_counter() - started
    for _ in range(found.warm - 1):
        found.step()
    print(json.dumps(found.facts), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(_turn(found.step, int(line))), file=answers, flush=True)


def _turn(step: Callable[[], npt.NDArray[Any] | None], repeats: int) -> dict[str, Any]:
    before, seconds, scores = resource.getrusage(resource.RUSAGE_SELF), [], list[float]()
    for _ in range(repeats):
        started = time.perf_counter()
        found = step()
        seconds.append(time.perf_counter() - started)
        if found is not None:
            scores += np.asarray(found, np.float64).ravel().tolist()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "seconds": seconds,
        "user": (after.ru_utime - before.ru_utime) / repeats,
        "system": (after.ru_stime - before.ru_stime) / repeats,
        "peak_rss_mb": after.ru_maxrss * 1024 / 1e6,
        "scores": scores,
    }


def text_ids(start: int, count: int) -> npt.NDArray[np.int64]:
    """Return `count` bytes of this repository's code, repeated, from byte `start` on: the frequencies of real text."""
    if not _TEXT:
        _TEXT.append(b"".join(path.read_bytes() for path in sorted(ROOT.glob("x*/**/*.py"))))
    ids = np.frombuffer(_TEXT[0], np.uint8).astype(np.int64)
    return ids[np.arange(start, start + count) % len(ids)]


_TEXT: list[bytes] = []


if __name__ == "__main__":
    # Run as a program, this module has another name than sides import.
    from benchmarks.sides import _serve as serve

    serve()
