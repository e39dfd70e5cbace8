"""Vocabularies that come with checkpoints: files of their own, or objects inside a checkpoint.

Known settings come from the object itself (`lower_case`, `delimiter`, `unk_idx`); the rest follows from the symbols.
Ids are positions in the file: they can never be rebuilt from the text, since ties in the counts follow the order of
insertion.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from xlexport.checkpoints.rwkv_vocabulary import is_rwkv_vocabulary, read_rwkv_vocabulary
from xlexport.checkpoints.safe_pickle import PICKLE_LIMITS, read
from xlexport.choices import VOCAB_STYLES
from xlexport.errors import CheckpointError
from xlruntime.errors import VocabularyError
from xlruntime.limits import Budget, Limits
from xlruntime.messages import listed
from xlruntime.tokenizers.vocabulary import VOCABULARY_FORMAT, Vocabulary, VocabularyKind, is_byte

__all__ = ["TEXT_LIMITS", "describe_vocabulary", "read_vocabulary", "restyled", "vocabulary_of"]

UNKNOWN = ("<unk>", "<UNK>")
EOS = "<eos>"
SENTENCE = "<S>"  # at both ends of a sentence of the One Billion Word corpus
TEXT8_SPACE = "_"
ARCHIVE = b"PK\x03\x04"
PICKLE = b"\x80"
PICKLED = (".pkl", ".pickle", ".pt", ".pth", ".bin")  # with protocol 0, they begin like a text
TEXT_LIMITS = Limits(bytes=1 << 29, operations=2_000_000)
"""For a text vocabulary: each line is an operation. One Billion Word's vocabulary has 800,000 lines."""
LINE_ROOM = 200  # bytes that Python takes for a line, its words and its place in lists
LONGEST_SYMBOL = 1 << 12  # longer than any word; equal symbols are compared once for each copy


class _Fields(Protocol):
    """The common interface of a Record and a dict."""

    def get(self, key: str, default: Any = None, /) -> Any: ...


def read_vocabulary(path: Path, style: str | None = None, limits: Limits | None = None) -> Vocabulary:
    """Read a vocabulary file: `vocab.txt`, `cache.pt`, `vocab.pkl`, `vocab.bin`, `vocabulary.json` or RWKV World's.

    The content decides which kind it is. No code in it is run. Only the vocabulary of a pickled corpus is used.

    Args:
        style: one of `VOCAB_STYLES`; None derives the style from the symbols.
        limits: by default `PICKLE_LIMITS` for a pickle, `TEXT_LIMITS` for a text.

    Raises:
        CheckpointError: it is not a vocabulary, has missing or duplicate symbols, or takes more than a limit.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        if file.read(len(ARCHIVE)).startswith((ARCHIVE, PICKLE)) or path.suffix in PICKLED:
            return vocabulary_of(read(path, limits or PICKLE_LIMITS), str(path), style)
        file.seek(0)
        budget = (limits or TEXT_LIMITS).budget(str(path), CheckpointError)
        budget.charge(size := path.stat().st_size)
        raw = file.read(size)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(
            f"{path}: neither a pickled vocabulary nor UTF-8 text (byte {error.start}).",
            hint="Give a vocab.txt with one symbol a line, a cache.pt, or a vocab.pkl.",
        ) from error
    if text.startswith("{") and VOCABULARY_FORMAT in text[:200]:  # it needs no style
        _charge_entries(text, ",:[", budget)
        try:
            return Vocabulary.from_json(text, str(path))
        except VocabularyError as error:
            raise CheckpointError(error.message, hint=error.hint) from error
    _charge_entries(text, "\n", budget)
    if is_rwkv_vocabulary(text):
        return read_rwkv_vocabulary(text, path)
    return _vocabulary({"idx2sym": _lines(text, str(path))}, str(path), style)


def _charge_entries(text: str, ends: str, budget: Budget) -> None:
    """Charge the memory for the entries of a text, each of which ends with one of these characters."""
    count = sum(map(text.count, ends))
    budget.charge(LINE_ROOM * count + 2 * len(text), count)


def vocabulary_of(source: Any, where: str, style: str | None = None) -> Vocabulary:
    """Return the vocabulary in an object that a checkpoint or a pickle holds.

    Args:
        source: a `Record` or mapping: `Vocab` of the original code or of NVIDIA's, a corpus with a `Vocab` as `vocab`,
            or the fields of Hugging Face's tokenizer.
        where: its name in messages.
        style: one of `VOCAB_STYLES`; None derives the style from the object and its symbols.

    Raises:
        CheckpointError: it is not a vocabulary, or has missing or duplicate symbols.
    """
    if not _has_get(source):
        raise CheckpointError(f"{where}: holds a {type(source).__name__}, expected a vocabulary.", hint=_HINT)
    inner = source.get("vocab")
    if source.get("idx2sym") is None and source.get("sym2idx") is None and _has_get(inner):
        source = inner
    return _vocabulary(source, where, style)


def restyled(vocabulary: Vocabulary, where: str, style: str) -> Vocabulary:
    """Return a vocabulary of the same symbols in another style.

    Raises:
        CheckpointError: the symbols do not fit the style.
    """
    unk = vocabulary.id_of(vocabulary.unk)
    fields = {"idx2sym": vocabulary.symbols, "lower_case": vocabulary.lower_case, "unk_idx": unk}
    return _vocabulary(fields, where, style)


def describe_vocabulary(vocabulary: Vocabulary) -> str:
    """Return a sentence on how the vocabulary reads text."""
    if vocabulary.kind == "trie":
        return f"Vocabulary of {len(vocabulary.index):,} symbols of bytes, the longest at each place."
    unknown = "refuses what is unknown" if vocabulary.unk is None else f"{vocabulary.unk} for what is unknown"
    rules = ["lower-cased" if vocabulary.lower_case else None]
    if vocabulary.kind == "symbols":
        rules.append("the longest at each place")
    if vocabulary.kind == "words":
        rules.append("between white space, in text that is tokenized already")
    if vocabulary.space is not None:
        rules.append(f"{vocabulary.space} for a space")
    if vocabulary.line_start is not None:
        rules.append(f"{vocabulary.line_start} before every line")
    if vocabulary.line_end is not None:
        rules.append(f"{vocabulary.line_end} after every line")
    elif vocabulary.kind != "words" and not {"\n", "10"} & vocabulary.index.keys():
        rules.append("newlines left out")
    return ", ".join([f"Vocabulary of {len(vocabulary):,} {vocabulary.kind}", *filter(None, rules), unknown]) + "."


_HINT = "Give the vocab.txt, cache.pt or vocab.pkl that belongs to the checkpoint."


def _has_get(value: Any) -> bool:
    return isinstance(value, Mapping) or callable(getattr(value, "get", None))


def _vocabulary(fields: _Fields, where: str, style: str | None) -> Vocabulary:
    if style is not None and style not in VOCAB_STYLES:
        raise CheckpointError(f"vocabulary style {style!r} is unknown.", hint=f"Use one of: {', '.join(VOCAB_STYLES)}.")
    symbols = _symbols(fields, where)
    delimiter = fields.get("delimiter")
    if delimiter not in (None, "", " "):
        raise CheckpointError(f"{where}: symbols are separated by {str(delimiter)[:40]!r}, expected white space.")
    style = style or _style(fields, symbols)
    alphabet = set(symbols)
    kinds: dict[str, VocabularyKind] = {
        "enwik8": "bytes",
        "text8": "characters",
        "characters": "characters",
        "symbols": "symbols",
    }
    kind = kinds.get(style, "words")
    end = SENTENCE if style == "lm1b" else EOS
    try:
        return Vocabulary(
            kind,
            symbols,
            unk=_unk(fields, symbols, where),
            line_start=SENTENCE if style == "lm1b" else None,
            line_end=end if end in alphabet else None,
            lower_case=kind != "bytes" and _lower_case(fields, style),
            space=TEXT8_SPACE if style == "text8" else None,
        )
    except VocabularyError as error:
        raise CheckpointError(f"{where}, read as {style}: {error}", hint=_HINT) from error


def _symbols(fields: _Fields, where: str) -> tuple[str, ...]:
    """Return the symbols by id, from the list, the table, or both if they agree."""
    listing, table = fields.get("idx2sym"), fields.get("sym2idx")
    if listing is None and not isinstance(table, Mapping):
        raise CheckpointError(f"{where}: no idx2sym and no sym2idx, so not a vocabulary.", hint=_HINT)
    if listing is None:
        return _from_table({_text(symbol): number for symbol, number in table.items()}, where)
    if not isinstance(listing, list | tuple):
        raise CheckpointError(f"{where}: idx2sym is a {type(listing).__name__}, expected a list.", hint=_HINT)
    symbols = tuple(_text(symbol) for symbol in listing)
    problems = [
        f"symbol {n} is a {type(symbol).__name__}" for n, symbol in enumerate(symbols) if type(symbol) is not str
    ]
    if problems:
        raise CheckpointError(f"{where}: {listed(problems)}, expected text.", hint=_HINT)
    if long := [f"symbol {n} has {len(symbol):,}" for n, symbol in enumerate(symbols) if len(symbol) > LONGEST_SYMBOL]:
        raise CheckpointError(f"{where}: {listed(long)}, expected at most {LONGEST_SYMBOL:,} characters.", _HINT)
    if isinstance(table, Mapping) and len(set(symbols)) == len(symbols):  # duplicates are reported later
        ids = {_text(symbol): number for symbol, number in table.items()}
        wrong = [
            f"{symbol!r} is {number} in idx2sym, {ids.get(symbol, 'missing')} in sym2idx"
            for number, symbol in enumerate(symbols)
            if ids.get(symbol) != number
        ]
        wrong += [f"{symbol!r} is in sym2idx only" for symbol in ids.keys() - set(symbols)]
        if wrong:
            raise CheckpointError(f"{where}: {listed(wrong)}.", hint=_HINT)
    return symbols


def _from_table(ids: Mapping[Any, Any], where: str) -> tuple[str, ...]:
    """Return the symbols in the order of their ids, which must be 0, 1, 2 … without a gap."""
    problems = [
        f"{str(symbol)[:40]!r} has id {repr(number)[:40]}"
        for symbol, number in ids.items()
        if type(symbol) is not str or not _is_id(number)
    ]
    places: dict[int, list[str]] = {}
    for symbol, number in ids.items() if not problems else ():
        places.setdefault(number, []).append(symbol)
    problems += [f"id {number} is {' and '.join(map(repr, names))}" for number, names in places.items() if names[1:]]
    if not problems:
        problems = [f"id {number} is missing" for number in range(len(places)) if number not in places]
    if problems:
        raise CheckpointError(f"{where}: {listed(problems)}.", hint=_HINT)
    return tuple(places[number][0] for number in range(len(places)))


def _is_id(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0


def _text(symbol: Any) -> Any:
    """Decode a symbol that Python 2 pickled as bytes."""
    return symbol.decode("utf-8", "replace") if isinstance(symbol, bytes) else symbol


def _style(fields: _Fields, symbols: tuple[str, ...]) -> str:
    """Return the style that follows from the object's own fields and the symbols."""
    if fields.get("delimiter") == "":
        return "characters"
    own = fields.get("special")
    own_symbols = {symbol for symbol in own if isinstance(symbol, str)} if isinstance(own, list | tuple) else set()
    special = {*own_symbols, *UNKNOWN, EOS, SENTENCE}
    ordinary = [symbol for symbol in symbols if symbol not in special]
    if ordinary and all(map(is_byte, ordinary)):
        return "enwik8"
    if ordinary and all(len(symbol) == 1 for symbol in ordinary):
        return "text8" if TEXT8_SPACE in ordinary and " " not in ordinary else "characters"
    if SENTENCE in symbols and "<UNK>" in symbols:
        return "lm1b"
    return "wikitext"


def _unk(fields: _Fields, symbols: tuple[str, ...], where: str) -> str | None:
    number = fields.get("unk_idx")
    if number is None:
        return next((symbol for symbol in UNKNOWN if symbol in symbols), None)
    if not _is_id(number) or number >= len(symbols):
        raise CheckpointError(f"{where}: unk_idx is {number!r}, expected 0 to {len(symbols) - 1}.", hint=_HINT)
    return symbols[number]


def _lower_case(fields: _Fields, style: str) -> bool:
    setting = fields.get("lower_case")
    if style == "ptb" or not isinstance(setting, bool):
        return style in ("ptb", "text8")
    return setting


def _lines(text: str, where: str) -> list[str]:
    """Return the symbols of a vocab.txt: one a line, each perhaps followed by its count."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    while lines and not lines[-1]:
        lines.pop()
    symbols, problems = [], []
    for number, line in enumerate(lines, 1):
        parts = line.split() if len(line) > 1 else [line]
        if (len(parts) == 1 and parts[0]) or (len(parts) == 2 and parts[1].isascii() and parts[1].isdigit()):
            symbols.append(parts[0])
        else:
            problems.append(f"line {number} is {line[:40]!r}")
    if problems:
        raise CheckpointError(f"{where}: {listed(problems)}; expected a symbol, or a symbol and its count.", hint=_HINT)
    return symbols
