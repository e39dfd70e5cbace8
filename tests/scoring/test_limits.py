"""Files from strangers: gzip that unpacks to gigabytes, endless lines, and links out of a folder."""

from __future__ import annotations

import gzip
import json
import resource
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from tests.scoring.conftest import Score
from tests.scoring.test_inputs import names
from xlexport.commands import input_options
from xlexport.scoring.documents import documents, rereadable
from xlexport.scoring.inputs import Input, Reading
from xlexport.scoring.score_options import InputOptions
from xlruntime import Document, TextError
from xlruntime.documents import TextCounts
from xlruntime.limits import Limits
from xlruntime.tokenizers import ByteTokenizer
from xlruntime.tokenizers.vocabulary import Vocabulary
from xlruntime.tokenizers.vocabulary_tokenizer import VocabularyTokenizer

MIB = 1 << 20
SMALL = Limits(bytes=MIB)
LINES = Reading(field="text", line_limits=SMALL)


def bomb(path: Path, mebibytes: int, *, before: bytes = b"", after: bytes = b"") -> Path:
    """Write a packed file: members of one MiB of `a`, with other data before and after them."""
    member = gzip.compress(b"a" * MIB)
    path.write_bytes(gzip.compress(before) + member * mebibytes + gzip.compress(after))
    return path


@pytest.fixture
def peak() -> Iterator[Callable[[], int]]:
    """Return the largest number of bytes that Python has allocated since the test began."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


def found(path: Path, reading: Reading) -> list[Document]:
    return list(documents([Input(path.name, path)], reading, BytesIO(), keep=False))


def read(document: Document) -> bytes:
    source: Any = document.source
    raw: bytes = source.read()
    return raw


@pytest.mark.parametrize("ids", [False, True], ids=["text", "ids"])
@pytest.mark.full
def test_document_that_is_kept_is_read_up_to_the_limit(ids: bool, tmp_path: Path, peak: Callable[[], int]) -> None:
    path = tmp_path / "packed"
    path.write_bytes(gzip.compress(b"7 " * (32 * MIB) if ids else b"a" * (64 * MIB)))
    tracemalloc.reset_peak()
    (document,) = found(path, Reading(ids=ids))
    with pytest.raises(TextError, match="packed: reading it would take more than 2,097,152 bytes of memory"):
        rereadable(document, Limits(bytes=2 * MIB))
    assert peak() < 64 * MIB  # a MiB of ids as words takes 20


def test_page_is_read_up_to_its_limit(tmp_path: Path, peak: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> None:
    from xlexport.report import document_page as page

    most = MIB // 8
    monkeypatch.setattr(page, "LONGEST_BYTES", most)
    (document,) = found(bomb(tmp_path / "b.gz", 64), Reading())
    with pytest.raises(TextError, match=rf"b\.gz: more than {most:,} bytes, but at most {most:,} are possible"):
        page.read_for_page(document)
    assert peak() < 8 * MIB
    (tmp_path / "ids").write_bytes(b"7 " * (most + 1))
    (document,) = found(tmp_path / "ids", Reading(ids=True))
    with pytest.raises(TextError, match=f"ids: more than {most:,} tokens, but at most {most:,} are possible"):
        page.read_for_page(document)


BYTES = Vocabulary("bytes", ("97", "98"))
WORDS = Vocabulary("words", ("<unk>", "a"), unk="<unk>")


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), VocabularyTokenizer(BYTES)], ids=["bytes", "vocabulary"])
def test_plain_text_is_read_at_constant_memory(
    tokenizer: ByteTokenizer | VocabularyTokenizer, tmp_path: Path, peak: Callable[[], int]
) -> None:
    (document,) = found(bomb(tmp_path / "b.gz", 16), Reading())
    source: Any = document.source
    assert sum(map(len, tokenizer.read(source, "it", TextCounts(), SMALL))) == 16 * MIB
    assert peak() < 8 * MIB


@pytest.mark.release
def test_word_without_end_is_refused(tmp_path: Path, peak: Callable[[], int]) -> None:
    (document,) = found(bomb(tmp_path / "b.gz", 64), Reading())
    source: Any = document.source
    with pytest.raises(TextError, match="it: a word of more than 1,048,576 characters"):
        list(VocabularyTokenizer(WORDS).read(source, "it", TextCounts(), SMALL))
    assert peak() < 8 * MIB


def test_lines_that_are_held_together_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the lines that `context` and `plot` hold together."""
    path = tmp_path / "docs.jsonl"
    path.write_text('{"text": "some text"}\n' * 600)
    options = InputOptions(field="text")
    assert len(input_options.find_documents([path], options)) == 600
    monkeypatch.setattr(input_options, "ALL_LIMITS", Limits(bytes=MIB))
    with pytest.raises(TextError, match="all documents together: reading it would take more than 1,048,576 bytes"):
        input_options.find_documents([path], options)


def test_corpus_has_a_limit(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from xlruntime import load, protocols

    model = load(bundle, threads=1)
    assert len(protocols.read_corpus(model, Document("it", bytes(200_000))).ids) == 200_000
    monkeypatch.setattr(protocols, "CORPUS_LIMITS", Limits(bytes=MIB))
    with pytest.raises(TextError, match="it: reading it would take more than 1,048,576 bytes"):
        protocols.read_corpus(model, Document("it", bytes(200_000)))


def test_score_goes_on_after_a_line_that_is_too_long(score: Score, tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in ("short", "long " * 100, "also short")))
    shown = score(path, "--field", "text", "--json", "--set", "max_document_bytes=60")
    assert shown.code == 1
    assert [record["document"] for record in shown.objects] == [f"{path}:1", f"{path}:3"]
    (error,) = (line for line in shown.err.splitlines() if "docs.jsonl:2" in line)
    assert json.loads(error)["error"] == f"{path}:2: a line of more than 60 bytes."


def test_links_in_a_folder_are_not_followed(score: Score, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("books/a.txt", "books/in/b.txt", "outside/secret.txt"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("some text")
    Path("books/link.txt").symlink_to(tmp_path / "outside/secret.txt")
    Path("books/in/folder").symlink_to(tmp_path / "outside")
    Path("shelf").symlink_to("books")
    inside = ["a.txt", "in/b.txt"]

    assert names(score, "books") == [f"books/{name}" for name in inside]
    assert score("books", "--json").err.splitlines()[0] == "books: 2 files, without 2 links"
    assert names(score, "books/**/*.txt") == [f"books/{name}" for name in inside]
    assert score("books/**/*.txt", "--json").err.splitlines()[0] == "books/**/*.txt: without 2 links"
    assert names(score, "books/link.txt", "shelf") == ["books/link.txt", *(f"shelf/{name}" for name in inside)]
    assert names(score, "shelf/*.txt") == ["shelf/a.txt"]


@pytest.mark.release
@pytest.mark.parametrize("command", ["report", "lines"])
def test_four_gibibytes_in_four_megabytes(command: str, bundle: Path, tmp_path: Path) -> None:
    """Read it in a process with limited memory; a line is read to its end, so the line is a fourth as long."""
    path = bomb(
        tmp_path / "b.gz", 4096 if command == "report" else 1024, before=b'{"text": "', after=b'"}\n{"text": "last"}\n'
    )
    arguments = {
        "report": ["report", str(bundle), str(path), "-o", str(tmp_path / "page.html")],
        "lines": ["score", str(bundle), str(path), "--field", "text", "--json", "--threads", "1"],
    }[command]
    limit = partial(resource.setrlimit, resource.RLIMIT_DATA, (1 << 30, 1 << 30))
    result = subprocess.run(
        [sys.executable, "-m", "xlexport", *arguments], capture_output=True, text=True, check=False, preexec_fn=limit
    )
    assert result.returncode == 1
    if command == "report":
        assert "b.gz: more than 33,554,432 bytes, but at most 33,554,432 are possible" in result.stderr
    else:
        assert "b.gz:1: a line of more than 67,108,864 bytes." in result.stderr
        assert json.loads(result.stdout)["document"] == f"{path}:2"
