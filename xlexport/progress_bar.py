"""Show the progress of commands on standard error: a bar on a terminal, elsewhere a line every 15 seconds.

Logs, notebooks and pipes get the lines, the first after 15 seconds. `--quiet` shows neither.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from xlexport.terminal import DRAWING, is_quiet, tell
from xlruntime.messages import counted, one_line

if TYPE_CHECKING:
    from xlruntime import TokenScores

__all__ = ["DocumentsBar", "ProgressBar", "progress_bar"]

BAR_EVERY = 0.2  # seconds between two updates of a bar
LINE_EVERY = 15.0  # seconds between two lines
LINE_EVERY_VARIABLE = "XLEXPORT_PROGRESS_SECONDS"  # of the environment: another number
GLANCE = 1.0  # seconds between two updates during a call that reports nothing

COUNTS = "{n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
BAR, LINE, NO_TOTAL = "{l_bar}{bar}| " + COUNTS, "{desc}: {percentage:.0f}% " + COUNTS, "{desc} [{elapsed}{postfix}]"


class _Lines(io.TextIOBase):
    """Standard error if it cannot be redrawn: a status that tqdm would draw in place becomes a line."""

    def __init__(self) -> None:
        self._stream = sys.stderr  # the exporter replaces it while torch prints

    def write(self, text: str) -> int:
        if status := text.strip():
            self._stream.write(status + "\n")
            self._stream.flush()
        return len(text)


class ProgressBar:
    """The progress of a command, of which one stage runs at a time.

    Args:
        label: the name of the first stage.
        visible: whether to show anything.
        options: of `tqdm`.
    """

    def __init__(self, label: str, visible: bool = True, **options: Any) -> None:
        self._visible, self._lock = visible and not is_quiet(), threading.Lock()
        self._waiting: tuple[Any, float] | None = None  # the bar of the stage during other work, and since when
        self._open(label, **options)

    def _open(self, label: str, **options: Any) -> None:
        from tqdm import tqdm

        tqdm.set_lock(DRAWING)
        tqdm.monitor_interval = 0  # tqdm's own thread is not needed: `miniters` never changes
        self._redraws = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        if self._redraws:
            output = {"file": sys.stderr, "mininterval": BAR_EVERY, **_width()}
        else:
            every = _line_every() if self._visible else math.inf
            output = {"file": _Lines(), "mininterval": every, "delay": every or 1e-9}
        try:
            self._bar = tqdm(
                desc=one_line(label),
                disable=not self._visible,
                bar_format=self._format(options.get("total")),
                leave=False,
                position=0,  # the line itself, even if another bar was left open
                miniters=0,
                smoothing=0,  # the time left follows the mean rate: the last one would be that since the last glance
                lock_args=(False,),  # an update that comes while something else is printed is left out
                **output,
                **options,
            )
        except BaseException:  # Ctrl-C: nobody can clear or close half a bar
            for bar in [bar for bar in tqdm._instances if not hasattr(bar, "start_t")]:
                bar.disable = True
            raise

    def _format(self, total: int | None) -> str:
        return NO_TOTAL if total is None else BAR if self._redraws else LINE

    def __call__(self, done: int, total: int | None) -> None:
        """Show how far the stage is; None: its total is unknown."""
        with self._lock:
            self._bar.total, self._bar.bar_format = total, self._format(total)
            self._bar.update(done - self._bar.n)

    def aside(self, label: str, done: int, total: int) -> None:
        """Show how far other work is in place of the stage, until it is done; its time does not count for the stage."""
        with self._lock:
            if self._waiting is None:
                self._waiting = self._bar, time.monotonic()
                self._bar.clear()
                self._open(label, total=total)
            self._bar.update(done - self._bar.n)
            if done == total:
                self._bar.close()
                self._bar, since = self._waiting
                self._waiting = None
                if not self._bar.disable:
                    self._bar.start_t += time.monotonic() - since

    def skip(self, done: int) -> None:
        """Leave out of the time left what an earlier process has done."""
        with self._lock:
            self._bar.initial = self._bar.n = self._bar.last_print_n = done

    def note(self, text: str) -> None:
        """Set what the next updates show after the time that is left."""
        self._bar.postfix = one_line(text)

    def tell(self, stage: str) -> None:
        """Print a note; it names the stage that begins."""
        with self._lock:
            self._bar.close()
            tell(stage)
            self._open(stage)

    def glance(self) -> None:
        """Update the time that has passed."""
        with self._lock:
            self._bar.update(0)

    def clear(self) -> None:
        """Make room for other lines, until the next update."""
        self._bar.clear()

    def close(self) -> None:
        """Remove the bar."""
        self._bar.close()
        if self._waiting is not None:
            self._waiting[0].close()


@contextlib.contextmanager
def progress_bar(label: str, visible: bool = True) -> Iterator[ProgressBar]:
    """Yield the progress of long work, and remove its bar in the end; a thread updates its time.

    Args:
        label, visible: as for `ProgressBar`.
    """
    bar, ended = ProgressBar(label, visible), threading.Event()

    def glance() -> None:
        while not ended.wait(GLANCE):
            bar.glance()

    thread = threading.Thread(target=glance, name="progress", daemon=True)
    thread.start()
    try:
        yield bar
    finally:
        ended.set()
        thread.join()
        bar.close()


class DocumentsBar:
    """The progress of scoring documents, whose number and length may be unknown.

    Args:
        documents: number of documents; None: unknown.
        size: bytes of their text; None: unknown.
    """

    def __init__(self, documents: int | None, size: int | None) -> None:
        self._documents = documents
        self._size = size or None
        self._bar = ProgressBar("scoring", total=self._size, unit="B", unit_scale=True)
        self._started = time.monotonic()
        self._tokens = 0
        self._done = 0
        self._finished = 0  # bytes of finished documents
        self._skipped: int | None = None  # bytes that an earlier process scored
        self._reached: dict[int, int] = {}  # of unfinished documents

    def resumed(self, documents: int, size: int) -> None:
        """Count documents that an earlier process finished, of `size` bytes."""
        self._done, self._finished = documents, size

    def take(self, part: TokenScores) -> None:
        """Count a scored part of a document."""
        self._tokens += len(part)
        if self._skipped is None:
            self._skipped = self._finished + (int(part.starts[0]) if len(part) else 0)
            self._bar.skip(self._skipped)
        if part.summary is not None or part.error is not None:
            self._done += 1
            reached = self._reached.pop(part.number, 0)
            self._finished += part.summary.bytes if part.summary is not None else reached
        elif len(part):
            self._reached[part.number] = int(part.ends[-1])  # characters if tokens are not bytes: slightly too few
        documents = f"of {counted(self._documents, 'document')}" if self._documents else "documents"
        rate = self._tokens / max(time.monotonic() - self._started, 1e-9)
        self._bar.note(f"{self._done:,} {documents}, {rate:,.0f} tokens/s")
        self._bar(min(self._finished + sum(self._reached.values()), self._size or 0), self._size)

    def clear(self) -> None:
        """Make room for other lines."""
        self._bar.clear()


def _width() -> dict[str, Any]:
    """Return the options that tell tqdm the width; on a terminal of unknown size it would draw nothing."""
    try:
        has_size = os.get_terminal_size(sys.stderr.fileno()).columns > 0
    except OSError:
        has_size = False
    return {"dynamic_ncols": True} if has_size else {"ncols": 79, "nrows": 24}


def _line_every() -> float:
    """Return the seconds between two lines of progress.

    Raises:
        click.UsageError: the environment has another value than a number.
    """
    text = os.environ.get(LINE_EVERY_VARIABLE)
    try:
        seconds = LINE_EVERY if text is None else float(text)
    except ValueError:
        seconds = math.nan
    if not seconds >= 0:
        raise click.UsageError(f"{LINE_EVERY_VARIABLE} is {text!r}, expected a number of seconds.")
    return seconds
