"""The bar on a terminal, and the summary of many documents at the end."""

from __future__ import annotations

import io
import os
import pty
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from xlexport.progress_bar import DocumentsBar, duration, progress_bar
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


def test_nothing_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    DocumentsBar(2, 200, stream).take(part_of(0, 10))
    assert stream.getvalue() == ""


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
