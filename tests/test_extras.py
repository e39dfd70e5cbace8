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
from xlruntime import __version__

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
# No package index has xlexport or xlruntime: `pip install 'xlexport[cpu]'` fails, or installs a stranger's package.
IMPOSSIBLE = re.compile(
    r"""pip3? (?:install|download) (?!--no-index )(?:[\w\[\],=<>'"-]+ )*?['"]?xl(?:export|runtime)\b(?![\w/.-])"""
)
# So does a command that installs the clone without the folder of xlruntime.
ALONE = re.compile(r"""pip3? install (?!(?:-e )?\./runtime/python )(?:-e |--quiet )*'?\.(?:\[[\w,-]+\]'|(?= ))""")
VERSIONED: tuple[str, ...] = ("CITATION.cff", "runtime/c/pyproject.toml")
VERSIONED += tuple(f"runtime/js/{name}" for name in ("package.json", "package-lock.json", "pyproject.toml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def names(requirements: list[str]) -> set[str]:
    return {re.split("[>=]", requirement)[0].replace("-", "_") for requirement in requirements}


@pytest.mark.parametrize(
    "extra", ["convert", "hub", "lm-eval", "plot", "ray", "serve", "tables", "tensorboard", "text"]
)
def test_extras_are_those_of_the_project_file(extra: str) -> None:
    assert names(packages_of(extra)) == names(PROJECT["optional-dependencies"][extra])


def test_base_install_has_no_heavy_package() -> None:
    assert names(PROJECT["dependencies"]) == {"click", "numpy", "safetensors", "tqdm", "xlruntime"}


def test_xlruntime_has_the_version_that_xlexport_pins_and_the_same_requirements() -> None:
    runtime = tomllib.loads((ROOT / "runtime/python/pyproject.toml").read_text("utf-8"))["project"]
    dependencies = set(PROJECT["dependencies"])
    assert f"xlruntime=={__version__}" in dependencies
    assert set(runtime["dependencies"]) < dependencies
    assert runtime["optional-dependencies"].items() <= PROJECT["optional-dependencies"].items()


@pytest.mark.parametrize("place", VERSIONED)
def test_every_distribution_has_the_version_of_the_code(place: str) -> None:
    text = (ROOT / place).read_text("utf-8")
    assert re.findall(r'^ *"?version"?(?: =|:) "?([\d.]+)', text, re.MULTILINE)[0] == __version__


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


@pytest.mark.full
def test_no_command_installs_xlexport_from_an_index() -> None:
    kinds = {".py", ".md", ".sh", ".toml", ".txt", ""}
    files = [path for place in PLACES for path in (ROOT / place).rglob("*") if path.is_file() and path.suffix in kinds]
    files += [path for path in ROOT.glob("*.md") if path.name != "CHANGELOG.md"]  # it is a history
    assert len(files) > 300
    found = [(str(path), rule.search(text_of(path))) for path in files for rule in (IMPOSSIBLE, ALONE)]
    assert [(path, match[0]) for path, match in found if match] == []


def text_of(path: Path) -> str:
    """Return the text of a file with its broken strings and lines joined."""
    return re.sub(r'"\s*\n\s*f?"|\s*\n\s*', " ", path.read_text("utf-8", errors="ignore"))
