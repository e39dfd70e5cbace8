"""Errors are part of the interface: docstrings draw their trees, and each class has the builtin base it claims."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from types import ModuleType

import pytest

import xlexport.errors
import xlruntime.errors
import xltraining.errors

MODULES = [xlexport.errors, xlruntime.errors, xltraining.errors]


def drawn(module: ModuleType) -> dict[str, tuple[str | None, str | None]]:
    """Read the tree in a docstring: class -> (parent in the tree, builtin base)."""
    tree: dict[str, tuple[str | None, str | None]] = {}
    path: list[str] = []
    for line in str(module.__doc__).splitlines():
        match = re.match(r"^    ([│ ├└─]*)(\w+)(?: \((\w+)\))?", line)
        if match and match[2].endswith("Error"):
            depth = len(match[1]) // 4
            path[depth:] = [match[2]]
            tree[match[2]] = (path[depth - 1] if depth else None, match[3])
    return tree


def classes(module: ModuleType) -> list[str]:
    """Return the names of the classes that a module lists as public."""
    return [name for name in module.__all__ if inspect.isclass(getattr(module, name))]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.__name__))
def test_classes_are_those_of_the_drawing(module: ModuleType) -> None:
    tree = drawn(module)
    assert sorted(tree) == sorted(classes(module))
    for name, (parent, builtin) in tree.items():
        bases = [base.__name__ for base in getattr(module, name).__bases__]
        assert bases == ([base for base in (parent, builtin) if base] or ["Exception"]), name


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.__name__))
def test_message_survives_and_class_is_described_in_a_line(module: ModuleType) -> None:
    for name in classes(module):
        error = getattr(module, name)
        assert str(error("where: what. Repair.")) == "where: what. Repair."
        assert len(str(inspect.getdoc(error)).splitlines()) == 1


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.__name__))
def test_hint_is_a_field_and_ends_the_text(module: ModuleType) -> None:
    """Test also pickled copies for other processes, and classes that are system errors too."""
    for name in classes(module):
        error = getattr(module, name)("where: what.", hint="Do this.")
        for found in (error, copy.copy(error), pickle.loads(pickle.dumps(error))):
            assert (found.message, found.hint, str(found)) == ("where: what.", "Do this.", "where: what. Do this.")
        assert getattr(module, name)("where: what.").hint is None


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.__name__))
def test_text_is_one_bounded_line_that_a_terminal_can_show(module: ModuleType) -> None:
    hostile = "\x1b[2J\r\n\0\x9b\u2028\u202e\u2066\u200b\ud800\U000e0001" * 900
    for name in classes(module):
        error = getattr(module, name)(f"the place: {hostile} found.", hint=f"Do {hostile} this.")
        for found in (error, pickle.loads(pickle.dumps(error))):
            assert str(found).isprintable() and len(str(found)) < 2000 and str(found) == str(error)
            assert re.fullmatch(r"the place: \\x1b\[2J.* found\. Do \\x1b\[2J.* this\.", str(found))
