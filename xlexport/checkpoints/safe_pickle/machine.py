"""Run a pickle on a stack machine that makes plain values, containers and records of it, and nothing else.

No name is imported, nothing of the file is called, no attribute is set. The machine counts what its values may take in
memory before it makes them.
"""

from __future__ import annotations

import pickletools
import struct
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from xlexport.checkpoints.safe_pickle.allowlist import is_known
from xlexport.checkpoints.safe_pickle.builders import BUILDERS, check_keys
from xlexport.checkpoints.safe_pickle.opcodes import READERS, Buffer
from xlexport.checkpoints.safe_pickle.records import BadFileError, Name, Record, check_tree

__all__ = ["Machine"]

MOST_OPERATIONS = 12_000_000  # a vocabulary of 800,000 words takes eight million at most
ROOM = 90 << 20  # bytes that a pickle's values may take,
WORD_ROOM, MOST_WORDS = 150, 800_000  # and more for each text, up to a vocabulary's as large as One Billion Word's
STACK_PLACE, LIST_PLACE, WORD_PLACE, PLACE = 18, 9, 50, 90  # bytes: on the stack, in a list, in a dict by text, by else
SEQUENCE, DICT, SET, RECORD = 72, 160, 216, 600
UNSET = object()  # in places of the memo that a pickle has passed over
SHOWN_NAMES = 20


class Machine:
    """Runs one pickle.

    Args:
        builders: how calls of a known name become a plain value, from their arguments; other calls become records.
        persistent: what a reference to something outside the pickle becomes.

    Attributes:
        texts: every text, in the order in which the pickle refers to them.
        names: every name of a class or function in it, and whether it is known.
        has_ended: a pickle was carried out up to its end, be it refused or not.
    """

    def __init__(
        self, builders: Mapping[str, Callable[..., Any]] = BUILDERS, persistent: Callable[[Any], Any] | None = None
    ) -> None:
        self.builders, self.persistent = builders, persistent
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: list[Any] = []
        self.texts: list[str] = []
        self.names: dict[str, bool] = {}
        self.room = ROOM  # what is left of it
        self.words, self.has_ended = 0, False

    def run(self, data: Buffer, start: int, end: int) -> tuple[Any, int]:
        """Return the value of the pickle that starts at `start`, and the position after it.

        Raises:
            BadFileError: the pickle refers to names that are not in the table, is damaged, or made to do harm.
        """
        value, position, problem = None, start, None
        try:
            position = self._carry_out(data, start, end)
            value = self.stack.pop()
            check_tree(value)
        except BadFileError as error:
            problem = error
        except (ValueError, TypeError, LookupError, struct.error):
            problem = BadFileError("its pickle is damaged or cut off")
        if refused := [name for name, known in self.names.items() if not known]:
            problem = _refusal(refused)  # which says more than what went wrong later
        if problem is not None:
            raise problem
        return value, position

    def _carry_out(self, data: Buffer, position: int, end: int) -> int:
        """Carry out the operations up to STOP, and return the position after it."""
        for _ in range(MOST_OPERATIONS):
            if position < end and data[position] not in OPERATIONS:
                raise BadFileError(f"its pickle has an operation at byte {position:,} that no checkpoint needs")
            read, handle = OPERATIONS[data[position]] if position < end else (None, None)
            argument, position = read(data, position + 1) if read else (None, position + 1)
            if position > end:
                raise BadFileError("its pickle is cut off")
            if handle is None:
                self.has_ended = True
                return position
            handle(self, argument)
            if self.room < STACK_PLACE * (len(self.stack) + 2 * len(self.marks)):
                self.charge(self.room + 1)
        raise BadFileError(f"its pickle has more than {MOST_OPERATIONS:,} operations, more than any checkpoint")

    def charge(self, size: int) -> None:
        self.room -= size
        if self.room < 0:
            raise BadFileError("its pickle would take far more memory than any checkpoint does")

    def push(self, value: Any, size: int = 0) -> None:
        self.room -= size  # `run` compares it
        self.stack.append(value)

    def push_value(self, value: Any) -> None:
        self.push(value, sys.getsizeof(value))

    def push_text(self, value: Any) -> None:
        self.words += 1
        self.texts.append(value)
        self.push(value, LIST_PLACE + sys.getsizeof(value) - (WORD_ROOM if self.words <= MOST_WORDS else 0))

    def take(self, count: int | None = None) -> list[Any]:
        """Take the last values from the stack, those since the last mark if there is no count."""
        start = self.marks.pop() if count is None else len(self.stack) - count
        if not 0 <= start <= len(self.stack):
            raise LookupError("too few values")
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def pop(self, _: None) -> None:
        if self.marks and self.marks[-1] == len(self.stack):
            self.marks.pop()
        else:
            self.stack.pop()

    def put(self, index: int) -> None:
        """Remember the last value. Picklers count up; a number far out pays for all places before it."""
        gap = index - len(self.memo)
        if index < 0:
            raise LookupError("below zero")
        self.charge(PLACE + LIST_PLACE * max(gap, 0) if gap else LIST_PLACE)
        self.memo += [UNSET] * (gap + 1)
        self.memo[index] = self.stack[-1]

    def get(self, index: int) -> None:
        value = self.memo[index]
        if value is UNSET or index < 0:
            raise LookupError("nothing there")
        if type(value) is str:
            self.room -= LIST_PLACE
            self.texts.append(value)
        self.stack.append(value)

    def push_sequence(self, kind: type[Any], items: list[Any]) -> None:
        self.push(kind(items), SEQUENCE + LIST_PLACE * len(items))

    def contents(self, kind: type[Any]) -> Any:
        """Return the container on top of the stack, which may be that of a record."""
        target = self.stack[-1]
        if type(target) is Record:
            target.items = kind() if target.items is None else target.items
            target = target.items
        if type(target) is not kind:
            raise TypeError("another kind of container")
        return target

    def append(self, items: list[Any]) -> None:
        self.charge(LIST_PLACE * len(items))
        self.contents(list).extend(items)

    def set_items(self, items: list[Any]) -> None:
        """Set keys to values, which follow each other."""
        keys, values = items[::2], items[1::2]
        self.charge(sum(WORD_PLACE if type(key) is str else PLACE for key in keys))
        check_keys(keys)
        self.contents(dict).update(zip(keys, values, strict=True))

    def add(self, items: list[Any]) -> None:
        self.charge(PLACE * len(items))
        check_keys(items)
        self.contents(set).update(items)

    def push_dict(self, _: None) -> None:
        items = self.take()
        self.push({}, DICT)
        self.set_items(items)

    def push_frozenset(self, _: None) -> None:
        items = self.take()
        self.push(set(), SET)
        self.add(items)
        self.push(frozenset(self.stack.pop()))

    def push_name(self, parts: Iterable[str]) -> None:
        name = ".".join(parts)
        self.charge(RECORD + sys.getsizeof(name))
        self.names[name] = is_known(name)
        self.push(Name(name))

    def inst(self, parts: Iterable[str]) -> None:
        arguments = tuple(self.take())
        self.push_name(parts)
        self.make(self.stack.pop(), arguments)

    def make(self, called: Any, arguments: Any, named: Any = None) -> None:
        """Push the result of `called(*arguments)`: a plain value, or a record of the call."""
        if type(called) is not Name or type(arguments) is not tuple or type(named) not in (dict, type(None)):
            raise BadFileError("its pickle calls something that is neither a class nor a function")
        self.charge(RECORD + LIST_PLACE * len(arguments))
        arguments = (*arguments, named) if named else arguments
        builder = self.builders.get(called.name)
        if builder is None:
            self.stack.append(Record(called.name, arguments))
        else:
            self.charge(sum(map(_size, arguments)))
            self.stack.append(builder(*arguments))

    def build(self, _: None) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if type(state) is dict:
            self.charge(WORD_PLACE * len(state))  # the machine may look through it again and again
            if any(type(name) is str and name.startswith("__") for name in state):
                raise BadFileError("its pickle gives an object attributes that would change its class")
        if type(target) is Record:
            target.state = state
        elif type(target) is not dict:  # no reader needs the attributes of a dict, such as a state dict's _metadata
            raise BadFileError("its pickle gives attributes to something that has none")

    def refer(self, _: None) -> None:
        if self.persistent is None:
            raise BadFileError("its pickle refers to something outside of it")
        self.push(self.persistent(self.stack.pop()), RECORD)


def _size(argument: Any) -> int:
    """Return the bytes of what a builder may make of an argument; it takes dicts as they are."""
    if type(argument) in (list, tuple, set):
        return WORD_PLACE * len(argument)
    return 0 if type(argument) is dict else sys.getsizeof(argument)


def _refusal(names: list[str]) -> BadFileError:
    shown = ", ".join(ascii(name[:60]) for name in names[:SHOWN_NAMES])
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return BadFileError(
        f"holds Python objects that could run code ({shown}{more}); nothing was run",
        "Save plain tensors instead, a state dict for example.",
    )


Handler = Callable[[Machine, Any], object]
HANDLERS: dict[str, Handler | None] = {  # all others are refused
    "STOP": None,
    **dict.fromkeys(("PROTO", "FRAME"), lambda machine, _: None),
    "MARK": lambda machine, _: machine.marks.append(len(machine.stack)),
    "POP": Machine.pop,
    "POP_MARK": lambda machine, _: machine.take(),
    "DUP": lambda machine, _: machine.push(machine.stack[-1]),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), Machine.put),
    "MEMOIZE": lambda machine, _: machine.put(len(machine.memo)),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), Machine.get),
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    "BININT1": Machine.push,  # Python has those numbers already
    **dict.fromkeys(("INT", "LONG", "FLOAT", "BININT", "BININT2", "LONG1", "BINFLOAT"), Machine.push_value),
    **dict.fromkeys(("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"), Machine.push_value),
    **dict.fromkeys(("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE"), Machine.push_text),
    **dict.fromkeys(("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"), Machine.push_text),
    "EMPTY_TUPLE": lambda machine, _: machine.push(()),
    "TUPLE1": lambda machine, _: machine.push_sequence(tuple, machine.take(1)),
    "TUPLE2": lambda machine, _: machine.push_sequence(tuple, machine.take(2)),
    "TUPLE3": lambda machine, _: machine.push_sequence(tuple, machine.take(3)),
    "TUPLE": lambda machine, _: machine.push_sequence(tuple, machine.take()),
    "EMPTY_LIST": lambda machine, _: machine.push([], SEQUENCE),
    "LIST": lambda machine, _: machine.push_sequence(list, machine.take()),
    "APPEND": lambda machine, _: machine.append(machine.take(1)),
    "APPENDS": lambda machine, _: machine.append(machine.take()),
    "EMPTY_DICT": lambda machine, _: machine.push({}, DICT),
    "DICT": Machine.push_dict,
    "SETITEM": lambda machine, _: machine.set_items(machine.take(2)),
    "SETITEMS": lambda machine, _: machine.set_items(machine.take()),
    "EMPTY_SET": lambda machine, _: machine.push(set(), SET),
    "ADDITEMS": lambda machine, _: machine.add(machine.take()),
    "FROZENSET": Machine.push_frozenset,
    "GLOBAL": Machine.push_name,
    "STACK_GLOBAL": lambda machine, _: machine.push_name(machine.take(2)),
    "INST": Machine.inst,
    "OBJ": lambda machine, _: machine.make(machine.stack.pop(machine.marks[-1]), tuple(machine.take())),
    **dict.fromkeys(("REDUCE", "NEWOBJ"), lambda machine, _: machine.make(*machine.take(2))),
    "NEWOBJ_EX": lambda machine, _: machine.make(*machine.take(3)),
    "BUILD": Machine.build,
    "BINPERSID": Machine.refer,
}
OPERATIONS = {  # by code
    ord(known.code): (READERS[known.arg.name] if known.arg else None, HANDLERS[known.name])
    for known in pickletools.opcodes
    if known.name in HANDLERS
}
