"""Checkpoints that people hold, one format a file; which one it is shows in what it contains, not in its name.

A format is a module with `NAME`, `matches(path) -> bool` and `load(path, config) -> SourceCheckpoint`. Checkpoints are
untrusted: no reader runs code from one, and none falls back to one that would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from xlexport.checkpoints import kimiyoung_format, nvidia_format, xltraining_format
from xlexport.checkpoints.pickles import summarize
from xlexport.checkpoints.source import SourceCheckpoint
from xlexport.errors import CheckpointError, CheckpointNotFoundError
from xlruntime.bundle import is_bundle

__all__ = ["FORMATS", "CheckpointFormat", "SourceCheckpoint", "format_names", "load"]

GIVE = "Give a checkpoint that `xlexport train` wrote: a .pt file, or a folder with model.safetensors and config.json."


class CheckpointFormat(Protocol):
    """What each module of a format defines."""

    NAME: str

    def matches(self, path: Path) -> bool:
        """Whether what is at `path` (a folder, or a file that is not empty) is of this format."""

    def load(self, path: Path, config: Mapping[str, Any] | None = None) -> SourceCheckpoint:
        """Read it; `config` is what the user says of it."""


FORMATS: tuple[CheckpointFormat, ...] = (xltraining_format, kimiyoung_format, nvidia_format)


def format_names() -> list[str]:
    """What `load` takes as `format`."""
    return [module.NAME for module in FORMATS]


def load(path: Path | str, format: str | None = None, config: Mapping[str, Any] | None = None) -> SourceCheckpoint:
    """Read a checkpoint.

    Args:
        path: a file or a folder.
        format: one of `format_names()`; None finds out from the content.
        config: hyper-parameters that the checkpoint does not hold, under the field's names.

    Raises:
        CheckpointNotFoundError: nothing is there, or a folder without a checkpoint.
        CheckpointError: it is damaged, could run code, or is of an unknown kind.
        MissingDependencyError: a package that its format needs is not installed.
    """
    path = Path(path)
    if format is not None and format not in format_names():
        raise CheckpointError(f"format {format!r} is unknown. Use one of: {', '.join(format_names())}.")
    try:
        _check_something_there(path)
        for module in FORMATS:
            if format == module.NAME or (format is None and module.matches(path)):
                return module.load(path, config)
        raise _unknown(path)
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}). Check its permissions.") from error


def _check_something_there(path: Path) -> None:
    if not path.exists():
        raise CheckpointNotFoundError(f"{path}: no such file or folder. Check the path.")
    if path.is_dir():
        return
    if not path.is_file():
        raise CheckpointError(f"{path}: neither a file nor a folder. {GIVE}")
    if path.stat().st_size == 0:
        raise CheckpointError(f"{path}: the file is empty. Copy or save the checkpoint again.")


def _unknown(path: Path) -> CheckpointError:
    """Say what was found instead of a known format."""
    if path.is_dir():
        return _unknown_folder(path)
    summary = summarize(path)
    if path.suffix == ".safetensors" or path.name == "config.json":
        return CheckpointError(f"{path}: one file of a checkpoint. Give the folder that it is in: {path.parent}.")
    if summary is None or not (summary.strings or summary.globals):
        return CheckpointError(f"{path}: not a PyTorch checkpoint. {GIVE}")
    if summary.foreign_globals:
        named = _quoted(summary.foreign_globals)
        return CheckpointError(
            f"{path}: holds Python objects that could run code ({named}); nothing was run. Save plain tensors instead, "
            "or give a checkpoint that `xlexport train` wrote."
        )
    named = _quoted(summary.strings)
    return CheckpointError(f"{path}: a checkpoint of an unknown kind (its first names: {named}). {GIVE}")


def _unknown_folder(path: Path) -> CheckpointError:
    if is_bundle(path):
        return CheckpointError(f"{path}: already a bundle. Use it with `xlexport score`, or give the checkpoint.")
    inside = sorted(file.name for file in path.glob("*.pt"))
    if inside:
        return CheckpointNotFoundError(f"{path}: a folder. Give the file in it: {path / inside[0]}.")
    return CheckpointNotFoundError(f"{path}: a folder without a checkpoint. {GIVE}")


def _quoted(names: Sequence[str]) -> str:
    """The first few, fit for a terminal whatever a hostile file calls them."""
    return ", ".join(ascii(name[:60]) for name in names[:3])
