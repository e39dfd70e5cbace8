"""The imports between modules, read from the sources, including imports inside functions and for type checkers."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.helpers.paths import ROOT

__all__ = ["PACKAGES", "imported_names", "imports_of", "knots", "module_files"]

PACKAGES = {
    "xlexport": ROOT / "xlexport",
    "xlruntime": ROOT / "runtime/python/xlruntime",
    "xltraining": ROOT / "training/xltraining",
}


def module_files(package: str, folder: Path) -> dict[str, Path]:
    """Return the file of each module of a package, by dotted name."""
    found = {}
    for file in sorted(folder.rglob("*.py")):
        parts = (package, *file.relative_to(folder).with_suffix("").parts)
        found[".".join(part for part in parts if part != "__init__")] = file
    return found


def imported_names(source: str, package: str) -> Iterator[tuple[str, str | None]]:
    """Yield the imports of a source: a module, and the name that is imported from it, if any.

    Args:
        package: the package of relative imports in the source; for an `__init__`, the module itself.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: 1 - node.level or None] if node.level else []
            yield from ((".".join([*above, *filter(None, [node.module])]), alias.name) for alias in node.names)


def imports_of(files: Mapping[str, Path]) -> dict[str, set[str]]:
    """Return for each module which of the other modules it imports."""
    graph = {}
    for name, file in files.items():
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        names = imported_names(file.read_text("utf-8"), package)
        found = {f"{module}.{taken}" if f"{module}.{taken}" in files else module for module, taken in names}
        graph[name] = {module for module in found if module in files} - {name}
    return graph


def knots(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Return the groups of modules that import each other, directly or through others."""
    reached = {name: _reachable(graph, name) for name in graph}
    groups = {frozenset(other for other in reached[name] if name in reached[other]) for name in graph}
    return sorted((set(group) for group in groups if group), key=min)


def _reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    following = list(graph[start])
    while following:
        if (name := following.pop()) not in found:
            found.add(name)
            following += graph[name]
    return found
