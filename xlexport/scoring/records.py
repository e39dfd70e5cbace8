"""Records of documents, lines, words, regions or tokens, made of the parts that a scorer yields.

The table COLUMNS says which columns they have, and how each is computed. They come as columns, many records at a time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from xlexport.scoring.inputs import Input
from xlexport.scoring.output_formats import Columns, Kind, encoder
from xlexport.scoring.score_options import UNITS, Level, ScoreOptions
from xlexport.scoring.totals import nothing_to_score
from xlexport.scoring.traits import TextTraits
from xlexport.scoring.units import Unit, UnitSplitter
from xlruntime import Document, DocumentScore, GrowingText, TokenScores
from xlruntime.documents import Tokenizer
from xlruntime.scores import LN2
from xlruntime.stops import token_texts

__all__ = ["COLUMNS", "Column", "Records", "Scored", "document_fields", "kinds_of_columns", "own_columns"]


@dataclass(frozen=True)
class Column:
    """A column of records.

    Attributes:
        kind: the type of its values.
        levels: the units whose records have it.
        value: computes it from a DocumentScore or a Unit, or for tokens all values from a `_Tokens`; None: it is the
            attribute of this name.
        option: the option without which it is absent.
    """

    name: str
    kind: Kind
    levels: Sequence[Level]
    value: Callable[[Any], Any] | None = None
    option: str = ""

    def of(self, source: Any) -> Any:
        """Return the value of a DocumentScore or a Unit, or the values of `_Tokens`."""
        return getattr(source, self.name) if self.value is None else self.value(source)


class _Tokens:
    """The tokens of a part, with their parts of the text."""

    def __init__(self, part: TokenScores, tokenizer: Tokenizer, growing: GrowingText) -> None:
        self.part, self._tokenizer, self._growing = part, tokenizer, growing

    def own_texts(self) -> list[str]:
        """Return the part of the text for which each token stands."""
        texts = token_texts(self._tokenizer, self.part.tokens.tolist(), self._growing)
        if texts and self.part.summary is not None:
            texts[-1] += self._growing.end()
        return texts


def _text(unit: Unit) -> str:
    """Return the text of a unit, of a line without its newline."""
    return unit.text.encode("latin-1").decode("utf-8", "replace").rstrip("\r\n")


def _bits(nats: float | None) -> float | None:
    return None if nats is None else nats / LN2


def _nats(unit: Unit) -> float | None:
    return unit.nats if unit.complete else None


def _entropy_bits(name: str, unit: Unit) -> float | None:
    return _bits(getattr(unit, name)) if unit.complete else None


def _bits_per_byte(line: Unit) -> float | None:
    bits = _bits(_nats(line))
    return None if bits is None or line.scored_bytes <= 0 else bits / line.scored_bytes


def _array(name: str, tokens: _Tokens) -> list[Any]:
    """Return an array of a part as a list."""
    return list(getattr(tokens.part, name).tolist())


def _of_tokens(name: str, kind: Kind, array: str = "", option: str = "") -> Column:
    return Column(name, kind, ("token",), partial(_array, array or name), option)


_DOCUMENT: Sequence[Level] = ("document",)
_WORDS: Sequence[Level] = ("word", "region")
_SUMS: Sequence[Level] = ("document", *UNITS)

COLUMNS = (  # after the name of the document and the columns of the input
    Column("index", "int", _WORDS),
    _of_tokens("index", "int"),
    Column("line", "int", ("line",), lambda unit: unit.index + 1),  # as editors number them
    Column("text", "text", ("line",), _text),
    Column("word", "text", ("word",), _text),
    Column("region", "text", ("region",), _text),
    Column("token", "text", ("token",), lambda tokens: tokens.own_texts()),
    _of_tokens("id", "int", "tokens"),
    Column("start", "int", UNITS),
    _of_tokens("start", "int", "starts"),
    Column("end", "int", UNITS),
    _of_tokens("end", "int", "ends"),
    Column("tokens", "int", _SUMS),
    Column("scored_tokens", "int", _SUMS),
    Column("unknown_tokens", "int", _DOCUMENT),
    Column("complete", "bool", UNITS),
    Column("words", "int", ("document", "line", "region")),
    Column("chars", "int", _SUMS),
    Column("bytes", "int", _SUMS),
    Column("dropped_chars", "int", _DOCUMENT),
    Column("dropped_bytes", "int", _DOCUMENT),
    Column("scored_chars", "int", _SUMS),
    Column("scored_bytes", "int", _SUMS),
    Column("nats", "float", _DOCUMENT),
    Column("nats", "float", UNITS, _nats),
    Column("bits", "float", _DOCUMENT),
    Column("bits", "float", UNITS, lambda unit: _bits(_nats(unit))),
    Column("corrected_nats", "float", _WORDS, lambda unit: unit.corrected, "corrected"),
    Column("corrected_bits", "float", _WORDS, lambda unit: _bits(unit.corrected), "corrected"),
    Column("bits_per_byte", "float", _DOCUMENT),
    Column("bits_per_byte", "float", ("line",), _bits_per_byte),
    Column("bits_per_char", "float", _DOCUMENT),
    Column("bits_per_token", "float", _DOCUMENT),
    Column("perplexity", "float", _DOCUMENT),
    Column("segment_len", "int", _DOCUMENT),
    Column("settings", "int", _DOCUMENT),  # a column for each setting that the bundle declares
    Column("tokens_per_second", "float", _DOCUMENT, option="speed"),
    Column("entropy_first_bits", "float", UNITS, partial(_entropy_bits, "entropy_first"), "detail"),
    Column("entropy_sum_bits", "float", UNITS, partial(_entropy_bits, "entropy_sum"), "detail"),
    _of_tokens("log_prob", "float", "log_probs"),
    Column("surprisal_bits", "float", ("token",), lambda tokens: [-p / LN2 for p in tokens.part.log_probs.tolist()]),
    Column("context", "int", UNITS),
    _of_tokens("context", "int"),
    _of_tokens("rank", "int", option="detail"),
    Column("entropy_bits", "float", ("token",), lambda tokens: (tokens.part.entropy / LN2).tolist(), "detail"),
)
TOP = ("top", *(f"top_{k}_{what}" for k in range(1, 11) for what in ("token", "id", "log_prob")))  # alternatives


def _columns(level: Level, options: Collection[str]) -> list[Column]:
    return [column for column in COLUMNS if level in column.levels and (not column.option or column.option in options)]


def own_columns(level: Level, settings: Iterable[str]) -> frozenset[str]:
    """Return the names of columns that records of a level may have themselves, with any options.

    Args:
        settings: names of the evaluation settings that the bundle declares.
    """
    more = settings if level == "document" else TOP if level == "token" else ()
    names = {column.name for column in _columns(level, ("corrected", "detail", "speed"))}
    return frozenset({"document", *(names - {"settings"}), *more})


def kinds_of_columns(options: ScoreOptions, settings: Mapping[str, Any]) -> dict[str, Kind]:
    """Return the columns of all records in their order, each with its kind, without speed and alternatives.

    Args:
        settings: the evaluation settings by name.
    """
    kinds: dict[str, Kind] = {"document": "text", **dict.fromkeys(options.reading.keep or (), "text")}
    for column in _columns(options.level, _enabled(options)):
        if column.name == "settings":
            kinds |= {name: "bool" if isinstance(value, bool) else "int" for name, value in settings.items()}
        else:
            kinds[column.name] = column.kind
    return kinds


def _enabled(options: ScoreOptions, speed: bool = False) -> list[str]:
    choices = {"detail": options.top is not None, "corrected": options.corrected, "speed": speed}
    return [name for name, enabled in choices.items() if enabled]


def document_fields(score: DocumentScore, with_speed: bool) -> dict[str, Any]:
    """Return a document's record."""
    fields: dict[str, Any] = {"document": score.document}
    for column in _columns("document", ["speed"] if with_speed else []):
        fields |= column.of(score) if column.name == "settings" else {column.name: column.of(score)}
    return fields


@dataclass(frozen=True)
class Scored:
    """A part of a document with the records that it completes.

    Attributes:
        raw: the records as bytes; names: their columns, if there are some.
        file: the name of the document's input, if an input has several documents.
        traits: those of the document's text, if it ends with a score.
    """

    part: TokenScores
    raw: bytes
    names: tuple[str, ...]
    file: str | None
    traits: TextTraits | None = None


class Records:
    """The records of a chunk of documents.

    Args:
        with_speed: whether documents show tokens_per_second, which differs from run to run.
    """

    def __init__(self, tokenizer: Tokenizer, options: ScoreOptions, with_speed: bool) -> None:
        self._tokenizer, self._options, self._with_speed = tokenizer, options, with_speed
        self._columns = _columns(options.level, _enabled(options))
        self._encode = encoder(options.format)
        self._text_of = cache(tokenizer.text_of)
        self._growing: dict[int, GrowingText] = {}  # of documents
        self._inputs: dict[int, tuple[Input, Document]] = {}  # of unfinished documents
        self._splitters: dict[int, UnitSplitter] = {}  # of unfinished documents
        self._saved: dict[str, Any] = {}  # states of splitters whose documents have not been opened again
        self._following = 0  # the next document that gets a record
        self._finished: dict[int, dict[str, Any] | None] = {}  # documents after an unfinished one; None: it failed

    def begun(
        self, documents: Iterable[tuple[Input, Document]], taken: int = 0, active: Collection[int] = ()
    ) -> Iterator[Document]:
        """Yield documents, each after the records know it.

        Args:
            taken: number of documents that were begun in an earlier process; active: the unfinished ones of them.
        """
        for number, (file, document) in enumerate(documents):
            if number >= taken or number in active:
                self._inputs[number] = file, document
                if (per := self._options.level) != "document" and per != "token":
                    source: Any = document.source
                    splitter = UnitSplitter(per, source, self._tokenizer, document.context is not None)
                    if str(number) in self._saved:
                        splitter.restore(self._saved.pop(str(number)))
                    self._splitters[number] = splitter
            yield document

    def take(self, scored: TokenScores) -> Scored:
        """Return a part with its records.

        Raises:
            XlruntimeError: with `strict`, its document ends without a score.
        """
        part = self._judged(scored)
        file, document = self._inputs[part.number]
        carried = document.columns
        ended = part.error is not None or part.summary is not None
        if ended:
            del self._inputs[part.number]
        if self._options.level == "document":
            records = self._of_documents(part, carried) if ended else []
        else:
            own = self._of_tokens(part) if self._options.level == "token" else self._of_units(part)
            if own and self._options.reading.group is not None:  # columns have a value for each row
                carried = {name: [values[row] for row in own["index"]] for name, values in carried.items()}
            records = [{"document": part.document, **carried, **own}] if own else []
        raw = b"".join(map(self._encode, records))
        of_rows = self._options.reading.field is not None
        counter = None if part.summary is None else getattr(document.source, "traits", None)
        names = tuple(records[0]) if records else ()
        return Scored(part, raw, names, file.name if of_rows else None, counter and counter.found)

    def _judged(self, part: TokenScores) -> TokenScores:
        """Return a part with an error if its document ends without a score, else the part itself."""
        error = None if part.summary is None else nothing_to_score(part.summary)
        if error is None:
            return part
        if self._options.strict:
            raise error
        return dataclasses.replace(part, summary=None, error=error)

    def _of_documents(self, part: TokenScores, carried: Columns) -> list[dict[str, Any]]:
        """Return the records of finished documents, in the order of the documents."""
        fields = None if part.summary is None else document_fields(part.summary, self._with_speed)
        self._finished[part.number] = fields and {"document": part.document, **carried, **fields}
        ready = []
        while self._following in self._finished:
            if (record := self._finished.pop(self._following)) is not None:
                ready.append(record)
            self._following += 1
        return ready

    def _of_units(self, part: TokenScores) -> dict[str, Any]:
        """Return the columns of the lines, words or regions that a part completes."""
        splitter = self._splitters[part.number]
        units = splitter.take(part) if part.error is None or len(part) else []
        if part.error is not None:
            units += splitter.give_up()
        if part.error is not None or part.summary is not None:
            del self._splitters[part.number]
        return {column.name: [column.of(unit) for unit in units] for column in self._columns} if units else {}

    def _of_tokens(self, part: TokenScores) -> dict[str, Any]:
        """Return the columns of the tokens in a part."""
        growing = self._growing.pop(part.number, None)
        if not len(part):  # the end of a document, or of a failed one
            return {}
        if growing is None:
            before = part.tokens[:1] if part.first is None else part.first.ids
            growing = GrowingText(self._tokenizer, before)
        if part.summary is None and part.error is None:
            self._growing[part.number] = growing
        tokens = _Tokens(part, self._tokenizer, growing)
        columns = {column.name: column.of(tokens) for column in self._columns}
        return {**columns, **self._likeliest(part)} if self._options.top else columns

    def _likeliest(self, part: TokenScores) -> dict[str, Any]:
        assert part.top_ids is not None and part.top_log_probs is not None
        values = part.top_log_probs.astype(object)
        values[~np.isfinite(part.top_log_probs)] = None
        ids, log_probs = part.top_ids.tolist(), values.tolist()
        texts = [[self._text_of(token) for token in row] for row in ids]
        if self._options.format != "jsonl":
            columns = {}
            for k in range(part.top_ids.shape[1]):
                columns[f"top_{k + 1}_token"] = [row[k] for row in texts]
                columns[f"top_{k + 1}_id"] = [row[k] for row in ids]
                columns[f"top_{k + 1}_log_prob"] = [row[k] for row in log_probs]
            return columns
        names = ("token", "id", "log_prob")
        rows = zip(texts, ids, log_probs, strict=True)
        return {"top": [[dict(zip(names, token, strict=True)) for token in zip(*row, strict=True)] for row in rows]}

    def state(self) -> dict[str, Any]:
        """Return what is not complete yet, for JSON."""
        splitters = {str(number): splitter.state() for number, splitter in self._splitters.items()}
        growing = {str(number): text.tokens() for number, text in self._growing.items()}
        finished = sorted(self._finished.items())
        return {"splitters": splitters, "growing": growing, "following": self._following, "finished": finished}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state. Only after that, `begun` may yield the documents that are not done."""
        self._saved = dict(state["splitters"])
        for number, (before, incomplete) in state["growing"].items():
            growing = self._growing[int(number)] = GrowingText(self._tokenizer, before)
            for token in incomplete:
                growing.add(token)
        self._following, self._finished = state["following"], dict(state["finished"])
