"""Turn the parts that a scorer yields into records of documents, lines, words, regions or tokens, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np

from xlexport.scoring.carried import with_columns
from xlexport.scoring.output_formats import Columns, Encoded, Format, json_value
from xlexport.scoring.text_source import TextSource
from xlexport.scoring.units import By, SavedSplitter, Unit, UnitSplitter
from xlruntime import Document, DocumentScore, TokenScores
from xlruntime.documents import Tokenizer
from xlruntime.scores import LN2

__all__ = ["Level", "Records", "document_fields", "make_records"]

Level = Literal["document", "line", "word", "region", "token"]


class Records(Protocol):
    """An object that turns the parts of a scorer into records."""

    def begin(self, number: int, document: Document) -> None:
        """Learn of a document before it is read."""

    def take(self, part: TokenScores) -> list[Columns]:
        """Return the records that a part completes, in order."""

    def state(self) -> Any:
        """Return what is not complete yet, for JSON."""

    def restore(self, state: Any) -> None:
        """Continue from a state. Only after that, `begin` the documents that are not done."""


def make_records(
    level: Level, kind: Format, tokenizer: Tokenizer, detail: bool, with_speed: bool, corrected: bool = False
) -> Records:
    """Return an object that makes records of one level.

    Args:
        kind: the format, on which the columns of alternatives depend.
        detail: whether tokens show rank, entropy and likeliest tokens, and lines, words and regions their entropies.
        corrected: whether words and regions also show surprisal with the correction for boundaries.
        with_speed: whether documents show tokens_per_second, which differs from run to run.
    """
    if level == "document":
        return _DocumentRecords(with_speed)
    if level == "token":
        return _TokenRecords(tokenizer, kind, detail)
    return _UnitRecords(level, tokenizer, detail, corrected)


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

    def restore(self, state: Any) -> None:
        self._following, self._done = state["following"], dict(state["done"])


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

    def restore(self, state: Any) -> None:
        """Do nothing."""

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
        if self._kind != "jsonl":
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
    """Makes one record for each line, word or region."""

    def __init__(self, by: By, tokenizer: Tokenizer, detail: bool, corrected: bool) -> None:
        self._by: By = by
        self._detail = detail
        self._corrected = corrected
        self._tokenizer = tokenizer
        self._splitters: dict[int, UnitSplitter] = {}
        self._saved: dict[str, SavedSplitter] = {}  # states of documents that have not been opened again

    def begin(self, number: int, document: Document) -> None:
        source: Any = document.source
        assert isinstance(source, TextSource)
        self._splitters[number] = splitter = UnitSplitter(
            self._by, source, self._tokenizer, document.context is not None
        )
        if str(number) in self._saved:
            splitter.restore(self._saved.pop(str(number)))

    def take(self, part: TokenScores) -> list[Columns]:
        splitter = self._splitters[part.number]
        units = splitter.take(part) if part.error is None or len(part) else []
        if part.error is not None:
            units += splitter.give_up()
        if part.error is not None or part.summary is not None:
            del self._splitters[part.number]
        return [self._columns(part.document, units)] if units else []

    def state(self) -> Any:
        return {str(number): splitter.state() for number, splitter in self._splitters.items()}

    def restore(self, state: Any) -> None:
        self._saved = {number: SavedSplitter.of(splitter) for number, splitter in state.items()}

    def _columns(self, document: str, units: list[Unit]) -> Columns:
        by_line = self._by == "line"
        first = 1 if by_line else 0  # lines are numbered as editors number them
        named: dict[str, Any] = {
            "document": document,
            "line" if by_line else "index": [unit.index + first for unit in units],
            "text" if by_line else self._by: [_text(unit) for unit in units],
        }
        named |= {name: [getattr(unit, name) for unit in units] for name in ("start", "end", "tokens", "scored_tokens")}
        named["complete"] = [0 < unit.scored_tokens == unit.tokens for unit in units]
        names = [*([] if self._by == "word" else ["words"]), "chars", "bytes", "scored_chars", "scored_bytes"]
        named |= {name: [getattr(unit, name) for unit in units] for name in names}
        nats = [unit.nats if unit.scored_tokens else None for unit in units]
        named |= {"nats": nats, "bits": _bits(nats)}
        if self._corrected:
            corrected = [unit.corrected for unit in units]
            named |= {"corrected_nats": corrected, "corrected_bits": _bits(corrected)}
        if by_line:
            named["bits_per_byte"] = [
                None if bits is None or unit.scored_bytes <= 0 else bits / unit.scored_bytes
                for unit, bits in zip(units, named["bits"], strict=True)
            ]
        if self._detail:
            named |= {name: [getattr(unit, name) for unit in units] for name in ("entropy_first", "entropy_sum")}
        named["context"] = [unit.context for unit in units]
        return named


def _text(unit: Unit) -> str:
    """Return the text of a unit, of a line without its newline."""
    return unit.text.encode("latin-1").decode("utf-8", "replace").rstrip("\r\n")


def _bits(nats: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else value / LN2 for value in nats]
