"""The bar on a terminal, the lines elsewhere, and the summary of many documents at the end."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import termios
import threading
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import pytest

from xlexport.progress_bar import DocumentsBar, ProgressBar, progress_bar
from xlexport.scoring.inputs import Input, Reading, extent
from xlexport.terminal import tell
from xlruntime import DocumentScore, TokenScores, load


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("XLEXPORT_PROGRESS_SECONDS")  # the tests' own value


@pytest.fixture
def open_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Terminal]:
    """Return a function that makes standard error a terminal, on which each update is drawn."""
    monkeypatch.setattr("xlexport.progress_bar.BAR_EVERY", 0)

    def make() -> Terminal:
        stream = Terminal()
        monkeypatch.setattr("sys.stderr", stream)
        return stream

    return make  # called by the test itself: pytest sets standard error after the fixtures


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that sets the time of all clocks, in seconds."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    return lambda seconds: now.__setitem__(0, seconds)


def part_of(number: int, end: int, summary: DocumentScore | None = None) -> TokenScores:
    places = np.arange(end - 10, end)
    return TokenScores(
        "it", number, places, places, places, places + 1, np.zeros(10, np.float32), places, summary=summary
    )


@pytest.fixture
def total(bundle: Path) -> DocumentScore:
    (score,) = load(bundle, threads=1).score([b"x" * 100])
    return score


def pictures(terminal: Terminal) -> list[str]:
    """Return the contents that the terminal's line had one after the other."""
    return [picture.rstrip() for picture in terminal.getvalue().split("\r") if picture.strip()]


def test_ctrl_c_before_a_bar_is_whole(open_terminal: Callable[[], Terminal], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    stream = open_terminal()
    monkeypatch.setattr("tqdm.std.EMA", interrupt)
    with pytest.raises(KeyboardInterrupt) as error:
        ProgressBar("scoring", total=10)
    tell("interrupted")  # while the traceback keeps the bar
    del error
    assert stream.getvalue() == "interrupted\n"


def test_bar_shows_share_and_time_left(
    total: DocumentScore, open_terminal: Callable[[], Terminal], at: Callable[[float], None]
) -> None:
    terminal = open_terminal()
    progress = DocumentsBar(2, 200)
    for number, end, seconds in ((0, 10, 1.0), (0, 50, 5.0), (1, 50, 10.0)):
        at(seconds)
        progress.take(part_of(number, end))
    first, second, third = pictures(terminal)[-3:]
    assert first.startswith("scoring:   5%|") and "0 of 2 documents, 10 tokens/s" in first
    assert second.startswith("scoring:  25%|██") and "4 tokens/s" in second and "50.0/200 [00:05<" in second
    assert third.startswith("scoring:  50%|") and "[00:10<00:1" in third
    at(12.0)
    progress.take(part_of(0, 100, total))
    assert pictures(terminal)[-1].startswith("scoring:  75%|") and "1 of 2 documents" in pictures(terminal)[-1]
    progress.clear()
    assert terminal.getvalue().endswith("  \r")
    at(0.0)
    resumed = DocumentsBar(2, 200)
    resumed.resumed(1, total.bytes)
    for end, seconds in ((10, 1.0), (20, 2.0)):
        at(seconds)
        resumed.take(part_of(1, end))
    assert "120/200 [00:02<00:08" in pictures(terminal)[-1]  # 80 bytes at 10 a second


def test_time_left_follows_the_work_alone(open_terminal: Callable[[], Terminal], at: Callable[[float], None]) -> None:
    terminal = open_terminal()
    bar = ProgressBar("training")
    for done, seconds in ((1, 2.0), (2, 4.0)):
        at(seconds - 0.1)
        bar.glance()
        at(seconds)
        bar(done, 10)
    assert pictures(terminal)[-1].endswith("2/10 [00:04<00:16]")
    for done, seconds in ((1, 4.0), (2, 54.0), (4, 104.0)):
        at(seconds)
        bar.aside("evaluating", done, 4)
    assert any(line.startswith("evaluating:  50%|") and "2/4 [00:50<00:50]" in line for line in pictures(terminal))
    at(106.0)
    bar(3, 10)
    assert pictures(terminal)[-1].endswith("3/10 [00:06<00:14]")


def test_lines_where_there_is_no_terminal(
    at: Callable[[float], None], capsys: pytest.CaptureFixture[str], total: DocumentScore
) -> None:
    progress = DocumentsBar(2, 200)
    for end, seconds in ((10, 1), (20, 14.9), (30, 15), (40, 29.9), (50, 31)):
        at(seconds)
        progress.take(part_of(0, end))
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("scoring: 15% 30.0/200 [00:15<") and first.endswith("0 of 2 documents, 2 tokens/s]")
    assert second.startswith("scoring: 25% 50.0/200 [00:31<")
    progress.clear()
    at(45)
    progress.take(part_of(0, 100, total))
    assert capsys.readouterr().err == ""
    at(46)
    progress.take(part_of(1, 10))
    assert capsys.readouterr().err.startswith("scoring: 5")


def test_stages_name_what_takes_long(at: Callable[[float], None], capsys: pytest.CaptureFixture[str]) -> None:
    progress = ProgressBar("reading it")
    progress.tell("exporting the graphs")
    for seconds in (1, 14, 15, 29, 30):  # the stage reports nothing
        at(seconds)
        progress.glance()
    at(31)
    progress.tell("verifying 20 segments")
    for done, seconds in ((1, 45), (5, 46), (6, 47)):
        at(seconds)
        progress(done, 20)
    progress.close()
    assert capsys.readouterr().err.splitlines() == [
        "exporting the graphs",
        "exporting the graphs [00:15]",
        "exporting the graphs [00:30]",
        "verifying 20 segments",
        "verifying 20 segments: 25% 5/20 [00:15<00:45]",
    ]


def test_messages_take_the_place_of_a_bar(open_terminal: Callable[[], Terminal]) -> None:
    terminal = open_terminal()
    with progress_bar("reading it") as progress:
        progress.tell("verifying")
        progress(5, 20)
        tell("a note")
        progress(6, 20)
    lines = terminal.getvalue().split("\n")
    ends = [line.rsplit("\r", 1)[-1].rstrip() for line in lines]
    assert ends == ["verifying", "a note", ""]
    assert "25%|" in lines[1] and "30%|" in lines[2]


def test_control_characters_are_escaped(open_terminal: Callable[[], Terminal]) -> None:
    terminal = open_terminal()
    with progress_bar("reading \x1b[2J") as progress:
        progress(1, 2)
        progress.tell("reading \x9b31m")
    assert "\x1b" not in terminal.getvalue() and "\x9b" not in terminal.getvalue()
    assert r"reading \x1b[2J" in terminal.getvalue()


@pytest.mark.parametrize(("seconds", "expected"), [("2", 2), ("0", 3), ("inf", 0)])
def test_environment_sets_the_time_between_lines(
    seconds: str,
    expected: int,
    at: Callable[[float], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XLEXPORT_PROGRESS_SECONDS", seconds)
    progress = ProgressBar("counting")
    for time in (1, 2, 4):
        at(time)
        progress(1, 3)
    assert len(capsys.readouterr().err.splitlines()) == expected


@pytest.mark.parametrize("text", ["often", "-1", "nan", ""])
def test_environment_with_another_value(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLEXPORT_PROGRESS_SECONDS", text)
    with pytest.raises(click.UsageError, match=f"XLEXPORT_PROGRESS_SECONDS is '{text}', expected a number of seconds"):
        DocumentsBar(None, None)


@pytest.mark.parametrize("kind", ["dumb", "xterm"])
def test_no_bar_where_a_terminal_cannot_draw(
    kind: str, open_terminal: Callable[[], Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = open_terminal()
    monkeypatch.setenv("TERM", kind)
    progress = DocumentsBar(2, 200)
    progress.take(part_of(0, 10))
    progress.clear()
    with progress_bar("counting") as bar:
        bar(5, 10)
    assert (terminal.getvalue() == "") is (kind == "dumb")


def test_bar_is_gone_when_an_error_ends_it(open_terminal: Callable[[], Terminal]) -> None:
    terminal = open_terminal()
    threads = threading.active_count()
    with pytest.raises(KeyboardInterrupt), progress_bar("counting") as progress:
        progress(5, 20)
        assert threading.active_count() > threads
        raise KeyboardInterrupt
    assert threading.active_count() == threads
    before, last = terminal.getvalue().removesuffix("\r").rsplit("\r", 1)
    assert "counting:  25%|" in before and last.isspace()  # the next message starts on an empty line


@pytest.mark.parametrize("columns", [10, 30, 80])
def test_bar_fits_the_terminal(columns: int) -> None:
    master, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with open(child, "w") as stream, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stderr", stream)
        with progress_bar("counting the 日本 characters of a long text") as progress:
            progress(5, 20)
    shown = os.read(master, 1 << 16).decode()
    os.close(master)
    assert max(len(picture.replace("日本", "....")) for picture in shown.split("\r")) <= columns


def test_sizes_of_files_do_not_count_ids(tmp_path: Path, open_terminal: Callable[[], Terminal]) -> None:
    terminal = open_terminal()
    path = tmp_path / "a.txt"
    path.write_bytes(b"1 2 3 4 5 6 7 8 9 10")
    file = Input("a", path)
    for inputs, ids, known in (([file], False, True), ([file], True, False), ([file, Input("-", None)], False, False)):
        DocumentsBar(*extent(inputs, Reading(ids=ids))).take(part_of(0, 10))
        assert ("%" in pictures(terminal)[-1]) is known
