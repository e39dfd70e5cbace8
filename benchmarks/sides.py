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
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from xlexport.bench.measuring import Clock, peak_rss_mb, seconds

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
        elsewhere: as in `Clock`.
    """

    step: Callable[[], npt.NDArray[Any] | None]
    facts: dict[str, Any] = field(default_factory=dict)
    warm: int = 2
    elsewhere: bool = False


@dataclass(frozen=True)
class Turn:
    """Several steps of a side in a row: the scores that they returned, and the times of all turns so far."""

    clock: Clock
    peak_rss_mb: float
    scores: list[float]


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
        answer = self._answer()
        return Turn(Clock(**answer.pop("clock")), **answer)

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
    found.facts["first_step_seconds"] = seconds(found.step)
    for _ in range(found.warm - 1):
        found.step()
    print(json.dumps(found.facts), file=answers, flush=True)
    clock = Clock(elsewhere=found.elsewhere)
    for line in sys.stdin:
        print(json.dumps(asdict(_turn(found.step, clock, int(line)))), file=answers, flush=True)


def _turn(step: Callable[[], npt.NDArray[Any] | None], clock: Clock, repeats: int) -> Turn:
    results: list[npt.NDArray[Any] | None] = []
    clock.round(lambda: results.append(step()), repeats)
    scores = [np.asarray(result, np.float64).ravel() for result in results if result is not None]
    return Turn(clock, peak_rss_mb(), np.concatenate([*scores, []]).tolist())


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
