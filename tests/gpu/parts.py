"""The parts of the trial: settings, outcomes, and a process for each part, so that a crash affects only that part."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Literal

NEEDS_CUDA = "needs CUDA"
GRACE = 5.0  # seconds between asking a process to end and killing it
_SPAWN = multiprocessing.get_context("spawn")

Record = Callable[[Mapping[str, Any]], None]  # stores figures (plain JSON), even if the part fails later
Status = Literal["passed", "failed", "skipped"]


class PartError(Exception):
    """A part found an error; the message is one line."""


@dataclass(frozen=True)
class Settings:
    """The settings that every part gets.

    Attributes:
        device: `cpu`, `cuda` or `cuda:N`; with a CPU the trial is only rehearsed.
        tiny: whether to use small sizes, to try the program.
        folder: the folder of checkpoints and bundles.
    """

    device: str
    tiny: bool
    folder: str

    @property
    def on_cuda(self) -> bool:
        """Whether the device is a GPU, so that this is not a rehearsal."""
        return self.device != "cpu"

    @property
    def index(self) -> int:
        """Return the number of the CUDA device."""
        return int(self.device.partition(":")[2] or 0)


@dataclass(frozen=True)
class Part:
    """One part of the trial.

    Attributes:
        seconds: time limit, after which the part is ended.
        run: runs the part; raises `PartError` or any other error if something is wrong.
        needs_cuda: whether the part never counts as passed on a CPU, where its code is only rehearsed.
    """

    name: str
    title: str
    seconds: int
    run: Callable[[Settings, Record], None]
    needs_cuda: bool = False


@dataclass
class Outcome:
    """The outcome of a part.

    Attributes:
        reason: why it failed or was skipped, in one line.
        figures: all measurements, also those before a failure.
    """

    name: str
    status: Status
    seconds: float = 0.0
    reason: str = ""
    figures: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as JSON."""
        return asdict(self)

    def __str__(self) -> str:
        reason = f": {self.reason}" if self.reason else ""
        return f"{self.name:10} {self.status}{reason} ({self.seconds:.0f} s)"


def run_apart(part: Part, settings: Settings, seconds: float | None) -> Outcome:
    """Run a part in a separate process, and end it with all its children after `seconds` (None: never)."""
    started = time.monotonic()
    connection, theirs = _SPAWN.Pipe(duplex=False)
    process = _SPAWN.Process(target=_serve, args=(theirs, part, settings))
    process.start()
    theirs.close()
    figures: dict[str, Any] = {}
    reason: str | None = None
    try:
        while reason is None:
            if not connection.poll(None if seconds is None else max(0.0, started + seconds - time.monotonic())):
                reason = f"not done after {seconds:.0f} s"
                break
            try:
                message = connection.recv()
            except EOFError:
                process.join()
                reason = _ending(process.exitcode or 0)
                break
            if isinstance(message, str):
                reason = message
            else:
                figures.update(message)
    finally:
        _end_all(process)
    return _outcome(part, settings, time.monotonic() - started, reason, figures)


def run_here(part: Part, settings: Settings) -> Outcome:
    """Run a part in this process."""
    started = time.monotonic()
    figures: dict[str, Any] = {}
    reason = _run(part, settings, figures.update)
    return _outcome(part, settings, time.monotonic() - started, reason, figures)


def _serve(connection: Connection, part: Part, settings: Settings) -> None:
    """Send the figures of a part immediately, then why it failed, or an empty string."""
    os.setsid()  # so that the children of this process can be ended with it
    os.dup2(2, 1)  # only the tables go to standard output
    connection.send(_run(part, settings, lambda figures: connection.send(dict(figures))))


def _run(part: Part, settings: Settings, record: Record) -> str:
    """Run a part and return why it failed, or an empty string."""
    try:
        part.run(settings, record)
    except Exception as error:  # errors of any kind: the other parts continue
        traceback.print_exc()
        text = " ".join(str(error).split())
        return (text if isinstance(error, PartError) else f"{type(error).__name__}: {text}")[:500]
    return ""


def _outcome(part: Part, settings: Settings, seconds: float, reason: str, figures: dict[str, Any]) -> Outcome:
    if reason:
        return Outcome(part.name, "failed", seconds, reason, figures)
    if part.needs_cuda and not settings.on_cuda:
        return Outcome(part.name, "skipped", seconds, NEEDS_CUDA, figures)
    return Outcome(part.name, "passed", seconds, "", figures)


def _ending(status: int) -> str:
    if status < 0:
        return f"its process ended by {signal.Signals(-status).name}"
    return f"its process ended with status {status}"


def _end_all(process: BaseProcess) -> None:
    """Ask the process and its children to end, then kill them."""
    assert process.pid is not None
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:  # all have ended, or it has no group yet
            process.kill()
        process.join(GRACE)
