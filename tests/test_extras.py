"""Extras: declared and required packages agree, and missing ones are named with the command to install them."""

from __future__ import annotations

import importlib.util
import tomllib
from typing import Any

import pytest

from tests.helpers.paths import ROOT
from xlexport.errors import MissingDependencyError
from xlexport.extras import EXTRAS, missing_modules, require

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def names(requirements: list[str]) -> set[str]:
    return {requirement.partition(">")[0].replace("-", "_") for requirement in requirements}


def test_extras_are_those_of_the_project_file() -> None:
    declared = PROJECT["optional-dependencies"]
    for extra, modules in EXTRAS.items():
        assert set(modules) == names(declared[extra])


def test_base_install_has_no_heavy_package() -> None:
    assert names(PROJECT["dependencies"]) == {"click", "numpy", "safetensors"}


def test_constraints_pin_every_direct_dependency() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pinned = {line.partition("==")[0].replace("-", "_") for line in lines if "==" in line}
    direct = names(
        [*PROJECT["dependencies"], *(name for extra in PROJECT["optional-dependencies"].values() for name in extra)]
    )
    assert direct <= pinned


def test_missing_modules_are_named_together_with_the_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    absent = {"onnx", "onnx_ir"}

    def find_spec(name: str, package: str | None = None) -> Any:
        return None if name in absent else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    assert missing_modules("convert") == ["onnx", "onnx_ir"]
    with pytest.raises(MissingDependencyError, match=r"onnx, onnx_ir .*pip install 'xlexport\[convert\]'"):
        require("convert")
    with pytest.raises(ImportError):
        require("convert")
