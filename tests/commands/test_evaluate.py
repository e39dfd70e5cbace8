"""`xlexport evaluate` scores a corpus as the authors of published scores did."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import xlruntime
import xlruntime.protocols
from tests.helpers.invoking import Invoke
from xlexport.choices import PROTOCOLS

TEXT = (b"It was the best of times, it was the worst of times,\nit was the age of wisdom.\n" * 7)[:480]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_bytes(TEXT)
    return path


def walked(bundle: Path, corpus: Path, *how: Any, **settings: Any) -> dict[str, Any]:
    """Return the score from the library, without the command line."""
    model = xlruntime.load(bundle, threads=1)
    read = xlruntime.protocols.read_corpus(model, xlruntime.Document(str(corpus), corpus))
    streams = xlruntime.protocols.arrange(read, model.evaluation(**settings), *how)
    return xlruntime.protocols.walk(model, streams).to_dict()


def without_speed(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name != "tokens_per_second"}


def test_option_offers_every_protocol() -> None:
    assert tuple(xlruntime.protocols.PROTOCOLS) == PROTOCOLS


def test_evaluate_as_json(bundle: Path, corpus: Path, invoke: Invoke) -> None:
    shown = invoke("evaluate", bundle, corpus, "--json", "--threads", "1").succeeded()
    found, expected = shown.object, walked(bundle, corpus)
    assert (list(found), without_speed(found), shown.err) == (list(expected), without_speed(expected), "")
    assert (found["corpus"], found["protocol"], found["unit"]) == (str(corpus), "kimiyoung", "byte")
    assert (found["tokens"], found["batch_size"], found["stream_len"]) == (480, 10, 47)
    assert (found["scored_tokens"], found["unpredicted_tokens"], found["trimmed_tokens"]) == (470, 10, 0)


def test_evaluate_under_other_settings(bundle: Path, corpus: Path, invoke: Invoke) -> None:
    options = ("--protocol", "nvidia", "--batch-size", "7", "--segment-len", "6", "--set=same_length=true")
    found = (
        invoke("evaluate", bundle, corpus, "--json", "--threads", "1", "--mem-len", "9", *options).succeeded().object
    )
    assert (found["batch_size"], found["warmup_segments"], found["trimmed_tokens"]) == (7, 2, 4)
    expected = walked(bundle, corpus, "nvidia", 7, segment_len=6, mem_len=9, same_length=True)
    assert without_speed(found) == without_speed(expected)


def test_document_is_what_score_prints(bundle: Path, corpus: Path, invoke: Invoke) -> None:
    found = invoke("evaluate", bundle, corpus, "--json", "--protocol", "document", "--threads", "1").object
    expected = invoke("score", bundle, corpus, "--json", "--threads", "1").object
    assert found["nats"] == pytest.approx(expected["nats"], rel=1e-12)  # the same steps
    for name in ("tokens", "scored_tokens", "bytes", "bits_per_token", "perplexity", "segment_len", "mem_len"):
        assert found[name] == pytest.approx(expected[name], rel=1e-12)


def test_evaluate_for_people(bundle: Path, corpus: Path, invoke: Invoke) -> None:
    shown = invoke("evaluate", bundle, corpus, "--protocol", "nvidia", "--batch-size", "9").succeeded()
    rows = shown.table
    assert rows["corpus"] == f"{corpus}: 480 bytes"
    assert rows["protocol"] == "nvidia, 3 segments of warm-up"
    assert rows["streams"] == "9 of 52 predicted bytes"
    assert rows["not predicted"] == "9, the first of each stream, and 3 at the end"
    assert rows["settings"] == ("segment_len 8, mem_len 20, clamp_len -1, same_length false, first memory empty")
    expected = walked(bundle, corpus, "nvidia", 9)
    assert rows["bits per byte"] == f"{expected['bits_per_token']:.5f}"
    assert float(rows["perplexity"]) == pytest.approx(expected["perplexity"], rel=1e-5)
    assert shown.err == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--batch-size", "300"],
            "480 tokens make 300 streams of 1, at least 2 each are needed. Give a longer text, or",
        ),
        (["--protocol", "nvidia", "--batch-size", "24"], "streams of 20, at least 24 each are needed, to warm up a"),
        (["--protocol", "document", "--batch-size", "2"], "batch size is 2, but protocol document is one stream."),
        (
            ["--set=sentences=true"],
            "sentences are asked for, but the vocabulary marks neither their beginning nor their end.",
        ),
        (["--ids"], "not token ids separated by white space"),
        (["--mem-len", "9999999999"], "mem_len is 9999999999, expected 1 to"),
    ],
)
def test_evaluate_refuses(options: list[str], message: str, bundle: Path, corpus: Path, invoke: Invoke) -> None:
    assert message in invoke("evaluate", bundle, corpus, *options).error


def test_evaluate_reads_what_score_reads(bundle: Path, prose: Path, tmp_path: Path, invoke: Invoke) -> None:
    """Score a corpus in a packed file, as a JSON line, in a folder and from standard input: all scores are equal."""
    text = prose.read_bytes()
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "it.txt.gz").write_bytes(gzip.compress(text))
    (tmp_path / "it.jsonl").write_text(json.dumps({"text": text.decode()}) + "\n")
    line = ("--batch-size", "2", "--json", "--threads", "1")
    plain = invoke("evaluate", bundle, prose, *line).succeeded().object
    ids = tmp_path / "ids.txt"
    ids.write_text("\n".join(map(str, text)))
    rows = (tmp_path / "it.jsonl", "--field", "text")
    for given in ((folder / "it.txt.gz",), rows, (folder,), ("-",), (ids, "--ids")):
        found = invoke("evaluate", bundle, *given, *line, stdin=text)
        shown = json.loads(found.out)
        assert found.code == 0 and shown["nats"] == plain["nats"], given
    (folder / "more.txt").write_bytes(text)
    for given in ((folder,), (f"{folder}/*",)):
        assert "several documents, expected one. Give one of them" in invoke("evaluate", bundle, *given).err


@pytest.mark.parametrize(
    ("options", "length"),
    [
        ((), 47),  # 480 bytes in ten streams
        (("--batch-size", "4"), None),  # 119
        (("--mem-len", "30"), None),
        (("--protocol", "document"), None),
        (("--protocol", "document", "--mem-len", "1000"), None),
        (("--batch-size", "24"), 19),
    ],
)
def test_streams_that_are_shorter_than_the_memory(
    options: tuple[str, ...], length: int | None, bundle: Path, corpus: Path, invoke: Invoke
) -> None:
    options = ("--mem-len", "60", *options) if "--mem-len" not in options else options
    for quiet in ((), ("--quiet",)):  # a warning, not a note
        shown = invoke("evaluate", bundle, corpus, *options, *quiet).succeeded()
        expected = (
            f"Warning: streams have {length} bytes and the memory has 60 rows, so it is never full. To score one "
            "document, use `score` or --protocol document.\n"
        )
        assert shown.err == ("" if length is None else expected)
