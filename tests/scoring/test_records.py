"""Records of tokens, words, lines and documents: their fields, formats, and equal sums on all levels."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import xlruntime
from tests.helpers.paths import GOLDEN, ROOT
from tests.scoring.conftest import TEXT, Score
from xlexport.scoring.records import COLUMNS
from xlruntime.tokenizers.vocabulary import Vocabulary

SUMS = ("tokens", "scored_tokens", "chars", "bytes", "scored_chars", "scored_bytes", "nats", "bits")
LINE_FIELDS = [
    *("document", "line", "text", "start", "end", "tokens", "scored_tokens", "complete", "words", "chars", "bytes"),
    *("scored_chars", "scored_bytes", "nats", "bits", "bits_per_byte", "context"),
]
WORD_FIELDS = [
    *("document", "index", "word", "start", "end", "tokens", "scored_tokens", "complete", "chars", "bytes"),
    *("scored_chars", "scored_bytes", "nats", "bits", "context"),
]
AWKWARD = {
    "ordinary": TEXT,
    "no newline at the end": "two words\nand three more",
    "white space around": " \n\n  word \n  ",
    "white space alone": " \n \t\n",
    "one word": "word",
    "empty lines": "\n\n\n\n",
    "long": "many words of all kinds, ünd\tmöre – 時代\r\n" * 60,
    "a long word": "x" * 3000 + "\n" + "é" * 700,
    "line ends that are none": "a\x0bb\x0cc\rd\x85e\u2028f\n",
}


def test_words_and_lines_of_bytes(score: Score) -> None:
    """Count white space before a word for the word (after the last word, too), and a newline for its line."""
    tokens = score("-", "--per", "token", stdin=TEXT.encode()).succeeded().records
    raw = TEXT.encode()
    surprisal = {record["start"]: -record["log_prob"] for record in tokens}
    words = score("-", "--per", "word", stdin=raw).succeeded().records
    assert [list(record) for record in words] == [WORD_FIELDS] * len(words)
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
    lines = score("-", "--per", "line", stdin=raw).succeeded().records
    assert [list(record) for record in lines] == [LINE_FIELDS] * len(lines)
    begin = 0
    for number, (record, line) in enumerate(zip(lines, raw.splitlines(keepends=True), strict=True), start=1):
        assert (record["line"], record["start"], record["end"]) == (number, begin, begin + len(line))
        assert record["words"] == len(line.split())
        expected = pytest.approx(sum(surprisal.get(place, 0.0) for place in range(begin, begin + len(line))))
        assert record["nats"] == (expected if begin else None)
        assert record["bits_per_byte"] == (pytest.approx(record["bits"] / record["scored_bytes"]) if begin else None)
        begin += len(line)


@pytest.mark.parametrize("text", AWKWARD.values(), ids=AWKWARD)
@pytest.mark.parametrize("options", [(), ("--segment-len", "3"), ("--segment-len", "200")], ids=" ".join)
def test_sums_are_those_of_the_document(text: str, options: tuple[str, ...], score: Score) -> None:
    raw = text.encode()
    options += ("--bos", " ")
    (total,) = score("-", "--json", *options, stdin=raw).succeeded().records
    for level in ("line", "word"):
        records = score("-", "--per", level, *options, stdin=raw).succeeded().records
        for name in SUMS:
            assert sum(record[name] or 0 for record in records) == pytest.approx(total[name], rel=1e-9), (level, name)
        assert sum(record.get("words", 1) for record in records) == max(total["words"], level == "word")
        assert sum(record["context"] is None for record in records) == sum(not r["scored_tokens"] for r in records)
    assert [record["word"] for record in records] == [word[:1000] for word in cut_words(text)]


def cut_words(text: str) -> list[str]:
    """Return the words between ASCII white space, at most a thousand bytes of each."""
    words = text.translate(dict.fromkeys(map(ord, "\t\n\r\v\f"), " ")).split(" ")
    shown = [word.encode()[:1000].decode("utf-8", "replace") for word in words if word]
    return shown or [""]


@pytest.fixture
def word_piece(tmp_path: Path) -> Path:
    """Return a tokenizer whose tokens are words, parts of words, and two words together."""
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = ["[UNK]", "the", "best", "of", "times", ",", "it", "was", "wor", "##st", "##s", "wisdom", "age"]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({word: n for n, word in enumerate(vocabulary)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


@pytest.fixture
def bpe(tmp_path: Path) -> Path:
    """Return a tokenizer whose tokens begin with the space before a word, span several words, or are white space."""
    tokenizers = pytest.importorskip("tokenizers")
    symbols = [*"Ġtheofsanb", "Ċ", "th", "the", "Ġthe", "of", "Ġof", "Ġofs", "ĊĊ", "Ġb", "Ċs"]
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("o", "f"), ("Ġ", "of"), ("Ċ", "Ċ"), ("Ġ", "b"), ("Ċ", "s")]
    ids = {symbol: n for n, symbol in enumerate(dict.fromkeys(symbols))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(ids, merges))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def test_words_of_a_tokenizer(words_bundle: Callable[..., Path], bpe: Path, score: Score) -> None:
    """Count a token that begins with a space for the word after it, also if it is only white space."""
    bundle, text = words_bundle("tokenizers", bpe), "the of\n\nof b the"
    tokens = score("-", "--per", "token", stdin=text.encode(), bundle=bundle).succeeded().records
    assert [text[record["start"] : record["end"]] for record in tokens] == [" of", "\n\n", "of", " b", " the"]
    words = score("-", "--per", "word", stdin=text.encode(), bundle=bundle).succeeded().records
    assert [record["word"] for record in words] == ["the", "of", "of", "b", "the"]
    assert [record["tokens"] for record in words] == [1, 1, 2, 1, 1]
    assert [record["scored_tokens"] for record in words] == [0, 1, 2, 1, 1]
    nats = [-record["log_prob"] for record in tokens]
    assert [record["nats"] for record in words] == pytest.approx([None, nats[0], nats[1] + nats[2], nats[3], nats[4]])
    lines = score("-", "--per", "line", stdin=text.encode(), bundle=bundle).succeeded().records
    assert [record["tokens"] for record in lines] == [3, 0, 3]  # "\n\n" counts where it begins
    assert [record["context"] for record in lines] == [1, None, 3]


def test_token_that_begins_with_a_newline_belongs_to_the_line_after_it(
    words_bundle: Callable[..., Path], bpe: Path, score: Score
) -> None:
    bundle, text = words_bundle("tokenizers", bpe), "the of\ns of"
    tokens = score("-", "--per", "token", stdin=text.encode(), bundle=bundle).succeeded().records
    assert [text[record["start"] : record["end"]] for record in tokens] == [" of", "\ns", " of"]
    lines = score("-", "--per", "line", stdin=text.encode(), bundle=bundle).succeeded().records
    assert [(record["tokens"], record["bytes"]) for record in lines] == [(2, 7), (2, 4)]
    assert lines[1]["nats"] == pytest.approx(-tokens[1]["log_prob"] - tokens[2]["log_prob"])


@pytest.mark.parametrize(
    "text",
    [
        "the best  of times , it was\nthe worst of times\n",
        "  it was\n\n the 時代 wisdom age \n",
        "unknown\tthings – of wisdom",
    ],
)
@pytest.mark.parametrize("tokenizer", ["word_piece", "words", "characters", "bytes"])
def test_sums_with_every_tokenizer(
    tokenizer: str,
    text: str,
    words_bundle: Callable[..., Path],
    score: Score,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    if tokenizer == "word_piece":
        bundle = words_bundle("tokenizers", request.getfixturevalue("word_piece"))
    else:
        vocabulary = {
            "words": Vocabulary("words", ("<eos>", "<unk>", "the", "of", "it"), unk="<unk>", line_end="<eos>"),
            "characters": Vocabulary("characters", (*"abcdefghijklmnopqrstuvw_", "<unk>"), unk="<unk>", space="_"),
            "bytes": Vocabulary("bytes", (*map(str, b"abcdefghijklmnopqrst "), "<unk>"), unk="<unk>"),  # no newline
        }[tokenizer]
        file = tmp_path / "vocabulary.json"
        file.write_text(vocabulary.to_json(), "utf-8")
        bundle = words_bundle("vocabulary", file)
    raw = text.encode()
    (total,) = score("-", "--json", stdin=raw, bundle=bundle).succeeded().records
    assert total["scored_bytes"] < total["bytes"]
    for level in ("line", "word"):
        records = score("-", "--per", level, stdin=raw, bundle=bundle).succeeded().records
        for name in SUMS[:-2]:
            assert sum(record[name] for record in records) == pytest.approx(total[name], rel=1e-9), (level, name)
        tokens = score("-", "--per", "token", stdin=raw, bundle=bundle).succeeded().records
        in_first = sum(record["scored_tokens"] for record in records if not record["complete"])
        expected = pytest.approx(sum(token["surprisal_bits"] for token in tokens[in_first:]), abs=1e-9)
        assert sum(record["bits"] or 0 for record in records) == expected
    assert [record["word"] for record in records] == text.split()
    in_bytes = tokenizer == "bytes"
    for record in records:
        whole = raw if in_bytes else text
        found = whole[record["start"] : record["end"]]
        assert (found.decode() if isinstance(found, bytes) else found) == record["word"]


def test_rank_entropy_and_alternatives(bundle: Path, score: Score) -> None:
    shown = score("-", "--per", "token", "--top", "3", stdin=TEXT.encode()).succeeded().records
    plain = score("-", "--per", "token", "--top", "0", stdin=TEXT.encode()).succeeded().records
    (part, *_) = xlruntime.load(bundle, threads=1).score_tokens([TEXT.encode()], detail=3)
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


def as_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


@pytest.mark.parametrize("level", ["document", "line", "word", "token"])
def test_csv_says_what_json_lines_say(level: str, score: Score, texts: list[Path], tmp_path: Path) -> None:
    odd = tmp_path / 'odd, "name".txt'
    odd.write_text('commas, and "quotes"\nnew lines')
    lines, rows = tmp_path / "x.jsonl", tmp_path / "x.csv"
    options = ("--top", "2") if level == "token" else ()
    for output in (lines, rows):
        score(*texts, odd, "-o", output, "--per", level, "--batch-size", "2", *options).succeeded()
    records = [json.loads(line) for line in lines.read_text("utf-8").splitlines()]
    table = as_csv(rows.read_bytes().decode())
    assert len(records) == len(table) > 5
    for record, row in zip(records, table, strict=True):
        flat: dict[str, Any] = {name: value for name, value in record.items() if name != "top"}
        for k, entry in enumerate(record.get("top", []), start=1):
            flat |= {f"top_{k}_{name}": value for name, value in entry.items()}
        assert {name: in_csv(value) for name, value in flat.items()} == row


def in_csv(value: object) -> str:
    """Return a JSON value as CSV writes it: numbers as Python does, booleans as JSON does."""
    return "" if value is None else json.dumps(value) if isinstance(value, bool) else str(value)


def test_json_is_json(score: Score, tmp_path: Path) -> None:
    """Compare numbers, names and tokens of all kinds with the output of the json module."""
    path = tmp_path / 'bytes "and" – \\n.txt'
    path.write_bytes(bytes(range(256)) * 2)
    for level in ("token", "word", "document"):
        for line in score(path, "--set", "binary=true", "--per", level, "--json").succeeded().out.splitlines():
            assert json.dumps(json.loads(line), ensure_ascii=False) == line


def test_files_are_the_same_each_time(score: Score, texts: list[Path], tmp_path: Path) -> None:
    """Leave out the speed, which only standard output shows."""
    for name in ("a.jsonl", "b.jsonl"):
        score(*texts, "-o", tmp_path / name, "--batch-size", "2").succeeded()
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    assert "tokens_per_second" not in (tmp_path / "a.jsonl").read_text()
    assert all("tokens_per_second" in record for record in score(*texts, "--json").succeeded().records)


def test_numbers_that_json_does_not_have(score: Score, monkeypatch: pytest.MonkeyPatch) -> None:
    step = xlruntime.Model.step

    def unlikely(self: Any, *arguments: Any) -> Any:
        return {"log_prob": step(self, *arguments)["log_prob"] - 1000}

    monkeypatch.setattr(xlruntime.Model, "step", unlikely)
    assert score("-", "--json", stdin=b"text").succeeded().records[0]["perplexity"] is None
    assert as_csv(score("-", "--format", "csv", stdin=b"text").succeeded().out)[0]["perplexity"] == ""


def test_closing_summary(score: Score, texts: list[Path]) -> None:
    """Print mean and standard error over documents, and the figure of all together."""
    shown = score(*texts, "--json").succeeded()
    values = [record["bits_per_byte"] for record in shown.records]
    mean = sum(values) / len(values)
    error = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))
    together = sum(record["bits"] for record in shown.records) / sum(r["scored_bytes"] for r in shown.records)
    (summary,) = shown.err.splitlines()
    tokens = sum(record["tokens"] for record in shown.records)
    expected = (
        f"5 documents, {tokens} tokens: {together:.4f} bits per byte together, {mean:.4f} ± {error:.4f} a document ("
    )
    assert summary.startswith(expected)
    assert score(texts[0], "--json").succeeded().err == ""


def test_summary_of_ids_is_per_token(score: Score, tmp_path: Path) -> None:
    bundle = GOLDEN / "pre_lnorm_empty" / "bundle"
    for name in ("a", "b"):
        (tmp_path / name).write_text("1 2 3 4 5 6")
    shown = score(tmp_path / "a", tmp_path / "b", "--ids", "--json", bundle=bundle).succeeded()
    assert "bits per token together" in shown.err.splitlines()[-1]


def test_page_says_which_records_have_a_column() -> None:
    """Compare the matrix of docs/scoring.md with the table of columns, row by row."""
    page = (ROOT / "docs" / "scoring.md").read_text("utf-8")
    units = (("document",), ("line",), ("word", "region"), ("token",))
    shown: dict[str, set[str]] = {}
    for cells in re.findall(r"^\| (`.+?) \| .+ \| (✓?) ?\| (✓?) ?\| (✓|region|) ?\| (✓?) ?\|$", page, re.M):
        names = [name for name in re.findall(r"`(\w+)`", cells[0]) if name not in ("document", "top")]
        levels = {
            level for mark, group in zip(cells[1:], units, strict=True) for level in group if mark in ("✓", level)
        }
        columns = [column for column in COLUMNS if column.name in names]
        assert {level for column in columns for level in column.levels} == (levels if names else set()), names
        shown |= dict.fromkeys(names, levels)
    assert set(shown) == {column.name for column in COLUMNS} - {"settings"}
