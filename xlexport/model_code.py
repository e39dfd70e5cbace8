"""Make a model by Python code of its user: a file, or an installed package. Only `build` runs the code."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from xlexport.checkpoints.files import read_tensors
from xlexport.errors import CheckpointError, CheckpointNotFoundError
from xlruntime.messages import first_line

if TYPE_CHECKING:
    from torch import nn

__all__ = ["ModelCode", "build", "code_in_file", "installed_code", "load_weights", "offer"]

LARGEST_SOURCE = 1 << 24  # bytes of a Python file
OFFERED = 5  # names that a hint lists
LONGEST_LIST = 1500  # characters of a message


@dataclass(frozen=True)
class ModelCode:
    """Code that makes a model, which did not run yet.

    Attributes:
        name: the name that means only this model, without folders of this machine; a bundle records it.
        stem: the default name of a bundle, without suffix.
        description: what would run; version: of an installed package.
        value: runs the code, and returns a factory, a class or a module.
        files: returns the files with the code, after `value`.
        is_own: returns whether a file in a traceback belongs to this code.
    """

    name: str
    stem: str
    description: str
    value: Callable[[], Any]
    files: Callable[[], list[Path]]
    is_own: Callable[[str], bool]
    version: str | None = None


def code_in_file(file: Path, attribute: str) -> ModelCode:
    """Return the code that makes what `attribute` is in a file.

    Raises:
        CheckpointNotFoundError: there is no such file.
    """
    path, source = file.absolute(), _read(file)
    digest = hashlib.sha256(source).hexdigest()  # of the bytes that run, even if the file changes meanwhile

    def value() -> Any:
        module = ModuleType(f"xlexport_model_{path.stem}_{digest[:12]}")  # never the name of another module
        module.__file__ = str(path)
        sys.modules[module.__name__] = module  # dataclasses and torch.export look it up
        exec(compile(source, path, "exec", dont_inherit=True), vars(module))
        if not hasattr(module, attribute):
            raise CheckpointError(f"{file}: no {attribute} in it.", hint=offer(file))
        return getattr(module, attribute)

    return ModelCode(
        name=f"{file.name}:{attribute}",
        stem=file.stem,
        description=f"{path} (SHA-256 {digest})",
        value=value,
        files=lambda: [file],
        is_own=lambda name: name == str(path),
    )


def installed_code(entry: EntryPoint) -> ModelCode:
    """Return the code that an installed package offers by an entry point; the package is not imported."""
    package, version = ("unknown", "unknown") if entry.dist is None else (entry.dist.name, entry.dist.version)
    module = entry.value.partition(":")[0]

    def files() -> list[Path]:
        file = getattr(sys.modules.get(entry.module), "__file__", None)
        return [] if file is None else [Path(file)]

    return ModelCode(
        name=f"{package}:{entry.name}",
        stem=Path(entry.name).name,
        description=f"{entry.value} of the package {package} {version}",
        value=entry.load,
        files=files,
        is_own=lambda name: module.partition(".")[0] in Path(name).with_suffix("").parts,
        version=version,
    )


def _read(file: Path) -> bytes:
    if not file.is_file() or file.stat().st_size > LARGEST_SOURCE:
        raise CheckpointNotFoundError(f"{file}: no such file of Python code.", hint="Check the path.")
    return file.read_bytes()


def offer(file: Path) -> str:
    """Return a hint that names the factories in a file, which is parsed, but not run."""
    try:
        nodes = ast.parse(_read(file)).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        nodes = []
    names = [f"{file}:{name}" for node in nodes if (name := _factory(node))][:OFFERED]
    return f"Give {' or '.join(names or [f'{file}:NAME, of a function without arguments that returns a model'])}."


def _factory(node: ast.stmt) -> str | None:
    """Return the name of a function that needs no arguments, or of the class of a recurrent model."""
    if isinstance(node, ast.ClassDef):
        methods = [inner.name for inner in node.body if isinstance(inner, ast.FunctionDef)]
        return node.name if "first_state" in methods else None
    if isinstance(node, ast.FunctionDef) and len(node.args.args) == len(node.args.defaults):
        return node.name
    return None


def build(code: ModelCode) -> nn.Module:
    """Run the code, and return the model that it makes. Its prints go to standard error.

    Modules in the folder of a file can be imported meanwhile, as if the file were a script.

    Raises:
        CheckpointError: the code fails, or makes something else. The message has the line in the user's file.
    """
    from torch import nn

    path = list(sys.path)
    if code.version is None:
        sys.path.insert(0, str(code.files()[0].absolute().parent))
    try:
        with contextlib.redirect_stdout(sys.stderr):
            model = code.value()
            model = model() if callable(model) and not isinstance(model, nn.Module) else model
    except CheckpointError:
        raise
    except (Exception, SystemExit) as error:
        raise _failed(code, error) from error
    finally:
        sys.path[:] = path
    if not isinstance(model, nn.Module):
        what = f"{code.name}: makes a {type(model).__name__}, expected a torch.nn.Module."
        raise CheckpointError(what, hint="Give a module, or a function or class that makes one.")
    return model


def _failed(code: ModelCode, error: BaseException) -> CheckpointError:
    """Return an error of one line about an exception in a user's code."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if code.is_own(frame.filename)]
    place = f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else code.name
    text = first_line(error) if str(error) else ""
    if isinstance(error, SyntaxError) and error.filename is not None:
        place, text = f"{error.filename}, line {error.lineno}", error.msg
    what = ": ".join(filter(None, (type(error).__name__, text.rstrip("."))))
    return CheckpointError(f"{place}: {what}.", hint="Correct this code, or install what it needs.")


def load_weights(model: nn.Module, file: Path) -> None:
    """Put the tensors of a file into a model that has exactly their names and shapes; one name of tied ones is enough.

    Raises:
        CheckpointError: the file is damaged, could run code, or does not fit the model. The message lists all problems.
    """
    tensors, own = {str(name): tensor for name, tensor in read_tensors(file).items()}, model.state_dict(keep_vars=True)
    read = {id(own[name]) for name in tensors if name in own}
    tied = {name: parameter for name, parameter in own.items() if id(parameter) in read}
    try:
        model.load_state_dict(tied | tensors)
    except RuntimeError as error:
        problems = " ".join(str(error).split())[:LONGEST_LIST]
        raise CheckpointError(f"{file}: {problems}", hint="Save the state_dict() of this model.") from error
