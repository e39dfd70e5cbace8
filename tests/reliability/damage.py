"""Damage the bytes of a file or the content of a JSON document. The same seed does the same damage."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["damage_array", "damage_bytes", "damage_json"]

LONGEST = 64  # bytes that are inserted, removed or cleared at once
DEPTHS = (100, 950, 5000, 200_000)  # levels of nesting; Python stops at a thousand
DEEP = "DEEP"  # placeholder for deeply nested text
TWICE = "TWICE"  # name of an entry that is repeated under the name of another entry

Change = Callable[[random.Random, bytearray], None]


def damage_bytes(content: bytes, rng: random.Random, other: bytes = b"") -> bytes:
    """Return a copy with one to three kinds of damage, or rarely `other`, a file that may be mistaken for it."""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rng.choice(CHANGES)(rng, changed)
    if other and rng.random() < 0.02:
        return other
    return bytes(changed)


def _place(rng: random.Random, content: bytearray) -> int:
    """Return a random place, more often near the ends, which hold headers and tables of contents."""
    size = len(content)
    if not size:
        return 0
    near = min(size, 200)
    return rng.choice((rng.randrange(size), rng.randrange(near), size - 1 - rng.randrange(near)))


def _flip_bit(rng: random.Random, content: bytearray) -> None:
    if content:
        content[_place(rng, content)] ^= 1 << rng.randrange(8)


def _set_byte(rng: random.Random, content: bytearray) -> None:
    if content:
        content[_place(rng, content)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, 0x0A, 0x22, rng.randrange(256)))


def _cut(rng: random.Random, content: bytearray) -> None:
    del content[_place(rng, content) :]


def _insert(rng: random.Random, content: bytearray) -> None:
    at = _place(rng, content)
    content[at:at] = rng.randbytes(rng.randint(1, LONGEST))


def _remove(rng: random.Random, content: bytearray) -> None:
    at = _place(rng, content)
    del content[at : at + rng.randint(1, LONGEST)]


def _clear(rng: random.Random, content: bytearray) -> None:
    at = _place(rng, content)
    end = min(at + rng.choice((1, LONGEST, 4096)), len(content))
    content[at:end] = bytes(end - at)


def _repeat(rng: random.Random, content: bytearray) -> None:
    at = _place(rng, content)
    content[at:at] = content[at : at + rng.randint(1, LONGEST)]


def _number(rng: random.Random, content: bytearray) -> None:
    """Overwrite eight bytes, perhaps a length or an offset, with extreme values."""
    at = _place(rng, content)
    content[at : at + 8] = rng.choice((1 << 63, (1 << 64) - 1, 1 << 40, 1 << 31)).to_bytes(8, "little")


CHANGES: tuple[Change, ...] = (_flip_bit, _flip_bit, _set_byte, _cut, _insert, _remove, _clear, _repeat, _number)

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 255, 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63), 10**400),
    *(0.0, 0.5, -0.5, 1e308, float("nan"), float("inf"), float("-inf")),
    *("", "\0", "a\nb", "\x1b[2J", "é", "\ud800", "../x", "/etc/passwd", "batch", "capacity", "score", "float16"),
    *("a" * 5000, "1", "true", "null", [], {}, [[]], [None], [1, 2, 3], {"": None}, {"a": {"b": [1]}}),
)


def damage_json(document: Any, rng: random.Random, depths: tuple[int, ...] = DEPTHS) -> str:
    """Return the text of a copy with one to three changes: values, types, names, order, nesting, repeated names."""
    changed = copy.deepcopy(document)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        changed = _damage_value(changed, rng)
    text = json.dumps(changed)
    depth = rng.choice(depths)
    text = text.replace(f'"{DEEP}"', rng.choice(("[" * depth + "]" * depth, '{"a":' * depth + "0" + "}" * depth)))
    for name in rng.sample(sorted(changed), min(1, len(changed))) if isinstance(changed, dict) else ():
        text = text.replace(f'"{TWICE}"', json.dumps(name))
    return text


def _damage_value(document: Any, rng: random.Random) -> Any:
    """Change something at a random place. All levels are equally likely, because shallow places are few."""
    path: list[Any] = []
    parent, here = None, document
    while isinstance(here, dict | list) and here and (not path or rng.random() < 0.75):
        key = rng.choice(list(here)) if isinstance(here, dict) else rng.randrange(len(here))
        path.append(key)
        parent, here = here, here[key]
    if parent is None:
        return rng.choice(VALUES)
    key = path[-1]
    kind = rng.randrange(8)
    if kind == 0:
        del parent[key]
    elif kind == 1 and isinstance(parent, dict):
        parent[rng.choice((str(key) + "_", "extra", "", TWICE, *map(str, parent)))] = parent.pop(key)
    elif kind == 1 and isinstance(parent, list):
        rng.shuffle(parent)
    elif kind == 2:
        _add(parent, rng.choice((here, DEEP, *VALUES)), rng)
    elif kind == 3:
        parent[key] = DEEP
    elif kind in (4, 5):
        parent[key] = _near(here, rng)
    else:
        parent[key] = copy.deepcopy(rng.choice(VALUES))
    return document


def _add(parent: Any, value: Any, rng: random.Random) -> None:
    if isinstance(parent, dict):
        parent[rng.choice(("extra", TWICE))] = copy.deepcopy(value)
    else:
        parent.insert(rng.randint(0, len(parent)), copy.deepcopy(value))


def _near(value: Any, rng: random.Random) -> Any:
    """Return a value that is almost the same."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice((value + 1, value - 1, value * 2, -value, value % 1000 + 0.5, hex(value)))
    if isinstance(value, str):
        return rng.choice((value + "x", value[:-1], value.upper(), value[::-1], f"../{value}", [value]))
    if isinstance(value, list):
        return rng.choice((value[:-1], value + value[:1], value[::-1], dict(enumerate(map(str, value)))))
    if isinstance(value, dict):
        return rng.choice((list(value), dict(list(value.items())[1:]), {**value, "extra": 0}))
    return rng.choice((0, "", [], {}))


def damage_array(array: npt.NDArray[Any], rng: random.Random) -> npt.NDArray[Any]:
    """Return a tensor of another shape or type, or with other numbers."""
    odd = (np.nan, np.inf, 1e30) if array.dtype.kind == "f" else (-1, 10**6, -(2**31))
    return rng.choice(
        (
            array[..., :-1],
            array[:0],
            array.astype(np.float16),
            array.astype(np.int32),
            array.reshape(-1),
            np.full_like(array, rng.choice(odd)),
            array[..., ::-1],
            np.concatenate([array, array]),
        )
    )
