"""Turn the parts that a scorer yields into records of documents, lines, words or tokens, as columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from xlexport.scoring.carried import with_columns
from xlexport.scoring.output_formats import Columns, Encoded, Format, json_value
from xlexport.scoring.text_source import TextSource
from xlexport.scoring.units import SavedSplitter, Unit, UnitSplitter
from xlruntime import Document, DocumentScore, TokenScores
from xlruntime.documents import Tokenizer
from xlruntime.json_fields import read_fields
from xlruntime.scorer_state import SavedScorer
from xlruntime.scores import LN2

__all__ = ["Level", "Records", "document_fields", "make_records"]

Level = Literal["document", "line", "word", "token"]


class Records(Protocol):
    """An object that turns the parts of a scorer into records."""

    def begin(self, number: int, document: Document) -> None:
        """Learn of a document before it is read."""

    def take(self, part: TokenScores) -> list[Columns]:
        """Return the records that a part completes, in order."""

    def state(self) -> Any:
        """Return what is not complete yet, for JSON."""

    def restore(self, state: Any, saved: SavedScorer) -> None:
        """Continue from a state. Only after that, `begin` the documents that are not done.

        Raises:
            ValueError: the state does not fit such records or the documents of `saved`; the message says why.
        """

    def check_sources(self) -> None:
        """Compare the documents with the state, after reading them again up to the same place.

        Raises:
            ValueError: a document ended before that place.
        """


def make_records(level: Level, kind: Format, tokenizer: Tokenizer, alternatives: bool, with_speed: bool) -> Records:
    """Return an object that makes records of one level.

    Args:
        kind: the format, on which the columns of alternatives depend.
        alternatives: whether tokens show rank, entropy and likeliest tokens.
        with_speed: whether documents show tokens_per_second, which differs from run to run.
    """
    if level == "document":
        return _DocumentRecords(with_speed)
    if level == "token":
        return _TokenRecords(tokenizer, kind, alternatives)
    return _UnitRecords(level, tokenizer)


@dataclass(frozen=True)
class _SavedDocuments:
    following: int
    done: tuple[Any, ...]


def _document_record(fields: Any) -> dict[str, Any]:
    """Check and return a document's record that was restored from JSON; it has no speed."""
    if not isinstance(fields, dict):
        raise ValueError("done holds a value that is not a record")
    names = {field.name for field in dataclasses.fields(DocumentScore)}
    others = [value for name, value in fields.items() if name not in names]  # settings, and columns of the input
    rest = {name: value for name, value in fields.items() if name in names}
    if not all(value is None or isinstance(value, str | int | float) for value in others):
        raise ValueError("done holds a record with a value that is neither text nor a number")
    read_fields(DocumentScore, {**rest, "settings": {}, "tokens_per_second": 0.0})
    return fields


class _DocumentRecords:
    """Makes one record for each document, in the order of the documents."""

    def __init__(self, with_speed: bool) -> None:
        self._with_speed = with_speed
        self._done: dict[int, dict[str, Any] | None] = {}  # finished documents after an unfinished one; None: it failed
        self._following = 0
        self._columns: dict[int, Columns] = {}  # of the input, for documents that are not finished

    def begin(self, number: int, document: Document) -> None:
        self._columns[number] = document.columns

    def take(self, part: TokenScores) -> list[Columns]:
        if part.error is not None or part.summary is not None:
            columns = self._columns.pop(part.number, {})
            fields = None if part.summary is None else document_fields(part.summary, self._with_speed)
            self._done[part.number] = None if fields is None else dict(with_columns(fields, columns))
        ready: list[Columns] = []
        while self._following in self._done:
            if (fields := self._done.pop(self._following)) is not None:
                ready.append(fields)
            self._following += 1
        return ready

    def state(self) -> Any:
        return {"following": self._following, "done": sorted(self._done.items())}

    def check_sources(self) -> None:
        """Do nothing."""

    def restore(self, state: Any, saved: SavedScorer) -> None:
        read = read_fields(_SavedDocuments, state)
        done: dict[int, dict[str, Any] | None] = {}
        for entry in read.done:
            if not (isinstance(entry, list) and len(entry) == 2 and type(entry[0]) is int):
                raise ValueError("done does not hold pairs of a number and a record")
            done[entry[0]] = None if entry[1] is None else _document_record(entry[1])
        unfinished = saved.active.keys()
        if sorted([*done, *unfinished]) != list(range(read.following, saved.taken)) or read.following in done:
            raise ValueError("done does not hold the documents after the first that is not done")
        self._following, self._done = read.following, done


def document_fields(score: DocumentScore, with_speed: bool) -> dict[str, Any]:
    """Return a document's record."""
    fields = score.to_dict()
    if not with_speed:
        del fields["tokens_per_second"]
    return fields


class _TokenRecords:
    """Makes one record for each token."""

    def __init__(self, tokenizer: Tokenizer, kind: str, alternatives: bool) -> None:
        self._tokenizer = tokenizer
        self._kind = kind
        self._alternatives = alternatives
        self._texts: dict[int, str] = {}

    def begin(self, number: int, document: Document) -> None:
        """Do nothing."""

    def state(self) -> Any:
        """Return None, because a token's record is never incomplete."""
        return None

    def check_sources(self) -> None:
        """Do nothing."""

    def restore(self, state: Any, saved: SavedScorer) -> None:
        if state is not None:
            raise ValueError("records has a value, expected null")

    def take(self, part: TokenScores) -> list[Columns]:
        if not len(part):
            return []
        columns: dict[str, Any] = {
            "document": part.document,
            "index": part.index.tolist(),
            "token": self._text(part.tokens.tolist()),
            "id": part.tokens.tolist(),
            "start": part.starts.tolist(),
            "end": part.ends.tolist(),
            "log_prob": part.log_probs.tolist(),
            "surprisal_bits": [-log_prob / LN2 for log_prob in part.log_probs.tolist()],
            "context": part.context.tolist(),
        }
        if self._alternatives:
            assert part.rank is not None and part.entropy is not None
            columns |= {"rank": part.rank.tolist(), "entropy": part.entropy.tolist(), **self._likeliest(part)}
        return [columns]

    def _text(self, ids: Sequence[int]) -> list[str]:
        for number in set(ids) - self._texts.keys():
            self._texts[number] = self._tokenizer.decode(np.array([number]))
        return [self._texts[number] for number in ids]

    def _likeliest(self, part: TokenScores) -> dict[str, Any]:
        assert part.top_ids is not None and part.top_log_probs is not None
        if not part.top_ids.shape[1]:
            return {}
        ids, log_probs = part.top_ids.tolist(), part.top_log_probs.tolist()
        texts = [self._text(row) for row in ids]
        if self._kind == "csv":
            columns = {}
            for k in range(part.top_ids.shape[1]):
                columns[f"top_{k + 1}_token"] = [row[k] for row in texts]
                columns[f"top_{k + 1}_id"] = [row[k] for row in ids]
                columns[f"top_{k + 1}_log_prob"] = [row[k] for row in log_probs]
            return columns
        known: dict[str, str] = {}
        rows = (
            ", ".join(
                f'{{"token": {json_value(text, known)}, "id": {number}, "log_prob": {json_value(log_prob, known)}}}'
                for text, number, log_prob in zip(*row, strict=True)
            )
            for row in zip(texts, ids, log_probs, strict=True)
        )
        return {"top": Encoded([f"[{row}]" for row in rows])}


class _UnitRecords:
    """Makes one record for each line or word."""

    def __init__(self, by: Literal["line", "word"], tokenizer: Tokenizer) -> None:
        self._by = by
        self._tokenizer = tokenizer
        self._splitters: dict[int, UnitSplitter] = {}
        self._saved: dict[str, SavedSplitter] = {}  # states of documents that have not been opened again

    def begin(self, number: int, document: Document) -> None:
        source: Any = document.source
        assert isinstance(source, TextSource)
        self._splitters[number] = splitter = UnitSplitter(self._by, source, self._tokenizer)
        if str(number) in self._saved:
            splitter.restore(self._saved.pop(str(number)))

    def take(self, part: TokenScores) -> list[Columns]:
        splitter = self._splitters[part.number]
        units = splitter.take(part) if part.error is None or len(part) else []
        if part.error is not None:
            units += splitter.give_up()
        if part.error is not None or part.summary is not None:
            del self._splitters[part.number]
        return [_unit_columns(self._by, part.document, units)] if units else []

    def state(self) -> Any:
        return {str(number): splitter.state() for number, splitter in self._splitters.items()}

    def check_sources(self) -> None:
        for splitter in self._splitters.values():
            splitter.check_source()

    def restore(self, state: Any, saved: SavedScorer) -> None:
        if not isinstance(state, dict) or set(state) != set(map(str, saved.active)):
            raise ValueError("records does not hold the documents that are not done")
        self._saved = {number: read_fields(SavedSplitter, splitter) for number, splitter in state.items()}
        if problems := [found for splitter in self._saved.values() for found in splitter.problems()]:
            raise ValueError("; ".join(problems[:5]))


def _unit_columns(by: str, document: str, units: list[Unit]) -> Columns:
    bits = [unit.nats / LN2 for unit in units]
    named: dict[str, Any] = {"document": document}
    if by == "line":
        named["line"] = [unit.index + 1 for unit in units]
    else:
        named["index"] = [unit.index for unit in units]
        named["word"] = [unit.text.encode("latin-1").decode("utf-8", "replace") for unit in units]
    names = ["start", "end", "tokens", "scored_tokens", *(["words"] if by == "line" else [])]
    names += ["chars", "bytes", "scored_chars", "scored_bytes", "nats"]
    named |= {name: [getattr(unit, name) for unit in units] for name in names}
    named["bits"] = bits
    if by == "line":
        named["bits_per_byte"] = [
            None if unit.scored_bytes <= 0 else value / unit.scored_bytes
            for unit, value in zip(units, bits, strict=True)
        ]
    named["context"] = [unit.context for unit in units]
    return named
