"""Vocabularies that come with checkpoints, in files as the original code, NVIDIA and Hugging Face write them.

The authors' classes exist only while a file is written, with the authors' attributes and none of their code.
"""

from __future__ import annotations

import pickle
import re
import sys
from collections import Counter, OrderedDict
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from xlexport.checkpoints.safe_pickle import Record
from xlexport.checkpoints.vocabularies import read_vocabulary, restyled, vocabulary_of
from xlexport.choices import VOCAB_STYLES
from xlexport.errors import CheckpointError
from xlruntime.tokenizers.vocabulary import Vocabulary

WIKI = ("<eos>", "the", "sea", "<unk>")
WIKITEXT = Vocabulary("words", WIKI, unk="<unk>", line_end="<eos>")
ENWIK8 = tuple(str(byte) for byte in (32, 101, 116, 97, 225))
TEXT8 = tuple("_etaoinshrdlcumfpgwybvkxjqz")


def fields_of(symbols: tuple[str, ...], **changes: Any) -> dict[str, Any]:
    """Return the attributes of the original code's Vocab."""
    ids = OrderedDict((symbol, number) for number, symbol in enumerate(symbols))
    own = {"idx2sym": list(symbols), "sym2idx": ids, "counter": Counter(symbols), "special": ["<eos>"], "eos_idx": 0}
    return {
        **own,
        "min_freq": 0,
        "max_size": None,
        "lower_case": False,
        "delimiter": None,
        "vocab_file": None,
        **changes,
    }


@pytest.fixture(params=["utils.vocabulary data_utils", "vocabulary data_utils", "pytorch.vocabulary pytorch.data"])
def corpus(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a corpus object whose classes are in modules with the names of copies of the authors' code."""
    made = []
    for module_name, name in zip(request.param.split(), ("Vocab", "Corpus"), strict=True):
        parent = ""
        for part in module_name.split("."):
            parent = f"{parent}.{part}".lstrip(".")
            monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
        kind = type(name, (), {"__module__": module_name})
        setattr(sys.modules[module_name], name, kind)
        made.append(kind())
    vocab, corpus = made
    vocab.__dict__.update(fields_of(WIKI))
    corpus.__dict__.update(dataset="wt103", vocab=vocab)
    return corpus


@pytest.mark.parametrize("zipped", [True, False])
def test_corpus_that_torch_saved(corpus: Any, zipped: bool, tmp_path: Path) -> None:
    corpus.train, corpus.valid, corpus.test = torch.arange(1000), torch.arange(10), torch.arange(10)
    torch.save(corpus, tmp_path / "cache.pt", _use_new_zipfile_serialization=zipped)
    assert read_vocabulary(tmp_path / "cache.pt") == WIKITEXT


@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
def test_corpus_that_the_tensorflow_code_pickled(corpus: Any, protocol: int, tmp_path: Path) -> None:
    corpus.train, corpus.valid, corpus.test = ["train-00.txt"], np.arange(10), np.arange(10, dtype=np.int32)
    with (tmp_path / "cache.pkl").open("wb") as file:
        pickle.dump(corpus, file, protocol=protocol)
    assert read_vocabulary(tmp_path / "cache.pkl") == WIKITEXT


def test_fields_of_huggingface_tokenizer(tmp_path: Path) -> None:
    fields = fields_of(
        WIKI, unk_idx=3, never_split=["<eos>"], punction_without_space_before_pattern=re.compile(r"[^\s]")
    )
    with (tmp_path / "vocab.pkl").open("wb") as file:
        pickle.dump(fields, file)
    torch.save(fields, tmp_path / "vocab.bin")
    for name in ("vocab.pkl", "vocab.bin"):
        assert read_vocabulary(tmp_path / name) == WIKITEXT


def test_object_inside_a_checkpoint() -> None:
    assert vocabulary_of(Record("utils.vocabulary.Vocab", state=fields_of(WIKI)), "it") == WIKITEXT
    assert vocabulary_of({"vocab": Record("utils.vocabulary.Vocab", state=fields_of(WIKI))}, "it") == WIKITEXT
    assert vocabulary_of({"idx2sym": WIKI, "vocab": {"idx2sym": ["another"]}}, "it") == WIKITEXT
    assert vocabulary_of({"sym2idx": {"sea": 2, "<eos>": 0, "<unk>": 3, "the": 1}}, "it") == WIKITEXT
    assert vocabulary_of({"idx2sym": [symbol.encode() for symbol in WIKI]}, "it") == WIKITEXT  # of Python 2


@pytest.mark.parametrize(
    "content",
    [
        "<eos>\nthe\nsea\n<unk>\n",
        "<eos>\r\nthe\r\nsea\r\n<unk>\r\n\r\n",
        "\ufeff<eos>\nthe\nsea\n<unk>",
        "<eos> 36718\nthe\t11332\nsea 3\n<unk> 2\n",
    ],
)
def test_text_file(content: str, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(content.encode())
    assert read_vocabulary(tmp_path / "vocab.txt") == WIKITEXT


def test_characters_in_a_text_file_may_be_spaces(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("e\n \n\t\n\u00a0\n\u2028\n", "utf-8", newline="")
    assert read_vocabulary(tmp_path / "vocab.txt").symbols == ("e", " ", "\t", "\u00a0", "\u2028")


def test_vocabulary_of_a_bundle(tmp_path: Path) -> None:
    (tmp_path / "vocabulary.json").write_text(WIKITEXT.to_json(), "utf-8")
    assert read_vocabulary(tmp_path / "vocabulary.json") == WIKITEXT


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (fields_of(WIKI), WIKITEXT),
        ({"idx2sym": WIKI}, WIKITEXT),
        (
            fields_of(("<eos>", "the", "n"), lower_case=True),  # ptb
            Vocabulary("words", ("<eos>", "the", "n"), line_end="<eos>", lower_case=True),
        ),
        (
            fields_of(("<S>", "</S>", "<UNK>", "The"), special=[], vocab_file="1b_word_vocab.txt", unk_idx=2),
            Vocabulary("words", ("<S>", "</S>", "<UNK>", "The"), "<UNK>", "<S>", "<S>"),
        ),
        (fields_of(ENWIK8, special=[], lower_case=True), Vocabulary("bytes", ENWIK8)),
        (
            fields_of(TEXT8, special=[], lower_case=True),
            Vocabulary("characters", TEXT8, space="_", lower_case=True),
        ),
        ({"idx2sym": TEXT8}, Vocabulary("characters", TEXT8, space="_", lower_case=True)),
        (
            fields_of(("<eos>", "T", " ", "_"), delimiter=""),
            Vocabulary("characters", ("<eos>", "T", " ", "_"), line_end="<eos>"),
        ),
        (fields_of(("<eos>", "1", "_"), delimiter=""), Vocabulary("characters", ("<eos>", "1", "_"), line_end="<eos>")),
        ({"idx2sym": ("<pad>", "a", "b"), "special": ["<pad>"]}, Vocabulary("characters", ("<pad>", "a", "b"))),
        (fields_of(("a", "bc", "?"), special=[], unk_idx=2), Vocabulary("words", ("a", "bc", "?"), unk="?")),
        (
            fields_of(("<eos>", "<S>", "the"), special=[]),
            Vocabulary("words", ("<eos>", "<S>", "the"), line_end="<eos>"),
        ),
    ],
)
def test_style_shows_in_the_object_and_its_symbols(fields: dict[str, Any], expected: Vocabulary) -> None:
    assert vocabulary_of(fields, "it") == expected


def test_style_may_be_forced() -> None:
    digits = ("<eos>", "1", "2")
    assert vocabulary_of({"idx2sym": digits}, "it").kind == "bytes"
    assert vocabulary_of({"idx2sym": digits}, "it", "wikitext") == Vocabulary("words", digits, line_end="<eos>")
    assert vocabulary_of({"idx2sym": digits}, "it", "ptb").lower_case
    assert vocabulary_of({"idx2sym": digits}, "it", "characters").kind == "characters"
    assert vocabulary_of({"idx2sym": TEXT8}, "it", "characters") == Vocabulary("characters", TEXT8)
    for style in VOCAB_STYLES:
        if style not in ("lm1b", "text8"):
            vocabulary_of({"idx2sym": digits}, "it", style)
    with pytest.raises(CheckpointError, match="it, read as lm1b: line_start is '<S>', which is not a symbol"):
        vocabulary_of({"idx2sym": digits}, "it", "lm1b")
    with pytest.raises(CheckpointError, match="it, read as enwik8: symbols that are not bytes: 'the', 'sea'"):
        vocabulary_of({"idx2sym": WIKI}, "it", "enwik8")
    with pytest.raises(CheckpointError, match=r"style 'morse' is unknown\. Use one of: wikitext, ptb"):
        vocabulary_of({"idx2sym": digits}, "it", "morse")


def test_restyled_keeps_the_symbols_and_the_objects_settings() -> None:
    read = vocabulary_of(fields_of(("a", "bc", "?"), special=[], unk_idx=2, lower_case=True), "it")
    assert restyled(read, "it", "wikitext") == read
    assert restyled(WIKITEXT, "it", "ptb").lower_case


BROKEN: list[tuple[Any, str]] = [
    (3, "it: holds a int, expected a vocabulary"),
    ({}, "it: no idx2sym and no sym2idx"),
    (Record("utils.vocabulary.OpenAIVocab", state={"tokenizer": 3}), "no idx2sym"),
    ({"idx2sym": "abc"}, "idx2sym is a str, expected a list"),
    ({"idx2sym": ["a", 3, ["b"]]}, "symbol 1 is a int, symbol 2 is a list, expected text"),
    ({"idx2sym": []}, "a vocabulary without symbols"),
    ({"idx2sym": ["the", "sea", "the"]}, "more than once: 'the'"),
    ({"idx2sym": ["the", ""]}, "symbol 1 is ''"),
    ({"idx2sym": ["the", "sea"], "sym2idx": {"the": 1, "shore": 0}}, "'the' is 0 in idx2sym, 1 in sym2idx"),
    ({"idx2sym": ["the"], "sym2idx": {"the": 0, "sea": 1}}, "'sea' is in sym2idx only"),
    ({"sym2idx": {"the": 0, "sea": 0, "shore": 2}}, "id 0 is 'the' and 'sea'"),
    ({"sym2idx": {"the": 0, "sea": 10**15}}, "id 1 is missing"),
    ({"sym2idx": {"the": -1, "sea": [0], 4: 1}}, r"'the' has id -1, 'sea' has id \[0\], '4' has id 1"),
    (fields_of(WIKI, unk_idx=4), "unk_idx is 4, expected 0 to 3"),
    (fields_of(WIKI, unk_idx="<unk>"), "unk_idx is '<unk>', expected 0 to 3"),
    (fields_of(WIKI, delimiter=","), "symbols are separated by ',', expected white space"),
]


@pytest.mark.parametrize(("source", "problem"), BROKEN)
def test_objects_that_are_not_vocabularies_are_refused(source: Any, problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem) as caught:
        vocabulary_of(source, "it")
    assert str(caught.value).startswith("it")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "a vocabulary without symbols"),
        (b"the 3\nthe sea shore\n\nsea\n", r"line 2 is 'the sea shore', line 3 is ''; expected a symbol"),
        ("caf\u00e9".encode("latin-1"), r"neither a pickled vocabulary nor UTF-8 text \(byte 3\)"),
        (pickle.dumps(Path("x").open), "it: .*nothing was run"),
        (b'{"format": "xlexport vocabulary"}', "a broken vocabulary"),
        (b"PK\x03\x04 and no archive", "it: "),
    ],
)
def test_file_that_is_not_a_vocabulary_is_refused(content: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "it"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=problem) as caught:
        read_vocabulary(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_file_larger_than_any_vocabulary_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "it").open("wb") as file:
        file.truncate(1 << 40)  # sparse; reading it would not fit in memory
    with pytest.raises(CheckpointError, match="more than 536,870,912 bytes of memory"):
        read_vocabulary(tmp_path / "it")
