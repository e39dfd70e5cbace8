"""docs/api.md is correct and complete: its examples run unchanged, and it lists every public name."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import xlruntime
from tests.helpers.pages import python_of
from tests.helpers.paths import ROOT
from xlruntime import Model

PAGE = (ROOT / "docs/api.md").read_text("utf-8")
INNER = {"drawable", "encode_sources", "graph_for", "kind", "run"}  # methods of Model that are not for applications


@pytest.mark.parametrize(
    ("page", "messages"),
    [("docs/api.md", 3), pytest.param("README.md", 0, marks=pytest.mark.full)],  # it converts a module
)
def test_examples_run_and_print_the_messages_of_the_page(
    page: str,
    messages: int,
    bytes_model: Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "bundle").symlink_to(bytes_model.folder)
    monkeypatch.chdir(tmp_path)
    source = python_of(page)
    assert "xlruntime.load(" in source
    exec(compile(source, page, "exec"), {})
    promised, shown = re.findall(r"print\(error\)\s+# (.*)", source), capsys.readouterr().out
    assert len(promised) == messages and all(message in shown for message in promised)


def public(thing: type[Any]) -> set[str]:
    return {name for name, _ in inspect.getmembers(thing) if not name.startswith("_")}


def test_every_public_name_is_on_the_page() -> None:
    methods = (public(Model) - INNER) | public(xlruntime.Stream)
    missing = [name for name in (*xlruntime.__all__, *methods) if not re.search(rf"\b{name}\b", PAGE)]
    assert missing == []
