"""`xlexport report` without a browser: required and forbidden content of a page, its colours, and the command."""

from __future__ import annotations

import base64
import hashlib
import html
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xlexport.report.page
from tests.helpers.invoking import PROSE, Invoke
from tests.report.colours import INK, PAGE, SHEET, contrast, lightness, scale
from tests.report.report_pages import FAMILY, GOLDEN, HOSTILE, Page, read_page
from xlexport.report import page_text
from xlexport.report.html_page import LEVELS
from xlexport.report.packing import NO_SCORE, bytes_for, planes
from xlruntime import load
from xlruntime.tokenizers import ByteTokenizer, NoTokenizer
from xlruntime.tokenizers.vocabulary import Vocabulary
from xlruntime.tokenizers.vocabulary_tokenizer import VocabularyTokenizer

# How people without one kind of cones see linear red, green and blue (Machado et al. 2009, severity 1).
DEFICIENCIES = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
THEMES = ["light", "dark"]
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "make_report_colours.py"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    path = tmp_path / "hostile.txt"
    path.write_bytes(HOSTILE)
    return path


def written(invoke: Invoke, source: Path, *options: str) -> str:
    output = source.parent / "page.html"
    invoke(
        "report", GOLDEN, source, "-o", output, "--threads", "1", "--force", "--set", "binary=true", *options
    ).succeeded()
    return output.read_text("utf-8")


@pytest.mark.parametrize("top", [0, 3, 10])
@pytest.mark.parametrize("chunk", [1 << 16, 100])
def test_page_holds_the_text_and_its_scores(
    invoke: Invoke, hostile: Path, top: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xlexport.report.page, "CHUNK", chunk)
    monkeypatch.setattr("xlexport.report.packing.CHUNK", chunk)
    page = read_page(written(invoke, hostile, "--top", str(top)))
    parts = list(load(GOLDEN, threads=1).score_tokens([HOSTILE], detail=top))

    def scored(name: str) -> Any:
        return np.concatenate([getattr(part, name) for part in parts])

    assert page.text.encode("utf-8", "surrogateescape") == HOSTILE
    assert page.columns["ids"].tolist() == list(HOSTILE)
    assert page.columns["bits"][0] == NO_SCORE
    # Rounding may change half a hundredth of a bit.
    np.testing.assert_allclose(page.columns["bits"][1:] / 100, -scored("log_probs") / np.log(2), atol=0.00501)
    np.testing.assert_allclose(page.columns["entropy"][1:] / 100, scored("entropy") / np.log(2), atol=0.00501)
    assert (page.columns["rank"][1:] == scored("rank")).all()
    assert (page.columns["seen"][1:] == scored("context")).all()
    roots = page.columns["top_roots"].T[1:] / 255
    np.testing.assert_allclose(roots, np.exp(scored("top_log_probs") / 2), atol=0.5 / 255 + 1e-6)
    assert (page.columns["top_ids"].T[1:] == np.where(roots > 0, scored("top_ids"), 0)).all()
    assert {bytes([int(number)]).decode("utf-8", "surrogateescape") for number in page.labels} == {
        *page.labels.values()
    }
    assert [tokens for tokens, *_ in page.about["chunks"]] == [
        min(chunk, len(HOSTILE) - at) for at in range(0, len(HOSTILE), chunk)
    ]


def test_bytes_of_a_character_are_drawn_with_it(invoke: Invoke, hostile: Path) -> None:
    page = read_page(written(invoke, hostile))
    ends = np.cumsum(page.widths)
    covered = ["".join(_utf16(page)[end - width : end]) for end, width in zip(ends, page.widths, strict=True)]
    at = HOSTILE.index("\U0001f600".encode())
    assert page.widths[at : at + 5].tolist() == [2, 0, 0, 0, 1]
    assert covered[HOSTILE.index(b"\xff")] == "\udcff"
    at = HOSTILE.index(b"\xe2\x82 ")
    assert covered[at : at + 3] == ["\udce2", "\udc82", " "]


def _utf16(page: Page) -> list[str]:
    raw = page.text.encode("utf-16-le", "surrogatepass")
    return [raw[at : at + 2].decode("utf-16-le", "surrogatepass") for at in range(0, len(raw), 2)]


def test_nothing_of_the_document_is_markup_or_script(invoke: Invoke, hostile: Path) -> None:
    title = "</title><script>alert('{{script}}')</script> \"&\" \u2028"
    page = written(invoke, hostile, "--title", title)
    for word in ("broken", "onerror", FAMILY, "override", "\x00", "\x1b", "<script>alert", "]]>"):
        assert word not in page, word
    assert html.unescape(page.split("<title>")[1].split("</title>")[0]) == title
    assert read_page(page).about["title"] == title
    kinds = re.findall(r"<script\b([^>]*)>", page)
    assert sum("text/plain" not in kind for kind in kinds) == 2, kinds  # the page's data and its program
    assert page.count("</script") == len(kinds)


def test_page_loads_nothing_and_may_run_only_its_own_script(invoke: Invoke, hostile: Path) -> None:
    page = written(invoke, hostile)
    own = re.sub(r'<script type="text/plain".*?</script>', "", page)
    addresses = r"https?:|//[\w-]+\.|\b(src|href|srcset|action|formaction)=|@import|url\(|import\("
    assert re.search(addresses, own) is None
    assert (
        re.search(r"\beval\b|\bFunction\b|innerHTML|outerHTML|insertAdjacent|document\.write|fetch\(|XMLH", own) is None
    )
    policy = html.unescape(re.findall(r'Content-Security-Policy" content="([^"]*)"', page)[0])
    assert policy.startswith("default-src 'none'; ")
    for tag, name in (('<script type="module">', "script-src"), ("<style>", "style-src")):
        content = page.split(tag)[1].split("</")[0]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{name} 'sha256-{digest}';" in policy
    assert not re.search(r'\s(style|on\w+)="', own)  # the policy would not apply them


def test_same_input_gives_the_same_page(invoke: Invoke, hostile: Path) -> None:
    assert written(invoke, hostile) == written(invoke, hostile)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("letter", ["l", "c"])
def test_text_is_readable_on_the_whole_scale(theme: str, letter: str) -> None:
    """Check contrasts of at least 4.5, as the Web Content Accessibility Guidelines require (level AA)."""
    assert len(scale(theme, letter)) == LEVELS
    assert min(contrast(INK[theme], colour) for colour in (PAGE[theme], *scale(theme, letter))) >= 4.5
    style = Path(xlexport.report.page.__file__).with_name("assets").joinpath("report.css").read_text("utf-8")
    quiet, panel, accent = (
        re.findall(rf"--{name}: light-dark\((\S+), (\S+)\)", style)[0][THEMES.index(theme)]
        for name in ("quiet", "panel", "accent")
    )
    assert min(contrast(colour, behind) for colour in (quiet, accent) for behind in (PAGE[theme], panel)) >= 4.5


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("eyes", [None, *DEFICIENCIES])
@pytest.mark.parametrize("letter", ["l", "c"])
def test_scale_is_ordered_by_lightness_whatever_hues_are_seen(theme: str, eyes: str | None, letter: str) -> None:
    seen = [lightness(colour if eyes is None else _simulated(colour, eyes)) for colour in scale(theme, letter)]
    steps = np.diff(seen) * (-1 if theme == "light" else 1)
    assert steps.min() > 0.005, steps  # Oklab is made so that a difference of 0.02 is just seen: four levels at most


def _simulated(colour: str, eyes: str) -> str:
    encoded = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
    seen = (np.array(DEFICIENCIES[eyes]) @ linear).clip(0, 1)
    encoded = np.where(seen <= 0.0031308, 12.92 * seen, 1.055 * seen ** (1 / 2.4) - 0.055)
    return "#" + "".join(f"{round(value * 255):02x}" for value in encoded)


def test_colours_are_those_that_the_script_makes() -> None:
    made = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=True, encoding="utf-8")
    assert made.stdout == SHEET


def test_contrast_and_lightness_against_known_values() -> None:
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)
    assert (lightness("#ffffff"), lightness("#000000")) == pytest.approx((1, 0), abs=1e-3)
    assert lightness("#ff0000") == pytest.approx(0.628, abs=1e-3)


def test_planes_are_bytes_from_the_lowest() -> None:
    assert planes(np.array([0x010203, 0xFF]), 3) == bytes([3, 255, 2, 0, 1, 0])
    assert [bytes_for(largest) for largest in (0, 255, 256, 65535, 65536, 267_734)] == [1, 1, 2, 2, 3, 3]


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
    bundle = GOLDEN.parents[1] / "pre_lnorm_empty" / "bundle"  # has no tokenizer, and no same_length
    source = tmp_path / "ids.txt"
    source.write_text("3 1 4 1 5 9 2 6")
    invoke("report", bundle, source, "--ids", "--threads", "1").succeeded()
    page = read_page((tmp_path / "ids.html").read_text("utf-8"))
    assert page.text == "3 1 4 1 5 9 2 6"
    assert page.widths.tolist() == [1] + [2] * 7
    assert not page.about["hasBytes"]
    assert any("depend on the segment length" in note for note in page.about["notes"])
    assert [name for name, _ in page.about["figures"]] == ["bits per token", "perplexity per token", "tokens"]


def test_totals_are_those_of_score(invoke: Invoke, tmp_path: Path, prose: Path) -> None:
    (score,) = load(GOLDEN, threads=1).score([PROSE])
    figures = dict(read_page(written(invoke, prose)).about["figures"])
    assert figures == {
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


def test_the_document_itself_is_never_replaced(invoke: Invoke, tmp_path: Path) -> None:
    source = tmp_path / "page.html"
    source.write_bytes(PROSE)
    refused = invoke("report", GOLDEN, source, "--force")
    assert refused.code == 2 and "-o" in refused.err
    assert source.read_bytes() == PROSE


@pytest.mark.parametrize(
    ("content", "words"), [(b"", "fewer than 2 tokens"), (b"x", "fewer than 2 tokens"), (None, "No such file")]
)
def test_documents_that_cannot_be_reported_on(
    invoke: Invoke, tmp_path: Path, content: bytes | None, words: str
) -> None:
    source = tmp_path / "a.txt"
    if content is not None:
        source.write_bytes(content)
    assert words in invoke("report", GOLDEN, source).error
    assert not list(tmp_path.glob("*.html"))


def test_places_that_cannot_be_written_to(invoke: Invoke, tmp_path: Path, prose: Path) -> None:
    assert "no such folder" in invoke("report", GOLDEN, prose, "-o", tmp_path / "none" / "page.html").error
    link = tmp_path / "link.html"
    link.symlink_to(tmp_path / "nowhere")
    assert "a link to a missing file" in invoke("report", GOLDEN, prose, "-o", link, "--force").error
    link.unlink()
    os.mkfifo(link)
    assert "not a file" in invoke("report", GOLDEN, prose, "-o", link, "--force").error


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("-", "not written to standard output: name a file that ends in .html with -o"),
        ("new/", "new/: a folder. Name the page in it, too: -o new/page.html"),
        (".", ".: a folder. Name the page in it, too: -o page.html"),
        ("odd.pdf", "odd.pdf: a page is HTML, so its name has to end in .html or .htm"),
        ("odd", "odd: a page is HTML"),
    ],
)
def test_outputs_that_are_no_pages(
    invoke: Invoke, tmp_path: Path, prose: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = invoke("report", GOLDEN, prose, "-o", name, "--force")
    assert refused.code == 2 and words in refused.err
    assert [path.name for path in tmp_path.iterdir()] == ["prose.txt"]


def test_endings_of_pages(invoke: Invoke, tmp_path: Path, prose: Path) -> None:
    for name in ("page.htm", "PAGE.HTML"):
        invoke("report", GOLDEN, prose, "-o", tmp_path / name).succeeded()
        assert (tmp_path / name).is_file()


def test_a_folder_with_one_document(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "prose.txt").write_bytes(PROSE)
    invoke("report", GOLDEN, tmp_path / "one").succeeded()
    assert read_page((tmp_path / "one.html").read_text("utf-8")).about["title"] == "prose.txt"


def test_model_is_named_by_what_it_is_and_by_its_folder_where_that_tells_more(
    invoke: Invoke, tmp_path: Path, prose: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = tmp_path / "novels.bundle"
    shutil.copytree(GOLDEN, named)
    for folder, suffix in ((GOLDEN, ""), (named, ", novels.bundle")):
        monkeypatch.chdir(folder)
        invoke("report", ".", prose, "--force").succeeded()
        page = read_page(prose.with_suffix(".html").read_text("utf-8"))
        config = load(folder, threads=1).bundle.config
        expected = (
            f"Transformer-XL, {config['n_layer']} layers of {config['d_model']}, vocabulary of 256, float32{suffix};"
        )
        assert page.about["notes"][0].startswith(expected)


def test_what_the_scores_do_not_cover_is_said_as_score_says_it(
    reuse_export: None, checkpoint: Path, invoke: Invoke, tmp_path: Path
) -> None:
    """Report segment length, newlines read as spaces, and unknown words on stderr and on the page."""
    vocabulary, bundle, source = tmp_path / "vocab.txt", tmp_path / "words.bundle", tmp_path / "it.txt"
    vocabulary.write_text("\n".join(("<unk>", "the", "sea", *(f"<{number}>" for number in range(253)))))
    invoke("convert", checkpoint, "-o", bundle, "--tokenizer", vocabulary, "--segments", "2").succeeded()
    source.write_text("the deep sea\nof the sea\n")
    told = invoke("report", bundle, source).succeeded().err.splitlines()
    scored = invoke("score", bundle, source, "--json").succeeded().err.replace(f"{source.parent}/", "")
    notes = read_page(source.with_suffix(".html").read_text("utf-8")).about["notes"]
    for words in ("depend on the segment length", "reads newlines as spaces", "2 of 6 tokens replace text"):
        (line,) = (line for line in told if words in line)
        assert line in scored.splitlines()
        assert any(words in note for note in notes[1:]), words


def test_document_that_is_too_long_for_a_page(invoke: Invoke, prose: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xlexport.report.page, "LONGEST_BYTES", 10)
    assert "more than 10 bytes, but at most 10" in invoke("report", GOLDEN, prose).error


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
