"""The order of the packages in xlexport and in xltraining, and the absence of import cycles between modules.

Imports inside functions and imports for type checkers count too. Exceptions are listed, and a test fails if one of
them is no longer needed.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from tests.helpers.imports import PACKAGES, imported_names, imports_of, knots, module_files
from tests.helpers.paths import ROOT

# A module may import modules of its own row and of the rows below it.
ORDER = (
    {"__main__", "commands", "harness"},
    {
        "analysis",
        "bench",
        "bundle_readme",
        "convert",
        "prepare",
        "quantize",
        "ray",
        "report",
        "scoring",
        "serve",
        "tokenizer_choice",
        "verification",
        "web",
    },
    {"architectures", "bundles", "checkpoints", "export", "ops", "torch_runtime"},
    {"atomic_output", "choices", "errors", "extras", "callbacks", "figures", "progress_bar", "sample", "terminal"},
)
# The same for xltraining.
TRAINING_ORDER = (
    {"train"},
    {"loop"},
    {"checkpoint", "data"},
    {"architectures", "evaluation"},
    {"encoder_decoder", "reformer", "transformer_xl"},
    {"atomic_output", "config_fields", "errors", "language_model", "layers", "messages", "training_config"},
)
TRAINING_ARCHITECTURES = {"encoder_decoder", "reformer", "transformer_xl"}  # neither imports the other
KNOTS: dict[str, list[set[str]]] = {
    "xlexport": [],
    "xlruntime": [],
    "xltraining": [],
}
FOR_COMMANDS = ("click", "xlexport.commands", "xlexport.progress_bar", "xlexport.terminal")
LIBRARY_THAT_WRITES_TO_THE_TERMINAL: dict[str, set[str]] = {}


def part(module: str) -> str:
    """Return the folder or root module of its package that has a module; empty for the package itself."""
    return ".".join(module.split(".")[1:2])


def upward(graph: dict[str, set[str]], order: tuple[set[str], ...] = ORDER) -> list[str]:
    """Return the imports that go upward in the order."""
    ranks = {name: rank for rank, row in enumerate(order) for name in row}
    found = []
    for module, imported in graph.items():
        for other in imported:
            if part(module) and part(other) and ranks[part(other)] < ranks[part(module)]:
                found.append(f"{module} imports {other}")
    return sorted(found)


def between(graph: dict[str, set[str]], folders: set[str]) -> list[str]:
    """Return the imports that go from one of these folders to another of them."""
    return sorted(
        f"{module} imports {other}"
        for module, imported in graph.items()
        for other in imported
        if {part(module), part(other)} <= folders and part(module) != part(other)
    )


@pytest.fixture(scope="module")
def xlexport() -> dict[str, set[str]]:
    """Return the modules of xlexport that each of its modules imports."""
    return imports_of(module_files("xlexport", PACKAGES["xlexport"]))


@pytest.fixture(scope="module")
def xltraining() -> dict[str, set[str]]:
    """Return the modules of xltraining that each of its modules imports."""
    return imports_of(module_files("xltraining", PACKAGES["xltraining"]))


def test_every_part_has_its_place_in_the_order(xlexport: dict[str, set[str]], xltraining: dict[str, set[str]]) -> None:
    assert {part(module) for module in xlexport} - {""} <= set().union(*ORDER)
    assert {part(module) for module in xltraining} - {""} == set().union(*TRAINING_ORDER)


def test_imports_go_down(xlexport: dict[str, set[str]]) -> None:
    assert sum(map(len, xlexport.values())) > 200
    assert upward(xlexport) == []


def test_imports_of_the_training_code_go_down(xltraining: dict[str, set[str]]) -> None:
    assert sum(map(len, xltraining.values())) > 50
    assert upward(xltraining, TRAINING_ORDER) == []
    assert between(xltraining, TRAINING_ARCHITECTURES) == []


def test_library_neither_reads_options_nor_writes_to_the_terminal() -> None:
    found = {}
    for module, file in module_files("xlexport", PACKAGES["xlexport"]).items():
        if part(module) in ("", "commands", "progress_bar", "terminal", "__main__"):
            continue
        package = module if file.name == "__init__.py" else module.rpartition(".")[0]
        names = {
            name
            for pair in imported_names(file.read_text("utf-8"), package)
            for name in (pair[0], ".".join(filter(None, pair)))
        }
        if shown := {name for name in FOR_COMMANDS if any((other + ".").startswith(name + ".") for other in names)}:
            found[module] = shown
    assert found == LIBRARY_THAT_WRITES_TO_THE_TERMINAL


def test_benchmarks_do_not_import_tests() -> None:
    files = module_files("benchmarks", ROOT / "benchmarks")
    imported = {other for file in files.values() for other, _ in imported_names(file.read_text("utf-8"), "benchmarks")}
    assert "xlexport.bench.timing" in imported
    assert not [other for other in imported if other.split(".")[0] == "tests"]


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_do_not_import_each_other_in_a_circle(package: str) -> None:
    assert knots(imports_of(module_files(package, PACKAGES[package]))) == KNOTS[package]


def test_the_checks_can_fail(tmp_path: Path) -> None:
    sources = {
        "__init__.py": "",
        "a.py": "from p import b",
        "b.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .sub.c import C",
        "sub/__init__.py": "def f():\n    from .. import d",
        "sub/c.py": "import p.a\nfrom . import __name__",
        "d.py": "import os",
    }
    for name, source in sources.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source)
    graph = imports_of(module_files("p", tmp_path))
    assert graph == {
        "p": set(),
        "p.a": {"p.b"},
        "p.b": {"p.sub.c"},
        "p.d": set(),
        "p.sub": {"p.d"},
        "p.sub.c": {"p.a", "p.sub"},
    }
    assert knots(graph) == [{"p.a", "p.b", "p.sub.c"}]
    wrong = {
        "xlexport.errors": {"xlexport.convert"},
        "xlexport.architectures.reformer": {"xlexport.verification.walk", "xlexport.errors"},
        "xlexport.convert": {"xlexport.errors", "xlexport.export"},
    }
    assert upward(wrong) == [
        "xlexport.architectures.reformer imports xlexport.verification.walk",
        "xlexport.errors imports xlexport.convert",
    ]
    wrong = {
        "xltraining.data.tasks": {"xltraining.errors", "xltraining.train"},
        "xltraining.reformer.model": {"xltraining.transformer_xl.config", "xltraining.reformer.config"},
    }
    assert upward(wrong, TRAINING_ORDER) == ["xltraining.data.tasks imports xltraining.train"]
    assert between(wrong, TRAINING_ARCHITECTURES) == [
        "xltraining.reformer.model imports xltraining.transformer_xl.config"
    ]


FRONT_ENDS = ("commands", "harness", "ray", "report", "scoring", "serve", "web")
REFERENCE = (ROOT / "docs/reference/xlruntime.md").read_text("utf-8")
PUBLIC = {"xlruntime", *re.findall(r"automodule:: (xlruntime\.\S+)", REFERENCE)}


@pytest.mark.parametrize("folder", FRONT_ENDS)
def test_front_ends_use_only_public_names_of_the_runtime(folder: str) -> None:
    strange, seen = [], 0
    for file in (PACKAGES["xlexport"] / folder).rglob("*.py"):
        for module, name in imported_names(file.read_text("utf-8"), "xlexport"):
            if module.split(".")[0] == "xlruntime":
                seen += 1
                if not is_public(module, name):
                    strange.append(f"{file}: {module}.{name}")
    assert seen and strange == []


def is_public(module: str, name: str | None) -> bool:
    """Return whether a module is public, and lists the name that is imported from it; or the name is such a module."""
    listed = name is None or f"{module}.{name}" in PUBLIC or name in import_module(module).__all__
    return module in PUBLIC and listed
