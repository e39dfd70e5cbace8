"""The bar on a terminal, the lines elsewhere, and the summary of many documents at the end."""

from __future__ import annotations

import io
import os
import pty
import signal
import subprocess
import sys
import threading
from dataclasses import asdict, replace
from pathlib import Path

import click
import numpy as np
import pytest

from xlexport.progress_bar import DocumentsBar, Stages, duration, progress_bar, stages
from xlexport.scoring.inputs import Input, Reading, extent
from xlexport.scoring.totals import Totals
from xlexport.terminal import INTERRUPTED
from xlruntime import DocumentScore, TokenScores, load


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def kind_of_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")


def part_of(number: int, end: int, summary: DocumentScore | None = None) -> TokenScores:
    places = np.arange(end - 10, end)
    return TokenScores(
        "it", number, places, places, places, places + 1, np.zeros(10, np.float32), places, summary=summary
    )


@pytest.fixture
def total(bundle: Path) -> DocumentScore:
    (score,) = load(bundle, threads=1).score([b"x" * 100])
    return score


def test_bar_says_how_far_it_is(total: DocumentScore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xlexport.progress_bar.EVERY", 0)
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    terminal = Terminal()
    progress = DocumentsBar(2, 200, terminal)
    for number, end, seconds in ((0, 10, 1.0), (0, 50, 5.0), (1, 50, 10.0)):
        now[0] = seconds
        progress.take(part_of(number, end))
    first, second, third = (line.rstrip("\x1b[K") for line in terminal.getvalue().split("\r")[1:])
    assert first.startswith("  5% █░") and "0 of 2 documents  10 tokens/s" in first
    assert second.startswith(" 25% ██████░") and "4 tokens/s" in second and second.endswith("0:15 left")
    assert third.startswith(" 50% ") and third.endswith("0:10 left")
    now[0] = 12.0
    progress.take(part_of(0, 100, total))
    assert terminal.getvalue().split("\r")[-1].startswith(" 75% ")
    assert "1 of 2 documents" in terminal.getvalue()
    progress.clear()
    assert terminal.getvalue().endswith("\r\x1b[K")


class Watch:
    """A clock that a test sets, and the lines on a standard error that is not a terminal."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.now = 100.0
        self._capsys, self._shown = capsys, ""

    def __call__(self) -> float:
        return self.now

    def after(self, seconds: float) -> None:
        """Set the time to so many seconds after the beginning."""
        self.now = 100.0 + seconds

    @property
    def lines(self) -> list[str]:
        self._shown += self._capsys.readouterr().err
        return self._shown.splitlines()


@pytest.fixture
def watch(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Watch:
    monkeypatch.delenv("XLEXPORT_PROGRESS_SECONDS")  # the tests' own value
    return Watch(capsys)


def test_lines_where_there_is_no_terminal(watch: Watch, total: DocumentScore) -> None:
    progress = DocumentsBar(2, 200, clock=watch)
    for end, seconds in ((10, 1), (20, 14.9), (30, 15), (40, 29.9), (50, 31)):
        watch.after(seconds)
        progress.take(part_of(0, end))
    assert watch.lines == [
        "scoring: 0 of 2 documents  2 tokens/s  15%  1:25 left",
        "scoring: 0 of 2 documents  2 tokens/s  25%  1:33 left",
    ]
    watch.after(40)
    progress.clear()  # before another line
    watch.after(54)
    progress.take(part_of(0, 100, total))
    assert len(watch.lines) == 2
    watch.after(55)
    progress.take(part_of(1, 10))
    assert watch.lines[2].startswith("scoring: 1 of 2 documents")


def test_other_commands_print_lines_where_there_is_no_terminal(watch: Watch) -> None:
    with progress_bar("counting", watch) as progress:
        for done, seconds in ((1_000, 14), (2_000, 16), (3_000, 30), (4_000, 31)):
            watch.after(seconds)
            progress(done, 8_000)
    assert watch.lines == ["counting: 2,000 of 8,000 (25%), 0:16", "counting: 4,000 of 8,000 (50%), 0:31"]


def test_stages_name_what_takes_long(watch: Watch) -> None:
    found = Stages("reading it", watch)
    found.tell("exporting the graphs")
    times = iter([1, 14, 15, 29, 30])  # of the glances of a thread, while the stage reports nothing

    def ended(seconds: float) -> bool:
        at = next(times, None)
        watch.after(at or 0)
        return at is None

    found.glance_until(ended)
    watch.after(31)
    found.tell("verifying 20 segments")
    for done, seconds in ((1, 45), (5, 46), (6, 47)):
        watch.after(seconds)
        found.progress(done, 20)
    assert watch.lines == [
        "exporting the graphs",
        "exporting the graphs: 0:15",
        "exporting the graphs: 0:30",
        "verifying 20 segments",
        "verifying 20 segments: 5 of 20 (25%), 0:46",
    ]


def test_stages_on_a_terminal_are_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with stages("reading it") as found:
        found.tell("verifying")
        found.glance()
        assert terminal.getvalue() == "verifying\n"
        found.progress(5, 20)
    assert terminal.getvalue() == f"verifying\n\r 25% {'█' * 6}{'░' * 18} verifying\x1b[K\r\x1b[K"


def test_thread_of_stages_ends_with_them() -> None:
    def running() -> bool:
        return "progress" in [thread.name for thread in threading.enumerate()]

    with pytest.raises(KeyboardInterrupt), stages("reading it"):
        assert running()
        raise KeyboardInterrupt
    assert not running()


@pytest.mark.parametrize(("given", "expected"), [("2", 2), ("0", 3), ("inf", 0)])
def test_environment_says_how_often_lines_come(
    given: str, expected: int, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLEXPORT_PROGRESS_SECONDS", given)
    with progress_bar("counting", watch) as progress:
        for seconds in (1, 2, 4):
            watch.after(seconds)
            progress(1, 3)
    assert len(watch.lines) == expected


@pytest.mark.parametrize("given", ["often", "-1", "nan", ""])
def test_environment_with_another_value(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLEXPORT_PROGRESS_SECONDS", given)
    with pytest.raises(click.UsageError, match=f"XLEXPORT_PROGRESS_SECONDS is '{given}', expected a number of seconds"):
        DocumentsBar(None, None)


@pytest.mark.parametrize("kind", ["dumb", "xterm"])
def test_no_bar_where_a_terminal_cannot_draw(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", kind)
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    progress = DocumentsBar(2, 200)
    progress.take(part_of(0, 10))
    progress.clear()
    with progress_bar("counting") as progress_of:
        progress_of(5, 10)
    assert (terminal.getvalue() == "") is (kind == "dumb")


def test_bars_of_other_commands_are_gone_when_an_error_ends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with pytest.raises(KeyboardInterrupt), progress_bar("counting") as progress:
        progress(5, 20)
        raise KeyboardInterrupt
    picture, last = terminal.getvalue().rsplit("\r", 1)
    assert f"{'█' * 6}{'░' * 18} counting" in picture and "25%" in picture
    assert last == "\x1b[K\x1b[?25h"  # the next message starts on an empty line, and the cursor is visible again


def test_what_is_not_known_is_not_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xlexport.progress_bar.EVERY", 0)
    terminal = Terminal()
    DocumentsBar(None, None, terminal).take(part_of(0, 10))
    assert "0 of 1 document  " in DocumentsBar(1, None).line(1.0)
    assert "0 documents" in terminal.getvalue() and "left" not in terminal.getvalue() and "%" not in terminal.getvalue()


def test_sizes_of_files_do_not_count_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", Terminal())
    path = tmp_path / "a.txt"
    path.write_bytes(b"1 2 3 4 5 6 7 8 9 10")
    for reading, shown in ((Reading(), True), (Reading(ids=True), False)):
        progress = DocumentsBar(*extent([Input("a", path)], reading))
        progress.take(part_of(0, 10))
        assert ("%" in progress.line(0.0)) is shown
    assert "%" not in DocumentsBar(*extent([Input("a", path), Input("-", None)], Reading())).line(0.0)


def test_time_left_leaves_out_what_was_done_before(total: DocumentScore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xlexport.progress_bar.EVERY", 0)
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    terminal = Terminal()
    progress = DocumentsBar(2, 200, terminal)
    progress.resumed(1, total.bytes)
    for end, seconds in ((10, 1.0), (20, 2.0)):
        now[0] = seconds
        progress.take(part_of(1, end))
    assert terminal.getvalue().rstrip("\x1b[K").endswith("0:08 left")  # 80 bytes at 10 a second


@pytest.mark.parametrize(("seconds", "shown"), [(0, "0:00"), (59.6, "1:00"), (3599, "59:59"), (3600, "1:00:00")])
def test_durations(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_totals_go_on_from_their_state(total: DocumentScore) -> None:
    scores = [replace(total, bits_per_byte=value, bits=value * 99) for value in (1.5, 2.0, 7.25, 3.0)]
    whole, first = Totals(), Totals()
    for score in scores:
        whole.add(score)
    for score in scores[:2]:
        first.add(score)
    second = Totals(**asdict(first))
    for score in scores[2:]:
        second.add(score)
    assert second == whole
    error = np.std([1.5, 2.0, 7.25, 3.0], ddof=1) / 2
    assert f"3.4375 bits per byte together, 3.4375 ± {error:.4f} a document" in whole.summary()


def on_terminal(bundle: Path, text: Path, output: Path, stop: bool) -> tuple[int, str]:
    """Return the exit status of scoring a text twice into a file, and the terminal's output; `stop`: press Ctrl-C."""
    master, terminal = pty.openpty()
    line = [sys.executable, "-m", "xlexport", "score", str(bundle), str(text), str(text), "--segment-len", "64", "-o"]
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # inherited: tests may themselves run in the background
    try:
        process = subprocess.Popen([*line, str(output)], stdout=subprocess.DEVNULL, stderr=terminal)
    finally:
        signal.signal(signal.SIGINT, before)
    os.close(terminal)
    shown = b""
    while process.poll() is None or shown[-1:] != b"\n":
        try:
            shown += os.read(master, 1 << 16)
        except OSError:  # on Linux: the other end is closed
            break
        if stop and b"tokens/s" in shown:
            process.send_signal(signal.SIGINT)
            stop = False
    os.close(master)
    return process.wait(), shown.decode()


def test_bar_on_a_real_terminal(bundle: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(b"All work and no play makes Jack a dull boy.\n" * 400)
    code, shown = on_terminal(bundle, text, tmp_path / "out.csv", stop=False)
    pictures = shown.split("\r")
    assert code == 0
    assert any("of 2 documents" in picture and "tokens/s" in picture for picture in pictures)
    assert "bits per byte together" in pictures[-2]


def test_message_about_ctrl_c_starts_a_line(bundle: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(b"All work and no play makes Jack a dull boy.\n" * 200_000)
    code, shown = on_terminal(bundle, text, tmp_path / "out.csv", stop=True)
    assert code == INTERRUPTED
    assert shown.split("\r\x1b[K")[-1].startswith(
        f"Error: interrupted; {tmp_path}/out.csv.partial has what was scored."
    )
