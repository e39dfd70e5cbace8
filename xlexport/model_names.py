"""Read the model that a name means: a path, code in a file, an installed model, or one in the cache of the hub.

Finding it runs no code, imports no package and opens no connection. Only `_build` runs code, and only with `trust`.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import hashlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from modulefinder import ModuleFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from xlexport import formats
from xlexport.bundles import recorded_options
from xlexport.checkpoints.files import WEIGHTS
from xlexport.checkpoints.module_weights import load_weights
from xlexport.checkpoints.source import SourceCheckpoint
from xlexport.errors import CheckpointError, CheckpointNotFoundError, TrustError
from xlexport.families.step_model.source import user_source
from xlexport.families.transformer_xl import tensorflow
from xlruntime.bundle import Bundle
from xlruntime.bundle_files import is_bundle
from xlruntime.hub_cache import MAIN, cache_folder, download_advice, download_command, snapshots
from xlruntime.messages import first_line, listed, named, near_path

if TYPE_CHECKING:
    from torch import nn

__all__ = ["ModelCode", "bundle_path", "load_reference", "load_source", "resolve"]

GROUP = "xlexport.models"  # of entry points; each loads a factory, a class or a module
IN_FILE = re.compile(r"(.+\.py)(?::(.*))?")
LARGEST_SOURCE = 1 << 24  # bytes of a Python file
ENDINGS = (".bin", ".ckpt", ".pt", ".pth", ".safetensors")  # of files, which no model on the hub is named after
OFFERED = 5  # names that a hint lists


@dataclass(frozen=True)
class ModelCode:
    """Code that makes a model, which did not run yet.

    Attributes:
        name: the name that means only this model, without folders of this machine; a bundle records it.
        description: what would run.
        entry: says what in which module is the model, or makes it.
        file, source: of a user's file, whose module `_build` defines.
    """

    name: str
    description: str
    entry: EntryPoint
    file: Path | None = None
    source: bytes = b""


def resolve(name: str | Path) -> Path | ModelCode:
    """Return the one model that a name means.

    Args:
        name: a path, `FILE.py:NAME`, the name of an entry point, `ORG/MODEL` or `ORG/MODEL@REVISION`. A `Path` is
            never anything else.

    Raises:
        CheckpointNotFoundError: no model has this name.
        CheckpointError: several models have it; the message says how to name each.
    """
    if isinstance(name, Path):
        return name
    models = dict(_models(name))
    if not models:
        raise _unknown(name)
    if len(models) > 1:
        raise CheckpointError(f"{name}: {len(models)} models have this name.", hint=f"Give {' or '.join(models)}.")
    (model,) = models.values()
    return model


def bundle_path(name: str) -> Path:
    """Return the default output of a conversion: next to a checkpoint, otherwise in the current folder."""
    model = resolve(name)
    if model == Path(name):
        return model.parent / f"{model.stem}.bundle"
    if isinstance(model, Path):  # in the cache of the hub
        return Path(f"{Path(name.partition('@')[0]).name}.bundle")
    return Path(f"{model.file.stem if model.file else Path(model.entry.name).name}.bundle")


def load_source(
    name: str | Path,
    format: str | None = None,
    config: Mapping[str, Any] | None = None,
    *,
    weights: Path | None = None,
    trust: bool = False,
    bundle: Bundle | None = None,
) -> SourceCheckpoint:
    """Read the model that a name means.

    Args:
        name: as for `resolve`.
        format, config: as for `formats.load`; not for models that code makes.
        weights: tensors for a model that code makes, under the names of its `state_dict()`.
        trust: whether the code of a file or a package may run.
        bundle: the format and config of its conversion apply to a checkpoint, unless they are given anew.

    Raises:
        CheckpointError: as in `resolve` and `formats.load`, the code fails, the weights do not fit its model, or
            an option does not apply.
        TrustError: code would run, but `trust` is off.
    """
    model = resolve(name)
    if isinstance(model, Path):
        if weights is not None:
            raise CheckpointError(f"{name}: --weights is for models that code makes.", hint="Leave it out.")
        if model != Path(name) and not is_bundle(model):  # which `formats.load` refuses
            _check_cached(str(name), model)
        source = formats.load(model, *(recorded_options(bundle, format, config) if bundle else (format, config)))
        if model == Path(name):
            return source
        return replace(source, options={**source.options, "model": f"{str(name).partition('@')[0]}@{model.name}"})
    if format is not None or config is not None:
        what = f"{name}: --set checkpoint_format and --config are for checkpoints, but code makes this model."
        raise CheckpointError(what, hint="Leave them out.")
    module, notes = _build(name, model, trust), list[str]()
    if weights is not None:
        notes = load_weights(module, weights, lambda: _build(name, model, trust))
    file = model.file or Path(inspect.getfile(sys.modules[model.entry.module]))
    source = user_source(module, files=filter(None, (file, weights)))
    return replace(source, options={"model": model.name}, notes=(*source.notes, *notes))


def load_reference(name: str, *, trust: bool = False) -> Any:
    """Return the eager code `FILE.py:NAME`, or what this makes if it takes no arguments; errors as `load_source`."""
    code = resolve(name)
    if isinstance(code, Path):
        raise CheckpointError(f"{name}: a reference is code, not a checkpoint.", hint="Give FILE.py:NAME.")

    def is_to_call(found: Any) -> bool:
        return inspect.isclass(found) or (inspect.isfunction(found) and not inspect.signature(found).parameters)

    return _run(name, code, trust, is_to_call)


def _models(name: str) -> Iterator[tuple[str, Path | ModelCode]]:
    """Yield each model of a name, after a name that means only this one."""
    if match := IN_FILE.fullmatch(name):
        yield name, _code_in_file(Path(match[1]), match[2] or "")
    elif (path := Path(name)).exists() or tensorflow.matches(path):
        yield f"./{path}", path
    for code in sorted(map(_installed_code, entry_points(group=GROUP)), key=lambda code: code.name):
        if name in (code.name, code.entry.name):
            yield code.name, code
    commits, commit = snapshots(name)
    if commit in commits:
        yield name if "@" in name else f"{name}@{MAIN}", commits[commit]


def _code_in_file(file: Path, attribute: str) -> ModelCode:
    """Return the code that makes what `attribute` is in a file.

    Raises:
        CheckpointError: there is no such file, or `attribute` is no name.
    """
    if not file.is_file() or file.stat().st_size > LARGEST_SOURCE:
        raise CheckpointNotFoundError(f"{file}: no such file of Python code.", hint="Check the path.")
    source = file.read_bytes()
    if not attribute.isidentifier():
        raise CheckpointError(f"{file}: Python code.", hint=_offer(file, source))
    digest = hashlib.sha256(source).hexdigest()  # of the bytes that run, even if the file changes meanwhile
    return ModelCode(
        name=f"{file.name}:{attribute}",
        description=f"{file.absolute()} (SHA-256 {digest})",
        entry=EntryPoint(attribute, f"xlexport_model_{digest}:{attribute}", GROUP),  # never another module's name
        file=file,
        source=source,
    )


def _installed_code(entry: EntryPoint) -> ModelCode:
    """Return the code that an installed package offers by an entry point; the package is not imported."""
    package, version = ("unknown", "unknown") if entry.dist is None else (entry.dist.name, entry.dist.version)
    return ModelCode(f"{package}:{entry.name}", f"{entry.value} of the package {package} {version}", entry)


def _offer(file: Path, source: bytes, near: str = "") -> str:
    """Return a hint that names the factories in a file, those like `near` if any; the file is parsed, but not run."""
    try:
        nodes = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        nodes = []
    definitions = [node for node in nodes if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    factories = [node.name for node in definitions if _is_factory(node)]
    names = [f"{file}:{name}" for name in (difflib.get_close_matches(near, factories) or factories)[:OFFERED]]
    return f"Give {' or '.join(names or [f'{file}:NAME, of a function without arguments that returns a model'])}."


def _is_factory(node: ast.ClassDef | ast.FunctionDef) -> bool:
    """Return whether it is a function that needs no arguments, or the class of a recurrent model."""
    if isinstance(node, ast.FunctionDef):
        return len(node.args.args) == len(node.args.defaults)
    return any(isinstance(inner, ast.FunctionDef) and inner.name == "first_state" for inner in node.body)


def _check_cached(name: str, snapshot: Path) -> None:
    """Refuse a model in the hub's cache that is behind a link, or not complete, as after an interrupted download.

    Its files are links into the folder `blobs` beside `snapshots`; `checkpoints.files.inside` refuses all others.
    """
    files = sorted(snapshot.iterdir())
    problems = [f"no {file.name!a}" for file in files if not file.exists()]
    if not any(file.name.startswith(WEIGHTS) for file in files):
        problems.append(f"no {' or '.join(WEIGHTS)}")
    cache = cache_folder()
    if snapshot.resolve() != cache.resolve() / snapshot.relative_to(cache):
        problems = ["behind a link, which you should remove"]
    if problems:
        what = f"{name}: not complete in the hub's cache: {snapshot}: {listed(problems)}."
        raise CheckpointNotFoundError(what, hint=f"Run `{download_command(name)}`.")


def _unknown(name: str) -> CheckpointNotFoundError:
    """Return the error for a name that nothing has, with names like it."""
    path = Path(name)
    near = near_path(path)
    if os.path.isabs(name) or name.startswith(".") or path.suffix in ENDINGS:
        return CheckpointNotFoundError(f"{name}: no such file or folder.", hint=near or "Check the path.")
    cached = [path.name.removeprefix("models--").replace("--", "/") for path in cache_folder().glob("models--*")]
    similar = [f"{name.partition('@')[0]}@{commit}" for commit in snapshots(name)[0]][:OFFERED]  # other revisions of it
    similar = similar or difflib.get_close_matches(name, [*entry_points(group=GROUP).names, *cached])
    advice = near or "Check it; code is FILE.py:NAME."
    if similar:
        advice = f"Did you mean {' or '.join(map(named, similar))}?"
    what = f"no such file or folder, no installed model ({GROUP}), and none in the hub's cache ({cache_folder()})"
    return CheckpointNotFoundError(f"{name}: {what}.", hint=advice + download_advice(name))


def _build(name: str | Path, code: ModelCode, trust: bool) -> nn.Module:
    """Run the code, and return the model that it makes; errors as in `_run`, and for something else."""
    from torch import nn

    model = _run(name, code, trust, lambda found: callable(found) and not isinstance(found, nn.Module))
    if not isinstance(model, nn.Module):
        what = f"{code.name}: makes a {type(model).__name__}, expected a torch.nn.Module."
        raise CheckpointError(what, hint="Give a module, or a function or class that makes one.")
    return model


def _run(name: str | Path, code: ModelCode, trust: bool, makes: Callable[[Any], bool]) -> Any:
    """Run the code, and return the object that it names, or the result of this if `makes` says so.

    Its prints go to standard error. Modules in the folder of a file can be imported meanwhile.

    Raises:
        CheckpointError: the code fails. The message has the line in the user's file. Or one of its imports means two
            modules, of which the message has both.
        TrustError: `trust` is off.
    """
    if not trust:
        raise TrustError(
            f"{name}: would run {code.description}; nothing was run.",
            hint="If you trust it like a program, add --trust (in Python: trust=True).",
        )
    path = list(sys.path)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            if code.file is not None:
                folder = str(code.file.absolute().parent)
                _refuse_double_modules(code.file, folder)
                sys.path.append(folder)
                module = sys.modules[code.entry.module] = ModuleType(code.entry.module)  # dataclasses look it up there
                module.__file__ = str(code.file.absolute())
                exec(compile(code.source, module.__file__, "exec", dont_inherit=True), vars(module))
                if not hasattr(module, code.entry.attr):
                    offer = _offer(code.file, code.source, code.entry.attr)
                    raise CheckpointError(f"{code.file}: no {code.entry.attr} in it.", hint=offer)
            found = code.entry.load()
            return found() if makes(found) else found
    except CheckpointError:
        raise
    except (Exception, SystemExit) as error:
        raise _failed(code, error) from error
    finally:
        sys.path[:] = path


class _Imports(ModuleFinder):
    """Find the modules in a folder that code imports, without running it."""

    def find_module(self, name: str, path: Any, parent: Any = None) -> Any:
        """Find a module of any name, but no folder without __init__.py: it gives way to modules, and has no loader."""
        places: Any = path or self.path  # without one, names of built-in modules would be left out
        try:
            return super().find_module(name, places, parent)
        except AttributeError as error:
            raise ImportError(name) from error


def _refuse_double_modules(file: Path, folder: str) -> None:
    """Refuse a file if it, or modules in its folder, import a name that another module has, too."""
    imports = _Imports([folder])
    with contextlib.suppress(SyntaxError, ValueError):  # Python reports it when the source runs
        imports.run_script(str(file))
    for name in imports.modules.keys() - {"__main__"}:
        own, loaded = vars(imports.modules[name])["__file__"], sys.modules.get(name)
        if own and "." not in name:
            other = loaded.__spec__ if loaded else importlib.util.find_spec(name)
            if other and other.origin and os.path.realpath(other.origin) != os.path.realpath(own):
                what = f"{file}: imports {name}, which is {own}, and also {other.origin}."
                raise CheckpointError(what, hint="Rename the first, or use an environment without the second.")


def _failed(code: ModelCode, error: BaseException) -> CheckpointError:
    """Return an error of one line about an exception in a user's code."""
    own = str(code.file.absolute()) if code.file else re.split("[.:]", code.entry.value)[0]
    places = [
        f"{frame.filename}, line {frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if own in (frame.filename, *Path(frame.filename).with_suffix("").parts)
    ]
    place, text = (places or [code.name])[-1], first_line(error) if str(error) else ""
    what = ": ".join(filter(None, (type(error).__name__, text.rstrip("."))))
    return CheckpointError(f"{place}: {what}.", hint="Correct this code, or install what it needs.")
