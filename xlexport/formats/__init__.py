"""Read checkpoints, with one module for each format. The content of a file decides its format, not the name.

A format is a module with `NAME`, `matches(path) -> bool` and `load(path, config) -> SourceCheckpoint`. Checkpoints are
untrusted: no reader runs code from a file, and none falls back to a reader that would.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from xlexport.checkpoints.files import CONFIG, WEIGHTS, read_json, refuse_adapter, safetensors_names
from xlexport.checkpoints.safe_pickle import read, summarize
from xlexport.checkpoints.source import SourceCheckpoint
from xlexport.errors import CheckpointError, CheckpointNotFoundError
from xlexport.families.recurrent import rwkv
from xlexport.families.reformer import reformer_pytorch, trax
from xlexport.families.transformer_xl import kimiyoung, nvidia, state_dict, tensorflow
from xlexport.formats import huggingface, xltraining
from xlruntime.bundle import FileDigest
from xlruntime.bundle_files import is_bundle
from xlruntime.messages import listed

__all__ = ["FORMATS", "CheckpointFormat", "format_names", "load"]

KNOWN = "Give a checkpoint of a known format: docs/checkpoints.md lists them. docs/own_models.md converts other models."
OTHERS = {  # of other libraries, by their first bytes or the ending of their name
    b"\x89HDF": "an HDF5 file, such as Keras writes",
    b"GGUF": "a GGUF file of llama.cpp",
    b"fmgg": "a ggml file, such as rwkv.cpp reads",
    ".onnx": "an ONNX graph",
    ".npz": "arrays of NumPy",
    ".npy": "an array of NumPy",
    ".keras": "a Keras model",
    ".h5": "an HDF5 file, such as Keras writes",
    ".tflite": "a LiteRT model",
    ".msgpack": "weights of Flax",
}
OWN_CODE = (
    "Write the model as a module that reads the weights: docs/own_models.md says how, docs/own_models.md which orders "
    "of gates libraries have."
)
VOCABULARIES = ("Vocab", "Corpus", "LMCorpus")  # classes in the authors' cache.pt


class CheckpointFormat(Protocol):
    """The names that each module of a format defines."""

    NAME: str

    def matches(self, path: Path) -> bool:
        """Return whether `path` (a folder, or a file that is not empty) has this format."""

    def load(self, path: Path, config: Mapping[str, Any] | None = None) -> SourceCheckpoint:
        """Read the checkpoint, running no code of it.

        Args:
            config: settings from the user: values that the files lack, or that replace the files' values.

        Raises:
            CheckpointError: it is damaged or of an unsupported kind, its tensors do not fit its configuration, or
                `config` lacks or contradicts something. The message lists all problems.
            MissingDependencyError: a package that the format needs is not installed.
        """


FORMATS: tuple[CheckpointFormat, ...] = (
    tensorflow,
    xltraining,
    kimiyoung,
    nvidia,
    huggingface,
    reformer_pytorch,
    trax,
    rwkv,
    state_dict,
)
"""A path has the first format that matches it: the last one matches any tensors with the right names."""


def format_names() -> list[str]:
    """Return the names that `load` accepts as `format`."""
    return [module.NAME for module in FORMATS]


def load(path: Path | str, format: str | None = None, config: Mapping[str, Any] | None = None) -> SourceCheckpoint:
    """Read a checkpoint.

    Args:
        path: a file or a folder; for a TensorFlow checkpoint also the common beginning of its files' names.
        format: one of `format_names()`; None detects the format from the content.
        config: hyper-parameters that the checkpoint does not hold, under the field's names.

    Raises:
        CheckpointNotFoundError: `path` does not exist, or is a folder without a checkpoint.
        CheckpointError: it is damaged, could run code, or is of an unknown kind.
        MissingDependencyError: a package that its format needs is not installed.
    """
    path = Path(path)
    if format is not None and format not in format_names():
        raise CheckpointError(f"format {format!r} is unknown.", hint=f"Use one of: {', '.join(format_names())}.")
    try:
        _check_something_there(path)
        for module in FORMATS:
            if format == module.NAME or (format is None and module.matches(path)):
                source = module.load(path, config)
                options = {name: value for name, value in (("format", format), ("config", config)) if value}
                build = functools.partial(_build, module, path, config, source.files)
                return replace(source, build_model=build, options=options)
        raise _unknown(path)
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}).", hint="Check its permissions.") from error


def _build(
    module: CheckpointFormat, path: Path, config: Mapping[str, Any] | None, files: Mapping[Path, FileDigest]
) -> Any:
    """Read the files again and make the model: a source that held the tensors would double the memory."""
    source = module.load(path, config)
    if source.files != files:
        raise CheckpointError(
            f"{path}: has changed since it was read.",
            hint="Run the command again when no program writes to the checkpoint.",
        )
    return source.build_model()


def _check_something_there(path: Path) -> None:
    if not path.exists() and not tensorflow.matches(path):
        raise CheckpointNotFoundError(f"{path}: no such file or folder.", hint="Check the path.")
    if path.is_dir() or not path.exists():
        return
    if not path.is_file():
        raise CheckpointError(f"{path}: neither a file nor a folder.", hint=KNOWN)
    if path.stat().st_size == 0:
        raise CheckpointError(f"{path}: the file is empty.", hint="Copy or save the checkpoint again.")


def _unknown(path: Path) -> CheckpointError:
    """Say what was found instead of a known format."""
    if path.is_dir():
        return _unknown_folder(path)
    is_weights = path.name in WEIGHTS and (path.parent / CONFIG).is_file()
    if path.suffix == ".safetensors" and not is_weights and (names := safetensors_names(path)):
        return _foreign(path, sorted(names))
    if is_weights or path.suffix == ".safetensors" or path.name == CONFIG:
        return CheckpointError(
            f"{path}: one file of a checkpoint.", hint=f"Give the folder that it is in: {path.parent}."
        )
    return _unknown_pickle(path)


def _unknown_pickle(path: Path) -> CheckpointError:
    with path.open("rb") as file:
        first = file.read(4)
    if other := OTHERS.get(first, OTHERS.get(path.suffix.lower())):
        hint = "Give the checkpoint that it was exported from." if "ONNX" in other else OWN_CODE
        return CheckpointError(f"{path}: {other}, not a PyTorch checkpoint.", hint=hint)
    summary = summarize(path)
    if summary is None or not (summary.strings or summary.globals):
        return CheckpointError(f"{path}: not a PyTorch checkpoint.", hint=KNOWN)
    if any(name.rpartition(".")[2] in VOCABULARIES for name in summary.globals):
        return CheckpointError(
            f"{path}: a vocabulary.", hint="Give it with --tokenizer, and the checkpoint that belongs to it."
        )
    if summary.foreign_globals:
        names = listed(map(repr, summary.foreign_globals))
        return CheckpointError(
            f"{path}: holds Python objects that could run code ({names}); nothing was run.",
            hint=f"Save plain tensors instead. {KNOWN}",
        )
    return _foreign(path, _tensor_names(path))


def _foreign(path: Path, tensors: Sequence[str]) -> CheckpointError:
    """Return the error for a file of another model; it names its first tensors."""
    contents = f" (tensors: {listed(tensors)})" if tensors else ""
    return CheckpointError(f"{path}: no weights of a known model in it{contents}.", hint=KNOWN)


def _tensor_names(path: Path) -> list[str]:
    """Return the names of the tensors in a file of `torch.save`; none if it cannot be read."""
    try:
        import torch

        content = read(path)
    except (CheckpointError, ImportError):
        return []
    tensors: list[str] = []

    def collect(value: Any, name: str) -> None:
        if isinstance(value, torch.Tensor):
            tensors.append(name)
        elif isinstance(value, Mapping):
            for key, inner in value.items():
                collect(inner, f"{name}.{key}" if name else str(key))

    collect(content, "")
    return [name for name in tensors if name]


def _unknown_folder(path: Path) -> CheckpointError:
    refuse_adapter(path)
    if is_bundle(path):
        return CheckpointError(
            f"{path}: already a bundle.",
            hint="Use it with `xlexport score`, or give the checkpoint that it was converted from.",
        )
    if any(path.glob("*.onnx")):
        return CheckpointNotFoundError(
            f"{path}: no bundle.json in it, so not a bundle, and no checkpoint.",
            hint="Make one with `xlexport convert CHECKPOINT`.",
        )
    inside = sorted(file.name for file in path.glob("*.pt"))
    if len(inside) > 1:
        return CheckpointNotFoundError(f"{path}: a folder.", hint=f"Give one of the files in it: {listed(inside)}.")
    if inside:
        return CheckpointNotFoundError(f"{path}: a folder.", hint=f"Give the file in it: {path / inside[0]}.")
    says = ""
    if (path / CONFIG).is_file():
        kind = read_json(path / CONFIG).get("model_type")
        says = f" of a known model (its config.json says {ascii(kind)[:40]})" if kind is not None else ""
    return CheckpointNotFoundError(f"{path}: a folder without a checkpoint{says}.", hint=KNOWN)
