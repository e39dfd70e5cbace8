"""Plain values in place of the calls of a few known functions; a TypeError or ValueError says that they are damaged."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from xlexport.checkpoints.safe_pickle.records import BadFileError, Record

__all__ = ["BUILDERS", "check_keys"]

KEYS = {str, bytes, int, bool, float, type(None)}
LARGEST_KEY = 1 << 60  # Python's hash of larger numbers is easily made to collide
NUMPY_NUMBERS = dict(zip("f8 f4 f2 i8 i4 i2 i1 u8 u4 u2 u1 b1".split(), "dfeqihbQIHB?", strict=True))  # noqa: SIM905


def check_keys(keys: Iterable[Any]) -> None:
    """Refuse keys that Python does not hash in time and depth that do not depend on who chose them."""
    for key in keys:
        is_pair = type(key) is tuple and len(key) == 2 and type(key[0]) is type(key[1]) is str  # of byte-pair merges
        if not is_pair and (type(key) not in KEYS or (type(key) is int and not -LARGEST_KEY < key < LARGEST_KEY)):
            raise BadFileError("its pickle has a dictionary or set of other things than texts and numbers")


def _dict(items: Any = ()) -> dict[Any, Any]:
    if type(items) is dict:
        return items
    check_keys(key for key, _ in items)
    return dict(items)


def _elements(items: Any = ()) -> Any:
    if type(items) not in (list, tuple, set):
        raise TypeError("not elements")
    return items


def _set(items: Any = ()) -> set[Any]:
    check_keys(_elements(items))
    return set(items)


def _encode(text: Any = b"", encoding: Any = "latin1") -> Any:
    """Make bytes as Python 3 writes them for Python 2; long ones stay a view of the file, in a record."""
    if type(text) is memoryview:
        return Record("_codecs.encode", (text, encoding))
    if type(text) not in (bytes, str) or encoding not in ("latin1", "latin-1"):
        raise ValueError("not how bytes are written")
    return text.encode("latin-1") if type(text) is str else text


def _reconstructed(made: Any, _base: Any, state: Any = None) -> Record:
    """Make the record of any object as protocols 0 and 1 write it."""
    if not isinstance(made, Record):
        raise TypeError("not a class")
    return Record(made.name, () if state is None else (state,))


def _numpy_number(dtype: Any, data: Any) -> Any:
    kind = dtype.arguments[0] if isinstance(dtype, Record) and dtype.arguments else None
    form = NUMPY_NUMBERS.get(kind) if type(kind) is str else None
    if form is None or type(data) is not bytes or len(data) != struct.calcsize(form):
        return Record("numpy.core.multiarray.scalar", (dtype, data))
    return struct.unpack("<" + form, data)[0]


BUILDERS: Mapping[str, Callable[..., Any]] = {
    "collections.OrderedDict": _dict,
    "collections.Counter": _dict,
    "collections.defaultdict": lambda _factory=None, items=(): _dict(items),
    "torch.Size": lambda sizes=(): tuple(_elements(sizes)),
    **dict.fromkeys(("builtins.dict", "__builtin__.dict"), _dict),
    **dict.fromkeys(("builtins.set", "__builtin__.set"), _set),
    **dict.fromkeys(("builtins.frozenset", "__builtin__.frozenset"), lambda items=(): frozenset(_set(items))),
    "_codecs.encode": _encode,
    **dict.fromkeys(("builtins.bytes", "__builtin__.bytes", "builtins.bytearray", "__builtin__.bytearray"), _encode),
    **dict.fromkeys(("copyreg._reconstructor", "copy_reg._reconstructor"), _reconstructed),
    **dict.fromkeys(("numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar"), _numpy_number),
}
