"""What commands do with the bundle of an encoder-decoder: they refuse documents, and `inspect` shows both sides."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.invoking import Invoke
from tests.helpers.paths import GOLDEN

BUNDLE = GOLDEN / "encoder_decoder" / "translator"


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    file = tmp_path / "lines.txt"
    file.write_bytes(b"abc\n")
    return file


@pytest.mark.parametrize(
    "command",
    [
        ("score", BUNDLE, "lines.txt"),
        ("generate", BUNDLE, "Once"),
        ("bench", BUNDLE),
        ("context", BUNDLE, "lines.txt"),
        ("evaluate", BUNDLE, "lines.txt"),
        ("report", BUNDLE, "lines.txt", "-o", "page.html"),
    ],
    ids=lambda command: str(command[0]),
)
def test_commands_for_documents_refuse_it(
    command: tuple[object, ...], invoke: Invoke, lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(lines.parent)
    shown = invoke(*command)
    assert shown.code == 1
    assert (
        "an encoder-decoder, which turns one text into another" in shown.err
        and "xlruntime.load_translator" in shown.err
    )
    assert [path.name for path in lines.parent.iterdir()] == ["lines.txt"]


def test_inspect_shows_both_sides(invoke: Invoke) -> None:
    shown = invoke("inspect", BUNDLE, "--device", "cpu").succeeded()
    assert "1 layers of encoder, 2 of decoder" in shown.out and "encode" in shown.out
