"""Texts with a byte-order mark, and output where the code page cannot show what is written."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.helpers.invoking import PROSE, Invoke
from xlexport.quantization.gate import gate_text
from xlexport.terminal import encode_output, print_text
from xlexport.verification.text import verify_text
from xlruntime import load
from xlruntime.bundle import TokenizerEntry
from xlruntime.tokenizers import ByteTokenizer
from xltraining.data.pairs import read_pairs
from xltraining.data.streams import read_bytes

MARK = b"\xef\xbb\xbf"
NAME = "naïve 日本 🙂.txt"


@pytest.fixture
def both(tmp_path: Path) -> list[Path]:
    """Return a text without a mark and with it, of the same name."""
    paths = [tmp_path / "plain" / NAME, tmp_path / "marked" / NAME]
    for path, mark in zip(paths, (b"", MARK), strict=True):
        path.parent.mkdir()
        path.write_bytes(mark + 30 * PROSE)
    return paths


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("score", ("--per", "word", "--json")),
        ("context", ("--lengths", "4,8", "--no-recl", "--json")),
        ("evaluate", ("--protocol", "document", "--json")),
        ("generate", ("-n", "4", "--seed", "1", "--json")),
    ],
)
@pytest.mark.full
def test_commands_drop_the_mark(
    command: str, options: tuple[str, ...], bundle: Path, both: list[Path], invoke: Invoke
) -> None:
    given = [("--file", path) if command == "generate" else (path,) for path in both]
    outputs = [invoke(command, bundle, *file, *options, "--threads", "1").succeeded().out for file in given]
    plain, marked = (re.sub(r'"\w*seconds?": [^,}]+', "", output) for output in outputs)  # speeds differ
    assert plain.replace("/plain/", "/marked/") == marked


def test_pages_drop_the_mark(bundle: Path, both: list[Path], invoke: Invoke, tmp_path: Path) -> None:
    invoke("report", bundle, both[1], "-o", tmp_path / "page.html", "--threads", "1").succeeded()
    assert "\ufeff" not in (tmp_path / "page.html").read_text("utf-8")


def test_preparation_training_and_verification_drop_the_mark(bundle: Path, both: list[Path], tmp_path: Path) -> None:
    plain, marked = both
    assert read_bytes([plain]).equal(read_bytes([marked]))
    verified = [verify_text(TokenizerEntry("bytes"), 256, ByteTokenizer(), path).ids for path in both]
    assert np.array_equal(verified[0], verified[1])
    model = load(bundle, threads=1)
    assert np.array_equal(gate_text(model, [plain]).ids, gate_text(model, [marked]).ids)
    (tmp_path / "pairs").write_bytes(MARK + b"a\tb\n")
    config: Any = SimpleNamespace(source_len=9, tgt_len=9)
    assert read_pairs([tmp_path / "pairs"], config) == [(b"a", b"b")]


@pytest.mark.parametrize("encoding", ["cp1252", "cp932"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("generate", ("-n", "3", "--seed", "1", "--file")),
        ("evaluate", ("--protocol", "document")),
        ("score", ()),
        ("score", ("--json",)),
        ("inspect", ()),
    ],
)
@pytest.mark.full
def test_data_are_utf8_whatever_the_code_page(
    name: str,
    options: tuple[str, ...],
    encoding: str,
    bundle: Path,
    both: list[Path],
    command: Callable[..., list[str]],
) -> None:
    given = () if name == "inspect" else (*options, both[0])
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    done = subprocess.run(command(name, bundle, *given), capture_output=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode("utf-8")
    assert name in ("inspect", "generate") or NAME in text


@pytest.mark.parametrize(("is_terminal", "expected"), [(True, b"caf\xe9 \\u65e5\n"), (False, "café 日\n".encode())])
def test_a_terminal_shows_escapes(is_terminal: bool, expected: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", (_Terminal if is_terminal else io.TextIOWrapper)(raw, "cp1252"))
    encode_output()
    print_text("café 日")
    sys.stdout.flush()
    assert raw.getvalue() == expected


class _Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("command", ["report", "evaluate", "context"])
def test_commands_say_what_texts_have(command: str, bundle: Path, tmp_path: Path, invoke: Invoke) -> None:
    path = tmp_path / "windows.txt"
    path.write_bytes(30 * PROSE.replace(b"\n", b"\r\n"))
    options = {"report": ("-o", tmp_path / "page.html"), "evaluate": (), "context": ("--lengths", "4,8", "--no-recl")}
    shown = invoke(command, bundle, path, *options[command], "--threads", "1").succeeded()
    assert "60 line ends of CR and LF" in shown.err
