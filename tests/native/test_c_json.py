"""JSON, SHA-256 and text in the C runtime are those of Python."""

from __future__ import annotations

import hashlib
import json
import math
import random
import unicodedata
from typing import Any

import pytest

from reliability.damage import damage_json
from tests.helpers.c_base import CRefusal, ask
from xlruntime import BundleError
from xlruntime.limits import Limits, parse_json
from xlruntime.messages import named, one_line, shown

pytestmark = pytest.mark.native

LIMITS = Limits(1 << 22, 100_000)
TABLES = "14.0.0"  # Unicode of the tables; another Python may know more characters
VALUES: list[Any] = [
    *(0, -0.0, 1e16, 1e15, 123456789012345680.0, 1e-4, 1e-5, 0.1, 2 / 3, 5e-324, 1.7976931348623157e308, -2.5e-7),
    *(math.inf, -math.inf, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 10**400, 1e22, 9007199254740993, 1.0, 100.0),
    *("", "a\"b\\c/d\b\f\n\r\t\x00\x1f\x7f é \ud800 \udfff \U0001f600", "\ud83d", [], {}, [[], {}], {"b": 1, "a": 2}),
    {"\U0001f600": 1, "\uffff": 2, "\ud800": 3, "é": 4, "e": 5, "": 6},
]  # fmt: skip


def both(text: bytes, limits: Limits = LIMITS) -> tuple[Any, Any]:
    """Return what both parsers make of a text: the values as text, or the message."""
    try:
        value = parse_json(text, limits.budget("it", BundleError))
        ours: Any = (json.dumps(value), json.dumps(value, sort_keys=True), json.dumps(value, separators=(",", ":")))
    except BundleError as error:
        ours = error.message.partition(" (")[0]
    except RecursionError:
        ours = "it: not valid JSON"
    try:
        found = ask("json", text=text, limits=[limits.bytes, limits.operations])
        theirs: Any = (found["given"], found["sorted"], found["compact"])
    except CRefusal as error:
        assert error.kind == "BundleError"
        theirs = error.message.partition(" (")[0]
    return ours, theirs


@pytest.mark.parametrize("value", VALUES, ids=lambda value: ascii(value)[:30])
def test_values_are_written_as_python_writes_them(value: Any) -> None:
    ours, theirs = both(json.dumps([value, {"x": value}]).encode())
    assert theirs == ours and isinstance(theirs, tuple)


def test_random_floats_are_written_as_python_writes_them() -> None:
    rng = random.Random(0)
    values = [rng.uniform(-1, 1) * 10 ** rng.randint(-320, 308) for _ in range(2000)]
    ours, theirs = both(json.dumps(values).encode())
    assert theirs == ours


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b" ", b"[1,]", b"[,1]", b"{,}", b'{"a" 1}', b'{"a":}', b"{1: 2}", b"01", b"1.", b"-", b"+1", b".5"),
        *(b"1e", b"1e+", b"--1", b"nan", b"NaN", b"-Infinity", b"Infinity", b"-NaN", b"nul", b"tru", b"[1 2]", b"1 2"),
        *(b'"', b'"\\', b'"\\x"', b'"\\u12"', b'"\\u12g4"', b'"\\ud800\\u0041"', b'"\\ud83d\\ude00"', b'"\\ud800\\n"'),
        *(b'"a\nb"', b'"\x7f"', b"\xff", b'"\xed\xa0\x80"', b'"\xf4\x90\x80\x80"', b'"\xc0\xaf"', b"\xef\xbb\xbf1"),
        *(b"\xef\xbb\xbf\xef\xbb\xbf1", b'{"a":1,"b":2,"a":3}', b"\x0b1", b"1\x00", b"\xa01", b"1E5", b"1e400", b"-0"),
        *(b"1e-400", b"-1e999", b"9" * 4300, b"9" * 4301, b"[" * 5000 + b"]" * 5000, b'"\\ud800\\ud800\\udc00"'),
    ],
    ids=lambda text: ascii(text)[:30],
)
def test_odd_texts(text: bytes) -> None:
    ours, theirs = both(text)
    assert theirs == ours


@pytest.mark.parametrize("text", [b"[" * 100_001, b"[[]" + b",[]" * 40_000 + b"]", b'"' + b"a" * (1 << 21) + b'"'])
def test_limits(text: bytes) -> None:
    ours, theirs = both(text)
    assert theirs == ours and "would take more than" in theirs


def test_damaged_documents() -> None:
    rng, document = random.Random(1), {"list": VALUES[:-1], "inner": {"text": "für", "numbers": [1, 2.5, None, True]}}
    for _ in range(1000):
        text = damage_json(document, rng, (100, 5000)).encode()
        ours, theirs = both(text)
        assert theirs == ours, text


def test_sha256() -> None:
    rng = random.Random(2)
    for size in [*range(200), 1000, 1 << 16]:
        raw = rng.randbytes(size)
        assert ask("sha256", text=raw, middle=rng.randint(0, size)) == [hashlib.sha256(raw).hexdigest()] * 2


def test_classes_of_all_characters() -> None:
    for first in range(0, 0x110000, 0x11000):
        found = ask("classes", first=first, end=first + 0x11000)
        for code, digit in enumerate(found, first):
            mark = chr(code)
            if unicodedata.unidata_version == TABLES or unicodedata.category(mark) != "Cn":
                assert int(digit) & 1 == mark.isprintable() or unicodedata.unidata_version != TABLES
                assert int(digit) >> 1 == mark.isspace(), hex(code)


def lowered(text: str) -> str:
    found = ask("texts", text=text.encode("utf-8", "surrogatepass"))["lower"]
    return bytes.fromhex(found).decode("utf-8", "surrogatepass")


@pytest.mark.skipif(unicodedata.unidata_version != TABLES, reason="Python of another Unicode")
def test_lower_case_of_all_characters() -> None:
    for first in range(0, 0x110000, 0x11000):
        text = ".".join(map(chr, range(first, first + 0x11000)))
        assert lowered(text) == text.lower()


@pytest.mark.parametrize(
    "text",
    ["ΑΣ", "Σ", "ΑΣΑ", "ΑΣ.Σ", "Α.Σ", "ΑΣ\u0301Α", "Α\u0301Σ", "aΣ b", "ΣΣΣ", "İΣ", "ᾳΣ", "\u02b0Σ", "ªΣ", "AΣ\u00adΣ"],
)
def test_final_sigma(text: str) -> None:
    assert lowered(text) == text.lower()


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "plain",
            "it's",
            'a"b',
            "'\"",
            "\\",
            "\n\t\r\x00",
            "é\x85\u200b",
            "\ud800",
            "a" * 150,
            "é" * 101,
            "'" * 60,
        ),
        "\U0001f600\U000e0001",
    ],
    ids=lambda text: ascii(text)[:30],
)
def test_texts_in_messages(text: str) -> None:
    found = {
        name: bytes.fromhex(value).decode("utf-8", "surrogatepass")
        for name, value in ask("texts", text=text.encode("utf-8", "surrogatepass")).items()
    }
    expected = {"repr": repr(text), "ascii": ascii(text), "named": named(text), "one_line": one_line(text)}
    assert {name: found[name] for name in expected} == expected


def test_shown_values() -> None:
    rng, deep = random.Random(3), [1, 2.5, [[[[[[[]]]]]]]]
    document = {"list": VALUES[:-1], "a": {"text": "f" + "ü" * 50, "b": deep}}
    for _ in range(500):
        text = damage_json(document, rng, (50,)).encode()
        found = bytes.fromhex(ask("json", text=text)["shown"]).decode("utf-8", "surrogatepass")
        assert found == shown(json.loads(text)), text


def test_bytes_that_are_not_utf8_are_replaced() -> None:
    rng = random.Random(4)
    for _ in range(2000):
        raw = bytes(rng.choice(b"a\x80\xbf\xc2\xe0\xa0\xed\x9f\xf0\x90\xf4\x8f\xff") for _ in range(rng.randrange(12)))
        assert bytes.fromhex(ask("replace", text=raw)).decode("utf-8") == raw.decode("utf-8", "replace"), raw
