"""Targets: vocabularies of checkpoints and bundles, and the tokenizers that other libraries run."""

from __future__ import annotations

import io
import json
import pickle
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.reliability.guided.target import InputFile, Target
from xlexport.checkpoints.vocabularies import describe_vocabulary, read_vocabulary
from xlexport.errors import CheckpointError
from xlruntime import XlruntimeError
from xlruntime.bundle import Tokenizer
from xlruntime.tokenizers import make_tokenizer
from xlruntime.tokenizers.vocabulary import Vocabulary

__all__ = ["SentencePiece", "TokenizerJson", "VocabularyFile", "VocabularyJson"]

TEXT = "It was the best of times,\n naïve 日本 \U0001f642 it was\tthe worst of times.\r\n"
WORDS = sorted(set(TEXT.split()))


class VocabularyFile(Target):
    """A file that comes with a checkpoint: `vocab.txt`, `cache.pt`, `vocab.pkl` or `vocabulary.json`."""

    errors = (CheckpointError,)
    words = tuple(b"<unk> <eos> <S> <UNK> idx2sym sym2idx unk_idx lower_case delimiter special".split())

    def __init__(self, folder: Path) -> None:
        self._file = InputFile(folder / "vocabulary")

    def seeds(self) -> Iterable[bytes]:
        yield from (
            b"<unk>\n<eos>\nthe 120\nof 90\n",
            b"<S> 3\n<UNK> 0\na 1\n",
            b"\xef\xbb\xbf10 5\r\n32 4\r\n",
            b"_ 3\na\nb\n",
        )
        fields = {"idx2sym": ["<unk>", "<eos>", *WORDS], "lower_case": True, "unk_idx": 0, "special": ["<eos>"]}
        table = {"sym2idx": OrderedDict((word, place) for place, word in enumerate(WORDS)), "delimiter": ""}
        for value in (fields, table, {**fields, **table}, {"vocab": fields}, ["a"]):
            yield pickle.dumps(value, 2)
        yield Vocabulary("characters", ("<unk>", "a", "_"), unk="<unk>", space="_").to_json().encode()

    def read(self, raw: bytes) -> object:
        return describe_vocabulary(read_vocabulary(self._file.write(raw)))


class _OfBundle(Target):
    """A tokenizer's file in a bundle: it is opened, encodes a text, and decodes it."""

    errors = (XlruntimeError,)
    kind: Any = "vocabulary"

    def __init__(self, folder: Path) -> None:
        self._folder, self._file = folder, InputFile(folder / "file")

    def read(self, raw: bytes) -> object:
        self._file.write(raw)
        tokenizer = make_tokenizer(Tokenizer(self.kind, "file"), self._folder)
        return tokenizer.merges_newlines, tokenizer.unk_id, tokenizer.decode(tokenizer.encode(TEXT))


class VocabularyJson(_OfBundle):
    """`vocabulary.json`."""

    words = tuple(b'"symbols" "kind" "words" "characters" "bytes" "unk" "line_end" "space" "lower_case"'.split())

    def seeds(self) -> Iterable[bytes]:
        byte_symbols = tuple(str(byte) for byte in range(256))
        yield Vocabulary("words", ("<unk>", "<eos>", *WORDS), unk="<unk>", line_end="<eos>").to_json().encode()
        yield Vocabulary("words", tuple(dict.fromkeys(TEXT.lower().split())), lower_case=True).to_json().encode()
        yield Vocabulary("characters", tuple(sorted({*TEXT, "_"} - {" "})), space="_").to_json().encode()
        yield Vocabulary("bytes", byte_symbols).to_json().encode()


class TokenizerJson(_OfBundle):
    """`tokenizer.json` of the tokenizers library, which is written in Rust."""

    kind = "tokenizers"
    of_library = True
    words = tuple(
        b"""
        "type" "Sequence" "Replace" "Split" "Precompiled" "BPE" "WordPiece" "Unigram" "Regex" "pattern"
        "ByteLevel" "NFKC" "Strip" "Prepend" "added_tokens"
        """.split()
    )

    def seeds(self) -> Iterable[bytes]:
        vocabulary = {word: place for place, word in enumerate(["<unk>", *WORDS])}
        letters = {letter: place for place, letter in enumerate(["<unk>", *sorted(set(TEXT))])}
        level = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}
        pairs = {"type": "BPE", "vocab": {**letters, "th": len(letters)}, "merges": [["t", "h"]], "unk_token": "<unk>"}
        unigram = {"type": "Unigram", "vocab": [[word, -1.5] for word in vocabulary], "unk_id": 0}
        for model, parts in (
            (level, {"pre_tokenizer": {"type": "WhitespaceSplit"}}),
            (pairs, {"normalizer": {"type": "NFC"}, "decoder": {"type": "Fuse"}}),
            (unigram, {"pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always"}}),
            (level, {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, {"type": "NFD"}]}}),
            (level, {"added_tokens": [{"id": 0, "content": "<unk>", "special": True, "single_word": False,
                                       "lstrip": False, "rstrip": False, "normalized": False}]}),
        ):  # fmt: skip
            empty = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"))
            yield json.dumps({"version": "1.0", **empty, "added_tokens": [], **parts, "model": model}).encode()


class SentencePiece(_OfBundle):
    """A model file of the sentencepiece library, which is written in C++."""

    kind = "sentencepiece"
    of_library = True
    words = (b"<unk>", b"<s>", b"</s>", b"\xe2\x96\x81", b"<0x41>", b"\x18\x02", b"identity", b"nmt_nfkc")

    def seeds(self) -> Iterable[bytes]:
        import sentencepiece

        for kind, size in (("unigram", 29), ("bpe", 35), ("char", 26)):
            file = io.BytesIO()
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter([TEXT] * 5), model_writer=file, vocab_size=size, model_type=kind,
                hard_vocab_limit=False, normalization_rule_name="identity", minloglevel=2,
            )  # fmt: skip
            yield file.getvalue()
