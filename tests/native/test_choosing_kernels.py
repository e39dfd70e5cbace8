"""`ops` chooses which kernels run: those of the installed package, those of a file, or none."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import xlexport
import xlruntime
from tests.helpers.paths import BAND, EMPTY, golden_bundle
from xlexport import torch_runtime
from xlexport.commands.doctor import run_checks
from xlruntime.devices import Device
from xlruntime.errors import OptionError, ProviderError
from xlruntime.kernels import BODIES, Kernels, describe_kernels, find_kernels
from xlruntime.placement import PlacedNode

pytestmark = pytest.mark.full  # compiles C++

CPU = Device("cpu")


@pytest.fixture
def package(kernel_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install a package `xlexport_ops` with the library, and return its module."""
    module = tmp_path / "xlexport_ops" / "__init__.py"
    module.parent.mkdir()
    module.write_text(f"LIBRARY = {str(kernel_library)!r}\n", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "xlexport_ops", raising=False)
    yield module
    sys.modules.pop("xlexport_ops", None)


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make Python find no package `xlexport_ops`."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "xlexport_ops" else found(name))


def test_auto_takes_the_library_of_the_installed_package(package: Path, kernel_library: Path) -> None:
    model = xlruntime.load(golden_bundle(BAND), threads=1)
    assert model.kernels is not None and model.kernels.path == kernel_library.resolve()
    assert re.fullmatch(r"xlexport-ops \S+ \(\w+\): .*1 LSHAttention.*", model.kernels_used("score"))


@pytest.mark.usefixtures("no_package")
def test_without_the_package_the_bodies_run() -> None:
    model = xlruntime.load(golden_bundle(BAND), threads=1)
    assert (model.kernels, model.kernels_used("score")) == (None, BODIES)


@pytest.mark.usefixtures("package")
def test_none_leaves_the_installed_package_alone() -> None:
    model = xlruntime.load(golden_bundle(BAND), threads=1, ops="none")
    assert (model.kernels, model.kernels_used("score")) == (None, BODIES)
    assert "xlexport_ops" not in sys.modules


@pytest.mark.usefixtures("package")
def test_another_device_gets_no_kernels() -> None:
    assert find_kernels("auto", Device("cuda")) is None


def test_what_ran_is_counted_by_operator() -> None:
    kernels = Kernels(Path("lib.so"), "1.2", "avx2", frozenset({"LSHSort"}))
    nodes = [PlacedNode("", "LSHSort", "CPU", "ai.xlexport")] * 2 + [PlacedNode("", "MatMul", "CPU")]
    assert describe_kernels(kernels, nodes) == "xlexport-ops 1.2 (avx2): 2 LSHSort"
    assert describe_kernels(kernels, nodes[2:]) == "none (the graph has no operator of xlexport-ops 1.2 (avx2))"
    assert describe_kernels(None, nodes[2:]) == BODIES
    assert describe_kernels(None, []) == "none"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"lib\.so: no such file, expected a library of kernels"),
        ("text", r"lib\.so: cannot be loaded as a library of kernels \(.*lib\.so.*\)"),
    ],
)
def test_a_file_that_is_no_library_is_an_error(content: str | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "lib.so").write_text(content, "utf-8")
    with pytest.raises(ProviderError, match=message) as caught:
        find_kernels(tmp_path / "lib.so", CPU)
    assert content is not None or caught.value.hint == "Give the path of the library, auto or none."


def test_a_missing_library_of_the_package_is_an_error(package: Path, tmp_path: Path) -> None:
    package.write_text(f"LIBRARY = {str(tmp_path / 'gone.so')!r}\n", "utf-8")
    with pytest.raises(ProviderError, match=r"gone\.so: no such file") as caught:
        find_kernels("auto", CPU)
    assert caught.value.hint and "or choose ops none" in caught.value.hint
    (check,) = (check for check in run_checks() if check.name == "kernels")
    assert check.ok is False and "gone.so" in check.detail and check.hint


def test_a_package_of_the_same_name_is_an_error(package: Path) -> None:
    package.write_text("", "utf-8")
    with pytest.raises(ProviderError, match="xlexport_ops has no LIBRARY, so it is not of xlexport-ops"):
        find_kernels("auto", CPU)


def test_another_library_is_an_error() -> None:
    import _ctypes

    if not hasattr(_ctypes, "__file__"):
        pytest.skip("this Python has its modules inside")
    with pytest.raises(ProviderError, match=r"has no xlexport_ops_version, so it is not a library of xlexport-ops"):
        find_kernels(_ctypes.__file__, CPU)


def test_the_environment_lowers_the_instruction_set(kernel_library: Path) -> None:
    show = "import sys; from xlruntime.kernels import *; from xlruntime.devices import Device; "
    show += "print(find_kernels(sys.argv[1], Device('cpu')).instruction_set)"
    environment = {**os.environ, "XLEXPORT_OPS_INSTRUCTION_SET": "base"}
    command = [sys.executable, "-c", show, str(kernel_library)]
    assert subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout == "base\n"


def test_pytorch_takes_no_library(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="PyTorch runs this bundle, and cannot use the kernels of "):
        torch_runtime.load(golden_bundle(EMPTY), ops=tmp_path / "lib.so")


def test_doctor_names_the_library_and_its_instruction_set(package: Path, kernel_library: Path) -> None:
    (check,) = (check for check in run_checks() if check.name == "kernels")
    kernels = find_kernels("auto", CPU)
    if kernels is not None and kernels.version == xlexport.__version__:
        assert (check.ok, check.detail) == (True, f"{kernels}: {kernel_library.resolve()}")
    else:
        assert check.ok is None and f"{kernels}, but xlexport is {xlexport.__version__}" in check.detail


@pytest.mark.usefixtures("no_package")
def test_doctor_suggests_the_install_line() -> None:
    (check,) = (check for check in run_checks() if check.name == "kernels")
    assert check.ok is None and "pip install ./runtime/c" in (check.hint or "")


@pytest.mark.parametrize("line", [["inspect", "--device", "cpu"], ["inspect", "--device", "cpu", "--json"]])
def test_inspect_names_the_kernels(line: list[str], kernel_library: Path, invoke: Callable[..., Any]) -> None:
    shown = invoke(line[0], golden_bundle(BAND), *line[1:], "--set", f"ops={kernel_library}").succeeded().out
    assert "LSHAttention" in shown and f"{find_kernels(kernel_library, CPU)}: " in shown


def test_inspect_without_device_runs_nothing(kernel_library: Path, invoke: Callable[..., Any]) -> None:
    shown = invoke("inspect", golden_bundle(BAND), "--set", f"ops={kernel_library}")
    assert (shown.code, shown.out) == (2, "") and "--set ops is for bundles that run" in shown.err
