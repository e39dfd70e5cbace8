"""`xlexport report` of one document, without a browser: what the page holds, its colours, and the command."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.invoking import PROSE, Invoke
from tests.report.report_pages import (
    COLOURS,
    FAMILY,
    GOLDEN,
    HOSTILE,
    check_safety,
    contrast,
    lightness,
    linear,
    read_page,
    scale,
)
from xlexport.report import page_text
from xlexport.report.packing import NO_SCORE
from xlruntime import load
from xlruntime.tokenizers import ByteTokenizer, NoTokenizer
from xlruntime.tokenizers.vocabulary import Vocabulary
from xlruntime.tokenizers.vocabulary_tokenizer import VocabularyTokenizer

# How people without one kind of cones see linear red, green and blue (Machado et al. 2009, severity 1).
EYES = {
    "all": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
WITHOUT_TOKENIZER = GOLDEN.parents[1] / "pre_lnorm_empty" / "bundle"  # and without same_length


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    path = tmp_path / "hostile.txt"
    path.write_bytes(HOSTILE)
    return path


def written(invoke: Invoke, source: Path, *options: str) -> str:
    output = source.parent / "page.html"
    shared = ("-o", output, "--threads", "1", "--force", "--set", "binary=true")
    invoke("report", GOLDEN, source, *shared, *options).succeeded()
    return output.read_text("utf-8")


@pytest.mark.parametrize(("top", "chunk"), [(0, 1 << 16), (3, 100), (10, 100)])
@pytest.mark.parametrize("bos", [None, 10])
def test_page_holds_the_text_and_its_scores(
    invoke: Invoke, hostile: Path, top: int, chunk: int, bos: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("document_page", "packing"):
        monkeypatch.setattr(f"xlexport.report.{module}.CHUNK", chunk)
    page = read_page(written(invoke, hostile, "--top", str(top), *(() if bos is None else ("--bos", r"\n"))))
    parts = list(load(GOLDEN, threads=1).score_tokens([HOSTILE], top=top, bos=bos))
    first = 1 if bos is None else 0  # the first token with a score

    def scored(name: str) -> Any:
        return np.concatenate([getattr(part, name) for part in parts])

    assert page.text.encode("utf-8", "surrogateescape") == HOSTILE
    assert page.columns["ids"].tolist() == list(HOSTILE)
    assert page.columns["bits"][:first].tolist() == [NO_SCORE] * first
    # Rounding may change half a hundredth of a bit.
    np.testing.assert_allclose(page.columns["bits"][first:] / 100, -scored("log_probs") / np.log(2), atol=0.00501)
    np.testing.assert_allclose(page.columns["entropy"][first:] / 100, scored("entropy") / np.log(2), atol=0.00501)
    assert (page.columns["rank"][first:] == scored("rank")).all()
    assert (page.columns["seen"][first:] == scored("context")).all()
    roots = page.columns["top_roots"].T[first:] / 255
    np.testing.assert_allclose(roots, np.exp(scored("top_log_probs") / 2), atol=0.5 / 255 + 1e-6)
    assert (page.columns["top_ids"].T[first:] == np.where(roots > 0, scored("top_ids"), 0)).all()
    assert {bytes([int(number)]).decode("utf-8", "surrogateescape") for number in page.labels} == {
        *page.labels.values()
    }
    assert [tokens for tokens, *_ in page.about["chunks"]] == [
        min(chunk, len(HOSTILE) - at) for at in range(0, len(HOSTILE), chunk)
    ]


def test_bytes_of_a_character_are_drawn_with_it(invoke: Invoke, hostile: Path) -> None:
    page = read_page(written(invoke, hostile))
    units = page.text.encode("utf-16-le", "surrogatepass")
    edges = 2 * np.cumsum([0, *page.widths])
    covered = [units[start:end].decode("utf-16-le", "surrogatepass") for start, end in itertools.pairwise(edges)]
    at = HOSTILE.index("\U0001f600".encode())
    assert page.widths[at : at + 5].tolist() == [2, 0, 0, 0, 1]
    assert covered[HOSTILE.index(b"\xff")] == "\udcff"
    at = HOSTILE.index(b"\xe2\x82 ")
    assert covered[at : at + 3] == ["\udce2", "\udc82", " "]


def test_document_is_no_markup_and_page_is_the_same_again(invoke: Invoke, hostile: Path) -> None:
    title = "</title><script>alert('{{script}}')</script> \"&\" \u2028"
    page = written(invoke, hostile, "--title", title)
    check_safety(page, title, ("broken", "onerror", FAMILY, "override", "\x00", "\x1b", "<script>alert", "]]>"))
    assert read_page(page).about["title"] == title
    assert written(invoke, hostile, "--title", title) == page


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("letter", ["l", "c"])
def test_text_is_readable_on_the_whole_scale(theme: str, letter: str) -> None:
    """Check contrasts of at least 4.5, as the Web Content Accessibility Guidelines require (level AA)."""
    page, ink, quiet, accent, panel = (COLOURS[name][theme] for name in ("page", "ink", "quiet", "accent", "panel"))
    assert min(contrast(ink, colour) for colour in (page, *scale(theme, letter))) >= 4.5
    assert min(contrast(colour, behind) for colour in (quiet, accent) for behind in (page, panel)) >= 4.5
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("letter", ["l", "c"])
def test_scale_is_ordered_by_lightness_whatever_hues_are_seen(theme: str, eyes: str, letter: str) -> None:
    shown = [lightness((np.array(EYES[eyes]) @ linear(colour)).clip(0, 1)) for colour in scale(theme, letter)]
    steps = np.diff(shown) * (-1 if theme == "light" else 1)
    assert steps.min() > 0.005, steps  # Oklab is made so that a difference of 0.02 is just seen: four levels at most
    assert lightness(linear("#ff0000")) == pytest.approx(0.628, abs=1e-3)


def test_characters_are_counted_in_utf16() -> None:
    words = VocabularyTokenizer(Vocabulary(kind="words", symbols=("a", "<unk>"), unk="<unk>"))
    text = page_text.text_of_bytes("a \U0001f600 b".encode(), words)
    assert text.after.tolist() == [0, 1, 2, 4, 5, 6]
    assert len(text.units) == 6


def test_token_ids_become_text() -> None:
    raw = "h\u00e9\U0001f600".encode() + b"\xff"
    ids = np.frombuffer(raw, np.uint8).astype(np.int64) + 2
    text = page_text.text_of_ids(np.concatenate([[0], ids]), ByteTokenizer(first_id=2))  # 0 is not a byte
    assert text.after.tolist() == [0, 0, 1, 2, 2, 4, 4, 4, 4, 5]
    assert text.units.tobytes().decode("utf-16-le", "surrogatepass") == raw.decode("utf-8", "surrogateescape")
    numbers = page_text.text_of_ids(np.array([3, 14]), NoTokenizer())
    assert (numbers.units.tobytes().decode("utf-16-le"), numbers.after.tolist()) == ("3 14", [0, 1, 4])
    assert page_text.token_labels([2, 67], ByteTokenizer(first_id=2)) == {2: "\0", 67: "A"}


def test_page_from_token_ids(invoke: Invoke, tmp_path: Path) -> None:
    source = tmp_path / "ids.txt"
    source.write_text("3 1 4 1 5 9 2 6")
    invoke("report", WITHOUT_TOKENIZER, source, "--ids", "--threads", "1").succeeded()
    page = read_page((tmp_path / "ids.html").read_text("utf-8"))
    assert page.text == "3 1 4 1 5 9 2 6"
    assert page.widths.tolist() == [1] + [2] * 7
    assert not page.about["hasBytes"]
    assert any("depend on the segment length" in note for note in page.about["notes"])
    assert [name for name, _ in page.about["figures"]] == ["bits per token", "perplexity per token", "tokens"]


def test_totals_are_those_of_score(invoke: Invoke, prose: Path) -> None:
    (score,) = load(GOLDEN, threads=1).score([PROSE])
    assert dict(read_page(written(invoke, prose)).about["figures"]) == {
        "bits per byte": f"{score.bits_per_byte:.3f}",
        "perplexity per byte": f"{score.perplexity:,.4g}",
        "words": str(score.words),
        "bytes": str(len(PROSE)),
    }


def test_output_is_named_after_the_file_and_not_replaced_unasked(invoke: Invoke, prose: Path) -> None:
    done = invoke("report", GOLDEN, prose).succeeded()
    page = prose.with_suffix(".html")
    assert done.out == "" and done.err.startswith(f"wrote {page}: {len(PROSE)} tokens, 0.")
    before = page.read_bytes()
    assert "--force" in invoke("report", GOLDEN, prose, "--title", "Other").error
    assert page.read_bytes() == before
    invoke("report", GOLDEN, prose, "--title", "Other", "--force").succeeded()
    assert b'<h1 dir="auto">Other</h1>' in page.read_bytes()
    assert sorted(path.name for path in prose.parent.iterdir()) == ["prose.html", "prose.txt"]


def test_standard_input_needs_an_output(invoke: Invoke, tmp_path: Path) -> None:
    missing = invoke("report", GOLDEN, "-", stdin=PROSE)
    assert missing.code == 2 and "-o" in missing.err
    invoke("report", GOLDEN, "-", "-o", tmp_path / "page.html", stdin=PROSE).succeeded()
    assert read_page((tmp_path / "page.html").read_text("utf-8")).text == PROSE.decode()


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        (b"", (), "fewer than 2 tokens"),
        (b"x", (), "fewer than 2 tokens"),
        (None, (), "No such file"),
        (b"text", ("--bos", "<none>"), "--bos <none>: 6 tokens, expected the name or the text of one"),
    ],
)
def test_documents_that_cannot_be_reported_on(
    invoke: Invoke, tmp_path: Path, content: bytes | None, options: tuple[str, ...], words: str
) -> None:
    source = tmp_path / "a.txt"
    if content is not None:
        source.write_bytes(content)
    assert words in invoke("report", GOLDEN, source, *options).error
    assert not list(tmp_path.glob("*.html"))


@pytest.mark.parametrize(
    ("output", "code", "words"),
    [
        ("-", 2, "cannot write a page to standard output. Name a file that ends in .html with -o"),
        ("new/", 2, "new/: a folder, expected a file. Name the page in it: -o new/page.html"),
        (".", 2, ".: a folder, expected a file. Name the page in it: -o page.html"),
        ("odd.pdf", 2, "odd.pdf: the name of a page must end in .html or .htm"),
        ("source.html", 2, "source.html is also an input, which the output would replace"),
        ("none/page.html", 1, "no such folder"),
        ("link.html", 1, "a link to a missing file"),
        ("pipe.html", 1, "not a file"),
    ],
)
def test_outputs_that_are_no_pages(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, code: int, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("source.html").write_bytes(PROSE)
    Path("link.html").symlink_to("nowhere")
    os.mkfifo("pipe.html")
    refused = invoke("report", GOLDEN, "source.html", "-o", output, "--force")
    assert refused.code == code and words in refused.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.html", "pipe.html", "source.html"]
    assert Path("source.html").read_bytes() == PROSE


def test_endings_of_pages_and_a_folder_with_one_document(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "prose.txt").write_bytes(PROSE)
    invoke("report", GOLDEN, tmp_path / "one").succeeded()
    assert read_page((tmp_path / "one.html").read_text("utf-8")).about["title"] == "prose.txt"
    invoke("report", GOLDEN, tmp_path / "one", "-o", tmp_path / "PAGE.HTM").succeeded()
    assert (tmp_path / "PAGE.HTM").is_file()


def test_model_is_named_by_what_it_is_and_by_its_folder_if_that_tells_more(
    invoke: Invoke, tmp_path: Path, prose: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = tmp_path / "novels.bundle"
    shutil.copytree(GOLDEN, named)
    for folder, suffix in ((GOLDEN, ""), (named, ", novels.bundle")):
        monkeypatch.chdir(folder)
        invoke("report", ".", prose, "--force").succeeded()
        ((name, model),) = read_page(prose.with_suffix(".html").read_text("utf-8")).about["sides"]
        config = load(folder, threads=1).bundle.config
        sizes = f"{config['n_layer']} layers of {config['d_model']}, vocabulary of 256, float32{suffix};"
        assert name == "" and model.startswith(f"Transformer-XL, {sizes}")


@pytest.mark.release
def test_what_the_scores_do_not_cover_is_said_as_score_says_it(
    reuse_export: None, checkpoint: Path, invoke: Invoke, tmp_path: Path
) -> None:
    """Report segment length, newlines read as spaces, and unknown words on stderr and on the page."""
    vocabulary, bundle, source = tmp_path / "vocab.txt", tmp_path / "words.bundle", tmp_path / "it.txt"
    vocabulary.write_text("\n".join(("<unk>", "the", "sea", *(f"<{number}>" for number in range(253)))))
    invoke("convert", checkpoint, "-o", bundle, "--tokenizer", vocabulary, "--segments", "2").succeeded()
    source.write_text("the deep sea\nof the sea\n")
    reported = invoke("report", bundle, source).succeeded().err.splitlines()
    scored = invoke("score", bundle, source, "--json").succeeded().err.replace(f"{source.parent}/", "")
    notes = read_page(source.with_suffix(".html").read_text("utf-8")).about["notes"]
    for words in ("depend on the segment length", "reads newlines as spaces", "2 of 6 tokens replace text"):
        (line,) = (line for line in reported if words in line)
        assert line in scored.splitlines()
        assert any(words in note for note in notes), words


def test_bundle_without_a_detail_graph(invoke: Invoke, tmp_path: Path) -> None:
    source = tmp_path / "ids.txt"
    source.write_text("1 2 3")
    bundle = GOLDEN.parents[1] / "late_reader" / "bundle"
    assert "no graph for 'detail'" in invoke("report", bundle, source, "--ids").error


def test_a_page_that_cannot_be_written_whole_is_not_there(
    invoke: Invoke, prose: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = prose.with_suffix(".html")
    page.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert "No space left" in invoke("report", GOLDEN, prose, "--force").error
    assert page.read_text() == "old"
    assert sorted(path.name for path in prose.parent.iterdir()) == ["prose.html", "prose.txt"]
