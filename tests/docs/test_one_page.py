"""The pages of equations: each equation names the code that computes it, and that code is there."""

from __future__ import annotations

import ast
import re

import pytest

from tests.helpers.paths import ROOT

PAGES = ["docs/transformer_xl_in_one_page.md", "docs/reformer_in_one_page.md"]
REFERENCE = re.compile(r"`([\w/]+\.py):([\w.]+)`")
MOST_WORDS = 650


def defines(body: list[ast.stmt], names: list[str]) -> bool:
    """Return whether statements define a function or class, or one within another: `["Class", "method"]`."""
    found = [node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == names[0]]
    return bool(found) and (len(names) == 1 or defines(found[0].body, names[1:]))


@pytest.mark.parametrize("page", PAGES)
def test_page_is_short_and_names_code_that_exists(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    assert len(text.split()) <= MOST_WORDS
    _, *after_equations = text.split("```\n")[::2]
    assert len(after_equations) > 5
    for after in after_equations:
        references = REFERENCE.findall(after)
        assert references, after
        for file, name in references:
            assert defines(ast.parse((ROOT / file).read_text("utf-8")).body, name.split(".")), (file, name)


def test_check_can_fail() -> None:
    body = ast.parse("class A:\n    def f(self): ...\n").body
    assert defines(body, ["A", "f"])
    assert not defines(body, ["f"])
    assert not defines(body, ["A", "g"])
