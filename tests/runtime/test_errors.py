"""The classes of errors and the codes of docs/bundle_format.md are the same."""

from __future__ import annotations

import re

import pytest

import xlruntime
from tests.helpers.paths import ROOT
from xlruntime import errors

BASES = {"BundleError", "StateError"}  # only their subclasses are raised
OTHERS = {"file", "memory", "busy", "stopped", "internal"}  # Python's own errors, the server's, and C's
CLASSES = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.XlruntimeError) and name not in BASES
}


def test_every_code_of_the_page_has_one_class() -> None:
    table = (ROOT / "docs/bundle_format.md").read_text("utf-8").partition("\n## Errors")[2]
    codes = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert sorted({*codes} - OTHERS) == sorted(kind.code for kind in CLASSES.values())
    assert {*codes} > OTHERS


def test_every_class_is_public() -> None:
    assert {*CLASSES, *BASES} <= {*xlruntime.__all__}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.TooLongError("x"), "too_long"),
        (FileNotFoundError(), "file"),
        (MemoryError(), "memory"),
        (KeyError(), "internal"),
    ],
)
def test_code_of_any_error(error: Exception, code: str) -> None:
    assert xlruntime.error_code(error) == code
