"""Extras: declared and required packages agree, and missing ones are named with the command to install them."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from tests.helpers.paths import ROOT
from xlexport.errors import MissingDependencyError
from xlexport.extras import missing_packages, packages_of, require

PLACES = (
    "xlexport",
    "runtime",
    "training",
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


@pytest.mark.parametrize("extra", ["convert", "lm-eval", "plot", "ray", "serve", "tables", "tensorboard", "text"])
def test_extras_are_those_of_the_project_file(extra: str) -> None:
    assert names(packages_of(extra)) == names(PROJECT["optional-dependencies"][extra])


def test_base_install_has_no_heavy_package() -> None:
    assert names(PROJECT["dependencies"]) == {"click", "numpy", "safetensors", "tqdm"}


def test_missing_packages_are_named_together_with_the_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xlexport.extras.is_installed", lambda name: name not in ("onnx", "onnx-ir"))
    assert set(missing_packages("convert")) == {"onnx", "onnx-ir"}
    with pytest.raises(MissingDependencyError, match=r"onnx.*, onnx.* .*Install them: pip install onnx.* onnx.*\.$"):
        require("convert")
    with pytest.raises(ImportError):
        require("convert")


def test_sources_that_are_not_installed_require_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.requires", requires)
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
