"""A stack machine that runs a pickle and makes plain values, containers and records of it, nothing else.

No name is imported, nothing of the file is called, no attribute is set. What the values may take in memory is counted
before they are made.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from xlexport.checkpoints.safe_pickle.allowlist import is_known
from xlexport.checkpoints.safe_pickle.opcodes import BadFileError, Buffer, operations
from xlexport.checkpoints.safe_pickle.records import Name, Record, check_tree

__all__ = ["Machine", "check_keys"]

ROOM = 90 << 20  # bytes that a pickle's values may take,
WORD_ROOM, MOST_WORDS = 150, 800_000  # and more for each text, up to a vocabulary's as large as One Billion Word's
STACK_PLACE, LIST_PLACE, WORD_PLACE, PLACE = 18, 9, 50, 90  # bytes: on the stack, in a list, in a dict by text, by else
NUMBER, TUPLE, LIST, DICT, SET, RECORD = 32, 56, 72, 160, 216, 600
LARGEST_KEY = 1 << 60  # Python's hash of larger numbers is easily made to collide
KEYS = {str, bytes, int, bool, float, type(None)}
SHOWN_NAMES = 20

NUMBERS = ["INT", "LONG", "FLOAT", "BININT", "BININT2", "LONG1", "LONG4", "BINFLOAT"]
TEXTS = ["STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"]
BYTES = ["BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"]


class Machine:
    """Runs one pickle.

    Args:
        builders: how the call of a known name becomes a plain value, from the call's arguments; others become records.
        persistent: what a reference to something outside the pickle stands for.
    """

    def __init__(
        self,
        builders: Mapping[str, Callable[..., Any]],
        persistent: Callable[[Any], Any] | None = None,
    ) -> None:
        self.builders = builders
        self.persistent = persistent
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: list[Any] = []
        self.sparse_memo: dict[int, Any] = {}
        self.refused: dict[str, None] = {}
        self.room = ROOM  # what is left of it
        self.words = 0
        self.handlers: dict[str, Callable[[Any], None]] = {
            **dict.fromkeys(NUMBERS, self._number),
            "BININT1": self.stack.append,  # Python has those already
            **dict.fromkeys(TEXTS, self._text),
            **dict.fromkeys(BYTES, self._bytes),
            **dict.fromkeys(["PROTO", "FRAME"], lambda argument: None),
            **dict.fromkeys(["PUT", "BINPUT", "LONG_BINPUT"], self._put),
            **dict.fromkeys(["GET", "BINGET", "LONG_BINGET"], self._get),
            **dict.fromkeys(["REDUCE", "NEWOBJ"], self._reduce),
        }
        for name in dir(self):
            if name.startswith("on_"):
                self.handlers[name.removeprefix("on_").upper()] = getattr(self, name)

    def run(self, data: Buffer, start: int, end: int) -> tuple[Any, int]:
        """The value of the pickle that starts at `start`, and the position after it.

        Raises:
            BadFileError: it refers to names that are not in the table, is damaged, or made to do harm.
        """
        value = None
        try:
            for name, argument in operations(data, start, end):
                if name == "STOP":
                    value, end = self.stack.pop(), argument
                    break
                if name not in self.handlers:
                    raise BadFileError(f"its pickle uses {name}, which no checkpoint needs")
                self.handlers[name](argument)
                if self.room < STACK_PLACE * (len(self.stack) + 2 * len(self.marks)):
                    raise _too_large()
            if not self.refused:
                check_tree(value)
        except (ValueError, TypeError, LookupError) as error:
            if not self.refused:  # else their names say more than what went wrong later
                raise error if isinstance(error, BadFileError) else _damaged() from error
        if self.refused:
            raise _refusal(list(self.refused))
        return value, end

    def _charge(self, size: int) -> None:
        self.room -= size
        if self.room < 0:
            raise _too_large()

    # Values and containers.

    def _number(self, value: Any) -> None:
        self.room -= NUMBER
        self.stack.append(value)

    def _text(self, value: Any) -> None:
        self.words += 1
        self.room -= sys.getsizeof(value) - (WORD_ROOM if self.words <= MOST_WORDS else 0)
        self.stack.append(value)

    def _bytes(self, value: Any) -> None:
        self.room -= sys.getsizeof(value)
        self.stack.append(value)

    def _container(self, value: Any, size: int) -> None:
        self.room -= size + LIST_PLACE * len(value)
        self.stack.append(value)

    def on_none(self, _: None) -> None:
        self.stack.append(None)

    def on_newtrue(self, _: None) -> None:
        self.stack.append(True)

    def on_newfalse(self, _: None) -> None:
        self.stack.append(False)

    def on_empty_list(self, _: None) -> None:
        self._container([], LIST)

    def on_empty_dict(self, _: None) -> None:
        self._container({}, DICT)

    def on_empty_set(self, _: None) -> None:
        self._container(set(), SET)

    def on_empty_tuple(self, _: None) -> None:
        self.stack.append(())

    def on_list(self, _: None) -> None:
        self._container(self._marked(), LIST)

    def on_tuple(self, _: None) -> None:
        self._container(tuple(self._marked()), TUPLE)

    def on_tuple1(self, _: None) -> None:
        self._container(tuple(self._last(1)), TUPLE)

    def on_tuple2(self, _: None) -> None:
        self._container(tuple(self._last(2)), TUPLE)

    def on_tuple3(self, _: None) -> None:
        self._container(tuple(self._last(3)), TUPLE)

    def on_dict(self, _: None) -> None:
        items = self._marked()
        self._container({}, DICT)
        self._set_items(items)

    def on_frozenset(self, _: None) -> None:
        items = self._marked()
        self._charge(SET + PLACE * len(items))
        check_keys(items)
        self.stack.append(frozenset(items))

    def on_append(self, _: None) -> None:
        self._append(self._last(1))

    def on_appends(self, _: None) -> None:
        self._append(self._marked())

    def on_setitem(self, _: None) -> None:
        self._set_items(self._last(2))

    def on_setitems(self, _: None) -> None:
        self._set_items(self._marked())

    def on_additems(self, _: None) -> None:
        items = self._marked()
        self._charge(PLACE * len(items))
        if type(self.stack[-1]) is not set:
            raise _damaged()
        check_keys(items)
        self.stack[-1].update(items)

    def _append(self, items: list[Any]) -> None:
        self._charge(LIST_PLACE * len(items))
        target = self.stack[-1]
        if type(target) is Record:
            record, target = target, [] if target.items is None else target.items
            record.items = target
        if type(target) is not list:
            raise _damaged()
        target.extend(items)

    def _set_items(self, items: list[Any]) -> None:
        """Keys and values in turn."""
        self._charge(sum(WORD_PLACE if type(key) is str else PLACE for key in items[::2]))
        target = self.stack[-1]
        if type(target) is Record:
            record, target = target, {} if target.items is None else target.items
            record.items = target
        if type(target) is not dict or len(items) % 2:
            raise _damaged()
        check_keys(items[::2])
        target.update(zip(items[::2], items[1::2], strict=True))

    # The stack and the memo.

    def _marked(self) -> list[Any]:
        return self._last(len(self.stack) - self.marks.pop())

    def _last(self, count: int) -> list[Any]:
        start = len(self.stack) - count
        if start < 0 or count < 0:
            raise _damaged()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def on_mark(self, _: None) -> None:
        self.marks.append(len(self.stack))

    def on_pop(self, _: None) -> None:
        if self.marks and self.marks[-1] == len(self.stack):
            self.marks.pop()
        else:
            self.stack.pop()

    def on_pop_mark(self, _: None) -> None:
        self._marked()

    def on_dup(self, _: None) -> None:
        self.stack.append(self.stack[-1])

    def on_memoize(self, _: None) -> None:
        self._put(len(self.memo))

    def _put(self, index: int) -> None:
        # Picklers count up from 0 or 1, so the memo can be a list. Other numbers must not decide how long it is.
        if index == 1 and not self.memo:
            self.memo.append(None)
        self.room -= LIST_PLACE
        if index == len(self.memo):
            self.memo.append(self.stack[-1])
        elif 0 <= index < len(self.memo):
            self.memo[index] = self.stack[-1]
        else:
            self.room -= PLACE + NUMBER
            self.sparse_memo[index] = self.stack[-1]

    def _get(self, index: int) -> None:
        self.stack.append(self.memo[index] if 0 <= index < len(self.memo) else self.sparse_memo[index])

    # Names, and what stands for calls of them.

    def on_global(self, name: tuple[str, str]) -> None:
        full = ".".join(name)
        self._charge(RECORD + sys.getsizeof(full))
        if not is_known(full):
            self.refused[full] = None
        self.stack.append(Name(full))

    def on_stack_global(self, _: None) -> None:
        module, name = self._last(2)
        self.on_global((module, name))

    def on_inst(self, name: tuple[str, str]) -> None:
        arguments = tuple(self._marked())
        self.on_global(name)
        self._make(self.stack.pop(), arguments)

    def on_obj(self, _: None) -> None:
        called, *arguments = self._marked()
        self._make(called, tuple(arguments))

    def on_newobj_ex(self, _: None) -> None:
        called, arguments, named = self._last(3)
        if type(named) is not dict:  # its truth would be a tensor's, which may have none
            raise _damaged()
        if named and type(arguments) is tuple:
            self._charge(LIST_PLACE * len(arguments))
            arguments = (*arguments, named)
        self._make(called, arguments)

    def _reduce(self, _: None) -> None:
        self._make(*self._last(2))

    def _make(self, called: Any, arguments: Any) -> None:
        """Push what stands for `called(*arguments)`: a plain value, or a record of it."""
        if type(called) is not Name or type(arguments) is not tuple:
            raise BadFileError("its pickle calls something that is neither a class nor a function")
        self._charge(RECORD)
        builder = self.builders.get(called.name)
        if builder is None:
            self.stack.append(Record(called.name, arguments))
            return
        self._charge(sum(map(_size, arguments)))
        self.stack.append(builder(*arguments))

    def on_build(self, _: None) -> None:
        state = self.stack.pop()
        target = self.stack[-1]
        if type(state) is dict:
            self._charge(WORD_PLACE * len(state))  # what may be looked through again and again
            if any(type(name) is str and name.startswith("__") for name in state):
                raise BadFileError("its pickle gives an object attributes that would change its class")
        if type(target) is Record:
            target.state = state
        elif type(target) is not dict:  # no reader needs the attributes of a dict, such as a state dict's _metadata
            raise BadFileError("its pickle gives attributes to something that has none")

    def on_binpersid(self, _: None) -> None:
        if self.persistent is None:
            raise BadFileError("its pickle refers to something outside of it")
        self._charge(RECORD)
        self.stack.append(self.persistent(self.stack.pop()))


def _too_large() -> BadFileError:
    return BadFileError("its pickle would take far more memory than any checkpoint does")


def _damaged() -> BadFileError:
    return BadFileError("its pickle is damaged")


def check_keys(keys: Iterable[Any]) -> None:
    """Refuse keys that Python does not hash in time and depth that do not depend on who chose them.

    Raises:
        BadFileError: one is neither a text nor a number, nor a pair of texts.
    """
    if not all(map(_is_key, keys)):
        raise BadFileError("its pickle has a dictionary or set of other things than texts and numbers")


def _is_key(key: Any) -> bool:
    if type(key) is tuple:  # the merges of a byte-pair vocabulary
        return len(key) == 2 and all(type(part) is str for part in key)
    return type(key) in KEYS and not (type(key) is int and not -LARGEST_KEY < key < LARGEST_KEY)


def _size(argument: Any) -> int:
    """Bytes of what a builder may make of an argument."""
    if type(argument) is dict:  # which is taken as it is
        return 0
    return WORD_PLACE * len(argument) if type(argument) in (list, tuple, set) else sys.getsizeof(argument)


def _refusal(names: list[str]) -> BadFileError:
    shown = ", ".join(ascii(name[:60]) for name in names[:SHOWN_NAMES])
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return BadFileError(
        f"holds Python objects that could run code ({shown}{more}); nothing was run",
        "Save plain tensors instead, a state dict for example.",
    )
