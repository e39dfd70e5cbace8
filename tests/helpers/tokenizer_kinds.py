"""Small tokenizers of every kind that a bundle can have, each trained or written here."""

from __future__ import annotations

import functools
import io
import json
import string
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from xlexport.checkpoints.rwkv_vocabulary import read_rwkv_vocabulary
from xlexport.text_cuts import sentencepiece_rule, settled_rule
from xlruntime.bundle import TokenizerEntry as Entry
from xlruntime.documents import Tokenizer
from xlruntime.tokenizers import make_tokenizer
from xlruntime.tokenizers.libraries import TOKENIZER_LIMITS
from xlruntime.tokenizers.tokenizer_file import read_tokenizer_json
from xlruntime.tokenizers.vocabulary import Vocabulary

SENTENCES = [
    "The old man walked slowly down to the river, and it's raining.\n\nThen they'll rest; don't they?\r\n",
    "  def sum(a, b):\n        return a + b  # 12345 and 3.14\n\tend\n",
    "Старик шёл к реке. 日本語の文章。\nCafé naïve — “quoted” 🙂👍🏽 e\u0301 <|end|> \u00a0x",
] * 5
SPLITS = {  # published patterns, by the rule that they have
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "gpt4o": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "letters": r"[0-9]| ?[^\s0-9]+|\s+",
}
SYMBOLS = ("C", "Cl", "Br", "B", "c", "N", "n", "O", "o", "[C@@H]", "[C@H]", "(", ")", "=", "1", "2", "。\n", " ", "  ")


def byte_level(split: str | None = None, prefix: bool = False, spaces: bool = False, special: str = "<|end|>") -> Any:
    """Return a trained byte-level BPE; with `spaces` in GPT-NeoX's form: NFC, runs of spaces, trimmed places."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from tokenizers.trainers import BpeTrainer

    made = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=split is None)
    made.pre_tokenizer = level
    if split is not None:
        made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(split), "isolated"), level])
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=400, initial_alphabet=alphabet, special_tokens=[special], show_progress=False)
    made.train_from_iterator(SENTENCES, trainer)
    if spaces:
        made.normalizer = normalizers.NFC()
        made.add_tokens([AddedToken(" " * n, normalized=True) for n in range(2, 9)])
        made.post_processor = processors.ByteLevel(trim_offsets=True)
    return made


def llama_form(metaspace: bool = False) -> Any:
    """Return a trained BPE with byte fallback whose texts begin with a space; by a normalizer or by Metaspace."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    made = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trained.train_from_iterator(
        SENTENCES, trainers.BpeTrainer(vocab_size=500, special_tokens=special, show_progress=False)
    )
    model = json.loads(trained.to_str())["model"]
    merges = [tuple(merge) if isinstance(merge, list) else tuple(merge.split(" ")) for merge in model["merges"]]
    made.model = models.BPE(model["vocab"], merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    if metaspace:
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", made.token_to_id("<s>"))])
    return made


def word_pieces() -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=["[UNK]", "[SEP]"], show_progress=False)
    made.train_from_iterator(SENTENCES, trainer)
    return made


def sentence_pieces(size: int = 400, sentences: Iterable[str] = SENTENCES, **options: Any) -> bytes:
    """Return a SentencePiece model of at most `size` pieces."""
    from sentencepiece import SentencePieceTrainer

    made = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=made, vocab_size=size, minloglevel=2, hard_vocab_limit=False,
        num_threads=1, **options,
    )  # fmt: skip
    return made.getvalue()


def world() -> Vocabulary:
    """Return a vocabulary in the form of RWKV World: all bytes, and longer tokens; id 0 has no text."""
    longer = ["the", " the", "old", " man", "\n\n", "  ", "    ", "。\n", "。", "\r\n", " w", "alk"]
    longer += ["日本", "'t", "n't", "é"]
    symbols = [*(bytes([byte]) for byte in range(256)), *(text.encode() for text in longer), "🙂".encode()[:3]]
    lines = [f"{number} {symbol!r} {len(symbol)}\n" for number, symbol in enumerate(symbols, 1)]
    return read_rwkv_vocabulary("".join(lines), Path("world.txt"))


LIBRARIES: Mapping[str, Callable[[], Any]] = {
    "gpt2": byte_level,
    "neox": functools.partial(byte_level, spaces=True),
    "roberta": functools.partial(byte_level, prefix=True),
    "llama3": functools.partial(byte_level, SPLITS["llama3"]),
    "gpt4o": functools.partial(byte_level, SPLITS["gpt4o"]),
    "other_pattern": functools.partial(byte_level, SPLITS["letters"]),
    "llama": llama_form,
    "metaspace": functools.partial(llama_form, metaspace=True),
    "word_pieces": word_pieces,
    "sentencepiece_bpe": functools.partial(
        sentence_pieces,
        model_type="bpe",
        byte_fallback=True,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
    ),
    "sentencepiece_unigram": sentence_pieces,
}
_LETTERS = (*string.printable, *"éèСтарикшёле日本語の文章。、—“”🙂👍🏽\u0301\u00a0ï")
VOCABULARIES: Mapping[str, Callable[[], Vocabulary]] = {
    "words": lambda: Vocabulary("words", ("<eos>", "<unk>", "the", "old", "man"), unk="<unk>", line_end="<eos>"),
    "lines": lambda: Vocabulary("words", ("<S>", "<unk>", "the", "old", "man"), "<unk>", "<S>", "<S>"),
    "characters": lambda: Vocabulary("characters", (*dict.fromkeys(_LETTERS), "<unk>"), unk="<unk>"),
    "byte_symbols": lambda: Vocabulary("bytes", tuple(map(str, range(256)))),
    "symbols": lambda: Vocabulary("symbols", (*SYMBOLS, "\n", "<unk>"), unk="<unk>"),
    "trie": world,
}
KINDS = ("bytes", *LIBRARIES, *VOCABULARIES)


def write_tokenizer(kind: str, folder: Path) -> Entry:
    """Write a tokenizer's file into a folder, and return its entry for a manifest."""
    if kind == "bytes":
        return Entry("bytes")
    if kind in VOCABULARIES:
        (folder / "vocabulary.json").write_text(VOCABULARIES[kind]().to_json(), "utf-8")
        return Entry("vocabulary", "vocabulary.json", size=len(VOCABULARIES[kind]()))
    made = LIBRARIES[kind]()
    name: Literal["tokenizers", "sentencepiece"] = "sentencepiece" if isinstance(made, bytes) else "tokenizers"
    file = folder / ("tokenizer.json" if name == "tokenizers" else "tokenizer.model")
    file.write_bytes(made if isinstance(made, bytes) else made.to_str().encode())
    fields = None if isinstance(made, bytes) else read_tokenizer_json(file, TOKENIZER_LIMITS)[0]
    rule = sentencepiece_rule(file) if fields is None else settled_rule(fields)
    size = make_tokenizer(Entry(name, file.name), folder).vocab_size
    return Entry(name, file.name, size=size, settled=rule)


def opened(kind: str, folder: Path) -> Tokenizer:
    """Write a tokenizer's file into a folder, and open it as a bundle does."""
    return make_tokenizer(write_tokenizer(kind, folder), folder)
