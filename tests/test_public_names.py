"""`__all__` lists exactly the public names of a module, and a public class has a name of its own.

Functions and classes without a leading underscore are public and must be listed, except commands of the command line.
Constants may be private to a module, but a constant that another module imports is public.
"""

from __future__ import annotations

import ast
import importlib
from collections import Counter
from pathlib import Path

import pytest

from tests.helpers.paths import ROOT

PACKAGES = (ROOT / "xlexport", ROOT / "runtime/python/xlruntime", ROOT / "training/xltraining")
MODULES = sorted(file for package in PACKAGES for file in package.rglob("*.py") if not file.name.startswith("__main__"))


def registers_command(decorator: ast.expr) -> bool:
    """Return whether this is `@cli.command()`: such a function is called through its group, not by name."""
    return isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith(".command")


class Names:
    """The names that a module's source defines and lists."""

    def __init__(self, source: str) -> None:
        self.listed: list[str] | None = None
        self.shown: set[str] = set()  # its own public functions and classes
        self.bound: set[str] = set()  # all other names
        body = ast.parse(source).body
        if any(
            isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in body
        ):  # imports on first use
            body = [inner for node in body for inner in (node.body if isinstance(node, ast.If) else [node])]
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                private = node.name.startswith("_") or any(map(registers_command, node.decorator_list))
                (self.bound if private else self.shown).add(node.name)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                self.bound |= {alias.asname or alias.name for alias in node.names}
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = {target.id for target in targets if isinstance(target, ast.Name)}
                self.bound |= names
                if "__all__" in names and node.value is not None:
                    self.listed = ast.literal_eval(node.value)

    def problems(self) -> list[str]:
        if self.listed is None:
            return ["no __all__"] if self.shown else []
        listed = set(self.listed)
        problems = [f"{name} is listed twice" for name in listed if self.listed.count(name) > 1]
        problems += [f"{name} is listed but not there" for name in sorted(listed - self.shown - self.bound)]
        problems += [f"{name} is public but not listed" for name in sorted(self.shown - listed)]
        return problems


def identify(module: Path) -> str:
    return module.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("module", MODULES, ids=identify)
def test_all_lists_the_public_names(module: Path) -> None:
    assert Names(module.read_text("utf-8")).problems() == []


def test_no_two_public_classes_have_one_name() -> None:
    parsed = (ast.parse(module.read_text("utf-8")).body for module in MODULES)
    names = Counter(node.name for body in parsed for node in body if isinstance(node, ast.ClassDef))
    assert len(names) > 400
    assert not {name for name, count in names.items() if count > 1 and not name.startswith("_")}


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("xlexport.commands.settings", "Setting", "SettingOption"),
        ("xlexport.families.recurrent.mamba", "Mamba", "Mamba1"),
        ("xlexport.scoring.comparison", "Comparison", "PairedComparison"),
        ("xlexport.scoring.score_options", "Selection", "InputOptions"),
        ("xltraining.errors", "CheckpointError", "RunFileError"),
        ("xltraining.data.tasks", "check_task", "check_positions"),
        ("xltraining.encoder_decoder.model", "FeedForward", "EncoderDecoderFeedForward"),
        ("xltraining.loop.saved_run", "SavedRun", "RunSettings"),
        ("xltraining.recurrent.config", "RecurrentConfig", "RecurrentModelConfig"),
        ("xltraining.reformer.attention", "Attention", "ReformerAttention"),
    ],
)
def test_an_old_name_says_the_new_one(module: str, old: str, new: str) -> None:
    loaded = importlib.import_module(module)
    assert hasattr(loaded, new) and not hasattr(loaded, "absent")
    with pytest.raises(ImportError, match=f"^{module}.{old} is {new} since this version"):
        getattr(loaded, old)
