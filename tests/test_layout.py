"""The layout of the sources: files stay short, and the table of commands names the files that define them."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.helpers.paths import ROOT
from xlexport.commands import COMMANDS
from xltraining.architectures import architecture_names

MOST_LINES = 600
ENDINGS = (".py", ".c", ".cc", ".h", ".hpp", ".inc")
FOLDERS = (
    "xlexport",
    "runtime/python/xlruntime",
    "runtime/c",
    "training/xltraining",
    "tests",
    "benchmarks",
    "experiments",
)
HELPERS_OF_COMMANDS = {"__init__", "options"}


def long_modules(root: Path, folders: tuple[str, ...], most: int = MOST_LINES) -> set[str]:
    """Return the paths of the Python and C++ files with more than `most` lines."""
    files = [file for folder in folders for file in (root / folder).rglob("*") if file.suffix in ENDINGS]
    assert files
    return {file.relative_to(root).as_posix() for file in files if len(file.read_text("utf-8").splitlines()) > most}


MOST_MODULES = 12  # of a folder of the training code: more are hard to take in at one look
TRAINING = ROOT / "training/xltraining"


def crowded_folders(root: Path, most: int = MOST_MODULES) -> dict[str, int]:
    """Return the folders in `root`, and `root` itself, that have more than `most` modules apart from `__init__`."""
    folders = {file.parent for file in root.rglob("*.py")}
    counts = {folder: sum(file.stem != "__init__" for file in folder.glob("*.py")) for folder in folders}
    return {folder.relative_to(root).as_posix(): count for folder, count in counts.items() if count > most}


def commands_of(source: str) -> list[str]:
    """Return the names of the commands that a source defines, except commands of its own groups."""
    found = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) in ("click.command", "click.group"):
                    named = [value.value for value in decorator.args if isinstance(value, ast.Constant)]
                    found.append(str(named[0]) if named else node.name)
    return found


def test_modules_are_short() -> None:
    assert long_modules(ROOT, FOLDERS) == set()


def test_folders_of_the_training_code_are_short() -> None:
    assert crowded_folders(TRAINING) == {}


def test_every_architecture_has_its_folder() -> None:
    folders = {file.parent.name for file in TRAINING.glob("*/model.py") if (file.parent / "config.py").is_file()}
    assert folders == set(architecture_names())


def test_table_names_the_files_that_define_commands() -> None:
    files = {file.stem: file for file in (ROOT / "xlexport/commands").glob("*.py")}
    defined = {name: commands_of(file.read_text("utf-8")) for name, file in files.items()}
    assert {name: names for name, names in defined.items() if names and name != "__init__"} == {
        name: [name] for name in COMMANDS
    }


def test_the_checks_can_fail(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text("\n" * 11)
    (tmp_path / "short.py").write_text("\n" * 10)
    (tmp_path / "long.inc").write_text("\n" * 11)
    assert long_modules(tmp_path, (".",), most=10) == {"long.py", "long.inc"}
    assert crowded_folders(tmp_path, most=1) == {".": 2}
    assert commands_of("@click.command()\n@option\ndef f(): ...\n@click.command('g')\ndef h(): ...\ndef i(): ...") == [
        "f",
        "g",
    ]
