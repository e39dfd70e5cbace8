"""Checkpoints: write them whole or not at all, and read them without running code.

A path that ends in `.pt` is one file: a plain dict of `format`, `version`, `architecture`, `config`, `tokenizer`,
`state_dict` and, if known, `about` the model (as in `Checkpoint`) and `training`, the state of a run. It is read by
`torch.load(path, weights_only=True)`. Any other path is a folder with `model.safetensors` and `config.json`; it holds
no training state, and stores tied tensors once.
Checkpoints of versions 1 and 2 do not name an architecture: theirs is the first, `architectures.FIRST`.
"""

import json
import math
import pickle
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from xltraining import atomic_output
from xltraining.architectures import FIRST, architecture_of, config_from, model_class, new_model, shared_names
from xltraining.config_fields import ModelConfig
from xltraining.data.tokenizer_file import TokenizerFile, tokenizer_from_plain, tokenizer_to_plain
from xltraining.errors import CheckpointWriteError, ConfigError, RunFileError, RunFileNotFoundError
from xltraining.language_model import LanguageModel
from xltraining.layers.swapping import ReleasingFile
from xltraining.messages import bounded, first_line, listed, shown

__all__ = ["Checkpoint", "build_model", "check_tensors", "checkpoint_from", "load_checkpoint", "save_checkpoint"]

FORMAT = "xltraining"
VERSION = 4
_VERSION_WITHOUT_FILE = 3  # enough for a checkpoint without a tokenizer's file, and older programs read it
WEIGHTS_NAME = "model.safetensors"
CONFIG_NAME = "config.json"
_STATEMENTS = {"licence": str, "data": str, "held_out_bits_per_token": float}
_ZIP_MAGIC = b"PK\x03\x04"
_HINT = "Copy or write it again."
_NAMES_OF_VERSION_1 = {
    "word_emb.weight": "word_emb.clusters.0.table",
    "head.weight": "head.clusters.0.weight",
    "head.bias": "head.clusters.0.bias",
}


@dataclass(frozen=True)
class Checkpoint:
    """A trained model: its configuration and every tensor of its state dict, in float32."""

    config: ModelConfig
    state_dict: dict[str, Tensor]
    tokenizer: str | TokenizerFile | None = "bytes"
    """`bytes`, the tokenizer with its file, or None if tokens do not represent text."""
    training: dict[str, Any] | None = None
    """Optimizer, random states and position of an unfinished run; None in a folder or a published file."""
    about: dict[str, Any] = field(default_factory=dict)
    """What is known of `licence`, `data` and `held_out_bits_per_token`."""


def build_model(checkpoint: Checkpoint) -> Any:
    """Make the model of a checkpoint, in float32 and evaluation mode. It uses the checkpoint's tensors, not copies.

    Its class is that of the configuration's architecture.
    """
    model = _empty_model(checkpoint.config, "the checkpoint")
    model.load_state_dict(checkpoint.state_dict, assign=True)
    model.tie()
    return model.eval()


def _empty_model(config: ModelConfig, where: str) -> LanguageModel:
    """Make the model of a configuration without numbers, which takes no memory."""
    try:
        with torch.device("meta"):
            return new_model(config)
    except RuntimeError as error:
        raise RunFileError(
            f"{where}: no model can be built from its configuration ({first_line(error)[:200]}).",
            hint="Use the configuration that the model was trained with.",
        ) from error


def save_checkpoint(
    path: Path | str,
    config: ModelConfig,
    state_dict: Mapping[str, Tensor],
    *,
    dtype: torch.dtype | None = None,
    training: dict[str, Any] | None = None,
    tokenizer: str | TokenizerFile | None = "bytes",
    about: Mapping[str, Any] | None = None,
    release: Callable[[], None] | None = None,
) -> None:
    """Write a checkpoint: one file if `path` ends in `.pt`, else a folder with safetensors.

    The new checkpoint is complete before it takes the place of an old one; an error leaves the old one as it was.

    Args:
        path: the file or folder to write; missing parent folders are made.
        config: the model's configuration.
        state_dict: every tensor of the model.
        dtype: type in which the weights are stored, for example `torch.float16`; None keeps theirs. Tensors that were
            drawn, not trained, always keep theirs.
        training: state for a resumed run; only a `.pt` file can hold it.
        tokenizer: `bytes`, a tokenizer with its file, or None if tokens do not represent text.
        about: as in `Checkpoint`.
        release: called again and again while a `.pt` file is written; it may release the memory of tensors.

    Raises:
        RunFileError: `training` was given for a folder, or the tensors do not fit the configuration.
        CheckpointWriteError: the disk is full, the place is not writable, or a folder there is not a checkpoint.
    """
    path = Path(path)
    check_tensors(path, config, state_dict)
    is_drawn = model_class(config).is_drawn
    tensors = {
        name: tensor.detach().to("cpu", None if is_drawn(name) else dtype) for name, tensor in state_dict.items()
    }
    content: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION if isinstance(tokenizer, TokenizerFile) else _VERSION_WITHOUT_FILE,
        "architecture": architecture_of(config),
        "config": config.to_dict(),
        "tokenizer": tokenizer_to_plain(tokenizer),
        **({"about": dict(about)} if about else {}),
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".pt":
            tied = shared_names(config)  # share storage again after a change of dtype, so that a file holds it once
            content["state_dict"] = {name: tensors[tied.get(name, name)] for name in tensors}
            if training is not None:
                content["training"] = training
            with atomic_output.file(path) as temporary:
                if release is None:
                    torch.save(content, temporary)
                else:
                    with temporary.open("wb") as file:
                        torch.save(content, cast(IO[bytes], ReleasingFile(file, release)))
        elif training is not None:
            raise RunFileError(
                f"{path}: only a .pt file can hold the state of a training run.", hint="End the path in .pt."
            )
        else:
            if path.exists() and not (path / CONFIG_NAME).is_file() and (not path.is_dir() or any(path.iterdir())):
                raise OSError(f"{path} exists and is not a checkpoint")
            with atomic_output.folder(path) as temporary:
                _fill_folder(temporary, config, content, tensors)
    except (OSError, RuntimeError, safetensors.SafetensorError) as error:  # the libraries' errors for a full disk
        raise CheckpointWriteError(
            f"{path}: the checkpoint could not be written ({first_line(error)}); nothing was replaced.",
            hint="Free some space, or choose another place.",
        ) from error


def _fill_folder(folder: Path, config: ModelConfig, content: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    tied = shared_names(config)
    stored = {name: tensor.contiguous() for name, tensor in tensors.items() if name not in tied}
    save_file(stored, folder / WEIGHTS_NAME)
    folder.joinpath(CONFIG_NAME).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def load_checkpoint(path: Path | str) -> Checkpoint:
    """Read a `.pt` file, or a safetensors folder by its own path or that of its weights.

    No code of the file is run. Half-precision weights become float32. The time and memory that PyTorch takes are not
    limited: read untrusted files with another reader, and pass their content to `checkpoint_from`.

    Raises:
        RunFileNotFoundError: `path` does not exist.
        RunFileError: it is damaged, of another kind, or its tensors do not fit its configuration (all are listed).
    """
    path = Path(path)
    if path.name == WEIGHTS_NAME and path.is_file():
        path = path.parent
    if not path.exists():
        raise RunFileNotFoundError(f"{path}: the checkpoint does not exist.", hint="Check the path.")
    return checkpoint_from(_read_folder(path) if path.is_dir() else _read_file(path), path)


def checkpoint_from(content: Mapping[str, Any], path: Path | str) -> Checkpoint:
    """Make a checkpoint from the content of a file.

    Args:
        content: the dict in a `.pt` file, or the object in a folder's `config.json`, with the weights as `state_dict`.
        path: the file or folder that was read, for messages.

    Raises:
        RunFileError: it is of another kind, or its tensors do not fit its configuration (all are listed).
    """
    path = Path(path)
    if not _is_text(content.get("format"), FORMAT) or not isinstance(content.get("config"), dict):
        keys = listed(sorted(map(str, content))[:6]) or "nothing"
        raise RunFileError(
            f"{path}: not a checkpoint of this format (expected format '{FORMAT}', found the keys {keys}).",
            hint="Give a checkpoint that `xlexport train` wrote.",
        )
    version = content.get("version")
    if type(version) is not int or version not in range(1, VERSION + 1):
        raise RunFileError(
            f"{path}: checkpoint version {shown(version)}, but this program reads versions 1 to {VERSION}.",
            hint="Use the version of xlexport that wrote it.",
        )
    try:
        config = config_from(content.get("architecture", FIRST), content["config"])
    except ConfigError as error:
        raise RunFileError(f"{path}: {error.message}", hint=error.hint) from error
    tensors = content.get("state_dict")
    if not isinstance(tensors, dict):
        raise RunFileError(f"{path}: the checkpoint holds no state_dict.", hint="Write it again.")
    tokenizer = tokenizer_from_plain(content.get("tokenizer", "bytes"), path)
    if version == 1:
        tensors = {_NAMES_OF_VERSION_1.get(name, name): tensor for name, tensor in tensors.items()}
    tensors = {
        **{name: tensors[source] for name, source in shared_names(config).items() if source in tensors},
        **tensors,
    }
    names = check_tensors(path, config, tensors)
    state_dict = {name: tensors[name].float() for name in names}
    return Checkpoint(
        config, state_dict, tokenizer, content.get("training"), _statements(path, content.get("about", {}))
    )


def _statements(path: Path, about: object) -> dict[str, Any]:
    """Return those of a checkpoint, each in one line; other names, as of a later version, are left out."""
    if not isinstance(about, dict):
        raise RunFileError(f"{path}: about is {shown(about)}, expected a dict.", hint="Write it again.")
    known = {name: about[name] for name in _STATEMENTS if name in about}
    for name, value in known.items():
        if type(value) is not _STATEMENTS[name] or (isinstance(value, float) and not 0 <= value < math.inf):
            wanted = "a text" if _STATEMENTS[name] is str else "a float, 0 or more"
            raise RunFileError(f"{path}: {name} is {shown(value)}, expected {wanted}.", hint="Write it again.")
    return {name: bounded(" ".join(value.split())) if type(value) is str else value for name, value in known.items()}


def _is_text(value: object, text: str) -> bool:
    """Return whether a value of a file is this text, also for tensors, whose `==` does not return a boolean."""
    return isinstance(value, str) and value == text


def _read_file(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            magic = file.read(len(_ZIP_MAGIC))
    except OSError as error:
        raise RunFileError(
            f"{path}: the file cannot be read ({error.strerror}).", hint="Check its permissions."
        ) from error
    if not magic:
        raise RunFileError(f"{path}: the file is empty.", hint="Copy or write the checkpoint again.")
    if magic != _ZIP_MAGIC:
        raise RunFileError(f"{path}: this is not a PyTorch checkpoint.", hint="Check the path.")
    try:
        with zipfile.ZipFile(path) as archive:
            changed = archive.testzip()  # PyTorch compares no checksums
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True) if changed is None else None
    except pickle.UnpicklingError as error:
        raise RunFileError(
            f"{path}: it holds other objects than plain values and tensors, and loading those could run code.",
            hint="Give a checkpoint that `xlexport train` wrote.",
        ) from error
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, IndexError, zipfile.BadZipFile, zlib.error) as error:
        raise RunFileError(f"{path}: the file is damaged or cut off.", hint=_HINT) from error
    if changed is not None:
        raise RunFileError(f"{path}: {changed[:60]!a} in it is damaged (wrong checksum).", hint=_HINT)
    if not isinstance(content, dict):
        raise RunFileError(
            f"{path}: expected a dict with the format '{FORMAT}', found {type(content).__name__}.",
            hint="Give a checkpoint that `xlexport train` wrote.",
        )
    return content


def _read_folder(path: Path) -> dict[str, Any]:
    missing = [name for name in (CONFIG_NAME, WEIGHTS_NAME) if not (path / name).is_file()]
    if missing:
        raise RunFileError(
            f"{path}: the folder holds no {' and no '.join(missing)}.", hint="Give a .pt file or a folder with both."
        )
    try:
        content = json.loads((path / CONFIG_NAME).read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunFileError(
            f"{path / CONFIG_NAME}: not valid JSON ({first_line(error)}).", hint="Write it again."
        ) from error
    if not isinstance(content, dict):
        raise RunFileError(f"{path / CONFIG_NAME}: expected an object, found {type(content).__name__}.")
    try:
        content["state_dict"] = load_file(path / WEIGHTS_NAME)
    except safetensors.SafetensorError as error:
        raise RunFileError(f"{path / WEIGHTS_NAME}: damaged ({first_line(error)}).", hint="Copy it again.") from error
    return content


def check_tensors(where: Path | str, config: ModelConfig, tensors: Mapping[str, Any]) -> list[str]:
    """Return the names in the model's order.

    Raises:
        RunFileError: the tensors do not fit the configuration. The message begins with `where`, and lists all
            differences.
    """
    expected = {name: tuple(tensor.shape) for name, tensor in _empty_model(config, str(where)).state_dict().items()}
    problems = [f"{name} is missing" for name in expected if name not in tensors]
    problems += [f"{name} is unknown" for name in tensors if name not in expected]
    for name, shape in expected.items():
        tensor = tensors.get(name)
        if tensor is None:
            continue
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            problems.append(f"{name} is not a tensor of floats")
        elif tuple(tensor.shape) != shape:
            problems.append(f"{name} is {tuple(tensor.shape)} in the file, {shape} by the configuration")
    if not problems:
        problems = [
            f"{name} differs from {source}, to which the configuration ties it"
            for name, source in shared_names(config).items()
            if not torch.equal(tensors[name].float(), tensors[source].float())
        ]
    if problems:
        raise RunFileError(
            f"{where}: the weights do not fit the configuration: {listed(problems, '; ')}.",
            hint="Use the configuration that the model was trained with.",
        )
    return list(expected)
