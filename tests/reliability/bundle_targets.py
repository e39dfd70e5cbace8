"""Targets: files of bundles. Manifests, graphs, tokenizers, and the texts of saved streams."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest import mock

from onnx import ModelProto, NodeProto, TensorProto, helper

from tests.helpers.paths import EMPTY, GOLDEN, golden_bundle
from tests.helpers.tokenizer_kinds import sentence_pieces
from tests.reliability.target import BrokenPromiseError, InputFile, Target
from xlexport.commands.inspect import bundle_rows
from xlruntime import XlruntimeError, load, state
from xlruntime.bundle import FIRST_MEMORY_FILE, MANIFEST, Bundle, TokenizerEntry
from xlruntime.errors import BundleError
from xlruntime.graph_gate import check_graph
from xlruntime.operator_domain import DOMAIN
from xlruntime.state import KIND, VERSION
from xlruntime.tokenizers import make_tokenizer
from xlruntime.tokenizers.vocabulary import Vocabulary

TEXT = "It was the best of times,\n naïve 日本 \U0001f642 it was\tthe worst of times.\r\n"
WORDS = sorted(set(TEXT.split()))
DATA = "weights.data"


class Manifest(Target):
    """`bundle.json`, without a digest of itself."""

    errors = (BundleError,)
    longest = 8192
    words = tuple(
        b"""
        "shape" "batch" "layout" "ring" "window" "state" "first_value" "dtype" "float32" "files" "sha256"
        "document" "rings" "settings" "slots" "tokenizer" "feed" "offset"
        """.split()
    )

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def seeds(self) -> Iterable[bytes]:
        for file in sorted(GOLDEN.glob(f"*/bundle/{MANIFEST}")):
            fields = json.loads(file.read_text("utf-8"))
            fields["provenance"] = {"sources": {}, "versions": {}}
            graphs = {name: fields["graphs"][name] for name in ("score", "positions") if name in fields["graphs"]}
            used = (FIRST_MEMORY_FILE, *(graph["file"] for graph in graphs.values()))
            files = {name: digest for name, digest in fields["files"].items() if name in used}
            few = {**fields, "graphs": graphs, "files": files}
            yield json.dumps(few).encode()

    def read(self, raw: bytes) -> object:
        bundle = Bundle.from_json(raw, MANIFEST)
        if Bundle.from_json(bundle.to_json(), MANIFEST).fingerprint != bundle.fingerprint:
            raise BrokenPromiseError("a manifest changes when it is written again")
        settings = bundle.settings
        if bundle.settings.rules.choose(**settings.to_dict()).to_dict() != settings.to_dict():
            raise BrokenPromiseError("a choice of settings changes when it is chosen again")
        return settings.capacity(), bundle_rows(bundle, self._folder)


class GraphFile(Target):
    """An ONNX file, walked as protocol buffers before ONNX Runtime opens it."""

    errors = (BundleError,)
    words = (*(b"Loop", b"MatMul", b"location", b"offset", b"length", b"../x", DATA.encode(), DOMAIN.encode()),
             *(b"\x0a\x04", b"\x3a\x10", b"\xca\x01", b"\x32\x02", b"\x6a\x08"))  # fmt: skip

    def __init__(self, folder: Path) -> None:
        """Need nothing."""

    def seeds(self) -> Iterable[bytes]:
        yield (golden_bundle("late_reader") / "score.onnx").read_bytes()
        yield _model([helper.make_node("Add", ["x", "w"], ["y"])]).SerializeToString()
        inner = helper.make_graph([helper.make_node("Relu", ["x"], ["z"])], "inner", [], [])
        yield _model([helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=inner)]).SerializeToString()
        imports = [helper.make_opsetid("", 21)]
        negated = [helper.make_node("Neg", ["x"], ["y"])]
        for called in ("second", "first"):  # the latter calls itself
            model = _model([helper.make_node("first", ["x"], ["y"], domain=DOMAIN)])
            calls = [helper.make_node(called, ["x"], ["y"], domain=DOMAIN)]
            for name, nodes in (("first", calls), ("second", negated)):
                model.functions.append(helper.make_function(DOMAIN, name, ["x"], ["y"], nodes, imports))
            yield model.SerializeToString()
        yield _model([helper.make_node("AttnLSTM", ["x"], ["y"], domain="com.microsoft")]).SerializeToString()

    def read(self, raw: bytes) -> object:
        check_graph(raw, "score.onnx", (DATA,))
        return None


def _model(nodes: list[NodeProto]) -> ModelProto:
    """Return a model whose weight `w` is in another file of the same folder."""
    sizes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": DATA, "offset": "0", "length": "8"}.items():
        weight.external_data.add(key=key, value=value)
    return helper.make_model(helper.make_graph(nodes, "graph", sizes[:1], sizes[1:], [weight]))


class _TokenizerFile(Target):
    """A tokenizer's file in a bundle: it is opened, encodes a text, and decodes it."""

    errors = (XlruntimeError,)
    kind: Any = "vocabulary"

    def __init__(self, folder: Path) -> None:
        self._folder, self._file = folder, InputFile(folder / "file")

    def read(self, raw: bytes) -> object:
        self._file.write(raw)
        tokenizer = make_tokenizer(TokenizerEntry(self.kind, "file"), self._folder)
        for text in (TEXT, "the cat " * 300, "a" * 3000, "  " * 2000):
            tokenizer.decode(tokenizer.encode(text))
        return tokenizer.merges_newlines, tokenizer.unk_id


class VocabularyJson(_TokenizerFile):
    """`vocabulary.json`."""

    words = tuple(b'"symbols" "kind" "words" "characters" "bytes" "unk" "line_end" "space" "lower_case"'.split())

    def seeds(self) -> Iterable[bytes]:
        symbols = ("<unk>", "<eos>", *WORDS, "cat")
        yield Vocabulary("words", symbols, unk="<unk>", line_end="<eos>").to_json().encode()
        yield Vocabulary("words", tuple(dict.fromkeys(TEXT.lower().split())), lower_case=True).to_json().encode()
        yield Vocabulary("characters", tuple(sorted({*TEXT, "_"} - {" "})), space="_").to_json().encode()
        yield Vocabulary("bytes", tuple(str(byte) for byte in range(256))).to_json().encode()


LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
# Sections of tokenizer.json that the library accepts beside each other.
SECTIONS: dict[str, tuple[dict[str, Any], ...]] = {
    "normalizer": (
        *({"type": kind} for kind in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "ByteLevel")),
        {"type": "Strip", "strip_left": True, "strip_right": True},
        {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
         "lowercase": True},
        {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "\u2581"},
        {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, {"type": "NFD"}]},
    ),
    "pre_tokenizer": (
        *({"type": kind} for kind in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit", "UnicodeScripts")),
        {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True},
        {"type": "Split", "pattern": {"Regex": "\\p{L}+| "}, "behavior": "Isolated", "invert": False},
        {"type": "Digits", "individual_digits": True},
        {"type": "Punctuation", "behavior": "Isolated"},
        {"type": "CharDelimiterSplit", "delimiter": "-"},
        {"type": "FixedLength", "length": 3},
        {"type": "Sequence", "pretokenizers": [LEVEL]},
    ),
    "decoder": (
        *({"type": kind} for kind in ("ByteFallback", "Fuse")),
        {"type": "WordPiece", "prefix": "##", "cleanup": True},
        {"type": "BPEDecoder", "suffix": "</w>"},
        {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        {"type": "Sequence", "decoders": [LEVEL, {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}]},
    ),
    "post_processor": (
        LEVEL,
        {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}], "special_tokens": {},
         "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}]},
        {"type": "BertProcessing", "sep": ["<unk>", 0], "cls": ["<unk>", 0]},
    ),
    "truncation": ({"max_length": 3, "stride": 5, "strategy": "LongestFirst", "direction": "Right"},),
}  # fmt: skip


class TokenizerJson(_TokenizerFile):
    """`tokenizer.json` of the tokenizers library, which is written in Rust."""

    kind = "tokenizers"
    words = tuple(
        b"""
        "type" "Sequence" "Replace" "Split" "Precompiled" "BPE" "WordPiece" "Unigram" "Regex" "pattern"
        "ByteLevel" "NFKC" "Strip" "Prepend" "added_tokens" "(a+)+$" "precompiled_charsmap"
        """.split()
    )

    def seeds(self) -> Iterable[bytes]:
        vocabulary = {word: place for place, word in enumerate(["<unk>", *WORDS])}
        letters = {letter: place for place, letter in enumerate(["<unk>", *sorted(set(TEXT))])}
        level = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}
        pairs = {"type": "BPE", "vocab": {**letters, "th": len(letters)}, "merges": [["t", "h"]], "unk_token": "<unk>"}
        unigram = {"type": "Unigram", "vocab": [[word, -1.5] for word in vocabulary], "unk_id": 0}
        pieces = {"type": "WordPiece", "vocab": {**letters, "##a": len(letters)}, "unk_token": "<unk>",
                  "continuing_subword_prefix": "##", "max_input_chars_per_word": 100}  # fmt: skip
        models = (level, pairs, unigram, pieces)
        sections = [(name, section) for name, kinds in SECTIONS.items() for section in kinds]
        for number, (name, section) in enumerate(sections):
            yield _tokenizer_json(models[number % len(models)], {name: section})
        added = {"id": 0, "content": "<unk>", "special": True, "single_word": False, "lstrip": False,
                 "rstrip": False, "normalized": False}  # fmt: skip
        yield _tokenizer_json(level, {"added_tokens": [added]})


def _tokenizer_json(model: dict[str, Any], parts: dict[str, Any]) -> bytes:
    empty = dict.fromkeys((*SECTIONS, "padding"))
    return json.dumps({"version": "1.0", **empty, "added_tokens": [], **parts, "model": model}).encode()


class SentencePiece(_TokenizerFile):
    """A model file of the sentencepiece library, which is written in C++."""

    kind = "sentencepiece"
    words = (b"<unk>", b"<s>", b"</s>", b"\xe2\x96\x81", b"<0x41>", b"\x18\x02", b"identity", b"nmt_nfkc")

    def seeds(self) -> Iterable[bytes]:
        for kind, size, normalizer in (("unigram", 29, "nmt_nfkc"), ("bpe", 35, "identity"), ("char", 26, "identity")):
            yield sentence_pieces(size, [TEXT] * 5, model_type=kind, normalization_rule_name=normalizer)


class StreamFields(Target):
    """A saved stream whose texts are the input, a line each; its tensors are sound, and the digest is not checked."""

    errors = (XlruntimeError,)
    longest = 1 << 13
    words = tuple(
        b"""
        length= position= pending= offset= history= capacity= setting.mem_len= restart= segment_len=
        setting.same_length= setting.clamp_len= true false -1 nan 4611686018427387904 1073741824
        """.split()
    )

    def __init__(self, folder: Path) -> None:
        self._model = load(golden_bundle(EMPTY), threads=1)
        stream = self._model.stream()
        stream.feed(TEXT[:20])
        stream.save(folder / "sound")
        sound = (folder / "sound").read_bytes()
        size = struct.unpack_from("<Q", sound)[0]
        self._header = json.loads(sound[8 : 8 + size])
        self._metadata, self._tensors = self._header.pop("__metadata__"), sound[8 + size :]
        self._file = InputFile(folder / "state.safetensors")

    def seeds(self) -> Iterable[bytes]:
        yield "\n".join(f"{name}={text}" for name, text in self._metadata.items()).encode()

    def read(self, raw: bytes) -> object:
        lines = [line.partition("=") for line in raw.decode("latin-1").split("\n")]
        metadata = {name: text for name, _, text in lines} | {"kind": KIND, "version": str(VERSION), "digest": ""}
        head = json.dumps({"__metadata__": metadata, **self._header}).encode()
        self._file.write(struct.pack("<Q", len(head)) + head + self._tensors)
        with mock.patch.object(state, "_digest", lambda *_: ""):
            return self._model.restore(self._file.path).feed(TEXT[20:23]).log_probs
