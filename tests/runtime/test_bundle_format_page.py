"""docs/bundle_format.md names every field of a manifest and the code of every error; its example is the code's own."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from typing import Any, get_args

import pytest

import xlruntime
from scripts import schema
from tests.conformance.changed_manifests import TAKEN, changed_manifests, python_verdict
from tests.helpers.paths import GOLDEN, ROOT
from xlexport.families import architecture
from xlruntime import bundle as manifest
from xlruntime import errors
from xlruntime.bundle import FORMAT, FeedKind, GraphFormat, Layout
from xlruntime.bundle_files import read_bundle
from xlruntime.evaluation import EvaluationRules, Ring, Setting
from xlruntime.json_fields import read_fields

PAGE = (ROOT / "docs/bundle_format.md").read_text("utf-8")
(EXAMPLE,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
KINDS = (
    *(manifest.Requirements, manifest.TokenizerEntry, manifest.Graph, manifest.Feed, manifest.Tensor),
    *(manifest.MemoryEntry, manifest.Encoder, manifest.FileDigest, Setting, Ring),
)
GOLDENS = sorted(GOLDEN.glob("*/*/bundle.json"))


def named(name: str) -> bool:
    """Return whether the page has a name in code."""
    return f"`{name}`" in PAGE


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_named(kind: type[Any]) -> None:
    assert [field.name for field in dataclasses.fields(kind) if not named(field.name)] == []


def test_every_field_of_a_manifest_is_named() -> None:
    fields = json.loads(GOLDENS[0].read_text("utf-8"))
    assert [name for name in (*fields, *fields["model"], *fields["document"]) if not named(name)] == []


def test_kinds_are_named() -> None:
    kinds = (*get_args(Layout), *get_args(GraphFormat), *get_args(FeedKind))
    assert [kind for kind in kinds if not named(kind)] == []
    assert f"version {FORMAT}" in PAGE.splitlines()[0]


def test_example_equals_a_transformer_xl_s_declaration() -> None:
    fields = json.loads(EXAMPLE)
    document = {name: value for name, value in fields["document"].items() if name != "encoder"}
    rules = read_fields(EvaluationRules, {**document, "settings": fields["settings"], "rings": fields["rings"]})
    config = {"tgt_len": 128, "mem_len": 384, "clamp_len": 192, "same_length": True}
    declared = architecture("transformer_xl").evaluation({**config, "first_memory": "empty", "window_extra": 0})
    assert rules == declared
    settings = rules.choose()
    assert (settings.capacity(), settings.window("capacity")) == (512, 384)


@pytest.mark.parametrize("path", GOLDENS, ids=lambda path: path.parent.parent.name)
def test_digests_are_computed_as_the_page_says(path: Any) -> None:
    fields, raw = json.loads(path.read_text("utf-8")), path.read_bytes()
    stated = (path.parent / "bundle.json.sha256").read_text("utf-8")
    assert stated == f"{hashlib.sha256(raw).hexdigest()}  bundle.json\n"
    lines = [f"{file['sha256']}  {name}\n" for name, file in sorted(fields["files"].items())]
    assert fields["tokenizer"]["file"] is None  # else rule 27 leaves it out
    assert read_bundle(path.parent).fingerprint == hashlib.sha256("".join(lines).encode()).hexdigest()


# The schema.


def test_schema_is_that_of_the_code() -> None:
    assert schema.FILE.read_text("utf-8") == schema.schema_text(), "run scripts/schema.py"
    assert schema.FILE.name in PAGE


def test_python_refuses_what_the_schema_refuses() -> None:
    validators = pytest.importorskip("jsonschema")
    validator = validators.Draft202012Validator(schema.bundle_schema())
    for path in GOLDENS:
        validator.validate(json.loads(path.read_text("utf-8")))
    refused = 0
    for kind, text in changed_manifests(200):
        if not validator.is_valid(json.loads(text)):
            assert python_verdict(text) != TAKEN, kind
            refused += 1
    assert refused > 200


# Codes of errors.

BASES = {"BundleError", "StateError"}  # only their subclasses are raised
OTHERS = {"file", "memory", "busy", "stopped", "internal"}  # Python's own errors, the server's, and C's
CLASSES = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.XlruntimeError) and name not in BASES
}


def test_every_code_of_the_page_has_one_class() -> None:
    table = PAGE.partition("\n## Errors")[2]
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
