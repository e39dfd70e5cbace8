"""Plain values in place of the calls of a few known functions; a TypeError or ValueError says that they are damaged.

A builder gets the machine, which counts what is made, and the arguments of the call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from xlexport.checkpoints.safe_pickle.records import Record

__all__ = ["BUILDERS"]

NUMPY_NUMBERS = "f8 f4 f2 i8 i4 i2 i1 u8 u4 u2 u1 b1".split()  # noqa: SIM905 -- a table


def _dict(machine: Any, items: Any = ()) -> Any:
    if type(items) is dict:
        return items
    return machine.new(dict, [part for key, value in items for part in (key, value)])


def _bytes(machine: Any, text: Any = b"", encoding: Any = "latin1") -> Any:
    """Make bytes as Python 3 writes them for Python 2; long ones stay a view of the file, in a record."""
    if type(text) is memoryview:
        return Record("_codecs.encode", (text, encoding))
    if type(text) not in (bytes, str) or encoding not in ("latin1", "latin-1"):
        raise ValueError("not how bytes are written")
    return machine.value(text.encode("latin-1") if type(text) is str else text)


def _reconstructed(_machine: Any, made: Any, _base: Any, state: Any = None) -> Record:
    """Make the record of any object as protocols 0 and 1 write it."""
    if not isinstance(made, Record):
        raise TypeError("not a class")
    return Record(made.name, () if state is None else (state,))


def _numpy_number(_machine: Any, dtype: Any, data: Any) -> Any:
    kind = dtype.arguments[0] if isinstance(dtype, Record) and dtype.arguments else None
    if kind not in NUMPY_NUMBERS or type(data) is not bytes or len(data) != int(kind[1:]):
        return Record("numpy.core.multiarray.scalar", (dtype, data))
    return np.frombuffer(data, "<" + kind)[0].item()


BUILDERS: Mapping[str, Callable[..., Any]] = {
    "collections.OrderedDict": _dict,
    "collections.Counter": _dict,
    "collections.defaultdict": lambda machine, _factory=None, items=(): _dict(machine, items),
    "torch.Size": lambda machine, sizes=(): tuple(machine.new(list, sizes)),
    "builtins.dict": _dict,
    "builtins.set": lambda machine, items=(): machine.new(set, items),
    "builtins.frozenset": lambda machine, items=(): frozenset(machine.new(set, items)),
    "builtins.bytes": _bytes,
    "builtins.bytearray": _bytes,
    "_codecs.encode": _bytes,
    "copyreg._reconstructor": _reconstructed,
    "numpy.core.multiarray.scalar": _numpy_number,
}
