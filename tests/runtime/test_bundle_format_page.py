"""docs/bundle_format.md names every field of a manifest, and its examples and messages are the code's own."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.helpers.paths import GOLDEN, ROOT
from xlexport.architectures import architecture
from xlruntime.bundle import read_bundle
from xlruntime.errors import BundleError
from xlruntime.evaluation import EvaluationRules, Ring, Setting
from xlruntime.json_fields import read_fields
from xlruntime.manifest_digest import DIGEST_KEY
from xlruntime.spec import FORMAT_VERSION, Bundle, FileDigest, Format, Graph, Layout, Memory, Tokenizer

PAGE = (ROOT / "docs/bundle_format.md").read_text("utf-8")
(EXAMPLE,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)


def named(name: str) -> bool:
    """Return whether the page has a name in code, alone or as the end of a path."""
    return re.search(rf"`([\w.]+\.)?{re.escape(name)}`", PAGE) is not None


@pytest.mark.parametrize("kind", [Bundle, Graph, Memory, Tokenizer, FileDigest, EvaluationRules, Setting, Ring])
def test_every_field_is_named(kind: type[Any]) -> None:
    assert [field.name for field in dataclasses.fields(kind) if not named(field.name)] == []


def test_layouts_and_formats_are_named() -> None:
    assert [
        name for name in (*get_args(Layout), *get_args(Format), DIGEST_KEY) if name != "onnx" and not named(name)
    ] == []
    assert f"version {FORMAT_VERSION}" in PAGE.splitlines()[0]


def test_rules_are_numbered_through() -> None:
    numbers = [int(number) for number in re.findall(r"^(\d+)\. ", PAGE, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert max(int(number) for number in re.findall(r"\brules? (\d+)", PAGE)) <= len(numbers)


def test_example_equals_a_transformer_xl_s_declaration() -> None:
    rules = read_fields(EvaluationRules, json.loads(f"{{{EXAMPLE}}}")["evaluation"])
    config = {"tgt_len": 128, "mem_len": 384, "clamp_len": 192, "same_length": True}
    declared = architecture("transformer_xl").evaluation({**config, "first_memory": "empty", "window_extra": 0})
    assert rules == declared
    settings = rules.choose()
    assert (settings.capacity(), settings.window("capacity")) == (512, 384)
    assert settings.inputs() == {"mem_len": 384, "clamp_len": 192}


def test_refusal_of_an_older_bundle_is_the_one_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = json.loads((GOLDEN / "pre_lnorm_empty/bundle/bundle.json").read_text("utf-8"))
    manifest |= {"format_version": 2, "provenance": {"sources": {"checkpoint.pt": "0" * 64}}}
    monkeypatch.chdir(tmp_path)
    Path("bundle").mkdir()
    Path("bundle/bundle.json").write_text(json.dumps(manifest), "utf-8")
    with pytest.raises(BundleError) as caught:
        read_bundle(Path("bundle"))
    assert str(caught.value) in PAGE.splitlines()


def test_digest_is_computed_as_the_page_says() -> None:
    manifest = json.loads((GOLDEN / "reformer_band/bundle/bundle.json").read_text("utf-8"))
    stated = manifest.pop(DIGEST_KEY)
    assert hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest() == stated
