"""`xlexport prepare`: vocabularies from texts, the tokens that scoring would read, and training on them."""

from __future__ import annotations

import gzip
import importlib.util
import itertools
import json
import random
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.helpers.invoking import Invoke
from tests.helpers.tokenizer_kinds import SENTENCES, opened, write_tokenizer
from xlexport import formats
from xlexport.choices import SUBWORDS
from xlexport.prepare import units
from xlexport.prepare.clusters import best_cutoffs
from xlexport.prepare.counting import SymbolCounts
from xlexport.prepare.units import counted, given, trained
from xlexport.prepare.writing import prepare_data
from xlruntime.errors import TextError
from xlruntime.tokenizers.vocabulary_tokenizer import VocabularyTokenizer
from xltraining.checkpoint import load_checkpoint
from xltraining.data.pairs import PairsTask
from xltraining.data.token_shards import read_prepared
from xltraining.encoder_decoder import EncoderDecoderConfig
from xltraining.encoder_decoder.config import END, PAD, START

TEXT = "\ufeffthe cat sat on the mat\nthe dog\n\nThe end"
TINY = (
    *(
        "--n-layer",
        "1",
        "--n-head",
        "1",
        "--d-model",
        "8",
        "--set=model.d_head=8",
        "--set=model.d_inner=8",
        "--tgt-len",
        "4",
    ),
    *("--mem-len", "4", "--batch-size", "2", "--set=training.warmup_steps=1", "--threads", "1"),
)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def symbols(made: Any) -> list[str]:
    assert isinstance(made.tokenizer, VocabularyTokenizer)
    return list(made.tokenizer.vocabulary.symbols)


@pytest.fixture
def same_texts(tmp_path: Path) -> list[list[str | Path]]:
    """Return arguments that name the same two texts: plain files, a folder with a packed file, a pattern."""
    texts = {"a.txt": b"\xef\xbb\xbfthe cat sat on the mat\n" * 9, "b.txt": b"the end of the story\n" * 9}
    for folder in ("plain", "packed"):
        (tmp_path / folder).mkdir()
    for name, raw in texts.items():
        (tmp_path / "plain" / name).write_bytes(raw)
    (tmp_path / "packed" / "a.txt").write_bytes(texts["a.txt"])
    (tmp_path / "packed" / "b.txt").write_bytes(gzip.compress(texts["b.txt"]))
    (tmp_path / "packed" / ".hidden").write_bytes(b"no text")
    plain: list[str | Path] = [tmp_path / "plain" / name for name in texts]
    return [plain, [tmp_path / "packed"], [f"{tmp_path}/packed/*.txt"]]


@pytest.mark.parametrize("unit", ["words", "bytes"])
def test_the_same_texts_give_the_same_tokens(
    unit: str, same_texts: list[list[str | Path]], invoke: Invoke, tmp_path: Path
) -> None:
    found = []
    for number, files in enumerate(same_texts):
        invoke("prepare", *files, "--valid", files[-1], "-o", tmp_path / str(number), "--unit", unit).succeeded()
        found.append({path.name: path.read_bytes() for path in (tmp_path / str(number)).glob("train*")})
    assert found[0] == found[1] == found[2] != {}


def test_the_same_texts_train_the_same_model(
    same_texts: list[list[str | Path]], invoke: Invoke, tmp_path: Path
) -> None:
    weights = []
    for number, files in enumerate(same_texts):
        invoke("train", *files, "-o", tmp_path / f"run{number}", *TINY, "--steps", "2").succeeded()
        weights.append(load_checkpoint(tmp_path / f"run{number}" / "checkpoint.pt").state_dict)
    assert all(np.array_equal(weights[0][name], other[name]) for other in weights[1:] for name in weights[0])


@pytest.mark.parametrize("kind", ["symbols", "trie"])
def test_vocabularies_of_longest_matches(kind: str, tmp_path: Path) -> None:
    reader = opened(kind, tmp_path)
    made = given(tmp_path / "vocabulary.json")
    assert made.unit == "token" and made.n_token == reader.vocab_size
    assert np.array_equal(made.tokenizer.encode("the old man"), reader.encode("the old man"))


def test_words_follow_their_frequency_and_then_the_text(text: Path) -> None:
    assert symbols(counted([text], "words")) == [
        "<eos>",
        "<unk>",
        *["the", "cat", "sat", "on", "mat", "dog", "The", "end"],
    ]
    assert symbols(counted([text], "words", lower_case=True))[2:4] == ["the", "cat"]
    assert symbols(counted([text, text], "words", min_count=4)) == ["<eos>", "<unk>", "the"]
    assert symbols(counted([text], "words", max_size=2)) == ["<eos>", "<unk>", "the", "cat"]
    text.write_text("a <unk> <unk> b\n")
    assert symbols(counted([text], "words")) == ["<eos>", "<unk>", "a", "b"]  # its own <unk>, as in WikiText


def test_a_word_is_whole_at_the_end_of_a_piece(tmp_path: Path) -> None:
    words = [f"word{number}" for number in range(9000)]
    (tmp_path / "long").write_text(" ".join(words))
    assert symbols(counted([tmp_path / "long"], "words"))[2:] == words


def test_characters_and_bytes(text: Path) -> None:
    found = symbols(counted([text], "characters"))
    assert found[0] == "<unk>" and found[1:3] == [" ", "t"] and set(found[1:]) == set(TEXT) - {"\ufeff"}
    assert counted([text], "bytes").n_token == 256


def test_subwords_are_trained_on_lines_that_are_evenly_spaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tokenizers")
    lines = tmp_path / "lines.txt"
    lines.write_text("aa aa\nqq qq\n" * 50)

    def tokens_of(text: str) -> int:
        return len(trained([lines], "bpe", 300, tmp_path).tokenizer.encode(text))

    assert (tokens_of("aa"), tokens_of("qq")) == (1, 1)
    monkeypatch.setattr(units, "SAMPLE", lines.stat().st_size // 2)
    assert (tokens_of("aa"), tokens_of("qq")) == (1, 2)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"caf\xe9 au lait", "text: not UTF-8 at byte 3 .*, and the tokenizer needs text.*-f latin1"),
        ("the café".encode()[:-1], "text: not UTF-8 at byte 7 .*: the text ends within a character. Copy it again"),
    ],
)
def test_a_text_that_is_not_utf8_is_refused(raw: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(raw)
    with pytest.raises(TextError, match=message):
        counted([tmp_path / "text"], "words")
    for unit, library in SUBWORDS.items():
        if importlib.util.find_spec(library) is not None:
            with pytest.raises(TextError, match=message):
                trained([tmp_path / "text"], unit, 300, tmp_path)


@pytest.mark.parametrize(("unit", "library"), SUBWORDS.items())
def test_subwords_need_their_own_library_before_work_begins(
    unit: str, library: str, invoke: Invoke, prose: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xlexport.extras.is_installed", lambda name: name != library)
    error = invoke("prepare", prose, "-o", tmp_path / "data", "--unit", unit).error
    assert error == f"Error: {library} not installed, needed here. Install it: pip install {library}."


@pytest.mark.parametrize("document", ["file", "line"])
def test_tokens_are_those_that_scoring_reads(document: str, text: Path, tmp_path: Path) -> None:
    made = counted([text], "words", min_count=2)
    summary = prepare_data({"train": [text, text]}, tmp_path / "data", lambda folder: made, document=document)
    data = read_prepared(tmp_path / "data")
    split = data.splits["train"]
    expected = [token for _ in range(2) for token in made.tokenizer.encode(TEXT).tolist()]
    if document == "line":  # without the blank line
        lines = TEXT.replace("\n\n", "\n").splitlines(keepends=True)
        expected = [token for _ in range(2) for line in lines for token in made.tokenizer.encode(line).tolist()]
    assert split.read(0, len(split)).tolist() == expected
    assert split.documents == (6 if document == "line" else 2)
    assert (summary.tokens["train"], summary.bytes["train"]) == (len(expected), 2 * len(TEXT[1:].encode()))  # no mark
    assert summary.unknown["train"] == expected.count(1)
    assert data.tokenizer_file() == made.content


@pytest.mark.parametrize("kind", ["neox", "llama", "sentencepiece_bpe"])
def test_file_of_a_library_has_the_tokens_of_the_whole_text(kind: str, tmp_path: Path) -> None:
    """Prepare a text in which words and runs of spaces lie across the parts that are read."""
    made = given(tmp_path / str(write_tokenizer(kind, tmp_path).file))
    text = "".join(random.Random(0).choices([*SENTENCES, "a  b", " walked", "\n\n\n"], k=900))
    (tmp_path / "text.txt").write_bytes(text.encode())
    prepare_data({"train": [tmp_path / "text.txt"]}, tmp_path / "data", lambda folder: made, document="file")
    split = read_prepared(tmp_path / "data").splits["train"]
    assert split.read(0, len(split)).tolist() == made.tokenizer.encode(text).tolist()


@pytest.mark.parametrize("unit", ["bpe", "sentencepiece"])
def test_subwords_are_trained_and_read_again(unit: str, invoke: Invoke, prose: Path, tmp_path: Path) -> None:
    invoke("prepare", prose, "-o", tmp_path / "data", "--unit", unit, "--vocab-size", "300").succeeded()
    data = read_prepared(tmp_path / "data")
    made = given(tmp_path / "data" / data.tokenizer["file"])
    split = data.splits["train"]
    assert made.n_token == data.n_token <= 300
    assert split.read(0, len(split)).tolist() == made.tokenizer.encode(prose.read_bytes()).tolist()


PAIR_RUN = (
    *("--architecture", "encoder_decoder", "--d-model", "8", "--set=model.d_head=4", "--set=model.d_inner=8"),
    *("--tgt-len", "60", "--batch-size", "2", "--set=training.warmup_steps=1", "--threads", "1"),
    *("--steps", "2", "--set=training.eval_every=2"),
)


@pytest.mark.parametrize("unit", SUBWORDS)
def test_pairs_share_subwords_behind_the_reserved_ids(unit: str, invoke: Invoke, tmp_path: Path) -> None:
    pytest.importorskip(SUBWORDS[unit])
    pairs, data, out = tmp_path / "pairs.tsv", tmp_path / "data", tmp_path / "run"
    lines = [f"the {word} sees ⟨pad⟩ <s>\tdie {word} sieht </s>" for word in ("cat", "dog", "cow", "hen")]
    pairs.write_text("".join(f"{line}\n" for line in lines) + "\tempty source\n", encoding="utf-8")
    prepare = ("prepare", pairs, "--valid", pairs, "-o", data, "--documents", "pair", "--unit", unit)
    invoke(*prepare, "--vocab-size", "400").succeeded()
    invoke("train", data, "-o", out, *PAIR_RUN).succeeded()
    task = PairsTask(EncoderDecoderConfig(n_token=read_prepared(data).n_token), [data], [], 5, 0)
    source = formats.load(out / "checkpoint.pt")
    reader = given(data / read_prepared(data).tokenizer["file"]).tokenizer
    assert source.tokenizer == task.tokenizer and "valid_bits_per_token" in (out / "log.jsonl").read_text()
    tokens, targets = task.batch(0)
    texts = set()
    for row, target in zip(tokens.tolist(), targets.tolist(), strict=True):
        sides = row[: task.config.source_len], target[: target.index(END)]
        assert all(PAD not in side[: len(side) - side.count(PAD)] and START not in side for side in sides)
        texts.add("\t".join(reader.decode([token for token in side if token != PAD]) for side in sides))
    assert texts == {*lines, "\tempty source"}
    assert "pairs, but the task needs a text" in invoke("train", data, "-o", tmp_path / "other", *TINY).err
    too_short = invoke("train", data, "-o", tmp_path / "other", *PAIR_RUN, "--set", "model.source_len=3").err
    assert "at most 3 and 59 tokens, found up to" in too_short
    pairs.write_text("a\tb\nno tab\n")
    assert "line 2: expected a source, one tab and a target" in invoke(*prepare, "--force").err
    assert "--documents pair: needs --unit bpe or sentencepiece" in invoke(*prepare[:-1], "words").err
    assert read_prepared(data).pairs  # still there


@pytest.mark.full
def test_prepare_then_train_then_a_checkpoint_with_its_words(invoke: Invoke, prose: Path, tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "run"
    shown = invoke("prepare", prose, "--valid", prose, "-o", data, "--set=clusters=3", "--json").succeeded().object
    assert shown["unit"] == "word" and len(shown["cutoffs"]) == 2 and set(shown["tokens"]) == {"train", "valid"}
    assert "prepared data is there already" in invoke("prepare", prose, "-o", data).error

    settings = tmp_path / "run.toml"
    settings.write_text('data = ["data"]\n[model]\nn_layer = 2\n[training]\nsteps = 9\nbest = true\n')
    given = ("--settings", settings, "--steps", "4", "--set=training.eval_every=2", "--plot", tmp_path / "run.svg")
    invoke("train", "-o", out, *TINY, *given).succeeded()
    source = formats.load(out / "checkpoint.pt")
    assert source.config["cutoffs"] == shown["cutoffs"] and source.config["n_layer"] == 1  # the command line decides
    assert len(source.tokenizer) == source.config["n_token"] == shown["n_token"]  # type: ignore[arg-type]
    assert formats.load(out / "best.pt").config == source.config
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert log[-1]["step"] == 4
    assert {"bits_per_word", "bits_per_byte", "perplexity", "valid_perplexity", "valid_bits_per_byte"} <= set(log[-1])
    assert log[-1]["valid_perplexity"] == pytest.approx(2 ** log[-1]["valid_bits_per_word"])
    assert (tmp_path / "run.svg").stat().st_size > 5000
    refused = invoke("train", "-o", out, "--resume", "--steps", "6", "--set=training.shuffle=true")
    assert "shuffle was False, is now True" in refused.err
    invoke("train", "-o", out, "--resume", "--steps", "6").succeeded()

    manifest = data / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "sha256": {}}))
    earlier = invoke("train", data, "-o", tmp_path / "other", *TINY, "--steps", "1")
    unlisted = [f"{name} has no digest" for name in ("vocabulary.json", "train_documents.bin", "valid_documents.bin")]
    assert f"{data}: {'; '.join(unlisted)}. Prepare the data again." in earlier.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--set=vocab_style=ptb",), "--set vocab_style: needs --tokenizer"),
        (("--tokenizer", "x", "--set=min_count=2"), "--set min_count: leave it out, --tokenizer decides it"),
        (("--unit", "bpe", "--set=lower_case=true"), "--set lower_case: only for words and characters"),
        (("--unit", "bytes", "--vocab-size", "9"), "--vocab-size: leave it out, there are 256 bytes"),
        (("--unit", "bpe", "--vocab-size", "255"), "--vocab-size: give at least 256, as bpe includes all bytes"),
        (("--set=clusters=2", "--set=cutoffs=3"), "--set clusters: leave it out, cutoffs decides it"),
    ],
    ids=str,
)
def test_options_without_effect_are_refused(
    options: tuple[str, ...], message: str, invoke: Invoke, text: Path, tmp_path: Path
) -> None:
    shown = invoke("prepare", text, "-o", tmp_path / "data", *options)
    assert shown.code == 2 and message in shown.err


@pytest.mark.parametrize(
    ("content", "override", "message"),
    [
        ("x = 1", (), "x is unknown"),
        ("[model]\nn_layers = 2", (), "model.n_layers is unknown (did you mean n_layer?)"),
        ("[model]\nn_layer = 'two'", (), "model.n_layer must be an integer, found 'two'"),
        ("[model]\nn_layer = true\n[training]\nsteps = 1.5", (), "found True; training.steps must be an integer"),
        ("[training]\noptimizer = 'sgd'", (), "training.optimizer must be one of adam, adamw"),
        ("[model]\ncutoffs = [1.5]", (), "model.cutoffs must be a list of integers, found [1.5]"),
        ("data = 'text'", (), "data: expected a list of texts"),
        ("[model", (), "not TOML"),
        ("", ("model.width=3",), "No such setting 'model.width'."),
        ("", ("clamp_len=3",), "No such setting 'clamp_len'. Did you mean 'model.clamp_len'?"),
        ("", ("model.n_layer=3",), "No such setting 'model.n_layer'. It is an option: --n-layer."),
        ("architecture = 'rnn'", (), "expected one of transformer_xl, reformer, encoder_decoder, lstm, mamba"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused(
    content: str, override: tuple[str, ...], message: str, invoke: Invoke, tmp_path: Path
) -> None:
    (tmp_path / "run.toml").write_text(content)
    given = [part for one in override for part in ("--set", one)]
    shown = invoke("train", "-o", tmp_path / "run", "--settings", tmp_path / "run.toml", *given)
    assert shown.code == 2 and message in shown.err


def work(counts: npt.NDArray[np.int64], cutoffs: tuple[int, ...]) -> float:
    """Return the mean number of logits of a token."""
    edges = (*cutoffs, len(counts))
    tails = sum(counts[first:end].sum() / counts.sum() * (end - first) for first, end in itertools.pairwise(edges))
    return edges[0] + (tails if cutoffs else 0)


@pytest.mark.parametrize("clusters", [2, 3, 4])
def test_no_other_cutoffs_are_less_work(clusters: int) -> None:
    counts = np.array([1000 // (rank + 1) for rank in range(30)])
    found = best_cutoffs(counts, clusters)
    assert len(found) == clusters - 1
    best = min(work(counts, cutoffs) for cutoffs in itertools.combinations(range(2, 30), clusters - 1))
    assert work(counts, found) == pytest.approx(best)


def test_few_tokens_and_one_cluster_need_no_cut() -> None:
    counts = np.ones(50_000, np.int64)
    assert best_cutoffs(counts, 1) == ()
    assert best_cutoffs(np.ones(2, np.int64), 4) == ()
    assert len(best_cutoffs(np.ones(4, np.int64), 4)) <= 2
    assert best_cutoffs(np.zeros(100, np.int64), 3)  # a text without any of them


@pytest.mark.parametrize("min_count", [1, 3])
@pytest.mark.parametrize("max_size", [None, 25])
def test_counts_in_files_are_those_of_a_counter(min_count: int, max_size: int | None, tmp_path: Path) -> None:
    """Compare the order, too: equal counts keep the order of the text."""
    choose = random.Random(3)
    words = [f"{choose.choice('abü語😀')}{int(choose.paretovariate(0.6)) % 300}" for _ in range(4000)]
    expected = [word for word, count in Counter(words).most_common(max_size) if count >= min_count]
    assert 20 < len(expected) <= len(set(words))
    with closing(SymbolCounts(tmp_path, limit=40)) as counts:
        for start in range(0, len(words), 50):
            counts.update(words[start : start + 50])
        assert len(counts._files) > 20
        assert len(counts._counts) <= 40
        assert counts.most_common(min_count, max_size) == expected
    assert not list(tmp_path.iterdir())


def test_a_vocabulary_does_not_depend_on_the_limit(prose: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def symbols_of(unit: str) -> list[str]:
        return symbols(counted([prose], unit))

    whole = symbols_of("words"), symbols_of("characters")
    monkeypatch.setattr(SymbolCounts.__init__, "__defaults__", (None, 10))
    assert (symbols_of("words"), symbols_of("characters")) == whole
