"""Documents for `score`: files, folders, patterns, standard input, JSON lines and gzip, and refusals."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.scoring.conftest import TEXT, Score
from xlexport.scoring.inputs import TextSource


def names(score: Score, *arguments: str | Path, stdin: bytes = b"") -> list[str]:
    return [record["document"] for record in score(*arguments, "--json", stdin=stdin).succeeded().objects]


def test_folder_is_taken_recursively_sorted_and_said(score: Score, tmp_path: Path) -> None:
    for name in ("b/2.txt", "b/a/1.md", "a.txt", ".hidden", "c/.git/config", "b/10.txt"):
        path = tmp_path / "books" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("some text")
    folder = tmp_path / "books"
    shown = score(folder, "--json").succeeded()
    expected = [f"{folder}/{name}" for name in ("a.txt", "b/10.txt", "b/2.txt", "b/a/1.md")]
    assert [record["document"] for record in shown.objects] == expected
    assert shown.err.splitlines()[0] == f"{folder}: 4 files, without 2 hidden"
    shown = score(folder, "--include", "*.txt", "--include", "c*", "--json").succeeded()
    assert [record["document"] for record in shown.objects] == expected[:3]
    assert shown.err.splitlines()[0] == f"{folder}: 3 files named *.txt or c*, without 1 other and 2 hidden"


@pytest.mark.parametrize(
    ("file", "content", "options", "looked_for"),
    [
        (".hidden", "", (), "files. Check the paths"),
        ("a.txt", "", ("--include", "*.xyz", "--include", "*.md"), "files named *.xyz or *.md. Check the paths"),
        ("a.txt", "", ("--field", "text", "--include", "*.json"), "files named *.json. Check the paths"),
        ("a.jsonl", "\n  \n", ("--field", "text"), "lines that are not blank."),
    ],
)
def test_folder_without_a_document(
    file: str, content: str, options: tuple[str, ...], looked_for: str, score: Score, tmp_path: Path
) -> None:
    folder = tmp_path / "books"
    folder.mkdir()
    (folder / file).write_text(content)
    for into in ((), ("-o", tmp_path / "out.jsonl")):
        shown = score(folder, *options, *into)
        assert (shown.code, shown.out, list(tmp_path.iterdir())) == (1, "", [folder])
        assert f"no documents found; looked for {looked_for}" in shown.err.splitlines()[1]


@pytest.mark.full
def test_bundle_is_no_folder_of_texts(score: Score, bundle: Path, texts: list[Path]) -> None:
    shown = score(bundle)
    expected = f"Error: {bundle}: a bundle, not a folder of texts. BUNDLE comes first, then the documents.\n"
    assert (shown.code, shown.out, shown.err) == (1, "", expected)
    assert names(score, bundle, "--include", "bundle.json") == [str(bundle / "bundle.json")]
    folder = texts[0].parent
    shutil.copytree(bundle, folder / "model.bundle")
    shown = score(folder, "--json").succeeded()
    assert [record["document"] for record in shown.objects] == list(map(str, texts))
    assert shown.err.splitlines()[0] == f"{folder}: 5 files, without 1 bundle"


def test_files_that_are_not_text_are_refused(score: Score, texts: list[Path], tmp_path: Path) -> None:
    path, packed = tmp_path / "model.pt", tmp_path / "text.gz"
    path.write_bytes(b"PK\x03\x04\0\0 weights")
    packed.write_bytes(gzip.compress(TEXT.encode()))
    shown = score(texts[0], path, packed, "--format", "jsonl")
    assert (shown.code, [record["document"] for record in shown.objects]) == (1, [str(texts[0]), str(packed)])
    expected = f"Error: {path}: not a text: byte 4 is zero. Leave it out, or score its bytes with --set binary=true."
    assert shown.err.splitlines()[0] == expected
    assert names(score, texts[0], path, packed, "--set", "binary=true") == [str(texts[0]), str(path), str(packed)]
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert "text.gz: not a text: byte 4 is zero." in score(packed).error
    assert "standard input: not a text: byte 4 is zero." in score("-", stdin=path.read_bytes()).error
    assert names(score, "-", "--set", "binary=true", stdin=path.read_bytes()) == ["standard input"]


@pytest.mark.parametrize("encoding", ["UTF-16", "UTF-16-BE", "UTF-32", "UTF-32-BE"])
@pytest.mark.parametrize("options", [(), ("--field", "text"), ("--ids",)], ids=["text", "rows", "ids"])
def test_texts_in_other_encodings_are_recognized(
    encoding: str, options: tuple[str, ...], score: Score, tmp_path: Path
) -> None:
    path, family = tmp_path / "two words.csv", encoding[:6]
    mark = "" if encoding == family else "\ufeff"  # Python writes a mark itself if the name has no order of bytes
    path.write_bytes(f"{mark}text\n1 2\n".encode(encoding))
    expected = f"text in {family}, expected UTF-8. Convert it: iconv -f {family} -t UTF-8 '{path}' > text.txt"
    shown = score(path, *options)
    assert (shown.code, shown.out) == (1, "")
    assert f"Error: {path}: {expected}" in shown.err.splitlines()
    if not options:
        assert names(score, path, "--set", "binary=true") == [str(path)]


def test_unreadable_files_and_folders_leave_the_others(
    score: Score, texts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pretend missing permissions, because root may run this test and can read everything."""
    folder, closed = texts[0].parent, texts[0].parent / "closed"
    closed.mkdir()
    access, scandir, opened = os.access, os.scandir, Path.open

    def refused(path: Any, *arguments: Any) -> bool:
        return Path(path) not in (texts[0], closed) and access(path, *arguments)

    def refusing(function: Any) -> Any:
        def called(path: Any, *arguments: Any, **more: Any) -> Any:
            if Path(path) in (texts[0], closed):
                raise PermissionError(13, "Permission denied", str(path))
            return function(path, *arguments, **more)

        return called

    monkeypatch.setattr("os.access", refused)
    monkeypatch.setattr("os.scandir", refusing(scandir))
    monkeypatch.setattr(Path, "open", refusing(opened))
    for given in ((texts[0], texts[1], closed), (folder, "--include", "[01].txt")):
        shown = score(*given, "--format", "jsonl")
        assert (shown.code, [record["document"] for record in shown.objects]) == (1, [str(texts[1])])
        for path in (texts[0], closed):
            assert f"Error: {path}: Permission denied. Check its permissions." in shown.err.splitlines()
        assert "2 of 3 documents could not be scored" in shown.err


def test_output_in_the_folder_is_not_taken(score: Score, texts: list[Path]) -> None:
    folder = texts[0].parent
    output = folder / "scores.jsonl"
    for _ in range(2):
        score(folder, "-o", output, "--force").succeeded()
        assert len(output.read_text().splitlines()) == len(texts)


def test_patterns_are_expanded(score: Score, texts: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(texts[0].parent.parent)
    assert names(score, "texts/[0-2].txt") == ["texts/0.txt", "texts/1.txt", "texts/2.txt"]
    assert names(score, "**/[34].txt") == ["texts/3.txt", "texts/4.txt"]
    (texts[0].parent / "more").mkdir()
    for path in texts[3:]:
        path.rename(path.parent / "more" / path.name)
    every = [*(f"texts/{n}.txt" for n in (0, 1, 2)), *(f"texts/more/{n}.txt" for n in (3, 4))]
    assert names(score, "texts/*") == names(score, "texts/**") == names(score, "**/*.txt") == every
    strange = texts[0].parent / "[x].txt"
    strange.write_text("its name is a pattern, but it is there")
    assert names(score, strange) == [str(strange)]
    shown = score("*.nothing")
    assert (shown.code, shown.err) == (1, "Error: *.nothing: no file matches. Check the pattern.\n")


@pytest.mark.parametrize("name", ["packed.txt.gz", "packed"])
def test_gzip_by_content_or_name(name: str, score: Score, tmp_path: Path) -> None:
    plain, packed = tmp_path / "plain", tmp_path / name
    plain.write_text(TEXT)
    packed.write_bytes(gzip.compress(TEXT.encode()))
    (first, second) = score(plain, packed, "--json").succeeded().objects
    (third,) = score("-", "--json", stdin=packed.read_bytes()).succeeded().objects
    assert first["nats"] == pytest.approx(second["nats"]) == pytest.approx(third["nats"])
    assert second["bytes"] == len(TEXT.encode())


def test_gzip_that_is_broken(score: Score, tmp_path: Path) -> None:
    whole = gzip.compress(TEXT.encode() * 30)
    for name, content in (("cut.gz", whole[:-9]), ("flipped.gz", whole[:-5] + b"\0" + whole[-4:]), ("no.gz", b"text")):
        path = tmp_path / name
        path.write_bytes(content)
        shown = score(path, "--segment-len", "64")
        assert (shown.code, shown.out) == (1, "")
        (error,) = shown.err.splitlines()
        assert error.startswith(f"Error: {path}: broken gzip data (")
        assert error.endswith("Pack the file again, or unpack it.")


def test_pipe(score: Score, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(TEXT,))
    writer.start()
    (found,) = score(pipe, "--json").succeeded().objects
    writer.join()
    assert found["bytes"] == len(TEXT.encode())


def test_names_stay_on_their_line(score: Score, tmp_path: Path) -> None:
    """Show any name on a terminal without obeying it, and write it unchanged into records."""
    path, name = tmp_path / "docs.jsonl", "x\ny\x1b[31m\x9b\ud800\u2028 ü"
    path.write_text("".join(json.dumps({"text": text, "id": name}) + "\n" for text in ("some text", "x")))
    arguments = (path, "--field", "text", "--id-field", "id")
    shown, expected = score(*arguments), r"x\ny\x1b[31m\x9b\ud800\u2028 ü"
    assert shown.out.startswith(f"{expected}: 9 tokens, ") and shown.out.count("\n") == 1
    assert shown.err.startswith(f"Error: {expected}: 1 of at least 2 tokens, ") and shown.err.count("\n") == 3
    assert score(*arguments, "--json").objects[0]["document"] == name
    assert score(tmp_path / "a\nb").err == rf"Error: {tmp_path}/a\nb: No such file or directory. Check the path." + "\n"


def test_output_does_not_replace_an_input(score: Score, texts: list[Path], tmp_path: Path) -> None:
    content = texts[0].read_bytes()
    shown = score(texts[0], "-o", texts[0], "--format", "csv", "--force")
    assert shown.code == 2 and "is also an input, which the output would replace." in " ".join(shown.err.split())
    assert texts[0].read_bytes() == content and not texts[0].with_name("0.txt.partial").exists()


def test_strict_stops_at_the_first(score: Score, texts: list[Path], tmp_path: Path) -> None:
    for bad, what in ((tmp_path / "absent", "No such file"), (tmp_path / "empty", "0 of at least 2 tokens")):
        if bad.name == "empty":
            bad.touch()
        shown = score(texts[0], bad, texts[1], "--json", "--set=strict=true")
        assert shown.code == 1
        assert [record["document"] for record in shown.objects] == [str(texts[0])]
        assert [what in line for line in shown.err.splitlines()] == [True]


@pytest.mark.parametrize(("per", "expected"), [("line", [11, 12]), ("word", [5, 5, 7, 5]), ("token", range(1, 25))])
def test_records_before_a_break_stay(
    per: str, expected: Sequence[int], score: Score, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Keep tokens, complete lines and words, also those in the last step, which ends exactly at the break."""
    read = TextSource.read

    def breaking(self: TextSource, size: int = -1) -> bytes:
        if not (raw := read(self, size)):
            raise OSError(5, "Input/output error", self.name)
        return raw

    monkeypatch.setattr(TextSource, "read", breaking)
    path = tmp_path / "text"
    path.write_bytes(b"first line\nsecond line\n l")
    shown = score(path, "--per", per)
    assert shown.code == 1 and "Input/output error" in shown.err
    assert [record["index" if per == "token" else "bytes"] for record in shown.objects] == list(expected)


def test_bad_documents_and_good_ones_in_a_batch(score: Score, texts: list[Path], tmp_path: Path) -> None:
    alone = [score(path, "--json").succeeded().objects[0]["nats"] for path in texts]
    given = [texts[0], tmp_path / "absent", *texts[1:3], tmp_path, *texts[3:]]
    (tmp_path / "x.txt").write_text("x")
    shown = score(*given, "--json", "--batch-size", "3", "--include", "x.txt")
    assert shown.code == 1
    assert [record["document"] for record in shown.objects] == list(map(str, texts))
    assert [record["nats"] for record in shown.objects] == pytest.approx(alone, abs=1e-3)
    assert "2 of 7 documents could not be scored" in shown.err


@pytest.mark.parametrize(
    ("options", "between"),
    [
        ((), b"\n"),
        (("--set", r"separator=\t"), b"\t"),
        (("--set", r"separator= \\n "), rb" \n "),
        (("--set", "separator="), b""),
    ],
    ids=["newline", "tab", "backslash", "none"],
)
def test_separator_of_continuous_documents(
    options: tuple[str, ...], between: bytes, score: Score, tmp_path: Path
) -> None:
    """Read the separator only after a document that does not end in white space, and score it in none."""
    paths = [tmp_path / name for name in ("1", "2", "3")]
    for path, text in zip(paths, (b"I saw the dog.", b"The dog barked.\n", b"So?"), strict=True):
        path.write_bytes(text)
    parts = score(*paths, "--per", "token", "--continuous", *options).succeeded().objects
    joined = b"I saw the dog." + between + b"The dog barked.\nSo?"
    whole = score("-", "--per", "token", stdin=joined).succeeded().objects
    own = [*whole[:13], *whole[13 + len(between) :]]  # the very first token has no score
    assert [record["id"] for record in parts] == list(b" saw the dog.The dog barked.\nSo?")
    for part, record in zip(parts, own, strict=True):
        assert part["log_prob"] == pytest.approx(record["log_prob"], abs=2e-5)
        assert part["context"] == record["context"]
    bytes_of = [record["bytes"] for record in score(*paths, "--continuous", *options, "--json").succeeded().objects]
    assert bytes_of == [14, 16, 3]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--per", "word", "--top", "2"), "--top 2 is for tokens. Add --per token, or give --top 0."),
        (("--format", "csv", "--json"), "--json is --format jsonl, but --format is csv."),
        (("--top", "0"), "--top needs a record for each part of a document. Add --per token, word, region or line."),
        (("--set=region_field=r",), "--set region_field is for regions. Add --per region."),
        (("--per", "region", "--set=region_field=r"), "--set region_field is for JSON lines and tables. Add"),
        (("--per", "line", "--boundary", "corrected"), "--boundary is for words and regions."),
        (
            ("--per", "word", "--boundary", "corrected", "--batch-size", "2"),
            "--boundary corrected scores documents one",
        ),
        (("--format", "parquet"), "Parquet needs an output file. Name one with -o."),
        (("--top", "11", "--per", "token"), "11 is not in the range 0<=x<=10"),
        (("--per", "word", "--ids"), "--per word needs text, but --ids reads token ids."),
        (("--resume",), "--resume and --force are about an output file. Give it with -o."),
        (("-o", "x.jsonl", "--resume", "--force"), "Give one of them."),
        (("-o", "x.txt"), "x.txt: no format has this ending. Use .jsonl, .ndjson, .json, .csv, .tsv, .parquet, or"),
        (("--id-field", "id"), "--id-field is for JSON lines and tables. Add --field."),
        (("--context-field", "c"), "--context-field is for JSON lines and tables. Add --field."),
        (("--keep", "a,b"), "--keep is for JSON lines and tables. Add --field."),
        (("--set", "separator=x"), "--set separator is for --continuous and --context-field. Add one of them."),
        (
            ("--set", "separator=x", "--ids"),
            "--set separator is text, but --ids reads token ids. Leave out one of them.",
        ),
        (("--continuous", "--batch-size", "2"), "--continuous scores documents one after another."),
        (("-o", "x.jsonl/"), "'x.jsonl/' is the name of a folder. Give that of a file."),
        (("--mem-len", "0"), "'--mem-len': 0 is not in the range x>=1"),
        (("--segment-len", "0"), "'--segment-len': 0 is not in the range x>=1"),
        (("--set", "n_hashes=0"), "'--set n_hashes': 0 is not in the range x>=1"),
        (("--set", "clamp_len=0"), "'--set clamp_len': 0 is neither -1 (no clamp) nor at least 1."),
        (("--processes", "2", "--batch-size", "8"), "--processes forms batches itself"),
        (("--processes", "2", "--continuous"), "Leave out --processes and --batch-size auto"),
        (("--batch-size", "none"), "not a valid int"),
        (("--processes", "2", "-"), "--processes shares files."),
        (("--field", "t", "--context-field", "a", "--context-field", "b"), "--context-field is given twice"),
        (("--per", "sentence"), "'sentence' is not one of 'document', 'line', 'word', 'region', 'token'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_usage(options: tuple[str, ...], what: str, score: Score, texts: list[Path]) -> None:
    shown = score(texts[0], *options)
    assert (shown.code, shown.out) == (2, "")
    assert what in " ".join(shown.err.split())
