"""Change tokenizer files: each section of a tokenizer.json and each part of a SentencePiece model.

The libraries can still read most of them, so a case also tokenizes long and unusual texts, and texts for the section.
"""

from __future__ import annotations

import base64
import copy
import io
import json
import random
from pathlib import Path
from typing import Any

from tests.reliability.damage import damage_bytes, damage_json
from tests.reliability.judging import Outcome, judged
from xlruntime import XlruntimeError
from xlruntime.documents import TextCounts
from xlruntime.limits import Limits
from xlruntime.tokenizers.libraries import SentencePieceTokenizer, TokenizersTokenizer

__all__ = ["Tokenizers"]

SENTENCES = ["the cat sat on the mat, and the mat was flat", "naïve 日本 ﬁne \ufdfa ①"] * 3
LONGEST = Limits(bytes=1 << 16)
DEPTHS = (100, 950, 5000)
PATTERNS = (
    "(a*)*b",
    "a*a*a*a*$|.",
    "(?:a|a)+",
    "[[a]",
    "\\p{L}+| ",
    "",
    "x*",
    "(",
    "\\",
    "(?i:'s)|\\s+(?!\\S)",
    "a{999}{9}",
)
TEXT = {"Sequence": {"id": "A", "type_id": 0}}
NORMALIZERS: list[dict[str, Any]] = [
    *({"type": name} for name in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "ByteLevel")),
    {"type": "Strip", "strip_left": True, "strip_right": True},
    {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
     "lowercase": True},
    {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"},
    {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "\u2581"},
    {"type": "Prepend", "prepend": "\u2581"},
]  # fmt: skip
PRE_TOKENIZERS: list[dict[str, Any]] = [
    *({"type": name} for name in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit", "UnicodeScripts")),
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True},
    {"type": "Split", "pattern": {"Regex": "\\w+"}, "behavior": "Isolated", "invert": False},
    {"type": "Digits", "individual_digits": True},
    {"type": "Punctuation", "behavior": "Isolated"},
    {"type": "CharDelimiterSplit", "delimiter": "-"},
    {"type": "FixedLength", "length": 3},
]
DECODERS: list[dict[str, Any]] = [
    *({"type": name} for name in ("ByteFallback", "Fuse")),
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    {"type": "WordPiece", "prefix": "##", "cleanup": True},
    {"type": "BPEDecoder", "suffix": "</w>"},
    {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
]
POST_PROCESSORS: list[dict[str, Any]] = [
    {"type": "TemplateProcessing", "single": [TEXT], "pair": [TEXT, {"Sequence": {"id": "B", "type_id": 1}}],
     "special_tokens": {}},
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    {"type": "BertProcessing", "sep": ["<unk>", 0], "cls": ["<unk>", 0]},
]  # fmt: skip
SECTIONS = {
    "normalizer": (NORMALIZERS, "normalizers"),
    "pre_tokenizer": (PRE_TOKENIZERS, "pretokenizers"),
    "decoder": (DECODERS, "decoders"),
    "post_processor": (POST_PROCESSORS, "processors"),
}


class Tokenizers:
    """A damaged tokenizer is refused, or works within limits of time and memory and raises only errors of ours."""

    def __init__(self, folder: Path) -> None:
        self._json, self._model = folder / "tokenizer.json", folder / "tokenizer.model"
        self._sentencepiece = _sentencepiece_model()
        self._models = [_word_level(), _word_piece(), _unigram(), *_trained(folder)]
        self._charsmap = _charsmap(self._sentencepiece)

    def case(self, number: int) -> Outcome:
        rng = random.Random(f"tokenizer {number}")
        is_json = rng.random() < 0.8
        if is_json:
            self._json.write_bytes(self._damaged(rng))
        else:
            self._model.write_bytes(damage_bytes(self._sentencepiece, rng))
        return judged(
            lambda: self._used(
                TokenizersTokenizer(self._json) if is_json else SentencePieceTokenizer(self._model), rng
            ),
            (XlruntimeError,),
            lambda found: found is not None,
        )

    def _damaged(self, rng: random.Random) -> bytes:
        fields: dict[str, Any] = {
            "version": "1.0",
            "truncation": rng.choice((None, {"max_length": 3, "stride": 5, "strategy": "LongestFirst",
                                             "direction": "Right"})),
            "padding": None,
            "added_tokens": rng.choice(([], [{"id": 0, "content": "<unk>", "single_word": False, "lstrip": False,
                                              "rstrip": True, "normalized": True, "special": False}])),
            "model": copy.deepcopy(rng.choice(self._models)),
        }  # fmt: skip
        for section, (parts, members) in SECTIONS.items():
            fields[section] = self._section(rng, section, parts, members)
        kind = rng.random()
        if kind < 0.5:  # sections that do not fit together are the only damage
            return json.dumps(fields).encode()
        if kind < 0.8:  # damage one section; otherwise most damage would hit the vocabulary
            name = rng.choice([*SECTIONS, "model", "added_tokens"])
            text = damage_json(fields[name], rng, DEPTHS)
            rest = json.dumps({other: value for other, value in fields.items() if other != name})
            return f'{rest[:-1]}, "{name}": {text}}}'.encode("utf-8", "surrogatepass")
        if kind < 0.9:
            return damage_json(fields, rng, DEPTHS).encode("utf-8", "surrogatepass")
        return damage_bytes(json.dumps(fields).encode(), rng)

    def _section(self, rng: random.Random, name: str, parts: list[dict[str, Any]], members: str) -> Any:
        if rng.random() < 0.6:
            return None
        chosen = [copy.deepcopy(part) for part in rng.choices(parts, k=rng.choice((1, 1, 1, 2, 3, 12)))]
        if name == "normalizer" and rng.random() < 0.3:
            raw = damage_bytes(self._charsmap, rng) if rng.random() < 0.7 else self._charsmap
            chosen[0] = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(raw).decode()}
        for part in chosen:
            if "pattern" in part and rng.random() < 0.4:
                part["pattern"] = {rng.choice(("Regex", "String")): rng.choice(PATTERNS)}
        return chosen[0] if len(chosen) == 1 else {"type": "Sequence", members: chosen}

    @staticmethod
    def _used(tokenizer: TokenizersTokenizer | SentencePieceTokenizer, rng: random.Random) -> int:
        """Tokenize texts, decode the ids, and return the number of ids."""
        text = rng.choice(
            (
                "a" * rng.choice((40, 3000)),
                "the cat " * 300,
                "\ufdfa日本 naïve\n\t <unk>" * 100,
                "a b\0\x1b[2J",
                "  " * 2000,
            )
        )
        known = []
        for document in (text, text[: rng.randrange(1, 30)], ""):
            try:
                (piece,) = tokenizer.read(io.BytesIO(document.encode()), "it", TextCounts(), LONGEST)
            except XlruntimeError:
                continue
            if piece.ids.shape != piece.starts.shape or (piece.starts > piece.ends).any():
                raise ValueError("impossible offsets")
            known += piece.ids.tolist()
        tokenizer.decode(known)
        return len(known)


def _word_level() -> dict[str, Any]:
    words = ["<unk>", "the", "cat", "a", "b"]
    return {"type": "WordLevel", "vocab": {word: at for at, word in enumerate(words)}, "unk_token": "<unk>"}


def _word_piece() -> dict[str, Any]:
    return {
        "type": "WordPiece",
        "vocab": {"<unk>": 0, "the": 1, "c": 2, "##at": 3, "a": 4, "##a": 5},
        "unk_token": "<unk>",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
    }


def _unigram() -> dict[str, Any]:
    pieces = [["<unk>", 0.0], ["\u2581", -2.0], ["a", -1.0], ["\u2581the", -3.0], ["cat", -2.5], ["aaaa", -2.0]]
    return {"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": False}


def _trained(folder: Path) -> list[dict[str, Any]]:
    """Return a BPE model as the library itself writes it."""
    from tokenizers import Tokenizer, models, trainers

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.train_from_iterator(
        SENTENCES, trainers.BpeTrainer(vocab_size=60, special_tokens=["<unk>"], show_progress=False)
    )
    return [json.loads(tokenizer.to_str())["model"]]


def _sentencepiece_model() -> bytes:
    import sentencepiece

    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES), model_writer=file, vocab_size=40, hard_vocab_limit=False, minloglevel=2,
        normalization_rule_name="nfkc_cf",
    )  # fmt: skip
    return file.getvalue()


def _charsmap(model: bytes) -> bytes:
    """Return the character map in a SentencePiece model; it begins with the size of its trie."""
    from sentencepiece import sentencepiece_model_pb2

    messages: Any = sentencepiece_model_pb2  # which has no types
    parsed = messages.ModelProto()
    parsed.ParseFromString(model)
    raw: bytes = parsed.normalizer_spec.precompiled_charsmap
    return raw
