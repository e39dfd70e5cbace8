"""First words: empty where nothing was scored, and complete with a token before the document."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xlruntime
from tests.helpers.manifests import with_tokenizer
from tests.helpers.paths import golden_bundle
from tests.scoring.conftest import TEXT, Score
from xlexport.scoring.begin_token import bos_token
from xlruntime import Document, OptionError
from xlruntime.scorer import Scorer
from xlruntime.tokenizers import ByteTokenizer
from xlruntime.tokenizers.vocabulary import Vocabulary

NOTE = r"no score (complete is false), because the model reads no token before it. --bos '\n' gives it one."


def test_first_word_without_a_score_is_empty(score: Score, tmp_path: Path) -> None:
    for name, text in {"a": "I saw", "b": "The dog", "c": "I", "d": "a b"}.items():
        (tmp_path / name).write_text(text)
    paths = [tmp_path / name for name in "abd"]
    shown = score(*paths, "--per", "word", "--format", "csv").succeeded()
    rows = list(csv.DictReader(io.StringIO(shown.out)))
    assert [(row["word"], row["complete"], row["nats"] == row["bits"] == "") for row in rows] == [
        *(("I", "false", True), ("saw", "true", False)),
        *(("The", "false", True), ("dog", "true", False)),  # only two of its three bytes have scores
        *(("a", "false", True), ("b", "true", False)),
    ]
    assert f"The first word of 3 documents has {NOTE}" in shown.err.splitlines()
    lines = score(paths[0], "--per", "word", "--json").succeeded()
    assert next((record["nats"], record["bits"], record["complete"]) for record in lines.objects) == (None, None, False)
    assert f"The first word of 1 document has {NOTE}" in lines.err
    assert NOTE not in score(*paths).succeeded().err


@pytest.mark.parametrize("options", [(), ("--batch-size", "2"), ("--segment-len", "3"), ("--top", "0")], ids=" ".join)
@pytest.mark.full
def test_token_before_a_document_scores_all_of_it(
    options: tuple[str, ...], bundle: Path, score: Score, texts: list[Path]
) -> None:
    """Compare with the same documents after the token's text, and leave the token out of records."""
    every = score(*texts, "--per", "token", "--bos", r"\n", *options).succeeded().objects
    model = xlruntime.load(bundle, threads=1)
    for path in texts:
        raw = path.read_bytes()
        (expected,) = model.score_tokens([b"\n" + raw], segment_len=len(raw))
        found = [record for record in every if record["document"] == str(path)]
        assert [record["index"] for record in found] == list(range(len(raw)))
        assert [record["start"] for record in found] == list(range(len(raw)))
        assert [record["log_prob"] for record in found] == pytest.approx(expected.log_probs.tolist(), abs=1e-5)
        assert [record["context"] for record in found] == expected.context.tolist()
    words = score(*texts, "--per", "word", "--bos", r"\n", *(() if "--top" in options else options)).succeeded()
    assert all(record["complete"] for record in words.objects) and NOTE not in words.err
    (word,) = score("-", "--per", "word", "--bos", " ", "--json", stdin=b"I").succeeded().objects
    assert word["complete"] and word["nats"] > 0
    (total,) = score(texts[0], "--json", "--bos", r"\n").succeeded().objects
    assert total["scored_bytes"] == total["bytes"] == total["tokens"] == total["scored_tokens"] == 60


def test_continuous_documents_have_one_token_before_them(bundle: Path, score: Score, tmp_path: Path) -> None:
    for name, text in {"a": "first ", "b": "second"}.items():
        (tmp_path / name).write_text(text)
    shown = score(tmp_path / "a", tmp_path / "b", "--continuous", "--bos", r"\n", "--per", "token").succeeded()
    (expected,) = xlruntime.load(bundle, threads=1).score_tokens([b"\nfirst second"], segment_len=100)
    assert [record["log_prob"] for record in shown.objects] == pytest.approx(expected.log_probs.tolist(), abs=1e-5)


def test_names_and_texts_of_tokens(words_bundle: Callable[..., Path], score: Score) -> None:
    vocabulary = Vocabulary("words", ("<eos>", "<unk>", "the", "of", "it"), unk="<unk>", line_end="<eos>")
    tokenizer = xlruntime.load(words_bundle(vocabulary)).tokenizer
    assert [bos_token(text, tokenizer) for text in ("<eos>", "of", r"\n")] == [0, 3, 0]
    with pytest.raises(OptionError) as caught:
        bos_token("nothing", tokenizer)
    assert str(caught.value) == (
        "--bos nothing: not a token of this vocabulary. Give one token, for instance --bos '<eos>'."
    )
    assert bos_token("17", xlruntime.load(golden_bundle("pre_lnorm_empty")).tokenizer) == 17
    assert bos_token("A", ByteTokenizer(2)) == 67
    with pytest.raises(OptionError, match="bos is 29, expected 0 to 28"):
        next(xlruntime.load(golden_bundle("pre_lnorm_empty")).score([np.arange(3)], bos=29))
    refusal = score("-", "--bos", "<eos>", stdin=b"text").error
    assert refusal == (
        "Error: --bos <eos>: 5 tokens, expected the name or the text of one. Give one token, for instance --bos '\\n'."
    )


def test_model_of_whole_documents(tmp_path: Path) -> None:
    """Score a document as its own model does after the token, and refuse one that is then too long."""
    model = xlruntime.load(golden_bundle("reformer_chunk"), threads=1)
    ids = np.arange(40) % 40
    (expected,) = model.score([np.concatenate([[7], ids])])
    (found,) = Scorer(model, model.evaluation(), bos=7).documents([ids])
    assert found.nats == pytest.approx(expected.nats, abs=1e-4)
    assert (found.tokens, found.scored_tokens) == (40, 40)
    longest = model.evaluation().longest_part
    assert longest is not None
    list(Scorer(model, model.evaluation(), bos=7).documents([np.zeros(longest, np.int64)]))
    with pytest.raises(xlruntime.TextError, match=f"more than {longest + 1:,} tokens with the one before it"):
        list(Scorer(model, model.evaluation(), bos=7).documents([np.zeros(longest + 1, np.int64)]))


def test_begin_token_comes_where_the_tokenizers_rule_puts_it(
    bundle: Path, score: Score, texts: list[Path], tmp_path: Path
) -> None:
    begin = {"id": 10, "name": "<s>", "source": "tokenizer_config.json"}
    adding = with_tokenizer(bundle, tmp_path / "adding", begin=begin, adds_begin=True)
    plain = with_tokenizer(bundle, tmp_path / "plain", begin=begin)
    said = "Each text is read after <s>, as its tokenizer's own rule says (tokenizer_config.json); --bos none leaves"
    bits: dict[str, list[float]] = {}
    for name, options in {"rule": (adding,), "none": (adding, "--bos", "none"), "other": (plain,)}.items():
        shown = score(*texts, "--json", *options[1:], bundle=options[0]).succeeded()
        bits[name] = [record["bits"] for record in shown.objects if "bits" in record]
        assert shown.err.count(said) == (name == "rule")
    assert bits["none"] == bits["other"]
    assert bits["rule"] == [
        record["bits"] for record in score(*texts, "--json", "--bos", r"\n", bundle=plain).succeeded().objects
    ]
    note = score(*texts, "--per", "word", bundle=plain).succeeded().err
    assert "reads no token before it. --bos '<s>' gives it one." in note


def test_begin_token_comes_before_texts_and_not_before_ids(bundle: Path, tmp_path: Path) -> None:
    begin = {"id": 10, "name": "<s>", "source": "a test"}
    model = xlruntime.load(with_tokenizer(bundle, tmp_path / "adding", begin=begin, adds_begin=True), threads=1)
    text, ids = "some text", list(b"some text")
    (tmp_path / "file").write_text(text)

    def scored(document: Any, bos: int | bool | None = None) -> tuple[int, float]:
        (found,) = model.score([document], bos=bos)
        return found.scored_tokens, found.nats

    with_begin, without = scored(text, 10), scored(text, False)
    assert (with_begin[0], without[0]) == (9, 8)
    assert scored(text) == scored(text.encode()) == scored(tmp_path / "file") == with_begin
    assert scored(ids) == without
    assert scored(ids, 10) == with_begin
    after = scored(Document("a", text, context="so "), 10)
    assert scored(Document("a", text, context="so ")) == after
    assert scored(Document("a", text, context=list(b"so "))) != after
    (words,) = model.surprisal([text])
    assert not np.isnan(words.bits).any()
    with pytest.raises(OptionError, match="bos is True, expected 0 to 255, or False for no token"):
        scored(text, True)


@pytest.mark.full
def test_lines_show_their_texts(score: Score) -> None:
    lines = score("-", "--per", "line", stdin=TEXT.encode()).succeeded().objects
    assert [record["text"] for record in lines] == [line.rstrip("\r\n") for line in TEXT.splitlines()]
    long = score("-", "--per", "line", stdin=(b" " * 700 + b"x" * 5000 + b"\nend")).succeeded().objects
    assert [record["text"] for record in long] == [" " * 700 + "x" * 300, "end"]
