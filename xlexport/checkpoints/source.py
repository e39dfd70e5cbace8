"""What a checkpoint is once it has been read, whatever its format."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xlexport.errors import CheckpointError
from xlruntime.bundle import digest_file
from xlruntime.messages import listed
from xlruntime.spec import FileDigest

if TYPE_CHECKING:
    from torch import Tensor

    from xlruntime.tokenizers.vocabulary import Vocabulary
    from xltraining.checkpoint import Checkpoint

__all__ = ["Note", "SourceCheckpoint", "digest_files", "float_kinds", "float_notes", "model_source"]


class Note(str):
    """A sentence about a checkpoint that was read, which may be about settings that the user can give.

    Attributes:
        options: names of evaluation settings, as `ConversionOptions` has them; given all of them, the note is moot.
    """

    options: tuple[str, ...]

    def __new__(cls, text: str, options: Iterable[str] = ()) -> Note:
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
        tokenizer: `bytes`, the vocabulary that the checkpoint holds, a file of it for a library of tokenizers, or None
            where it does not say.
        files: the files that were read, with SHA-256 and size when they were, for the bundle's provenance.
        build_model: makes the eager model, float32, in evaluation mode.
        notes: a sentence for each thing that was chosen for the user, or that the source holds and a bundle does not;
            a `Note` says which settings make it moot.
        parameters: how many trained numbers the model has, tied ones counted once.
        needs: names of evaluation settings that the source does not hold and the user must give; `config` has
            placeholders for them.
    """

    architecture: str
    format: str
    config: Mapping[str, Any]
    tokenizer: str | Vocabulary | Path | None
    files: Mapping[Path, FileDigest]
    build_model: Callable[[], Any] = field(repr=False)
    notes: tuple[str, ...] = ()
    parameters: int = 0
    needs: tuple[str, ...] = ()


def digest_files(*paths: Path) -> dict[Path, FileDigest]:
    """SHA-256 and size of each file; one that has not changed, as when it is read for the next block, is not read."""
    return {path: _digest(path, _stamp(path)) for path in paths}


def _stamp(path: Path) -> tuple[int, ...]:
    """What changes when a file is written or replaced."""
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
    tokenizer: str | Vocabulary | Path | None = None,
    notes: Iterable[str] = (),
    needs: Iterable[str] = (),
) -> SourceCheckpoint:
    """A model whose tensors have our names and fit their configuration.

    Raises:
        CheckpointError: weights are infinite or undefined; names all such tensors.
    """
    from xltraining.architectures import architecture_of, model_class, shared_names
    from xltraining.checkpoint import build_model

    tied, is_drawn = shared_names(checkpoint.config), model_class(checkpoint.config).is_drawn
    own = {name: tensor for name, tensor in checkpoint.state_dict.items() if name not in tied}
    broken = [name for name, tensor in own.items() if not _is_finite(tensor)]
    if broken:
        raise CheckpointError(
            f"{path}: infinite or undefined weights in {listed(broken)}.",
            repair="Use a checkpoint of before it diverged.",
        )
    return SourceCheckpoint(
        architecture=architecture_of(checkpoint.config),
        format=format,
        config=checkpoint.config.to_dict(),
        tokenizer=tokenizer,
        files=digest_files(*files),
        build_model=functools.partial(build_model, checkpoint),
        notes=tuple(notes),
        parameters=sum(tensor.numel() for name, tensor in own.items() if not is_drawn(name)),
        needs=tuple(needs),
    )


def float_notes(tensors: Mapping[str, Any]) -> list[str]:
    """What to say of weights that are not float32."""
    kinds = float_kinds(tensors) - {"float32"}
    return [f"Weights are {', '.join(sorted(kinds))} in the file and become float32."] if kinds else []


def float_kinds(tensors: Mapping[str, Any]) -> set[str]:
    """Names of the kinds of floats that there are."""
    import torch

    found = {tensor.dtype for tensor in tensors.values() if isinstance(tensor, torch.Tensor)}
    return {str(kind).removeprefix("torch.") for kind in found if kind.is_floating_point}


def _is_finite(tensor: Tensor) -> bool:
    """By the extremes, which are not a number if any is not: one pass, many times as fast as isfinite."""
    return all(bool(extreme.isfinite()) for extreme in tensor.aminmax())
