"""Run a pickle on a stack machine that makes plain values, containers and records of it, and nothing else.

`pickletools` says how each operation's argument is written and what the operation takes from the stack. No name is
imported, nothing of the file is called, no attribute is set. The machine charges its operations to a budget, and what
its values take in memory before it makes them. No operation does work that grows with more than what it charges.
"""

from __future__ import annotations

import codecs
import mmap
import pickletools
import struct
import sys
from collections.abc import Callable, Mapping
from typing import Any

from xlexport.checkpoints.safe_pickle.records import (
    BUILDERS,
    BadFileError,
    Name,
    Record,
    check_tree,
    is_known,
    known_as,
)
from xlexport.errors import CheckpointError
from xlruntime.limits import Budget, Limits

__all__ = ["LIST_PLACE", "LONGEST_KEY", "PICKLE_LIMITS", "Machine", "read_argument"]

LONGEST_TEXT, LONGEST_LINE = 1 << 20, 1 << 11  # bytes; longer texts are arrays or source text, which no reader needs
PICKLE_LIMITS = Limits(bytes=214_300_000, operations=12_000_000)
"""For the pickles of one file. One Billion Word's vocabulary of 800,000 words takes eight million operations."""
WORD_PART = 0.56  # of the memory is for texts alone,
WORD_ROOM = 150  # so many bytes for each
LIST_PLACE = 9  # bytes of a place in a list or tuple;
STACK_PLACE, WORD_PLACE, PLACE = 18, 50, 90  # on the stack, in a dict by text, by something else
EMPTY, RECORD = {"list": 72, "dict": 160, "set": 216}, 600
KEYS = {int, bool, float, type(None)}
LARGEST_KEY = 1 << 60  # Python's hash of larger numbers is easily made to collide
LONGEST_KEY = 1 << 12  # of texts, which are compared whenever an equal one is looked up; no name or word is as long
BLOCK = 64  # operations that are charged at once: a call for each would take a fifth of the time
NOTHING = object()  # in places of the memo that a pickle has passed over, and what some operations give
SHOWN_NAMES = 20
FRAME = 0x95


def read_argument(data: mmap.mmap, kind: pickletools.ArgumentDescriptor) -> Any:
    """Decode an operation's argument at the file's position by `pickletools`, whose readers take what a file declares.

    So this looks at sizes first: long texts and bytes stay views of the file, and long lines are refused.
    """
    start = data.tell()
    if length := LENGTHS.get(kind.n):
        start, size = start + length.size, length.unpack_from(data, start)[0]
        if size > LONGEST_TEXT:
            data.seek(start + size)
            return memoryview(data)[start : start + size]
    if kind.n == pickletools.UP_TO_NEWLINE:
        longest = LONGEST_TEXT if kind.name in ("stringnl", "unicodestringnl") else LONGEST_LINE
        for _ in range(2 if kind.name == "stringnl_noescape_pair" else 1):
            start = data.find(b"\n", start, start + longest) + 1
            if not start:
                raise ValueError("a line without end")
    return READERS.get(kind.name, kind.reader)(data)


def _python2_text(data: bytes) -> str:
    """Decode a `str` of Python 2, text or bytes: as UTF-8 if that fits, else one character a byte."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")


LENGTHS = {
    pickletools.TAKEN_FROM_ARGUMENT4: struct.Struct("<i"),
    pickletools.TAKEN_FROM_ARGUMENT4U: struct.Struct("<I"),
    pickletools.TAKEN_FROM_ARGUMENT8U: struct.Struct("<Q"),
}
READERS: dict[str, Callable[[Any], Any]] = {  # in place of pickletools', whose texts are ASCII
    "bytearray8": pickletools.read_bytes8,
    "stringnl": lambda file: _python2_text(codecs.escape_decode(pickletools.read_stringnl(file, decode=False))[0]),
    "string1": lambda file: _python2_text(pickletools.read_string1(file).encode("latin-1")),
    "string4": lambda file: _python2_text(pickletools.read_string4(file).encode("latin-1")),
    "stringnl_noescape_pair": lambda file: ".".join(str(file.readline()[:-1], "utf-8") for _ in range(2)),
}


class Machine:
    """Runs the pickles of one file.

    Args:
        budget: what is left for the file.
        builders: how calls of a known name become a plain value, from their arguments; other calls become records.
        persistent: what a reference to something outside the pickle becomes.

    Attributes:
        texts: every text, in the order in which the pickles refer to them.
        names: every name of a class or function in them, and whether it is known.
        has_ended: a pickle was carried out up to its end, be it refused or not.
    """

    def __init__(
        self,
        budget: Budget,
        builders: Mapping[str, Callable[..., Any]] = BUILDERS,
        persistent: Callable[[Any], Any] | None = None,
    ) -> None:
        self.budget = budget
        self.builders, self.persistent = builders, persistent
        self.texts: list[Any] = []
        self.names: dict[str, bool] = {}
        self.words = int(budget.bytes * WORD_PART) // WORD_ROOM  # for which there is room of their own
        self.has_ended = False
        budget.bytes -= self.words * WORD_ROOM

    def run(self, data: mmap.mmap, start: int | None = None, end: int | None = None) -> Any:
        """Return the value of the pickle from `start` to `end`, by default from the file's position to its end.

        The position is behind it then.

        Raises:
            BadFileError: the pickle refers to names that are not in the table, is damaged, or made to do harm.
            CheckpointError: it would take more than a limit.
        """
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: list[Any] = []
        try:
            data.seek(data.tell() if start is None else start)
            value = self._carry_out(data, len(data) if end is None else end)
            check_tree(value, self.budget)
            return value
        except CheckpointError:
            raise
        except (ValueError, TypeError, LookupError, OverflowError, struct.error) as error:
            raise BadFileError("its pickle is damaged or cut off") from error
        finally:
            self.stack, self.memo = [], []  # builders may refer to this machine, and would keep large values
            self._refuse_names()  # which says more than what went wrong later

    def _refuse_names(self) -> None:
        if foreign := [ascii(name[:60]) for name, known in self.names.items() if not known]:
            more = f" and {len(foreign) - SHOWN_NAMES} more" if len(foreign) > SHOWN_NAMES else ""
            raise BadFileError(
                f"holds Python objects that could run code ({', '.join(foreign[:SHOWN_NAMES])}{more}); nothing was run",
                "Save plain tensors instead, a state dict for example.",
            )

    def _carry_out(self, data: mmap.mmap, end: int) -> Any:
        """Carry out the operations up to STOP, and return what that finds on the stack."""
        budgeted = 0
        while True:
            if not budgeted:
                self.budget.charge(operations=BLOCK)
                budgeted = BLOCK
            budgeted -= 1
            code = data.read_byte()
            if code not in OPERATIONS:
                raise BadFileError(f"its pickle has an operation at byte {data.tell() - 1:,} that no checkpoint needs")
            kind, takes, is_marked, handle = OPERATIONS[code]
            argument: Any = read_argument(data, kind) if kind else None
            if data.tell() + (code == FRAME and argument) > end:  # a frame says how many bytes follow
                raise ValueError("the pickle is cut off")
            items = self._take(takes, is_marked) if takes or is_marked else []
            if handle is None:
                self.has_ended = True
                return items[0]
            value = handle(self, argument, items)
            if value is not NOTHING:
                self.stack.append(value)
            if self.budget.bytes < (size := STACK_PLACE * (len(self.stack) + 2 * len(self.marks))):
                self.charge(size)

    def _take(self, count: int, is_marked: bool) -> list[Any]:
        """Take the values since the last mark from the stack if `is_marked`, and `count` before those."""
        start = (self.marks.pop() if is_marked else len(self.stack)) - count
        if start < (self.marks[-1] if self.marks else 0):
            raise LookupError("too few values")
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def charge(self, size: int) -> None:
        """Count bytes before they are taken."""
        budget = self.budget
        budget.bytes -= size
        if budget.bytes < 0:
            budget.charge(operations=0)  # which says so

    def value(self, value: Any) -> Any:
        """Count a number, bytes or a text, for which there is room of its own."""
        size = sys.getsizeof(value)
        if type(value) is str:
            size += LIST_PLACE - (WORD_ROOM if self.words > 0 else 0)
            self.words -= 1
            self.texts.append(value)
        self.charge(size)
        return value

    def mark(self) -> Any:
        """Mark the place on the stack at which a container's items begin."""
        self.marks.append(len(self.stack))
        return NOTHING

    def put(self, index: int, value: Any) -> Any:
        """Remember a value. Picklers count up; a number far out pays for all places before it."""
        gap = index - len(self.memo)
        if index < 0:
            raise LookupError("below zero")
        self.charge(PLACE + LIST_PLACE * max(gap, 0) if gap else LIST_PLACE)
        self.memo += [NOTHING] * (gap + 1)
        self.memo[index] = value
        return value

    def get(self, index: int) -> Any:
        """Return a remembered value."""
        value = self.memo[index]
        if value is NOTHING or index < 0:
            raise LookupError("nothing there")
        if type(value) is str:
            self.charge(LIST_PLACE)
            self.texts.append(value)
        return value

    def new(self, kind: type[Any], items: Any) -> Any:
        """Make a list, a dict of keys and values that follow each other, or a set."""
        if type(items) not in (list, tuple, set):
            raise TypeError("not elements")
        self.charge(EMPTY[kind.__name__])
        return self.fill(kind, kind(), *items)

    def fill(self, kind: type[Any], target: Any, *items: Any) -> Any:
        """Put items into a container of this kind, or into that of a record."""
        contents = target
        if type(target) is Record:
            contents = target.items = kind() if target.items is None else target.items
        if type(contents) is not kind:
            raise TypeError("another kind of container")
        if kind is list:
            self.charge(LIST_PLACE * len(items))
            contents.extend(items)
            return target
        keys = items[::2] if kind is dict else items
        self.charge(sum(WORD_PLACE if kind is dict and type(key) is str else PLACE for key in keys))
        if not all(map(_is_key, keys)):
            raise BadFileError("its pickle has a dictionary or set of other things than short texts and numbers")
        contents.update(zip(keys, items[1::2], strict=True) if kind is dict else keys)
        return target

    def name(self, name: str) -> Name:
        """Return a class or function as its name; nothing is imported."""
        self.charge(RECORD + sys.getsizeof(name))
        self.names[name] = is_known(name)
        return Name(name)

    def call(self, called: Any, arguments: Any) -> Any:
        """Return the result of `called(*arguments)`: a plain value, or a record of the call."""
        if type(called) is not Name or type(arguments) is not tuple:
            raise BadFileError("its pickle calls something that is neither a class nor a function")
        self.charge(RECORD + LIST_PLACE * len(arguments))
        builder = self.builders.get(known_as(called.name))
        if builder is None:
            return Record(called.name, arguments)
        return builder(self, *arguments)

    def build(self, target: Any, state: Any) -> Any:
        """Keep the attributes that the pickle gives to an object."""
        if type(state) is dict:
            self.charge(WORD_PLACE * len(state))  # the machine may look through it again and again
            if any(type(name) is str and name.startswith("__") for name in state):
                raise BadFileError("its pickle gives an object attributes that would change its class")
        if type(target) is Record:
            target.state = state
        elif type(target) is not dict:  # no reader needs the attributes of a dict, such as a state dict's _metadata
            raise BadFileError("its pickle gives attributes to something that has none")
        return target

    def refer(self, reference: Any) -> Any:
        """Return what a persistent reference names, such as a storage of an archive."""
        if not self.persistent:
            raise BadFileError("its pickle refers to something outside of it")
        self.charge(RECORD)
        return self.persistent(reference)


def _is_key(key: Any) -> bool:
    """Return whether Python hashes and compares a key in time and depth that do not depend on who chose it."""
    if type(key) is tuple:
        return len(key) == 2 and type(key[0]) is type(key[1]) is str and all(map(_is_key, key))  # of byte-pair merges
    if type(key) is str or type(key) is bytes:
        return len(key) <= LONGEST_KEY
    return type(key) in KEYS and (type(key) is not int or -LARGEST_KEY < key < LARGEST_KEY)


Handler = Callable[[Machine, Any, list[Any]], Any]  # from its argument and what it takes from the stack
HANDLERS: dict[tuple[str, ...], Handler | None] = {  # all other operations are refused
    ("STOP",): None,
    ("PROTO", "FRAME", "POP"): lambda machine, _, items: NOTHING,
    ("MARK",): lambda machine, _, items: machine.mark(),
    ("PUT", "BINPUT", "LONG_BINPUT"): lambda machine, index, _: machine.put(index, machine.stack.pop()),
    ("MEMOIZE",): lambda machine, _, items: machine.put(len(machine.memo), items[0]),
    ("GET", "BINGET", "LONG_BINGET"): lambda machine, index, _: machine.get(index),
    ("NONE",): lambda machine, _, items: None,
    ("NEWTRUE",): lambda machine, _, items: True,
    ("NEWFALSE",): lambda machine, _, items: False,
    ("INT", "LONG", "FLOAT", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINBYTES", "SHORT_BINBYTES",
     "BINBYTES8", "BYTEARRAY8", "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE",
     "BINUNICODE8"): lambda machine, value, _: machine.value(value),
    ("EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
     "TUPLE"): lambda machine, _, items: tuple(machine.new(list, items)),
    ("EMPTY_LIST", "LIST"): lambda machine, _, items: machine.new(list, items),
    ("EMPTY_DICT", "DICT"): lambda machine, _, items: machine.new(dict, items),
    ("EMPTY_SET",): lambda machine, _, items: machine.new(set, items),
    ("FROZENSET",): lambda machine, _, items: frozenset(machine.new(set, items)),
    ("APPEND", "APPENDS"): lambda machine, _, items: machine.fill(list, *items),
    ("SETITEM", "SETITEMS"): lambda machine, _, items: machine.fill(dict, *items),
    ("ADDITEMS",): lambda machine, _, items: machine.fill(set, *items),
    ("GLOBAL",): lambda machine, name, _: machine.name(name),
    ("STACK_GLOBAL",): lambda machine, _, items: machine.name(".".join(items)),
    ("INST",): lambda machine, name, items: machine.call(machine.name(name), tuple(items)),
    ("OBJ",): lambda machine, _, items: machine.call(items[0], tuple(items[1:])),
    ("REDUCE", "NEWOBJ"): lambda machine, _, items: machine.call(*items),
    ("BUILD",): lambda machine, _, items: machine.build(*items),
    ("BINPERSID",): lambda machine, _, items: machine.refer(items[0]),
}  # fmt: skip


def _takes(operation: pickletools.OpcodeInfo) -> tuple[int, bool]:
    """Return how many values an operation takes from the stack, and whether those since the last mark before them."""
    operands = operation.stack_before
    is_marked = pickletools.markobject in operands
    return operands.index(pickletools.markobject) if is_marked else len(operands), is_marked


OPERATIONS = {
    ord(operation.code): (operation.arg, *_takes(operation), handler)
    for names, handler in HANDLERS.items()
    for operation in pickletools.opcodes
    if operation.name in names
}
