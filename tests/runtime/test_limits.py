"""Limits: each of the three stops a reader, and a file within all limits is read."""

from __future__ import annotations

import io
import json

import pytest

from xlruntime.errors import BundleError, TextError
from xlruntime.limits import Limits, parse_json, read_at_most


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (Limits(bytes=99), "99 bytes of memory"),
        (Limits(operations=9), "9 operations"),
        (Limits(seconds=-1), "-1 seconds"),
    ],
)
def test_each_limit_stops_a_reader(limits: Limits, said: str) -> None:
    budget = limits.budget("f", TextError)
    with pytest.raises(TextError, match=f"f: reading it would take more than {said}"):
        for _ in range(10_000):
            budget.charge(1)


def test_a_file_is_read_up_to_the_limit_and_not_further() -> None:
    file = io.BytesIO(bytes(1000))
    assert len(read_at_most(io.BytesIO(bytes(10)), Limits(bytes=10).budget("f", TextError))) == 10
    with pytest.raises(TextError, match="10 bytes"):
        read_at_most(file, Limits(bytes=10).budget("f", TextError))
    assert file.tell() == 11


def test_json_is_counted_before_it_is_parsed() -> None:
    value = {"a": [1, 2.5, "x"], "b": {}}
    assert parse_json(json.dumps(value).encode(), Limits().budget("f", BundleError)) == value
    with pytest.raises(BundleError, match="bytes of memory"):
        parse_json(b"[" + b"[]," * 20_000 + b"0]", Limits(bytes=1 << 20).budget("f", BundleError))
    with pytest.raises(BundleError, match="f: not valid JSON"):
        parse_json(b"[" * 10_000, Limits().budget("f", BundleError))
