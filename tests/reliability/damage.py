"""Hypothesis strategies of damage: to the bytes of a file, to the content of a JSON document, to an array."""

from __future__ import annotations

import copy
import json
import os
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

EXAMPLES = os.environ.get("XLEXPORT_TEST_EXAMPLES")
# The same 50 cases every time, even on a slow machine, or as many others as the variable says.
STEADY = settings(
    max_examples=int(EXAMPLES or 50), derandomize=not EXAMPLES, database=None, deadline=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
THOROUGH = settings(STEADY, max_examples=4 * STEADY.max_examples)  # for what has many kinds of inputs
DEPTHS = (100, 950, 5000, 200_000)  # levels of nesting; Python stops at a thousand
DEEP = "DEEP"  # placeholder for deeply nested text
TWICE = "TWICE"  # name of an entry that is repeated under the name of another entry
NUMBERS = tuple(number.to_bytes(8, "little") for number in (1 << 31, 1 << 40, 1 << 63, (1 << 64) - 1))
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 255, 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63), 10**400),
    *(0.0, 0.5, -0.5, 1e308, float("nan"), float("inf"), float("-inf")),
    *("", "\0", "a\nb", "\x1b[2J", "é", "\ud800", "../x", "/etc/passwd", "batch", "capacity", "score", "float16"),
    *("a" * 5000, "1", "true", "null", [], {}, [[]], [None], [1, 2, 3], {"": None}, {"a": {"b": [1]}}, DEEP),
)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Draw a copy of a file in which one to three parts are removed, repeated, cleared, or replaced."""
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        size = len(changed)
        near = min(size, 200)  # the ends have headers and tables of contents
        start = draw(st.integers(0, near) | st.integers(size - near, size) | st.integers(0, size))
        length = draw(st.sampled_from((0, 1, 8, 64, size)))
        part = bytes(changed[start : start + length])
        flipped = bytes([part[0] ^ 1 << draw(st.integers(0, 7))]) + part[1:] if part else b""
        changed[start : start + length] = draw(
            st.sampled_from((flipped, b"", bytes(len(part)), part * 2, *NUMBERS)) | st.binary(max_size=64)
        )
    return bytes(changed)


@st.composite
def damaged_json(draw: st.DrawFn, document: Any, depths: tuple[int, ...] = DEPTHS) -> bytes:
    """Draw the text of a copy with one to three changes: values, types, names, order, nesting, repeated names."""
    root = [copy.deepcopy(document)]
    for _ in range(draw(st.integers(1, 3))):
        _change(draw, root)
    text = json.dumps(root[0]) if root else ""
    depth = draw(st.sampled_from(depths))
    nested = draw(st.sampled_from(("[" * depth + "]" * depth, '{"a":' * depth + "0" + "}" * depth)))
    text = text.replace(f'"{DEEP}"', nested)
    if isinstance(document, dict) and document:
        text = text.replace(f'"{TWICE}"', json.dumps(draw(st.sampled_from(sorted(document)))))
    return text.encode("utf-8", "surrogatepass")


def _change(draw: st.DrawFn, root: list[Any]) -> None:
    """Change something at a random place. Each level is as likely as the next, because shallow places are few."""
    parent: Any = root
    key: Any = 0
    while root and isinstance(parent[key], dict | list) and parent[key] and draw(st.integers(0, 3)):
        parent = parent[key]
        key = draw(st.sampled_from(list(parent) if isinstance(parent, dict) else range(len(parent))))
    if not root:
        return
    value = copy.deepcopy(draw(st.sampled_from(_near(parent[key])) | st.sampled_from(VALUES) | ANY_JSON))
    kind = draw(st.sampled_from(("replace", "replace", "replace", "remove", "rename", "add")))
    if kind == "replace":
        parent[key] = value
    elif kind == "remove":
        del parent[key]
    elif isinstance(parent, list):
        parent.insert(key, value)
    elif kind == "rename":
        parent[draw(st.sampled_from((f"{key}_", "", TWICE, *map(str, parent))))] = parent.pop(key)
    else:
        parent[draw(st.sampled_from(("extra", TWICE)))] = value


def _near(value: Any) -> tuple[Any, ...]:
    """Return values that are almost the same."""
    if isinstance(value, bool):
        return (not value, int(value))
    if isinstance(value, int):
        return (value + 1, value - 1, value * 2, -value, value * 10**6, value * 10**9, value % 1000 + 0.5, hex(value))
    if isinstance(value, str):
        return (value + "x", value[:-1], value.upper(), value[::-1], f"../{value}", [value])
    if isinstance(value, list):
        return (value[:-1], value + value[:1], value[::-1], dict(enumerate(map(str, value))))
    if isinstance(value, dict):
        return (list(value), dict(list(value.items())[1:]), {**value, "extra": 0})
    return (0, "", [], {})


def damaged_array(array: npt.NDArray[Any]) -> st.SearchStrategy[npt.NDArray[Any]]:
    """Draw a tensor of another shape or type, or with other numbers."""
    odd = (np.nan, np.inf, 1e30) if array.dtype.kind == "f" else (-1, 10**6, -(2**31))
    changed = (array[..., :-1], array[:0], array.astype(np.float16), array.astype(np.int32), array.reshape(-1))
    same_shape = (array[..., ::-1], *(np.full_like(array, number) for number in odd))
    return st.sampled_from([*changed, *same_shape, np.concatenate([array, array])])
