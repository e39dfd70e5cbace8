"""Progress of the commands on standard error: a bar on a terminal that can draw it, elsewhere a line every 15 seconds.

Logs, notebooks and pipes get the lines. The first comes after 15 seconds; `--quiet` shows neither lines nor bars.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

import click

from xlexport.callbacks import Progress, no_progress
from xlexport.terminal import is_quiet, tell
from xlruntime.messages import counted, one_line

if TYPE_CHECKING:
    from xlruntime import TokenScores

__all__ = [
    "Clock",
    "DocumentsBar",
    "Stages",
    "StatusLine",
    "bar",
    "duration",
    "progress_bar",
    "progress_lines",
    "stages",
]

Clock = Callable[[], float]

EVERY = 0.2  # seconds between two updates of a line that is redrawn
LINE_EVERY = 15.0  # seconds between two lines that are not
LINE_EVERY_VARIABLE = "XLEXPORT_PROGRESS_SECONDS"  # of the environment: another number
GLANCE = 1.0  # seconds between two looks at the time during a call that reports nothing
WIDTH, FULL, EMPTY = 24, "█", "░"  # of a bar
CLEAR_LINE, SHOW_CURSOR = "\r\x1b[K", "\x1b[?25h"


class StatusLine:
    """A line on standard error that is redrawn, or where that is impossible, printed again from time to time.

    Args:
        stream: where to write; None: standard error.
        clock: returns the time in seconds; None: `time.monotonic`.

    Attributes:
        redraws: whether the line is redrawn in place.
    """

    def __init__(self, stream: TextIO | None = None, clock: Clock | None = None) -> None:
        self._stream = stream or sys.stderr
        self._clock = clock or time.monotonic
        self.redraws = _can_draw(self._stream)
        self._every = math.inf if is_quiet() else EVERY if self.redraws else _line_every()
        self._drawn = -math.inf if self.redraws and not is_quiet() else self._clock()
        self._shown = False

    def draw(self, line: Callable[[], str]) -> None:
        """Show the text that `line` returns, unless the last update was very recent."""
        now = self._clock()
        if now - self._drawn < self._every:
            return
        self._drawn = now
        text = one_line(line())
        if self.redraws:
            self._shown = True
            text = f"\r{text[: shutil.get_terminal_size().columns - 1]}\x1b[K"
        else:
            text += "\n"
        self._stream.write(text)
        self._stream.flush()

    def clear(self) -> None:
        """Make room for other lines; the next line of progress comes no sooner than after one of its own."""
        if not self.redraws:
            self._drawn = self._clock()
        if self._shown:
            self._stream.write(CLEAR_LINE)
            self._stream.flush()
            self._shown = False


class DocumentsBar:
    """A status line while documents are scored, whose number and length may be unknown.

    Args:
        documents: number of documents; None: unknown.
        size: bytes of their text; None: unknown.
        stream, clock: as for `StatusLine`.
    """

    def __init__(
        self, documents: int | None, size: int | None, stream: TextIO | None = None, clock: Clock | None = None
    ) -> None:
        self._documents = documents
        self._size = size
        self._clock = clock or time.monotonic
        self._line = StatusLine(stream, self._clock)
        self._started = self._clock()
        self._tokens = 0
        self._done = 0
        self._finished = 0.0  # bytes of finished documents
        self._skipped: float | None = None  # bytes that an earlier process scored
        self._reached: dict[int, int] = {}  # of unfinished documents

    def resumed(self, documents: int, size: int) -> None:
        """Count documents that an earlier process finished, of `size` bytes."""
        self._done, self._finished = documents, float(size)

    def take(self, part: TokenScores) -> None:
        """Count a scored part of a document."""
        self._tokens += len(part)
        if self._skipped is None:
            self._skipped = self._finished + (int(part.starts[0]) if len(part) else 0)
        if part.summary is not None or part.error is not None:
            self._done += 1
            self._finished += part.summary.bytes if part.summary is not None else self._reached.get(part.number, 0)
            self._reached.pop(part.number, None)
        elif len(part):
            self._reached[part.number] = int(part.ends[-1])  # characters if tokens are not bytes: slightly too few
        self._line.draw(lambda: self.line(self._clock()))

    def clear(self) -> None:
        """Make room for other lines."""
        self._line.clear()

    def line(self, now: float) -> str:
        """Return the text of the line at the time `now`."""
        if self._documents is None:
            done = counted(self._done, "document")
        else:
            done = f"{self._done:,} of {counted(self._documents, 'document')}"
        line = f"{done}  {self._tokens / max(now - self._started, 1e-9):,.0f} tokens/s"
        line = line if self._line.redraws else f"scoring: {line}"
        if not self._size:
            return line
        reached = self._finished + sum(self._reached.values())
        scored = reached - (self._skipped or 0.0)
        left = (self._size - reached) * (now - self._started) / scored if scored > 0 else math.inf
        tail = f"  {duration(max(left, 0.0))} left" if math.isfinite(left) else ""
        fraction = min(reached / self._size, 1.0)
        return f"{bar(fraction)}  {line}{tail}" if self._line.redraws else f"{line}  {fraction:.0%}{tail}"


def bar(fraction: float) -> str:
    """Return a fraction as a percentage and as a bar."""
    filled = round(fraction * WIDTH)
    return f"{fraction:4.0%} {FULL * filled}{EMPTY * (WIDTH - filled)}"


def duration(seconds: float) -> str:
    """Return a duration in hours, minutes and seconds, such as 1:02:03."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


@contextlib.contextmanager
def progress_bar(label: str, clock: Clock | None = None) -> Iterator[Progress]:
    """Yield a callback that draws a bar on a terminal; the bar is removed when the block ends, also after an error.

    Without a terminal, the callback prints lines.
    """
    stream = sys.stderr
    if is_quiet() or not _can_draw(stream):
        yield progress_lines(label, clock)
        return
    with contextlib.ExitStack() as drawn:
        bars: list[Any] = []

        def draw(done: int, total: int) -> None:
            if not bars:
                template = f"%(bar)s {label} %(info)s"
                made = click.progressbar(
                    length=total, bar_template=template, fill_char=FULL, empty_char=EMPTY, width=WIDTH, file=stream
                )
                drawn.callback(stream.write, SHOW_CURSOR)
                bars.append(made)
            bars[0].update(done - bars[0].pos)

        try:
            yield draw
        finally:
            if bars:
                stream.write(CLEAR_LINE)
    stream.flush()


def progress_lines(label: str, clock: Clock | None = None) -> Progress:
    """Return a callback that prints lines where no bar can be drawn, and nothing on a terminal."""
    clock = clock or time.monotonic
    line, began = StatusLine(clock=clock), clock()
    if line.redraws:
        return no_progress
    return lambda done, total: line.draw(lambda: f"{label}: {_reached(done, total)}, {duration(clock() - began)}")


class Stages:
    """The progress of work in stages: each is a note when it begins, and a line of progress if it takes long.

    A thread may call `glance` while a stage runs that reports nothing.

    Args:
        label: what the work is called before its first stage.
        clock: returns the time in seconds; None: `time.monotonic`.
    """

    def __init__(self, label: str, clock: Clock | None = None) -> None:
        self._clock = clock or time.monotonic
        self._line = StatusLine(clock=self._clock)
        self._lock = threading.Lock()
        self._began = self._clock()
        self._stage = label
        self._reached: tuple[int, int] | None = None

    def tell(self, stage: str) -> None:
        """Print a note; it names the stage that begins."""
        with self._lock:
            self._line.clear()
            tell(stage)
            self._stage, self._reached = stage, None

    def progress(self, done: int, total: int) -> None:
        """Show how far the stage is."""
        with self._lock:
            self._reached = (done, total)
            self._line.draw(self._text)

    def glance(self) -> None:
        """Show which stage runs, if no line was printed for a while; on a terminal show nothing."""
        with self._lock:
            if not self._line.redraws:
                self._line.draw(self._text)

    def glance_until(self, ended: Callable[[float], bool]) -> None:
        """Glance once a second until `ended`, which waits for so many seconds, returns true."""
        while not ended(GLANCE):
            self.glance()

    def clear(self) -> None:
        """Make room for other lines."""
        with self._lock:
            self._line.clear()

    def _text(self) -> str:
        if self._reached is None:
            return f"{self._stage}: {duration(self._clock() - self._began)}"
        done, total = self._reached
        if self._line.redraws:
            return f"{bar(min(done / max(total, 1), 1.0))} {self._stage}"
        return f"{self._stage}: {_reached(done, total)}, {duration(self._clock() - self._began)}"


@contextlib.contextmanager
def stages(label: str) -> Iterator[Stages]:
    """Yield the stages of long work. A thread prints which one runs, until the block ends."""
    found, ended = Stages(label), threading.Event()
    thread = threading.Thread(target=found.glance_until, args=(ended.wait,), name="progress", daemon=True)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()
        found.clear()


def _reached(done: int, total: int) -> str:
    return f"{done:,} of {total:,} ({min(done / max(total, 1), 1.0):.0%})"


def _line_every() -> float:
    """Return the seconds between two lines of progress.

    Raises:
        click.UsageError: the environment has another value than a number.
    """
    given = os.environ.get(LINE_EVERY_VARIABLE)
    try:
        seconds = LINE_EVERY if given is None else float(given)
    except ValueError:
        seconds = math.nan
    if not seconds >= 0:
        raise click.UsageError(f"{LINE_EVERY_VARIABLE} is {given!r}, expected a number of seconds.")
    return seconds


def _can_draw(stream: TextIO) -> bool:
    """Return whether a line of this stream can be redrawn."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"
