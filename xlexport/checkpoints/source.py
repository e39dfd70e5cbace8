"""The result of reading a checkpoint, the same for all formats."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xlexport.errors import CheckpointError
from xlruntime.bundle import FileDigest
from xlruntime.bundle_files import digest_file
from xlruntime.messages import listed

if TYPE_CHECKING:
    from torch import Tensor

    from xlruntime.tokenizers.vocabulary import Vocabulary
    from xltraining.checkpoint import Checkpoint
    from xltraining.data.tokenizer_file import TokenizerFile

__all__ = ["Note", "SourceCheckpoint", "digest_files", "float_kinds", "float_notes", "model_source", "require_finite"]


class Note(str):
    """A sentence about a checkpoint that was read. It may concern settings that the user can give.

    Attributes:
        options: names of evaluation settings, as in `ConversionOptions`. If all are given, the note does not apply.
    """

    options: tuple[str, ...]

    def __new__(cls, text: str, options: Iterable[str] = ()) -> Note:
        """Make a note that names the options with which its user can answer."""
        note = super().__new__(cls, text)
        note.options = tuple(options)
        return note


@dataclass(frozen=True)
class SourceCheckpoint:
    """A trained model and where it came from.

    Attributes:
        architecture: its name in `xltraining.architectures`.
        format: name of the format that read it.
        config: hyper-parameters as plain values, under the field's names.
        tokenizer: `bytes`, `none` (token ids only), the checkpoint's vocabulary, its file for a tokenizer library,
            the path of that file, or None if the checkpoint does not say.
        files: the files that were read, with their SHA-256 and size at that time, for the bundle's provenance.
        build_model: makes the eager model, float32, in evaluation mode.
        notes: a sentence for each choice that was made for the user, and for each part of the source that a bundle
            does not hold. The options of a `Note` are the settings without which it applies.
        parameters: how many trained numbers the model has, tied ones counted once.
        needs: names of evaluation settings that the source does not hold and the user must give; `config` has
            placeholders for them.
        options: the `format` and `config` that the user gave to `load`, if any.
        about: what the checkpoint says of the model, as in `xltraining.checkpoint.Checkpoint`.
    """

    architecture: str
    format: str
    config: Mapping[str, Any]
    tokenizer: str | Vocabulary | TokenizerFile | Path | None
    files: Mapping[Path, FileDigest]
    build_model: Callable[[], Any] = field(repr=False)
    notes: tuple[str, ...] = ()
    parameters: int = 0
    needs: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)


def digest_files(*paths: Path) -> dict[Path, FileDigest]:
    """Return SHA-256 and size of each file. Results are cached: unchanged files are not read again."""
    return {path: _digest(path, _stamp(path)) for path in paths}


def _stamp(path: Path) -> tuple[int, ...]:
    """Return values that change when a file is written or replaced."""
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@functools.lru_cache(maxsize=64)
def _digest(path: Path, stamp: tuple[int, ...]) -> FileDigest:
    return digest_file(path)


def model_source(
    path: Path,
    format: str,
    checkpoint: Checkpoint,
    *,
    files: Iterable[Path],
    tokenizer: str | Vocabulary | TokenizerFile | Path | None = None,
    notes: Iterable[str] = (),
    needs: Iterable[str] = (),
) -> SourceCheckpoint:
    """Make the source of a model whose tensors have our names and fit their configuration.

    Raises:
        CheckpointError: weights are infinite or undefined. The message names all such tensors.
    """
    from xltraining.architectures import architecture_of, model_class, shared_names
    from xltraining.checkpoint import build_model

    config = checkpoint.config
    tied, is_drawn, kind = shared_names(config), model_class(config).is_drawn, architecture_of(config)
    own = {name: tensor for name, tensor in checkpoint.state_dict.items() if name not in tied}
    require_finite(path, own)
    return SourceCheckpoint(
        architecture=kind,
        format=format,
        config=config.to_dict(),
        tokenizer=tokenizer,
        files=digest_files(*files),
        build_model=functools.partial(build_model, checkpoint),
        notes=tuple(notes),
        parameters=sum(tensor.numel() for name, tensor in own.items() if not is_drawn(name)),
        needs=tuple(needs),
        about=checkpoint.about,
    )


def require_finite(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Refuse weights that are infinite or undefined.

    Raises:
        CheckpointError: the message names all such tensors.
    """
    broken = [name for name, tensor in tensors.items() if not _is_finite(tensor)]
    if broken:
        raise CheckpointError(
            f"{path}: infinite or undefined weights in {listed(broken)}.",
            hint="Use a checkpoint from before training diverged.",
        )


def float_notes(tensors: Mapping[str, Any]) -> list[str]:
    """Return a note if weights are not float32."""
    kinds = float_kinds(tensors) - {"float32"}
    return [f"Weights are {', '.join(sorted(kinds))} in the file and become float32."] if kinds else []


def float_kinds(tensors: Mapping[str, Any]) -> set[str]:
    """Return the names of the floating-point types among the tensors."""
    import torch

    dtypes = {tensor.dtype for tensor in tensors.values() if isinstance(tensor, torch.Tensor)}
    return {str(kind).removeprefix("torch.") for kind in dtypes if kind.is_floating_point}


def _is_finite(tensor: Tensor) -> bool:
    """Return whether all numbers are finite. The extremes are NaN if any number is: one pass, faster than isfinite."""
    return all(bool(extreme.isfinite()) for extreme in tensor.aminmax())
