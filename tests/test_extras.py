"""Extras: declared and required packages agree, and missing ones are named with the command to install them."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.paths import ROOT
from xlexport.errors import MissingDependencyError
from xlexport.extras import DISTRIBUTIONS, EXTRAS, install_command, missing_modules, require

PLACES = (
    "xlexport",
    "runtime",
    "training",
    "reliability",
    "benchmarks",
    "experiments",
    "samples",
    "scripts",
    "docs",
    ".ci",
)
# No package index has xlexport, so `pip install xlexport` and `pip install 'xlexport[cpu]'` cannot work.
IMPOSSIBLE = re.compile(r"""pip3? (?:install|download) (?:[\w\[\],=<>'"-]+ )*?['"]?xlexport\b(?![\w/.-])""")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def names(requirements: list[str]) -> set[str]:
    return {requirement.partition(">")[0].replace("-", "_") for requirement in requirements}


def test_extras_are_those_of_the_project_file() -> None:
    declared = PROJECT["optional-dependencies"]
    for extra, modules in EXTRAS.items():
        assert names([DISTRIBUTIONS.get(name, name) for name in modules]) == names(declared[extra])


def test_base_install_has_no_heavy_package() -> None:
    assert names(PROJECT["dependencies"]) == {"click", "numpy", "safetensors", "tqdm"}


def test_constraints_pin_every_direct_dependency() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pinned = {line.partition("==")[0].replace("-", "_") for line in lines if "==" in line}
    direct = names(
        [*PROJECT["dependencies"], *(name for extra in PROJECT["optional-dependencies"].values() for name in extra)]
    )
    assert direct <= pinned


def test_missing_modules_are_named_together_with_the_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    absent = {"onnx", "onnx_ir"}

    def find_spec(name: str, package: str | None = None) -> Any:
        return None if name in absent else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    assert missing_modules("convert") == ["onnx", "onnx_ir"]
    with pytest.raises(MissingDependencyError, match=r"onnx, onnx_ir .*Install them: pip install onnx onnx-ir\.$"):
        require("convert")
    with pytest.raises(ImportError):
        require("convert")


def test_no_command_installs_xlexport_from_an_index() -> None:
    kinds = {".py", ".md", ".sh", ".toml", ".txt", ""}
    files = [path for place in PLACES for path in (ROOT / place).rglob("*") if path.is_file() and path.suffix in kinds]
    files += [path for path in ROOT.glob("*.md") if path.name != "CHANGELOG.md"]  # it is a history
    assert len(files) > 300
    assert [str(path) for path in files if IMPOSSIBLE.search(text_of(path))] == []


def text_of(path: Path) -> str:
    """Return the text of a file with its broken strings and lines joined."""
    return re.sub(r'"\s*\n\s*f?"|\s*\n\s*', " ", path.read_text("utf-8", errors="ignore"))


@pytest.mark.parametrize(
    ("text", "impossible"),
    [
        ("pip install xlexport", True),
        ("pip install -U 'xlexport[cpu]'", True),
        ('pip install "xlexport"', True),
        ("pip install onnxruntime 'xlexport[cpu,convert]'", True),
        ("pip install '.[cpu]' -c constraints.txt` in a clone of xlexport", False),
        ("pip install xlexport/dist/xlexport.whl", False),
        ("pip install tokenizers", False),
    ],
)
def test_impossible_commands_are_recognized(text: str, impossible: bool) -> None:
    assert bool(IMPOSSIBLE.search(text)) == impossible


@pytest.mark.parametrize("extra", EXTRAS)
def test_install_command_names_the_packages_themselves(extra: str) -> None:
    command = install_command(EXTRAS[extra])
    assert command.startswith("pip install ")
    declared = {requirement.partition(">")[0] for requirement in PROJECT["optional-dependencies"][extra]}
    assert set(command.removeprefix("pip install ").split()) == declared
