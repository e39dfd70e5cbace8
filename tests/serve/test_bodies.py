"""The values of a JSON text are counted without parsing it, and limits hold for them."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlexport.extras import missing_packages

pytestmark = pytest.mark.skipif(bool(missing_packages("serve")), reason="the extra serve is not installed")

SCALARS = st.none() | st.booleans() | st.integers() | st.floats()
TEXTS = st.text() | st.text('\\",:[]{} \n1')
VALUES = st.recursive(SCALARS | TEXTS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner))


def counted(value: Any) -> tuple[int, int]:
    """Return the numbers in a value, true, false and null among them, and its other parts."""
    if isinstance(value, str):
        return 0, 1
    if not isinstance(value, list | dict):
        return 1, 0
    inner = [counted(entry) for entry in (value if isinstance(value, list) else [*value, *value.values()])]
    return sum(numbers for numbers, _ in inner), 1 + sum(others for _, others in inner)


@settings(deadline=None)
@given(VALUES, st.sampled_from([None, 1]), st.booleans())
@pytest.mark.full
def test_values_are_counted(value: Any, indent: int | None, ascii_only: bool) -> None:
    from xlexport.serve.bodies import FIELDS, count_numbers
    from xlexport.serve.errors import ApiError
    from xlexport.serve.options import ServeLimits

    raw = bytearray(json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass"))
    numbers, others = counted(value)
    found = count_numbers(raw, ServeLimits(prompts=others - FIELDS))
    assert numbers <= found <= numbers + 2
    for limits in (ServeLimits(numbers=numbers - 1), ServeLimits(prompts=others - FIELDS - 1)):
        if numbers and others:
            with pytest.raises(ApiError, match="more than"):
                count_numbers(raw, limits)


@pytest.mark.parametrize("part", [b'\\"', b"\\", b" ", b",", b"]", b"\n}:", b"a", b'\\\\"'])
@pytest.mark.parametrize("begin", [b"", b'"', b"["])
def test_time_is_in_proportion_to_the_text(begin: bytes, part: bytes) -> None:
    from xlexport.serve.bodies import count_numbers
    from xlexport.serve.options import ServeLimits

    raw, began = bytearray(begin + part * 300_000 + b"\\"), time.thread_time()
    count_numbers(raw, ServeLimits(prompts=10**9, numbers=10**9))
    assert time.thread_time() - began < 20  # 0.1 s; trying again at each place would take hours
