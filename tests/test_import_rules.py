"""What an import loads, seen in a fresh interpreter; lint-imports reads the sources (pyproject.toml)."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.paths import ROOT, is_moved

PACKAGES = {"xlruntime": ROOT / "runtime/python/xlruntime", "xltraining": ROOT / "training/xltraining"}
HEAVY = {"torch", "onnx", "onnx_ir", "onnxscript"}
FORBIDDEN = {
    "xlruntime": HEAVY | {"xlexport", "xltraining"},
    "xltraining": {"onnx", "onnx_ir", "onnxscript", "onnxruntime", "xlexport", "xlruntime"},
}
ONLY_IF_ASKED_FOR = {"pandas"}  # in functions that return its objects


def modules_of(package: str, folder: Path) -> list[str]:
    """Return the dotted names of all modules of a package, without those that moved and only say so."""
    files = (file.relative_to(folder).with_suffix("") for file in sorted(folder.rglob("*.py")) if not is_moved(file))
    return [".".join((package, *(part for part in file.parts if part != "__init__"))) for file in files]


def loaded_after(code: str, path: Path | None = None) -> set[str]:
    """Run `code` in a fresh interpreter; return the top-level names of all loaded modules."""
    report = "\nimport sys\nprint('\\nLOADED', *{name.partition('.')[0] for name in sys.modules})"
    environment = dict(os.environ)
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(path), environment.get("PYTHONPATH"))))
    command = [sys.executable, "-c", code + report]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    return set(result.stdout.rpartition("LOADED")[2].split())


@pytest.mark.full
@pytest.mark.parametrize("package", PACKAGES)
def test_importing_every_module_pulls_in_nothing_forbidden(package: str) -> None:
    modules = modules_of(package, PACKAGES[package])
    assert len(modules) > 3
    loaded = loaded_after("\n".join(f"import {module}" for module in modules))
    assert package in loaded
    assert not loaded & FORBIDDEN[package]


def test_modules_that_moved_say_where_to() -> None:
    moved = {package: list(filter(is_moved, folder.rglob("*.py"))) for package, folder in PACKAGES.items()}
    for package, files in moved.items():
        for file in files:
            name = ".".join((package, *file.relative_to(PACKAGES[package]).with_suffix("").parts))
            with pytest.raises(ImportError, match=rf"^{name} moved to (\S+) in a clone of xlexport\.$") as caught:
                importlib.import_module(name)
            assert (ROOT / str(caught.value).split()[3]).is_file()


@pytest.mark.full
def test_onnxruntime_pulls_in_nothing_forbidden() -> None:
    loaded = loaded_after("from xlruntime.providers import import_onnxruntime; import_onnxruntime()")
    assert "onnxruntime" in loaded
    assert not loaded & FORBIDDEN["xlruntime"]


def test_importing_xlruntime_loads_only_what_is_asked_for() -> None:
    assert not loaded_after("import xlruntime") & {"numpy", "onnxruntime"}
    assert not loaded_after("import xlruntime; xlruntime.load") & {"onnxruntime", *ONLY_IF_ASKED_FOR}


def test_help_of_every_command_is_light() -> None:
    loaded = loaded_after(
        "import click\n"
        "from click.testing import CliRunner\n"
        "from xlexport.commands import cli\n"
        "commands = cli.list_commands(click.Context(cli))\n"
        "assert len(commands) > 3, commands\n"
        "for arguments in ([], *([name] for name in commands)):\n"
        "    result = CliRunner().invoke(cli, [*arguments, '--help'])\n"
        "    assert result.exit_code == 0, result.output\n"
    )
    assert "xlexport" in loaded
    assert not loaded & (HEAVY | {"onnxruntime", "tqdm"})


@pytest.mark.parametrize(
    "module",
    [
        *("xlexport", "xlexport.formats", "xlexport.commands.doctor", "xlexport.commands.train", "xlexport.errors"),
        *("xlexport.families.reformer", "xlexport.families.transformer_xl"),
        *("experiments.picture", "experiments.translate"),
    ],
)
def test_light_modules_stay_light(module: str) -> None:
    assert not loaded_after(f"import {module}") & (HEAVY | {"onnxruntime"})
