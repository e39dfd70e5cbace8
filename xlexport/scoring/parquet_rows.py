"""Rows of Parquet files, read by pyarrow, which is imported only for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from xlexport.errors import MissingDependencyError
from xlexport.scoring.inputs import Input, Reading
from xlexport.scoring.rows import MOST_COLUMNS, Row, check_header, too_long
from xlruntime import TextError
from xlruntime.messages import first_line

__all__ = ["parquet_rows"]

ROWS_AT_ONCE = 64
LARGEST_GROUP = 1 << 30  # bytes of a row group, unpacked
LARGEST_FOOTER = 64 << 20  # bytes of a text in the description of the file


def parquet_rows(given: Input, reading: Reading, opener: Callable[[], BinaryIO] | None = None) -> Iterator[Row]:
    """Yield the rows of a file, numbered from 1.

    Args:
        opener: opens the file; None: it is opened by its path.

    Raises:
        MissingDependencyError: pyarrow is not installed.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingDependencyError(
            f"{given.name}: Parquet needs the pyarrow package, which is not installed.", hint="pip install pyarrow"
        ) from error
    number = 0
    limits = {"thrift_string_size_limit": LARGEST_FOOTER, "thrift_container_size_limit": LARGEST_FOOTER}
    try:
        # Python opens the file, because its errors name it as all others are named.
        with (
            (opener or partial(Path(given.path or given.name).open, "rb"))() as raw,
            parquet.ParquetFile(raw, **limits) as file,
        ):
            _check_groups(file.metadata, given.name)
            schema = file.schema_arrow
            check_header(schema.names, given.name, reading)
            wanted = {
                reading.field,
                reading.context_field,
                reading.id_field,
                reading.region_field,
                *(reading.keep or ()),
            }
            columns = None if reading.keep is None else [name for name in schema.names if name in wanted]
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=columns, use_threads=False):
                for place in range(batch.num_rows):
                    number += 1
                    yield _row(batch, place, f"{given.name}:{number}", reading)
    except TextError as error:
        yield Row(given.name, error)
    except OSError as error:
        if isinstance(error, pyarrow.ArrowException) or error.errno is None:
            yield Row(given.name, _unreadable(given.name, number, error))
        else:
            yield Row(given.name, error)
    except pyarrow.ArrowException as error:
        yield Row(given.name, _unreadable(given.name, number, error))


def _check_groups(metadata: Any, name: str) -> None:
    """Refuse a file whose own description exceeds the limits."""
    if metadata.num_columns > MOST_COLUMNS:
        raise TextError(f"{name}: {metadata.num_columns:,} columns, expected at most {MOST_COLUMNS:,}.")
    largest = max((metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups)), default=0)
    if largest > LARGEST_GROUP:
        raise TextError(
            f"{name}: a row group of {largest:,} bytes, expected at most {LARGEST_GROUP:,}.",
            hint="Write the file in smaller row groups, or as JSON lines.",
        )


def _row(batch: Any, place: int, name: str, reading: Reading) -> Row:
    values = {}
    size = 0
    for column, array in zip(batch.schema.names, batch.columns, strict=True):
        values[column] = value = array[place].as_py()
        size += len(value) if isinstance(value, str | bytes) else 8
    if size > reading.line_limits.bytes:
        return Row(name, too_long(name, reading.line_limits, "row"))
    return Row(name, values, size)


def _unreadable(name: str, number: int, error: Exception) -> TextError:
    where = f" after row {number:,}" if number else ""
    return TextError(
        f"{name}: not Parquet that can be read{where} ({first_line(error)[:200]}).",
        hint="Write the file again, or as CSV.",
    )
