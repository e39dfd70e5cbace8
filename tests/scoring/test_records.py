"""Records of tokens, words, lines and documents: their fields, formats, and equal sums on all levels."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import xlruntime
from tests.scoring.conftest import TEXT, Score
from xlruntime.tokenizers.vocabulary import Vocabulary


def test_words_and_lines_of_bytes(score: Score) -> None:
    """Count white space before a word for the word (after the last word, too), and a newline for its line."""
    tokens = score("-", "--per", "token", stdin=TEXT.encode()).succeeded().objects
    raw = TEXT.encode()
    surprisal = {record["start"]: -record["log_prob"] for record in tokens}
    words = score("-", "--per", "word", stdin=raw).succeeded().objects
    assert [record["word"] for record in words] == TEXT.split()
    assert [raw[record["start"] : record["end"]].decode() for record in words] == TEXT.split()
    begin = 0
    for number, record in enumerate(words):
        end = record["end"] if record is not words[-1] else len(raw)
        assert record["index"] == number
        assert (record["bytes"], record["tokens"]) == (end - begin, end - begin)
        nats = pytest.approx(sum(surprisal.get(place, 0.0) for place in range(begin, end)))
        assert record["nats"] == (nats if begin else None)  # the first byte has no score
        assert record["context"] == max(1, min(begin, 12))
        begin = end
    lines = score("-", "--per", "line", stdin=raw).succeeded().objects
    begin = 0
    for number, (record, line) in enumerate(zip(lines, raw.splitlines(keepends=True), strict=True), start=1):
        assert (record["line"], record["start"], record["end"]) == (number, begin, begin + len(line))
        assert record["words"] == len(line.split())
        expected = pytest.approx(sum(surprisal.get(place, 0.0) for place in range(begin, begin + len(line))))
        assert record["nats"] == (expected if begin else None)
        assert record["bits_per_byte"] == (pytest.approx(record["bits"] / record["scored_bytes"]) if begin else None)
        begin += len(line)


TEXTS = {
    "ordinary": TEXT,
    "no newline at the end": "two words\nand three more",
    "white space around": "  it was\n\n the 時代 wisdom age \n ",
    "white space alone": " \n \t\n",
    "one word": "word",
    "long": "many words of all kinds, ünd\tmöre – 時代\r\n" * 20,
    "a long word": "x" * 1030 + "\n" + "é" * 520,  # of which records keep the first 1,000 bytes
    "line ends that are none": "a\x0bb\x0cc\rd\x85e\u2028f\n",
}
OF_VOCABULARIES = ("ordinary", "no newline at the end", "white space around")
VOCABULARIES = {
    "words": Vocabulary("words", ("<eos>", "<unk>", "the", "of", "it"), unk="<unk>", line_end="<eos>"),
    "characters": Vocabulary("characters", (*"abcdefghijklmnopqrstuvw_", "<unk>"), unk="<unk>", space="_"),
    "some bytes": Vocabulary("bytes", (*map(str, b"abcdefghijklmnopqrst "), "<unk>"), unk="<unk>"),  # no newline
}


def tokenizer_of(kind: str) -> Any:
    """Return a tokenizer; that of word pieces has words, parts of words, and two words together."""
    if kind in VOCABULARIES:
        return VOCABULARIES[kind]
    tokenizers = pytest.importorskip("tokenizers")
    pieces = ["[UNK]", "the", "best", "of", "times", ",", "it", "was", "wor", "##st", "##s", "wisdom", "age"]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({piece: n for n, piece in enumerate(pieces)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    return tokenizer


@pytest.mark.parametrize(
    ("kind", "name", "options"),
    [
        *(("bytes", name, options) for name in TEXTS for options in ((), ("--segment-len", "3"), ("--bos", " "))),
        *((kind, name, ()) for kind in (*VOCABULARIES, "word pieces") for name in OF_VOCABULARIES),
    ],
)
@pytest.mark.full
def test_units_add_up_to_their_document(
    kind: str, name: str, options: tuple[str, ...], bundle: Path, words_bundle: Callable[..., Path], score: Score
) -> None:
    """Compare lines and words with the document, its tokens, and the words of `Model.surprisal`."""
    if kind != "bytes":
        bundle = words_bundle(tokenizer_of(kind))
    text, raw = TEXTS[name], TEXTS[name].encode()
    (total,) = score("-", "--json", *options, stdin=raw, bundle=bundle).succeeded().objects
    tokens = score("-", "--per", "token", *options, stdin=raw, bundle=bundle).succeeded().objects
    for level in ("line", "word"):
        records = score("-", "--per", level, *options, stdin=raw, bundle=bundle).succeeded().objects
        for count in ("tokens", "scored_tokens", "chars", "bytes", "scored_chars", "scored_bytes"):
            assert sum(record[count] for record in records) == pytest.approx(total[count]), (level, count)
        assert sum(record.get("words", 1) for record in records) == max(total["words"], level == "word")
        partly = sum(record["scored_tokens"] for record in records if not record["complete"])  # those of the first
        for unit, of_token in (("bits", "surprisal_bits"), ("nats", "log_prob")):
            expected = sum(abs(token[of_token]) for token in tokens[partly:])
            assert sum(record[unit] or 0 for record in records) == pytest.approx(expected, rel=1e-9, abs=1e-9)
        for record in records:
            assert (record["bits"] is None) == (record["nats"] is None) == (not record["complete"])
            assert (record["context"] is None) == (not record["scored_tokens"])
    words = re.split("[ \t\n\r\v\f]+", text.strip(" \t\n\r\v\f"))
    assert [record["word"] for record in records] == [word.encode()[:1000].decode("utf-8", "replace") for word in words]
    if words != [""]:
        placed = raw.decode("latin-1") if kind in ("bytes", "some bytes") else text
        parts = [placed[record["start"] : record["end"]] for record in records]
        assert [part.encode("latin-1").decode() if placed is not text else part for part in parts] == words
    if "--segment-len" not in options:
        bos = {"bos": ord(" ")} if options else {}
        (found,) = xlruntime.load(bundle, threads=1).surprisal([text], **bos)
        assert (list(found.words), found.text) == (words, text)
        for column in ("tokens", "scored_tokens", "complete"):
            assert getattr(found, column).tolist() == [record[column] for record in records]
        bits = [math.nan if record["bits"] is None else record["bits"] for record in records]
        assert found.bits.tolist() == pytest.approx(bits, rel=1e-12, nan_ok=True)
        assert [text[start:end] for start, end in zip(found.starts, found.ends, strict=True)] == words


def test_words_of_a_tokenizer(words_bundle: Callable[..., Path], score: Score) -> None:
    """Count a token that begins with a space for the word after it, also if it is only white space."""
    tokenizers = pytest.importorskip("tokenizers")
    symbols = [*"Ġtheofsanb", "Ċ", "th", "the", "Ġthe", "of", "Ġof", "Ġofs", "ĊĊ", "Ġb", "Ċs"]
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("o", "f"), ("Ġ", "of"), ("Ċ", "Ċ"), ("Ġ", "b"), ("Ċ", "s")]
    ids = {symbol: n for n, symbol in enumerate(dict.fromkeys(symbols))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(ids, merges))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bundle, text = words_bundle(tokenizer), "the of\n\nof b the"
    tokens = score("-", "--per", "token", stdin=text.encode(), bundle=bundle).succeeded().objects
    assert [text[record["start"] : record["end"]] for record in tokens] == [" of", "\n\n", "of", " b", " the"]
    words = score("-", "--per", "word", stdin=text.encode(), bundle=bundle).succeeded().objects
    assert [record["word"] for record in words] == ["the", "of", "of", "b", "the"]
    assert [record["tokens"] for record in words] == [1, 1, 2, 1, 1]
    assert [record["scored_tokens"] for record in words] == [0, 1, 2, 1, 1]
    nats = [-record["log_prob"] for record in tokens]
    assert [record["nats"] for record in words] == pytest.approx([None, nats[0], nats[1] + nats[2], nats[3], nats[4]])
    lines = score("-", "--per", "line", stdin=text.encode(), bundle=bundle).succeeded().objects
    assert [record["tokens"] for record in lines] == [3, 0, 3]  # "\n\n" counts where it begins
    assert [record["context"] for record in lines] == [1, None, 3]
    lines = score("-", "--per", "line", stdin=b"the of\ns of", bundle=bundle).succeeded().objects
    assert [(record["tokens"], record["bytes"]) for record in lines] == [(2, 7), (2, 4)]  # "\ns" counts for the second


def test_rank_entropy_and_alternatives(bundle: Path, score: Score) -> None:
    shown = score("-", "--per", "token", "--top", "3", stdin=TEXT.encode()).succeeded().objects
    plain = score("-", "--per", "token", "--top", "0", stdin=TEXT.encode()).succeeded().objects
    (part, *_) = xlruntime.load(bundle, threads=1).score_tokens([TEXT.encode()], top=3)
    assert part.rank is not None and part.entropy is not None and part.top_log_probs is not None
    first = shown[0]
    assert list(first)[-4:] == ["context", "rank", "entropy_bits", "top"] and list(plain[0]) == list(first)[:-1]
    assert (first["rank"], first["entropy_bits"]) == (part.rank[0], pytest.approx(part.entropy[0] / math.log(2)))
    assert [entry["log_prob"] for entry in first["top"]] == part.top_log_probs[0].tolist()
    for record in shown:
        ids = [entry["id"] for entry in record["top"]]
        assert (record["rank"] <= 3) == (record["id"] in ids)
        assert [entry["token"] for entry in record["top"]] == [bytes([n]).decode("utf-8", "replace") for n in ids]
        assert 0 < record["entropy_bits"] < 8


def test_files_are_the_same_each_time(score: Score, texts: list[Path], tmp_path: Path) -> None:
    """Leave out the speed, which only standard output shows."""
    for name in ("a.jsonl", "b.jsonl"):
        score(*texts, "-o", tmp_path / name, "--batch-size", "2").succeeded()
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    assert "tokens_per_second" not in (tmp_path / "a.jsonl").read_text()
    assert all("tokens_per_second" in record for record in score(*texts, "--json").succeeded().objects)


def test_numbers_that_json_does_not_have(score: Score, monkeypatch: pytest.MonkeyPatch) -> None:
    step = xlruntime.Model.step

    def unlikely(self: Any, *arguments: Any) -> Any:
        return {"log_prob": step(self, *arguments)["log_prob"] - 1000}

    monkeypatch.setattr(xlruntime.Model, "step", unlikely)
    assert score("-", "--json", stdin=b"text").succeeded().objects[0]["perplexity"] is None
    (row,) = csv.DictReader(io.StringIO(score("-", "--format", "csv", stdin=b"text").succeeded().out))
    assert row["perplexity"] == ""


def test_alternatives_that_are_not_finite_are_null(score: Score, monkeypatch: pytest.MonkeyPatch) -> None:
    step = xlruntime.Model.step

    def impossible(self: Any, *arguments: Any) -> Any:
        outputs = dict(step(self, *arguments))
        return outputs | {"top_log_probs": outputs["top_log_probs"] - math.inf}

    monkeypatch.setattr(xlruntime.Model, "step", impossible)
    (record,) = score("-", "--per", "token", "--top", 2, stdin=b"at").succeeded().objects
    assert [token["log_prob"] for token in record["top"]] == [None, None]


def test_closing_summary(score: Score, texts: list[Path]) -> None:
    """Print mean and standard error over documents, and the figure of all together."""
    shown = score(*texts, "--json").succeeded()
    values = [record["bits_per_byte"] for record in shown.objects]
    mean = sum(values) / len(values)
    error = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))
    together = sum(record["bits"] for record in shown.objects) / sum(r["scored_bytes"] for r in shown.objects)
    summary, note = shown.err.splitlines()
    assert note.startswith("2 line ends of CR and LF: ")
    tokens = sum(record["tokens"] for record in shown.objects)
    expected = (
        f"5 documents, {tokens} tokens: {together:.4f} bits per byte together, {mean:.4f} ± {error:.4f} a document ("
    )
    assert summary.startswith(expected)
    assert score(texts[1], "--json").succeeded().err == ""
