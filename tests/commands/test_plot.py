"""`xlexport plot`: the drawing, its numbers, and refusals."""

from __future__ import annotations

import math
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import xlruntime
from tests.commands.test_context import BAND, EMPTY, FREE, with_words
from tests.helpers.invoking import PROSE, Invoke
from xlexport.analysis.bits_along import bits_along, nice_window
from xlexport.errors import XlexportError
from xlexport.figures import plain

TEXT = PROSE * 3


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes(TEXT)
    return path


def is_picture(path: Path) -> bool:
    if path.suffix == ".png":
        return path.read_bytes().startswith(b"\x89PNG")
    return ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_bits_are_those_of_the_tokens(invoke: Invoke, text: Path, tmp_path: Path) -> None:
    """Compare windows with sums over their bytes, and the end of the curve with `score`."""
    other = tmp_path / "other.txt"
    other.write_bytes(TEXT[:100])
    line = ("plot", "bits", EMPTY, text, other, "--set=window=50", "--set=batch_size=2", "--threads", "1", "--json")
    curves = invoke(*line).succeeded().object
    model = xlruntime.load(EMPTY, threads=1)
    for curve, path in zip(curves, (text, other), strict=True):
        (total,) = model.score([path])
        (log_probs,) = [np.concatenate([part.log_probs for part in model.score_tokens([path])])]
        bits = np.concatenate([[0], -log_probs.astype(np.float64) / math.log(2)])  # by byte; the first is not scored
        assert curve["document"] == str(path)
        assert (curve["unit"], curve["window"]) == ("byte", 50)
        assert curve["ends"] == [*range(50, len(bits), 50), len(bits)]
        for number, end in enumerate(curve["ends"]):
            begin = max(1, 50 * number)
            # Rows of a batch round differently from one alone: float32 of numbers about 5.
            assert curve["windowed"][number] == pytest.approx(bits[begin:end].mean(), rel=1e-5)
            assert curve["running"][number] == pytest.approx(bits[1:end].mean(), rel=1e-5)
        assert curve["running"][-1] == pytest.approx(total.bits_per_byte, rel=1e-5)


def test_long_tokens_spread_over_what_they_cover() -> None:
    """Spread a token's bits over its length. Ids count tokens; a last shorter window loses no bit."""
    model = xlruntime.load(FREE, threads=1)
    ids = np.arange(23) % 29
    (curve,) = bits_along(model, [xlruntime.Document("ids", ids)], unit="token", window=5)
    assert curve.ends.tolist() == [5, 10, 15, 20, 23]
    (total,) = model.score([ids])
    assert (curve.windowed * np.diff([1, 5, 10, 15, 20, 23])).sum() == pytest.approx(total.bits)
    assert curve.running[-1] == pytest.approx(total.bits / 22)


def test_white_space_between_words_counts(invoke: Invoke, tmp_path: Path) -> None:
    """Count white space after the first token, too: the end of the curve equals `score`."""
    words, path = with_words(tmp_path / "words.bundle"), tmp_path / "text.txt"
    path.write_bytes("a b ¢ d\na b\n".encode())
    (curve,) = invoke("plot", "bits", words, path, "--set=window=3", "--json", "--threads", "1").succeeded().object
    (total,) = xlruntime.load(words, threads=1).score([path])
    assert (curve["unit"], curve["ends"]) == ("byte", [3, 6, 9, 12, 13])
    assert curve["running"][-1] == pytest.approx(total.bits_per_byte)
    assert np.dot(curve["windowed"], [2, 3, 3, 3, 1]) == pytest.approx(total.bits)  # the first byte has none


@pytest.mark.parametrize(("length", "window"), [(1, 1), (200, 1), (201, 2), (1000, 5), (1001, 10), (152_089, 1000)])
def test_window_that_is_chosen(length: int, window: int) -> None:
    assert nice_window(length) == window


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_bits_are_drawn(suffix: str, invoke: Invoke, text: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"bits{suffix}"
    found = invoke("plot", "bits", EMPTY, text, "-", "-o", path, "--threads", "1", stdin=TEXT[:60]).succeeded()
    assert (found.out, found.err) == ("", f"wrote {path}\n")
    assert is_picture(path)


@pytest.mark.parametrize("name", ["_x", "$x$", "$\\frac$"])
def test_names_are_shown_as_they_are(name: str) -> None:
    """Show every name in the legend, and none as a formula."""
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axes = figure.add_subplot()
    axes.plot([1], label=plain(name))
    (shown,) = axes.legend().get_texts()
    figure.canvas.draw()
    formula = shown._preprocess_math(shown.get_text())
    assert (formula[0].strip(), bool(formula[1])) == (name, False)


def test_attention_is_drawn(bundle: Path, checkpoint: Path, invoke: Invoke, text: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "heads.png"
    found = invoke("plot", "attention", bundle, checkpoint, text, "-o", path, "--set=tokens=40").succeeded()
    assert found.err == f"wrote {path}\n" and is_picture(path)
    lines = found.out.splitlines()
    assert lines[0].split(maxsplit=1) == ["attention", "of 40 queries, memory 20, segments of 8"]
    assert [line.split()[:2] for line in lines[1:]] == [["layer", "0"], ["layer", "1"]]


def test_attention_as_numbers(bundle: Path, checkpoint: Path, invoke: Invoke) -> None:
    """Use Python's built-in documentation topics, and the command's own settings."""
    line = ("plot", "attention", bundle, checkpoint, "--set=tokens=40", "--mem-len", "6", "--set=same_length=true")
    found = invoke(*line, "--json").succeeded().object
    assert (found["tokens"], found["segment_len"], found["mem_len"]) == (40, 8, 6)
    assert [(head["layer"], head["head"]) for head in found["heads"]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for head in found["heads"]:
        assert len(head["attention"]) == 6
        assert sum(head["attention"]) == pytest.approx(1, abs=1e-6)


@pytest.mark.full
def test_terms_are_drawn_and_printed(
    bundle: Path, checkpoint: Path, invoke: Invoke, text: Path, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    line = ("plot", "attention", bundle, checkpoint, text, "--set=position=true", "--set=tokens=16")
    found = invoke(*line, "-o", tmp_path / "terms.png").succeeded()
    assert is_picture(tmp_path / "terms.png")
    first, *layers = found.out.splitlines()
    assert first.split(maxsplit=2)[2].startswith("of 16 queries, memory 20")
    assert [line.split()[:3:2] for line in layers] == [["layer", "(a)"]] * 2
    assert len(invoke(*line, "--json").succeeded().object["heads"]) == 4


@pytest.mark.full
def test_chosen_heads_are_drawn_and_printed(
    bundle: Path, checkpoint: Path, invoke: Invoke, text: Path, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    line = ("plot", "attention", bundle, checkpoint, text, "--head", "1.0", "--head", "0.1", "--set=tokens=16")
    invoke(*line, "-o", tmp_path / "heads.svg").succeeded()
    assert is_picture(tmp_path / "heads.svg")
    numbers = invoke(*line, "--json").succeeded().object
    assert numbers["first"] == 12
    assert np.shape([head["attention"] for head in numbers["heads"]]) == (2, 8, 28)
    assert "the model has no head 2.0: its layers are 0 to 1" in invoke(*line, "--head", "2.0", "--json").error
    assert "expected LAYER.HEAD, such as 0.3." in invoke(*line, "--head", "7", "--json").err
    assert "draw different figures. Give one of them." in invoke(*line, "--set=position=true", "--json").err


def test_what_is_refused(bundle: Path, checkpoint: Path, invoke: Invoke, text: Path, tmp_path: Path) -> None:
    nothing = invoke("plot", "bits", EMPTY, text)
    assert (nothing.code, nothing.out) == (2, "")
    assert "Give -o FILE to draw, --json to print the numbers, or both" in nothing.err
    picture = tmp_path / "plot.png"
    assert "a plot is a .png or .svg file" in invoke("plot", "bits", EMPTY, text, "-o", tmp_path / "x.pdf").error
    folder = tmp_path / "folder.png"
    folder.mkdir()
    assert "is a folder, expected a file for the plot" in invoke("plot", "bits", EMPTY, text, "-o", folder).error
    assert "No such file" in invoke("plot", "bits", EMPTY, tmp_path / "none.txt", "-o", picture).error
    reformer = invoke("plot", "attention", BAND, checkpoint, "-o", picture).error
    assert "attention by distance is not possible for a Reformer" in reformer
    short = tmp_path / "short.txt"
    short.write_bytes(b"short")
    assert "the memory is full only after 24" in invoke("plot", "attention", bundle, checkpoint, short, "--json").error
    other = invoke("plot", "attention", EMPTY, checkpoint, text, "--json").error
    assert "Give the checkpoint that the bundle was converted from." in other
    assert not picture.exists()


def test_matplotlib_that_is_missing(invoke: Invoke, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xlexport.extras.packages_of", lambda extra: ["no-such-package"])
    error = invoke("plot", "bits", EMPTY, text, "-o", "bits.png").error
    assert "no-such-package not installed, needed here. Install it: pip install no-such-package." in error


def test_documents_of_one_token_have_no_curve() -> None:
    model = xlruntime.load(EMPTY, threads=1)
    with pytest.raises(XlexportError, match="one, two: fewer than two tokens, so nothing to score"):
        bits_along(model, [xlruntime.Document(name, b"x") for name in ("one", "two")], unit="byte")
