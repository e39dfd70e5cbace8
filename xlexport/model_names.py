"""Find the model that a name means: a path, code in a file, an installed model, or one in the cache of the hub.

Finding it runs no code, imports no package and opens no connection.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from xlexport import checkpoints
from xlexport.bundles import recorded_options
from xlexport.checkpoints import SourceCheckpoint
from xlexport.checkpoints.formats import tensorflow
from xlexport.checkpoints.recurrent import module_source
from xlexport.errors import CheckpointError, CheckpointNotFoundError, TrustError
from xlexport.model_code import ModelCode, build, code_in_file, installed_code, load_weights, offer
from xlruntime.bundle import Bundle
from xlruntime.messages import listed, named

__all__ = ["GROUP", "bundle_path", "load_source", "resolve"]

GROUP = "xlexport.models"  # of entry points; each loads a factory, a class or a module
REPOSITORY = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?")
MAIN = "main"  # the revision that is meant without @REVISION
LONGEST_COMMIT = 100  # bytes of a file in `refs`


def resolve(name: str | Path) -> Path | ModelCode:
    """Return the one model that a name means.

    Args:
        name: a path, `FILE.py:NAME`, the name of an entry point, `ORG/MODEL` or `ORG/MODEL@REVISION`. A `Path` is
            never anything else.

    Raises:
        CheckpointNotFoundError: no model has this name.
        CheckpointError: several models have it; the message says how to name each.
    """
    models = dict(_paths(name) if isinstance(name, Path) else _models(name))
    if not models:
        raise _unknown(str(name))
    if len(models) > 1:
        raise CheckpointError(f"{name}: {len(models)} models have this name.", hint=f"Give {' or '.join(models)}.")
    (model,) = models.values()
    return model


def bundle_path(name: str) -> Path:
    """Return the default output of a conversion: next to a checkpoint, otherwise in the current folder."""
    model = resolve(name)
    if isinstance(model, ModelCode):
        return Path(f"{model.stem}.bundle")
    if model != Path(name):  # in the cache of the hub
        return Path(f"{Path(name.partition('@')[0]).name}.bundle")
    return model.parent / f"{model.stem}.bundle"


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
        format, config: as for `checkpoints.load`; not for models that code makes.
        weights: tensors for a model that code makes, under the names of its `state_dict()`.
        trust: whether the code of a file or a package may run.
        bundle: the format and config of its conversion apply to a checkpoint, unless they are given anew.

    Raises:
        CheckpointError: as in `resolve`, `checkpoints.load`, `build` and `load_weights`, or an option does not apply.
        TrustError: code would run, but `trust` is off.
    """
    model = resolve(name)
    if isinstance(model, Path):
        if weights is not None:
            raise CheckpointError(f"{name}: --weights is for models that code makes.", hint="Leave it out.")
        source = checkpoints.load(model, *(recorded_options(bundle, format, config) if bundle else (format, config)))
        if model == Path(name):
            return source
        return replace(source, options={**source.options, "model": f"{str(name).partition('@')[0]}@{model.name}"})
    if format is not None or config is not None:
        what = f"{name}: --format and --config are for checkpoints, but code makes this model."
        raise CheckpointError(what, hint="Leave them out.")
    if not trust:
        raise TrustError(
            f"{name}: would run {model.description}; nothing was run.",
            hint="If you trust it like a program, add --trust (in Python: trust=True).",
        )
    module = build(model)
    if weights is not None:
        load_weights(module, weights)
    source = module_source(module, files=[*model.files(), *([weights] if weights else [])])
    return replace(source, options={"model": model.name, **({"version": model.version} if model.version else {})})


def _models(name: str) -> Iterator[tuple[str, Path | ModelCode]]:
    """Yield each model of a name, after a name that means only this one."""
    yield from _paths(Path(name))
    file, _, attribute = name.rpartition(":")
    if file.endswith(".py") and not os.path.exists(name):
        if not attribute.isidentifier():
            yield from _paths(Path(file))  # reports that the name in it is missing
        yield name, code_in_file(Path(file), attribute)
    for code in sorted(map(installed_code, entry_points(group=GROUP)), key=lambda code: code.name):
        if name in (code.name, code.name.partition(":")[2]):
            yield code.name, code
    repository, _, revision = name.partition("@")
    commits, commit = _cached(repository, revision or MAIN)
    if commit in commits:
        yield f"{repository}@{revision or MAIN}", commits[commit]


def _paths(path: Path) -> Iterator[tuple[str, Path]]:
    """Yield the checkpoint at a path, if there is one.

    Raises:
        CheckpointError: there is a Python file, and nothing says what in it is the model.
    """
    if path.suffix == ".py" and os.path.isfile(path):
        raise CheckpointError(f"{path}: Python code.", hint=offer(path))
    try:
        exists = path.exists() or tensorflow.matches(path)
    except (OSError, ValueError):
        exists = True  # `checkpoints.load` says what is wrong
    if exists:
        yield f"./{path}", path


def _cache() -> Path:
    """Return the folder of the hub's cache on this machine, as its client `huggingface_hub` finds it."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home, "hub")).expanduser()


def _cached(repository: str, revision: str) -> tuple[dict[str, Path], str]:
    """Return the folders of a cached model by commit, and the commit of a revision, which may be a commit itself."""
    folder = _cache() / f"models--{repository.replace('/', '--')}"
    if not REPOSITORY.fullmatch(repository) or not (folder / "snapshots").is_dir():
        return {}, revision
    if os.path.isfile(reference := folder / "refs" / revision):
        with reference.open("rb") as file:
            revision = file.read(LONGEST_COMMIT).decode("ascii", "replace").strip()
    return {path.name: path for path in sorted((folder / "snapshots").iterdir())}, revision


def _unknown(name: str) -> CheckpointNotFoundError:
    """Return the error for a name that nothing has, with names like it."""
    if os.path.isabs(name) or name.startswith("."):
        return CheckpointNotFoundError(f"{name}: no such file or folder.", hint="Check the path.")
    repository, _, revision = name.partition("@")
    if commits := _cached(repository, MAIN)[0]:
        what = f"{name}: the hub's cache has this model, but not its revision {revision or MAIN}."
        return CheckpointNotFoundError(what, hint=f"Give {listed(f'{repository}@{commit}' for commit in commits)}.")
    cached = [path.name.removeprefix("models--").replace("--", "/") for path in _cache().glob("models--*")]
    similar = difflib.get_close_matches(name, [*entry_points(group=GROUP).names, *cached])
    return CheckpointNotFoundError(
        f"{name}: no such file or folder, no installed model ({GROUP}), and none in the hub's cache ({_cache()}).",
        hint=f"Did you mean {' or '.join(map(named, similar))}?" if similar else "Check the name.",
    )
