"""What a text has that is not seen: byte-order marks, line ends, no-break spaces, NFD, NA, other encodings."""

from __future__ import annotations

import random
import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.tiers import thinned
from tests.scoring.conftest import Score
from xlexport.scoring.traits import TextTraits, TraitCounter, trait_notes
from xlruntime.documents import encoding_hint
from xlruntime.messages import quoted
from xlruntime.tokenizers.vocabulary import Vocabulary
from xlruntime.tokenizers.vocabulary_tokenizer import VocabularyTokenizer

PARTS = ("a", "\r", "\n", "\r\n", "\u00a0", "\u202f", "e\u0301", "é", "日", "🙂", " ")
NOTES = {
    b"one\r\ntwo\r\n": ["2 line ends of CR and LF"],
    b"one\rtwo": ["1 carriage return without LF"],
    "a\u00a0b c \u00a0d".encode(): ["1 no-break space within words"],
    "nai\u0308ve".encode(): ["1 document not in Unicode's form NFC"],
    b"caf\xe9 \x96 old": ["1 document not UTF-8"],
    b"plain text, na\xc3\xafve": [],
}


def traits_of(raw: bytes, cuts: list[int]) -> TextTraits:
    counter = TraitCounter()
    for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        counter.add(raw[start:end], end == len(raw))
    return counter.found


@pytest.mark.parametrize("seed", range(40))
def test_counts_do_not_depend_on_pieces(seed: int) -> None:
    draws = random.Random(seed)
    text = "".join(draws.choices(PARTS, k=30)) + "."
    raw = text.encode()
    found = traits_of(raw, sorted(draws.sample(range(1, len(raw)), 12)))
    pairs = text.count("\r\n")
    assert (found.cr_lf, found.cr) == (pairs, text.count("\r") - pairs)
    assert found.no_break == len(re.findall(r"(?<=\S)[\u00a0\u202f](?=\S)", text))
    assert found.not_nfc == (unicodedata.normalize("NFC", text) != text)
    assert traits_of(raw[:-1] + b"\xe9", [len(raw) // 2]).not_utf8 == 1


@pytest.mark.parametrize("raw", NOTES, ids=repr)
@pytest.mark.parametrize("more", thinned([(), ("--processes", "2")], [()]))
def test_a_run_says_once_what_texts_have(raw: bytes, more: tuple[str, ...], score: Score, tmp_path: Path) -> None:
    for name in ("one.txt", "two.txt"):
        (tmp_path / name).write_bytes(raw)
    shown = score(tmp_path, "--json", "-o", tmp_path / "out.jsonl", "--include", "*.txt", *more).succeeded()
    expected = [re.sub(r"\d+", lambda found: str(2 * int(found[0])), note, count=1) for note in NOTES[raw]]
    expected = [re.sub("(document|return|space) ", r"\1s ", note) for note in expected]
    notes = [line for line in shown.err.splitlines() if any(line.startswith(note) for note in expected)]
    assert len(notes) == len(expected)
    assert not any("read as" in line for line in shown.err.splitlines() if line not in notes)


def test_vocabularies_remove_line_ends() -> None:
    found = TextTraits(cr_lf=3, cr=1, no_break=2)
    readers = {kind: VocabularyTokenizer(Vocabulary(kind, ("a", "?"), unk="?")) for kind in ("words", "characters")}
    assert [len(trait_notes(found, reader)) for reader in (None, *readers.values())] == [3, 0, 1]


def test_na_is_named_and_may_be_missing(score: Score, tmp_path: Path) -> None:
    path = tmp_path / "i.csv"
    path.write_text("item,preamble,sentence\n1,NA,The old man\n2,,The old man\n3,It was.,NA\n")
    options = ("--field", "sentence", "--context-field", "preamble", "--json")
    shown = score(path, *options).succeeded()
    assert "2 context or text cells exactly NA" in shown.err
    assert [record["nats"] is None for record in shown.objects] == [False] * 3
    missing = score(path, *options, "--set", "na=NA")
    first, second = missing.objects
    assert (missing.code, first["nats"]) == (1, second["nats"])
    assert f"{path}:4: expected text in field 'sentence', found null there." in missing.err
    assert "exactly NA" not in missing.err


def test_mark_at_the_beginning_of_a_file_is_no_text(score: Score, tmp_path: Path) -> None:
    marked = tmp_path / "a.txt"
    marked.write_bytes(b"\xef\xbb\xbfThe old man went.\n")
    assert score(marked, "--json").object["bytes"] == 18
    piped: Any = score("-", "--per", "word", "--json", stdin=marked.read_bytes()).objects
    assert piped[0]["word"] == "The"
    assert score(marked, "--json", "--set", "binary=true").object["bytes"] == 21


def test_encoding_of_a_file_is_named_by_its_bytes(score: Score, tmp_path: Path) -> None:
    assert "iconv -f latin1 -t utf-8 a.txt > text.txt" in encoding_hint(b"caf\xe9", "a.txt")
    assert "iconv -f cp1252 -t utf-8 'my book.txt' >" in encoding_hint(b"\x93caf\xe9\x94", "my book.txt")
    for name, raw in (("my items.csv", b"t\ncaf\xe9\n\x93old\x94\n"), ("my items.jsonl", b'{"t": "\x93old\x94"}\n')):
        path = tmp_path / name
        path.write_bytes(raw)
        assert f"iconv -f cp1252 -t utf-8 '{path}' > text.txt" in score(path, "--field", "t").err
    assert [quoted(name) for name in ("a.txt", "<|endoftext|>", "it's", "a\nb'", "\udce9")] == [
        *("a.txt", "'<|endoftext|>'", "'it'\"'\"'s'", r"$'a\x0ab\x27'", r"$'\xe9'")
    ]


def test_text_without_white_space_has_no_words(score: Score, tmp_path: Path) -> None:
    texts = {"zh": "今天天气很好，我们去公园散步。", "ru": "Сегодня хорошая погода.", "hi": "आज मौसम बहुत अच्छा है।"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        note = f"{tmp_path / name}: words end at white space, which this text hardly has."
        assert (note in score(tmp_path / name, "--per", "word").succeeded().err) == (name == "zh")
        assert note not in score(tmp_path / name).succeeded().err
