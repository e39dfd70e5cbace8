"""Read documents from files of text or token ids, and from rows of tables. A document opens at its turn.

A document that cannot be read fails only then, as part of the scoring, so the caller can continue with the next one.
"""

from __future__ import annotations

import io
import itertools
import json
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from xlexport.scoring.inputs import CHUNK, Input, Reading, TextSource, nothing_in, open_input
from xlexport.scoring.regions import CutSource, joined_rows, regions_of_field
from xlexport.scoring.rows import MOST_COLUMNS, Row, json_kind, rows_of
from xlexport.scoring.traits import NA, TraitCounter
from xlruntime import Document, TextError, TokenError
from xlruntime.documents import SPACES, Context, Ids, utf8_bytes
from xlruntime.limits import Limits, read_at_most
from xlruntime.messages import listed, quoted, shown

__all__ = [
    "REREAD_LIMITS",
    "CarriedColumns",
    "documents",
    "documents_by_input",
    "file_document",
    "ids_of_words",
    "items",
    "only_document",
    "rereadable",
    "table",
]

REREAD_LIMITS = Limits(bytes=64 << 20)  # for a document that is read more than once; `context` needs 24 times as much
MARK = b"\xef\xbb\xbf"  # byte-order mark that some editors write before UTF-8
LONGEST_NAME = 1000  # characters; every record repeats the name of its document
LONGEST_COLUMNS = 10_000  # characters of a row's columns; every record repeats them
SHOWN = 40  # characters of a wrong value or name that a message shows


def documents(inputs: Sequence[Input], reading: Reading, stdin: BinaryIO, keep: bool) -> Iterator[Document]:
    """Yield the documents in inputs. A document is not opened before it is read.

    Args:
        keep: whether their sources are `TextSource`s that keep what is read until `let_go`.
    """
    return (document for _, document in documents_by_input(inputs, reading, stdin, keep))


def documents_by_input(
    inputs: Sequence[Input], reading: Reading, stdin: BinaryIO, keep: bool, columns: CarriedColumns | None = None
) -> Iterator[tuple[Input, Document]]:
    """Yield the same documents as `documents`, each with its input.

    Args:
        columns: chooses the columns that documents from rows have; None: they have none.

    Raises:
        TextError: columns have names that records use themselves.
        MissingDependencyError: a Parquet file needs a package that is not installed.
    """
    for file in inputs:
        opener = partial(open_input, file, stdin if file.path is None else None, reading.binary)
        if reading.field is None:
            yield file, file_document(file.name, opener, file.repeatable, reading, keep)
            continue
        rows = rows_of(file, TextSource(file.name, opener, file.repeatable), reading)
        yield from ((file, document) for document in items(rows, file.name, reading, keep, columns))


def file_document(
    name: str, opener: Callable[[], BinaryIO], repeatable: bool, reading: Reading, keep: bool
) -> Document:
    """Return the document that a whole file is.

    Args:
        opener: opens the file, unpacked. repeatable: whether it can be read again.
        keep: as for `documents`.
    """
    source = TextSource(name, opener, repeatable, keep)
    if reading.ids:
        return Document(name, cast(Iterator[Ids], _IdsSource(source)))
    if reading.cut is not None:
        source = CutSource(name, opener, repeatable, reading.cut, reading.document_limits, keep)
    source.traits = None if reading.binary else TraitCounter()
    return Document(name, cast(BinaryIO, source), reading.document_limits)


def table(path: Path) -> Callable[[], Iterator[Row]]:
    """Return a function that reads the rows of a table from the first."""
    file = Input(str(path), path)
    opener = partial(open_input, file, io.BytesIO())
    return lambda: rows_of(file, TextSource(file.name, opener, file.repeatable), Reading())


def only_document(inputs: Sequence[Input], reading: Reading, stdin: BinaryIO) -> Document:
    """Return the only document in inputs; it is not opened unless it is a row.

    Raises:
        TextError: there are several documents, or none.
    """
    opened = list(itertools.islice(documents(inputs, reading, stdin, keep=False), 2))
    names = ", ".join(file.name for file in inputs[:2])
    if not opened:
        raise nothing_in([names], "lines that are not blank")
    if len(opened) > 1:
        raise TextError(
            f"{names}: several documents, expected one.", hint="Give one of them; `xlexport score` takes several."
        )
    return opened[0]


def rereadable(document: Document, limits: Limits = REREAD_LIMITS) -> Document:
    """Return a document that can be read several times; if its source can be read only once, it is read now.

    Raises:
        OSError, TextError, TokenError: the document cannot be read, exceeds the limits, or does not hold token ids.
    """
    source: Any = document.source
    if isinstance(source, str | bytes | Path | np.ndarray | list):
        return document
    budget = limits.budget(document.name, TextError)
    if hasattr(source, "read"):
        return replace(document, source=read_at_most(source, budget))
    parts = [np.zeros(0, np.int64)]
    for ids in source:
        budget.charge(ids.nbytes)
        parts.append(ids)
    return replace(document, source=np.concatenate(parts))


@dataclass(frozen=True)
class _IdsSource:
    """Token ids that are separated by white space in a text."""

    text: TextSource

    def __iter__(self) -> Iterator[Ids]:
        """Yield the ids in pieces."""
        source = self.text
        left = source.read(len(MARK)).removeprefix(MARK)
        while raw := source.read(CHUNK):
            raw = left + raw
            cut = max(map(raw.rfind, (b" ", b"\n", b"\t", b"\r"))) + 1
            if not cut and len(raw) > CHUNK:
                raise _no_ids(source.name, f"{len(raw):,} bytes without white space")
            yield ids_of_words(raw[:cut].split(), source.name)
            left = raw[cut:]
        yield ids_of_words(left.split(), source.name)


class CarriedColumns:
    """The columns of rows that records repeat: the chosen ones, or all others of the first row.

    Args:
        own: names of columns that records have anyway.
        tell: called with a line about each input that has further columns.
        with_id: whether the column with the documents' names is one of the others, unless records have its name anyway.

    Raises:
        TextError: a chosen column has the name of one that records have anyway.
    """

    def __init__(
        self, reading: Reading, own: Collection[str], tell: Callable[[str], None], with_id: bool = False
    ) -> None:
        self._reading, self._own, self._tell = reading, own, tell
        self._with_id = with_id and reading.id_field not in own
        self._names: list[str] | None = None
        self._first = ""
        self._warned: set[str] = set()
        if reading.keep is not None:
            self._names = list(dict.fromkeys(reading.keep))
            self._check(self._names, "--keep")

    def of(self, row: Mapping[str, Any], name: str, file: str) -> dict[str, Any]:
        """Return the columns of a row.

        Args:
            name: the name of the row; file: that of its input.

        Raises:
            TextError: their texts are too long together.
        """
        if self._names is None:
            self._names, self._first = self._others(row), name
        elif self._reading.keep is None and file not in self._warned:
            further = [column for column in self._others(row) if column not in self._names]
            if further:
                self._warned.add(file)
                names = listed(repr(column[:SHOWN]) for column in further)
                self._tell(f"{name}: without {names}, which {self._first} lacks. Choose columns with --keep.")
        columns = {column: _plain(row.get(column)) for column in self._names}
        length = sum(len(value) for value in columns.values() if isinstance(value, str))
        if length > LONGEST_COLUMNS:
            raise TextError(
                f"{name}: {length:,} characters in the columns that each record repeats, expected at most "
                f"{LONGEST_COLUMNS:,}.",
                hint="Choose columns with --keep.",
            )
        return columns

    def check(self, row: Mapping[str, Any], name: str) -> None:
        """Check the names of the first row.

        Raises:
            TextError: they are the names of columns that records have anyway, or there are too many.
        """
        if self._names is None:
            names = self._others(row)
            if len(names) > MOST_COLUMNS:
                raise TextError(
                    f"{name}: {len(names):,} columns, expected at most {MOST_COLUMNS:,}.",
                    hint="Choose columns with --keep.",
                )
            self._check(names, name)

    def _others(self, row: Mapping[str, Any]) -> list[str]:
        reading = self._reading
        used = {reading.field, reading.context_field, reading.region_field}
        if not self._with_id:
            used.add(reading.id_field)
        return [column for column in row if column not in used]

    def _check(self, names: list[str], where: str) -> None:
        clashing = [name for name in names if name in self._own]
        if clashing:
            rest = ",".join(name for name in names if name not in self._own)
            what = (
                "a column of the records has this name"
                if len(clashing) == 1
                else "columns of the records have these names"
            )
            raise TextError(
                f"{where}: {listed(map(repr, clashing))}: {what}.",
                hint=f"Rename in the input, or leave out: --keep {quoted(rest[:200])}",
            )


def items(
    rows: Iterator[Row], file: str, reading: Reading, keep: bool, columns: CarriedColumns | None
) -> Iterator[Document]:
    """Yield a document for each row. Reading it fails if the row is broken.

    Args:
        file: the name of the input; keep: whether sources keep what is read.

    Raises:
        TextError: the columns of the first row have names that records use.
    """
    groups: set[str] = set()
    for key, together in itertools.groupby(_keyed(rows, reading.group), operator.itemgetter(0)):
        same = (row for _, row in together)
        first = next(same)
        if isinstance(first.values, Exception):
            yield Document(first.name, _refused(first.values))
            continue
        if columns is not None:
            columns.check(first.values, first.name)
        try:
            if reading.group is None:
                yield _item(first, first.values, file, reading, keep, columns)
            elif key in groups:
                raise TextError(
                    f"{first.name}: {reading.group} {shown(key)} again, after rows of others.",
                    hint="Sort the rows, so that those of one text follow each other.",
                )
            else:
                groups.add(key)
                yield _joined(first, same, f"{file}:{reading.group}={key}", file, reading, keep, columns)
        except (TextError, TokenError, OSError) as error:
            yield Document(first.name, _refused(error))


def _keyed(rows: Iterator[Row], group: str | None) -> Iterator[tuple[Any, Row]]:
    """Yield rows, each after what the rows of its document have in common; a broken row belongs to the last."""
    key: Any = None
    for number, row in enumerate(rows):
        if group is None:
            key = number
        elif not isinstance(row.values, Exception):
            key = str(_plain(row.values.get(group)))
        yield key, row


def _joined(
    first: Row, rest: Iterator[Row], name: str, file: str, reading: Reading, keep: bool, columns: CarriedColumns | None
) -> Document:
    """Return the document of rows that are parts of its text, whose columns have a value for each of them.

    Raises:
        TextError: a row has no text, or they are too long together. Exception: a row cannot be read.
    """
    budget = reading.line_limits.budget(name, TextError)
    texts, carried, missing = [], [], 0
    for row in itertools.chain([first], rest):
        if isinstance(row.values, Exception):
            raise row.values
        values = _present(row.values, reading)
        texts.append(_content(row, values, str(reading.field), "--field", ids=False))
        if not texts[-1].encode("utf-8", "replace").strip(SPACES):
            raise TextError(f"{row.name}: no text in field {reading.field!r}.", hint="Leave the row out.")
        budget.charge(row.size)
        carried.append({} if columns is None else columns.of(values, row.name, file))
        missing += texts[-1] == NA and reading.na is None
    text, edges = joined_rows(texts, reading.join, first.name)
    whole = replace(first, size=reading.line_limits.bytes - budget.bytes)
    document = _item(whole, {**cast(Any, first.values), str(reading.field): text}, file, reading, keep, None, name)
    source: Any = document.source
    source.edges, source.by_ends = np.array(edges, np.int64), True
    source.traits.found.na += missing
    return replace(document, columns={column: [one[column] for one in carried] for column in carried[0]})


def _present(values: Mapping[str, Any], reading: Reading) -> Mapping[str, Any]:
    """Return the values of a row, without a text and a context that are missing."""
    fields = {reading.field, reading.context_field}
    if reading.na is None:
        return values
    return {name: None if name in fields and value == reading.na else value for name, value in values.items()}


def _item(
    row: Row,
    values: Mapping[str, Any],
    file: str,
    reading: Reading,
    keep: bool,
    columns: CarriedColumns | None,
    usual_name: str | None = None,
) -> Document:
    values = _present(values, reading)
    content = _content(row, values, str(reading.field), "--field", reading.ids)
    name = _own_name(values, usual_name or row.name, reading)
    context = _context(row, values, content, reading)
    carried = {} if columns is None else columns.of(values, row.name, file)
    source: Any = content
    if isinstance(content, str):
        opener = partial(_text, content, name)
        if reading.cut is not None and reading.region_field is None:
            source = CutSource(name, opener, True, reading.cut, reading.document_limits, keep)
        else:
            source = TextSource(name, opener, True, keep)
        if reading.region_field is not None:
            edges = regions_of_field(content, values.get(reading.region_field), reading.region_field, row.name)
            source.edges = np.array(edges, np.int64)
        source.held, source.traits = row.size, TraitCounter()
        if isinstance(context, str):
            source.traits.add(context.encode("utf-8", "replace"), True)
        if reading.na is None:
            source.traits.found.na = (content == NA) + (values.get(str(reading.context_field)) == NA)
    return Document(name, source, reading.document_limits, context, carried)


def _text(text: str, name: str) -> BinaryIO:
    return io.BytesIO(utf8_bytes(text, name))


def _refused(error: Exception) -> BinaryIO:
    """Return a source that raises an error when it is read; it can be sent to another process."""
    return cast(BinaryIO, TextSource("", partial(_raise, error), at_hand=True))


def _raise(error: Exception) -> BinaryIO:
    raise error


def _content(row: Row, values: Mapping[str, Any], field: str, option: str, ids: bool) -> Any:
    """Return the text or the token ids of a field.

    Raises:
        TextError: the field is missing, or holds something else. TokenError: a text does not hold token ids.
    """
    content, name = values.get(field), row.name
    if ids and row.of_text and isinstance(content, str):
        return ids_of_words(content.encode().split(), name).tolist()
    if isinstance(content, list if ids else str):
        return content
    what = "token ids in a list" if ids else "text"
    fields = listed(repr(other[:SHOWN]) for other in values) or "nothing"
    actual = f"{json_kind(content)} there" if field in values else f"only {fields}"
    raise TextError(f"{name}: expected {what} in field {field!r}, found {actual}.", hint=f"Check {option}.")


def _own_name(values: Mapping[str, Any], name: str, reading: Reading) -> str:
    """Return the name of a document: the value of `id_field`, or the name of its row."""
    own = values.get(reading.id_field) if reading.id_field is not None else None
    if own is None or own == "":
        return name
    own_name = str(_plain(own)) if isinstance(own, str) else json.dumps(own, ensure_ascii=False, default=str)
    if len(own_name) > LONGEST_NAME:
        raise TextError(
            f"{name}: a name of {len(own_name):,} characters in field {reading.id_field!r}, expected at most "
            f"{LONGEST_NAME:,}.",
            hint="Check --id-field.",
        )
    return own_name


def _context(row: Row, values: Mapping[str, Any], content: Any, reading: Reading) -> Context | None:
    """Return what the model reads before the document, with the separator; None if the field is empty."""
    field = reading.context_field
    if field is None or (field in values and values[field] in (None, "", [])):
        return None
    context = _content(row, values, field, "--context-field", reading.ids)
    if reading.ids or context[-1].isspace() or content[:1].isspace():
        return cast(Context, context)
    return cast(Context, context + reading.separator)


def _plain(value: Any) -> str | int | float | bool | None:
    """Return a value as records hold it: lists, objects, dates and the like as text."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def ids_of_words(words: Sequence[bytes], name: str) -> Ids:
    """Return token ids from their decimal numbers.

    Raises:
        TokenError: a word is not a number, or has more than 64 bits.
    """
    ids = np.empty(len(words), np.int64)
    for place, word in enumerate(words):
        try:
            ids[place] = int(word)
        except (ValueError, OverflowError) as error:
            beginning = word[:SHOWN].decode("utf-8", "backslashreplace")
            raise _no_ids(name, repr(beginning) + ("…" if len(word) > SHOWN else "")) from error
    return ids


def _no_ids(name: str, content: str) -> TokenError:
    """Return the error for a document that does not hold token ids."""
    return TokenError(
        f"{name}: not token ids separated by white space (found {content}).", hint="Leave out --ids for text."
    )
