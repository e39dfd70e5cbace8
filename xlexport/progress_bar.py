"""Progress bars of the commands, on standard error and only on a terminal that can draw them."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

import click

from xlexport.callbacks import Progress
from xlruntime.messages import counted, one_line

if TYPE_CHECKING:
    from xlruntime import TokenScores

__all__ = ["DocumentsBar", "StatusLine", "bar", "duration", "progress_bar"]

EVERY = 0.2  # seconds between two updates of a status line
WIDTH, FULL, EMPTY = 24, "█", "░"  # of a bar
CLEAR_LINE, SHOW_CURSOR = "\r\x1b[K", "\x1b[?25h"


class StatusLine:
    """A line on standard error that is redrawn, only on a terminal that can do so.

    Attributes:
        visible: whether the line is shown.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self.visible = _can_draw(self._stream)
        self._drawn = -math.inf
        self._shown = False

    def draw(self, line: Callable[[], str]) -> None:
        """Show the text that `line` returns, unless the last update was very recent."""
        now = time.monotonic()
        if not self.visible or now - self._drawn < EVERY:
            return
        self._drawn, self._shown = now, True
        columns = shutil.get_terminal_size().columns
        self._stream.write(f"\r{one_line(line())[: columns - 1]}\x1b[K")
        self._stream.flush()

    def clear(self) -> None:
        """Make room for other lines."""
        if self._shown:
            self._stream.write(CLEAR_LINE)
            self._stream.flush()
            self._shown = False


class DocumentsBar:
    """A status line while documents are scored, whose number and length may be unknown.

    Args:
        documents: number of documents; None: unknown.
        size: bytes of their text; None: unknown.
    """

    def __init__(self, documents: int | None, size: int | None, stream: TextIO | None = None) -> None:
        self._documents = documents
        self._size = size
        self._line = StatusLine(stream)
        self._started = time.monotonic()
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
        self._line.draw(lambda: self.line(time.monotonic()))

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
        if not self._size:
            return line
        reached = self._finished + sum(self._reached.values())
        scored = reached - (self._skipped or 0.0)
        left = (self._size - reached) * (now - self._started) / scored if scored > 0 else math.inf
        tail = f"  {duration(max(left, 0.0))} left" if math.isfinite(left) else ""
        return f"{bar(min(reached / self._size, 1.0))}  {line}{tail}"


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
def progress_bar(label: str) -> Iterator[Progress]:
    """Yield a callback that draws a bar on a terminal; the bar is removed when the block ends, also after an error."""
    stream = sys.stderr
    if not _can_draw(stream):
        yield lambda done, total: None
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


def _can_draw(stream: TextIO) -> bool:
    """Return whether a line of this stream can be redrawn."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"
