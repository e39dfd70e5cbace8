"""The restricted reader: what a pickle describes, with inert records in place of its objects.

Nothing of a pickle is imported or called (`machine.py`). A name that is not in the table of `known_names.py` is
refused, all such names of a file in one error. What comes out is a finite tree: it does not contain itself, and it is
neither deep nor, with what is shared counted at every place, beyond measure.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from xlexport.checkpoints.safe_pickle.machine import Machine, check_keys
from xlexport.checkpoints.safe_pickle.opcodes import BadFileError
from xlexport.checkpoints.safe_pickle.records import Record
from xlexport.errors import CheckpointError, CheckpointNotFoundError

__all__ = ["BUILDERS", "Record", "map_file", "read_pickle"]


def read_pickle(path: Path) -> Any:
    """Read a file that `pickle.dump` wrote, running nothing of it.

    `OrderedDict`, `Counter` and `defaultdict` come out as dicts, numpy's single numbers as plain ones, all other
    objects, numpy's arrays too, as a `Record`, texts and byte strings of more than a mebibyte as views of the file. A
    Python 2 `str` is read as UTF-8, or where that does not fit as Latin-1.

    Raises:
        CheckpointNotFoundError: no such file.
        CheckpointError: damaged, or with objects that could run code; all of them are named.
    """
    data = map_file(path)
    try:
        value, end = Machine(BUILDERS).run(data, 0, len(data))
        if end != len(data):
            raise BadFileError(f"{len(data) - end:,} bytes follow the pickle in it")
        return value
    except BadFileError as error:
        raise CheckpointError(f"{path}: {error}. {error.repair}") from error


def map_file(path: Path) -> mmap.mmap:
    """A private, writable mapping of a file: what is written to it stays in memory.

    Raises:
        CheckpointNotFoundError: no such file.
        CheckpointError: not a file, empty, or not readable.
    """
    try:
        if not path.is_file():  # opening a pipe or a device could wait forever
            if path.is_symlink() or path.exists():
                raise CheckpointError(f"{path}: not a file, or a link that leads to none. Check the path.")
            raise CheckpointNotFoundError(f"{path}: no such file. Check the path.")
        with path.open("rb") as file:
            if not file.seek(0, 2):
                raise CheckpointError(f"{path}: the file is empty. Copy or save it again.")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}). Check its permissions.") from error


# What the calls of a few names come to. A TypeError or ValueError in one says that the pickle is damaged.


def _dict(items: Any = ()) -> dict[Any, Any]:
    if type(items) is dict:
        return items
    check_keys(key for key, _ in items)
    return dict(items)


def _default_dict(_factory: Any = None, items: Any = ()) -> dict[Any, Any]:
    return _dict(items)


def _set(items: Any = ()) -> set[Any]:
    if type(items) not in (list, tuple, set):
        raise TypeError("not elements")
    check_keys(items)
    return set(items)


def _frozenset(items: Any = ()) -> frozenset[Any]:
    return frozenset(_set(items))


def _encode(text: Any, encoding: Any = "latin1") -> Any:
    """How Python 3 writes bytes for Python 2."""
    if type(text) is memoryview:
        return Record("_codecs.encode", (text, encoding))
    if type(text) is not str or encoding not in ("latin1", "latin-1"):
        raise ValueError("not how bytes are written")
    return text.encode("latin-1")


def _bytes(data: Any = b"", encoding: Any = None) -> bytes:
    if type(data) is str:
        return data.encode("latin-1")
    if type(data) is not bytes:
        raise TypeError("not bytes")
    return data


def _size(sizes: Any = ()) -> tuple[Any, ...]:
    if type(sizes) not in (list, tuple):
        raise TypeError("not a size")
    return tuple(sizes)


def _reconstructed(made: Any, _base: Any, state: Any = None) -> Record:
    """How protocols 0 and 1 write any object."""
    if not isinstance(made, Record):
        raise TypeError("not a class")
    return Record(made.name, () if state is None else (state,))


NUMPY_NUMBERS = {"f8": "d", "f4": "f", "f2": "e", "i8": "q", "i4": "i", "i2": "h", "i1": "b", "b1": "?"}
NUMPY_NUMBERS |= {"u8": "Q", "u4": "I", "u2": "H", "u1": "B"}


def _numpy_number(dtype: Any, data: Any) -> Any:
    kind = dtype.arguments[0] if isinstance(dtype, Record) and dtype.arguments else None
    form = NUMPY_NUMBERS.get(kind) if type(kind) is str else None
    if form is None or type(data) is not bytes or len(data) != struct.calcsize(form):
        return Record("numpy.core.multiarray.scalar", (dtype, data))
    return struct.unpack("<" + form, data)[0]


BUILDERS: Mapping[str, Callable[..., Any]] = {
    "collections.OrderedDict": _dict,
    "collections.Counter": _dict,
    "collections.defaultdict": _default_dict,
    **dict.fromkeys(["builtins.dict", "__builtin__.dict"], _dict),
    **dict.fromkeys(["builtins.set", "__builtin__.set"], _set),
    **dict.fromkeys(["builtins.frozenset", "__builtin__.frozenset"], _frozenset),
    **dict.fromkeys(["builtins.bytearray", "__builtin__.bytearray", "builtins.bytes", "__builtin__.bytes"], _bytes),
    "_codecs.encode": _encode,
    "torch.Size": _size,
    **dict.fromkeys(["copyreg._reconstructor", "copy_reg._reconstructor"], _reconstructed),
    **dict.fromkeys(["numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar"], _numpy_number),
}
